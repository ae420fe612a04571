//! The tables of the guide are generated from the schema (`FLEET_BLESS=1` writes them).

use crate::schema::{default, shapes};
use fleet_config::{
    DOCUMENTED_DEFAULTS, DistributedStrategy, DocumentedDefault, Field, JobKind, Kind, Shape,
};

const GUIDE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/strategies.md");
const MARK: &str = "<!-- fields: made from the schema, checked by a test -->\n";

fn table(shape: &Shape) -> String {
    let about = wrapped(&(joined(shape.doc) + &inherited(shape)));
    let mut text = format!("\n### {}\n\n{about}\n\n", shape.name);
    text += "| field | type | default | what it does |\n| --- | --- | --- | --- |\n";
    for field in shape.fields {
        let list = if field.repeated { "list of " } else { "" };
        let kind = match field.kind {
            Kind::Message(_) => format!("{list}{}", field.kind.name()),
            _ => format!("{list}`{}`", field.kind.name()),
        };
        let default = match (field.repeated, default(field)) {
            (false, text) if !text.is_empty() => format!("`{text}`"),
            _ => String::new(),
        };
        let doc = joined(field.doc) + &mark(field);
        text += &format!("| `{}` | {kind} | {default} | {doc} |\n", field.name);
    }
    text
}

/// Wraps a text to lines of up to 100 columns.
fn wrapped(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + 1 + word.chars().count() <= 100 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines.join("\n")
}

/// Returns the text for a field's mark.
fn mark(field: &Field) -> String {
    match (field.refused, field.ignored, field.only) {
        (Some(why), ..) => format!(" **Not supported: {why}.**"),
        (None, Some(why), _) => format!(" **No effect: {why}.**"),
        (None, None, Some((JobKind::Collective, why))) => {
            format!(" **No effect with parameter servers: {why}.**")
        }
        (None, None, Some((JobKind::Servers, why))) => {
            format!(" **No effect in collective jobs: {why}.**")
        }
        (None, None, None) => String::new(),
    }
}

/// Returns the mark of the field that holds a message, if only one field does.
fn inherited(shape: &Shape) -> String {
    let all = shapes();
    let holders = all.values().flat_map(|holder| holder.fields.iter());
    let uses: Vec<&Field> = holders
        .filter(|field| matches!(field.kind, Kind::Message(inner) if inner().name == shape.name))
        .filter(|field| field.name != "strategy")
        .collect();
    match uses[..] {
        [only] => mark(only).replace("**Not supported:", "**Not supported, like its switch:"),
        _ => String::new(),
    }
}

fn joined(doc: &[&str]) -> String {
    doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Returns the table of defaults that differ between documents and Fleet.
fn defaults() -> String {
    let mut text = "\n| field | documents | Fleet | why |\n| --- | --- | --- | --- |\n".to_string();
    for row in &DOCUMENTED_DEFAULTS {
        let DocumentedDefault { message, field, documents, fleet, why } = row;
        let shape = shapes()[message];
        let known = shape.field(field).expect(field);
        let known = if known.repeated { String::new() } else { default(known) };
        assert_eq!(*fleet, known, "{message}.{field}");
        let fleet = if fleet.is_empty() { String::new() } else { format!("`{fleet}`") };
        text += &format!("| `{message}.{field}` | {documents} | {fleet} | {why} |\n");
    }
    text + "\n"
}

/// Returns the guide with the table of defaults as it should be.
fn with_defaults(guide: &str) -> String {
    const START: &str = "<!-- defaults: made from the code, checked by a test -->\n";
    const END: &str = "<!-- end of defaults -->\n";
    let (before, rest) = guide.split_once(START).expect("the mark in the guide");
    let (_, after) = rest.split_once(END).expect("the end of the table");
    format!("{before}{START}{}{END}{after}", defaults())
}

#[test]
fn the_guide_is_the_schema() {
    let guide = std::fs::read_to_string(GUIDE).expect("the guide");
    let with_defaults = with_defaults(&guide);
    let (before, _) = with_defaults.split_once(MARK).expect("the mark in the guide");
    let mut expected = format!("{before}{MARK}{}", table(DistributedStrategy::describe()));
    let others = shapes();
    let others = others.values().filter(|shape| !shape.name.starts_with("Distributed"));
    others.for_each(|shape| expected += &table(shape));
    expected += "\n## Aliases\n\n| message | name | stands for |\n| --- | --- | --- |\n";
    for (message, name, path) in fleet_config::other_names() {
        expected += &format!("| {message} | `{name}` | `{path}` |\n");
    }
    expected += "\nFields of `BuildStrategy` and `ExecutionStrategy` are also accepted directly on \
                 the strategy.\nNames of the 1.x interface are mapped with a notice.\n";
    if std::env::var_os("FLEET_BLESS").is_some() {
        std::fs::write(GUIDE, expected).expect("the guide can be written");
        return;
    }
    assert!(guide == expected, "docs/strategies.md is not what the schema says: FLEET_BLESS=1");
}
