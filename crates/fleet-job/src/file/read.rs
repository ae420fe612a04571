//! Reads a job file against the schema, and collects every problem.

use super::tree::{Data, Entry, Node, parse};
use crate::origin::check_local;
use crate::schema::{JOB, Kind, Table, VERSION};
use fleet_base::{Result, input, text};
use fleet_config::{Place, Problem};
use std::path::{Path, PathBuf};

/// Job files are written by hand; a larger file is something else.
const BYTES_MAX: u64 = 1 << 20;

/// The content of a job file: its tree, and the problems found so far.
pub struct Text {
    /// The file, for problems.
    pub file: PathBuf,
    /// The root table. Values that do not fit the schema are left out.
    pub root: Vec<Entry>,
    /// Problems of syntax, names, types and limits.
    pub problems: Vec<Problem>,
}

/// Reads a job file. Fails only if the file cannot be read; what is wrong in it is a problem.
pub fn read(path: &Path) -> Result<(Text, String)> {
    check_local("a job file", path)?;
    let bytes = input::read(path, "a job file", BYTES_MAX)?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok((read_text(path, &text), text)),
        Err(error) => {
            let valid = error.utf8_error().valid_up_to();
            let line = 1 + error.as_bytes()[..valid].iter().filter(|byte| **byte == b'\n').count();
            let place = Place { line: line as u32, column: 1 };
            let problem = Problem::error("", "the line is not UTF-8")
                .at(place)
                .help("save the file with the encoding UTF-8");
            let text = Text { file: path.to_path_buf(), root: Vec::new(), problems: vec![problem] };
            Ok((placed(text), String::new()))
        }
    }
}

/// Reads the text of a job file.
pub fn read_text(path: &Path, text: &str) -> Text {
    let (mut root, mut problems) = parse(text.strip_prefix('\u{feff}').unwrap_or(text));
    // After an error of syntax, missing and unknown fields may be consequences of it.
    if problems.is_empty() {
        match newer_version(&root) {
            Some(problem) => {
                problems.push(problem);
                root.clear();
            }
            None => fit_table("", &mut root, &JOB, None, &mut problems),
        }
    }
    placed(Text { file: path.to_path_buf(), root, problems })
}

/// Names the file in all problems, in the order of their places.
fn placed(mut text: Text) -> Text {
    for problem in &mut text.problems {
        problem.file = Some(text.file.clone());
    }
    text.problems.sort_by_key(|problem| problem.place);
    text
}

/// A file of a newer version has fields that this build does not know: one problem, not many.
fn newer_version(root: &[Entry]) -> Option<Problem> {
    let entry = root.iter().find(|entry| entry.key == "version")?;
    let Data::Int(found) = entry.node.data else { return None };
    (found > VERSION).then(|| {
        Problem::error(
            "version",
            format!("the job file has a newer version: expected {VERSION}, got {found}"),
        )
        .at(entry.node.at)
        .help("use a newer build of Fleet, or write `version = 1` if the file uses no newer fields")
    })
}

/// Checks the fields of a table, and removes those that do not fit.
fn fit_table(
    path: &str,
    entries: &mut Vec<Entry>,
    table: &'static Table,
    at: Option<Place>,
    problems: &mut Vec<Problem>,
) {
    for field in table.fields.iter().filter(|field| field.is_required) {
        if !entries.iter().any(|entry| entry.key == field.name) {
            let problem = Problem::error(join(path, field.name), "the field is required")
                .help(format!("add `{}`: {}", field.name, field.about));
            problems.push(match at {
                Some(at) => problem.at(at),
                None => problem,
            });
        }
    }
    entries.retain_mut(|entry| {
        let path = join(path, &entry.key);
        match table.field(&entry.key) {
            Some(field) => fit(&path, &mut entry.node, &field.kind, problems),
            None => {
                problems.push(unknown(&path, entry, table));
                false
            }
        }
    });
}

