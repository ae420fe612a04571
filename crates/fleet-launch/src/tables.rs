//! Tables in the format of the documentation.

use fleet_topology::names;

/// Returns the table of arguments.
pub fn arguments(rows: &[(String, String)]) -> String {
    let mut text = String::from("-----------  Configuration Arguments -----------\n");
    for (name, value) in rows {
        text += &format!("{name}: {value}\n");
    }
    text + "------------------------------------------------\n"
}

/// Returns the given arguments in one line.
///
/// ```
/// let rows = [("gpus", "0,1"), ("training_script", "train.py")];
/// let rows = rows.map(|(name, value)| (name.to_string(), value.to_string()));
/// let line = fleet_launch::tables::written_arguments(&rows);
/// assert_eq!(line, "Configuration Arguments: gpus: 0,1; training_script: train.py");
/// ```
pub fn written_arguments(rows: &[(String, String)]) -> String {
    let rows: Vec<String> = rows.iter().map(|(name, value)| format!("{name}: {value}")).collect();
    format!("Configuration Arguments: {}", rows.join("; "))
}

/// Returns the table of variables. Values of secrets are masked. Without a header it gets the
/// original's default one.
///
/// ```
/// let table = fleet_launch::tables::environment(&[("FLEET_TOKEN", "0123456789abcdef")], None);
/// assert!(table.contains("FLEET_TOKEN") && !table.contains("0123456789abcdef"));
/// ```
pub fn environment(rows: &[(&str, &str)], header: Option<(&str, &str)>) -> String {
    let header = header.unwrap_or(("fleetrun Distributed Envs", "Value"));
    let widest = rows.iter().map(|(name, _)| width(name)).max().unwrap_or(0);
    table(rows, header, (widest.max(KEY_WIDTH_MIN), VALUE_WIDTH))
}

/// As [`environment`], with columns as narrow as their texts.
pub fn compact(rows: &[(&str, &str)], header: (&str, &str)) -> String {
    let rows: Vec<(&str, &str)> = rows.iter().map(|(k, v)| (*k, names::shown(k, v))).collect();
    let all = || rows.iter().copied().chain([header]);
    let keys = all().map(|(key, _)| width(key)).max().unwrap_or(0);
    let values = all().map(|(_, value)| width(value)).max().unwrap_or(0);
    // A column between the borders and the text, as the wide table has.
    table(&rows, header, (keys + 1, values.min(VALUE_WIDTH) + 1))
}

fn table(
    rows: &[(&str, &str)],
    (key, value): (&str, &str),
    (key_width, value_width): (usize, usize),
) -> String {
    let line = |key: &str, value: &str| {
        format!("    |{key:>key_width$}{:GAP$}{value:^value_width$}|\n", "")
    };
    let rule = |c: &str| format!("    +{}+\n", c.repeat(key_width + GAP + value_width));
    let mut text = rule("=") + &line(key, value) + &rule("-");
    for (name, value) in rows {
        text += &line(name, &cut(names::shown(name, value)));
    }
    text + &rule("=")
}

fn width(text: &str) -> usize {
    text.chars().count()
}

/// Shortens a long value to its end, where lists differ.
fn cut(value: &str) -> String {
    let length = width(value);
    if length <= VALUE_WIDTH {
        return value.to_string();
    }
    let end: String = value.chars().skip(length - (VALUE_WIDTH - 4)).collect();
    format!("... {end}")
}

/// Header of the table that a launch prints.
pub const HEADER: (&str, &str) = ("Distributed Envs", "Value");

/// Variables of a collective worker that the documented launches print.
pub const COLLECTIVE: &[&str] = &[
    names::PADDLE_TRAINER_ID,
    names::PADDLE_CURRENT_ENDPOINT,
    names::PADDLE_TRAINERS_NUM,
    names::PADDLE_TRAINER_ENDPOINTS,
    names::FLAGS_SELECTED_GPUS,
];

/// Variables of a process of a job with servers that place it in the job.
pub const SERVERS: &[&str] = &[
    names::PADDLE_PSERVERS_IP_PORT_LIST,
    names::PADDLE_TRAINER_ENDPOINTS,
    names::PADDLE_TRAINERS_NUM,
    names::TRAINING_ROLE,
    names::PADDLE_TRAINER_ID,
    names::PADDLE_PORT,
];

const KEY_WIDTH_MIN: usize = 40;
const VALUE_WIDTH: usize = 45;
const GAP: usize = 2;
