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

/// Returns the table of variables. Values of secrets are masked. Without a header it gets the
/// original's default one.
///
/// ```
/// let table = fleet_launch::tables::environment(&[("FLEET_TOKEN", "0123456789abcdef")], None);
/// assert!(table.contains("FLEET_TOKEN") && !table.contains("0123456789abcdef"));
/// ```
pub fn environment(rows: &[(&str, &str)], header: Option<(&str, &str)>) -> String {
    let widest = rows.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    let key_width = widest.max(KEY_WIDTH_MIN);
    let line = |key: &str, value: &str| {
        format!("    |{key:>key_width$}{:GAP$}{value:^VALUE_WIDTH$}|\n", "")
    };
    let rule = |c: &str| format!("    +{}+\n", c.repeat(key_width + GAP + VALUE_WIDTH));
    let (key, value) = header.unwrap_or(("fleetrun Distributed Envs", "Value"));
    let mut text = rule("=") + &line(key, value) + &rule("-");
    for (name, value) in rows {
        text += &line(name, &cut(names::shown(name, value)));
    }
    text + &rule("=")
}

/// Shortens a long value to its end, where lists differ.
fn cut(value: &str) -> String {
    let length = value.chars().count();
    if length <= VALUE_WIDTH {
        return value.to_string();
    }
    let end: String = value.chars().skip(length - (VALUE_WIDTH - 4)).collect();
    format!("... {end}")
}

const KEY_WIDTH_MIN: usize = 40;
const VALUE_WIDTH: usize = 45;
const GAP: usize = 2;