fn unknown(path: &str, entry: &Entry, table: &Table) -> Problem {
    let near = text::did_you_mean(&entry.key, table.names());
    let known: Vec<&str> = table.names().collect();
    Problem::error(path, format!("unknown field{near}"))
        .at(entry.at)
        .help(format!("the fields here are {}", known.join(", ")))
}

/// Returns what is wrong with a value for a field of this kind.
pub fn problems_of_value(path: &str, node: &Node, kind: &Kind) -> Vec<Problem> {
    let mut problems = Vec::new();
    fit(path, &mut node.clone(), kind, &mut problems);
    problems
}

/// Checks a value; returns whether it fits.
fn fit(path: &str, node: &mut Node, kind: &Kind, problems: &mut Vec<Problem>) -> bool {
    let at = node.at;
    match (kind, &mut node.data) {
        (Kind::Table(table), Data::Table(entries)) => {
            fit_table(path, entries, table, Some(at), problems);
            true
        }
        (Kind::Map(kind), Data::Table(entries)) => {
            entries
                .retain_mut(|entry| fit(&join(path, &entry.key), &mut entry.node, kind, problems));
            true
        }
        (Kind::List(kind, least), Data::List(items)) => {
            if items.len() < *least {
                problems.push(wrong(path, at, &format!("a list of {least} or more"), &node.data));
                return false;
            }
            let mut fits = true;
            for (index, item) in items.iter_mut().enumerate() {
                fits &= fit(&format!("{path}[{index}]"), item, kind, problems);
            }
            fits
        }
        (Kind::Either(kinds), data) => {
            // The first kind of the same form reports what is wrong inside.
            match kinds.iter().find(|kind| has_form(kind, data)) {
                Some(kind) => fit(path, node, kind, problems),
                None => {
                    problems.push(wrong(path, at, &kind_of(kinds), &node.data));
                    false
                }
            }
        }
        (kind, data) if fits(kind, data) => true,
        (Kind::Choice(choices), Data::Text(text)) => {
            let near = text::did_you_mean(text, choices.iter().map(|(name, _)| *name));
            let message = format!("expected {}, got '{text}'{near}", kind.expected());
            problems.push(Problem::error(path, message).at(at));
            false
        }
        (kind, data) => {
            problems.push(wrong(path, at, &kind.expected(), data));
            false
        }
    }
}

fn kind_of(kinds: &[Kind]) -> String {
    kinds.iter().map(Kind::expected).collect::<Vec<_>>().join(", or ")
}

fn wrong(path: &str, at: Place, expected: &str, data: &Data) -> Problem {
    Problem::error(path, format!("expected {expected}, got {}", data.got())).at(at)
}

/// Returns whether a value has the form of a kind, whatever its content.
fn has_form(kind: &Kind, data: &Data) -> bool {
    match (kind, data) {
        (Kind::Choice(_), Data::Text(_)) => true,
        (Kind::List(..), Data::List(_)) => true,
        (Kind::Table(_) | Kind::Map(_), Data::Table(_)) => true,
        (Kind::Int(..), Data::Int(_)) => true,
        (Kind::Number(..), Data::Int(_) | Data::Number(_)) => true,
        (kind, data) => fits(kind, data),
    }
}

/// Returns whether a single value fits.
fn fits(kind: &Kind, data: &Data) -> bool {
    match (kind, data) {
        (Kind::Text, Data::Text(_)) | (Kind::Bool, Data::Bool(_)) | (Kind::Any, _) => true,
        (Kind::Int(min, max), Data::Int(value)) => (min..=max).contains(&value),
        (Kind::Number(min, max), Data::Int(value)) => (*min..=*max).contains(&(*value as f64)),
        (Kind::Number(min, max), Data::Number(value)) => (*min..=*max).contains(value),
        (Kind::Choice(choices), Data::Text(text)) => choices.iter().any(|(name, _)| name == text),
        _ => false,
    }
}

fn join(path: &str, key: &str) -> String {
    match path {
        "" => key.to_string(),
        path => format!("{path}.{key}"),
    }
}
