//! The fields of a job file as tables of the documentation.

use super::{Field, JOB, Kind, Table};
use std::fmt::Write;

/// Returns a Markdown table for each table of the job file.
pub fn markdown() -> String {
    let mut out = String::new();
    table("", &JOB, &mut out);
    out
}

fn table(path: &str, of: &Table, out: &mut String) {
    let title = if path.is_empty() { "The file".to_string() } else { format!("`{path}`") };
    let _ =
        writeln!(out, "### {title}\n\n| field | value | default | |\n| --- | --- | --- | --- |");
    for field in of.fields {
        let default = match field.default {
            "" if field.is_required => "required".to_string(),
            "" => String::new(),
            default => format!("`{default}`"),
        };
        let (name, about) = (field.name, field.about.replace('|', "\\|"));
        let _ = writeln!(
            out,
            "| `{name}` | {} | {} | {about} |",
            value(&field.kind),
            default.replace('|', "\\|")
        );
    }
    out.push('\n');
    for field in of.fields {
        choices(field, out);
    }
    for field in of.fields {
        for (suffix, nested) in nested(&field.kind) {
            let dot = if path.is_empty() { "" } else { "." };
            table(&format!("{path}{dot}{}{suffix}", field.name), nested, out);
        }
    }
}

/// Describes a value; words with a meaning follow below the table.
fn value(kind: &Kind) -> String {
    match kind {
        Kind::Choice(choices) => {
            let names: Vec<String> = choices.iter().map(|(name, _)| format!("`{name}`")).collect();
            names.join(", ")
        }
        Kind::Either(kinds) => kinds.iter().map(value).collect::<Vec<_>>().join(", or "),
        Kind::Map(_) => "a table for each name".to_string(),
        Kind::List(item, _) => format!("list of {}", value(item)),
        kind => kind.expected(),
    }
}

fn choices(field: &Field, out: &mut String) {
    let Kind::Choice(choices) = &field.kind else { return };
    let _ = writeln!(out, "`{}`:\n", field.name);
    for (name, about) in *choices {
        let _ = writeln!(out, "* `{name}`: {about}");
    }
    out.push('\n');
}

/// Returns the tables in a value, with the part of the path that follows the field's name.
fn nested(kind: &Kind) -> Vec<(&'static str, &'static Table)> {
    match kind {
        Kind::Table(table) => vec![("", *table)],
        Kind::Map(value) => nested(value).into_iter().map(|(_, table)| (".NAME", table)).collect(),
        Kind::Either(kinds) => kinds.iter().flat_map(nested).collect(),
        _ => Vec::new(),
    }
}
