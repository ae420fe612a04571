//! Jobs as text: one fact a line, indented like the derived `Debug`. Workers and servers compare
//! it, and servers keep it beside their logs: renaming a field of a config makes these unreadable.

use crate::JobTables;
use fleet_base::{Error, Result};

/// Changes whenever workers of one version cannot talk to servers of another.
const MESSAGES_VERSION: &str = "messages of version 7";

/// The first fact in which two jobs differ.
#[derive(Debug, PartialEq, Eq)]
struct Difference<'a> {
    /// The table and the fields that enclose the fact; empty for facts of the whole job.
    place: String,
    expected: &'a str,
    got: &'a str,
}

/// Indentation of a job's fields, and of its tables, in columns.
const FIELD_COLUMNS: usize = 4;
const TABLE_COLUMNS: usize = 8;
const END: &str = "end of the description";

/// Returns a job as text.
pub(crate) fn text(job: &JobTables) -> String {
    format!("{MESSAGES_VERSION}\n{job:#?}")
}

/// Returns the first difference between two texts, if any.
fn difference<'a>(expected: &'a str, got: &'a str) -> Option<Difference<'a>> {
    let ours: Vec<&str> = expected.lines().collect();
    let theirs: Vec<&str> = got.lines().collect();
    let at = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at))?;
    // One of the texts may have ended: the place is taken from the longer one.
    let longer = if at < ours.len() { &ours } else { &theirs };
    let fact = |lines: &[&'a str]| lines.get(at).map_or(END, |line| fact(line));
    Some(Difference { place: place(longer, at), expected: fact(&ours), got: fact(&theirs) })
}

/// Rejects a text that differs from the expected one, and names the first difference.
pub(crate) fn check(expected: &str, got: &str, message: &str) -> Result<()> {
    let Some(difference) = difference(expected, got) else { return Ok(()) };
    let error = Error::invalid(message).expected(difference.expected).got(difference.got);
    Err(match difference.place.is_empty() {
        true => error,
        false => error.at(difference.place),
    })
}

/// Returns a line without its indentation and punctuation.
fn fact(line: &str) -> &str {
    match line.trim().trim_end_matches([',', '(', '{', '[', ' ', ':']) {
        text if text.is_empty() || text.starts_with([']', '}', ')']) => END,
        text => text,
    }
}

fn columns(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Returns the context of a line: `table 3`, `table 3, rule`.
fn place(lines: &[&str], at: usize) -> String {
    let mut names = Vec::new();
    let mut inner = columns(lines[at]) + usize::from(columns(lines[at]) == TABLE_COLUMNS);
    for line in (0..=at).rev() {
        let indented = columns(lines[line]);
        if indented >= inner || indented <= FIELD_COLUMNS {
            continue;
        }
        inner = indented;
        if indented == TABLE_COLUMNS {
            let id = lines[line..].iter().find_map(|it| it.trim().strip_prefix("table_id: "));
            let id = id.map_or("", |id| id.trim_end_matches(','));
            names.push(format!("table {id}"));
            break;
        }
        if let Some((name, _)) = lines[line].trim().split_once(": ") {
            names.push(name.to_string());
        }
    }
    names.reverse();
    names.join(", ")
}

/// Returns the number of servers that a text states.
pub(crate) fn server_count(text: &str) -> Option<usize> {
    let line = text.lines().find_map(|line| line.trim().strip_prefix("server_count: "))?;
    line.trim_end_matches(',').parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::TableConfig;
    use crate::client::tests::job;

    #[test]
    fn differences_name_the_table_and_the_field() {
        let ours = job(1, 2, false);
        assert_eq!(server_count(&text(&ours)), Some(1));
        let check = |change: &dyn Fn(&mut JobTables), place: &str, [expected, got]: [&str; 2]| {
            let mut theirs = ours.clone();
            change(&mut theirs);
            let (ours, theirs) = (text(&ours), text(&theirs));
            let found = difference(&ours, &theirs).unwrap();
            assert_eq!((&found.place[..], found.expected, found.got), (place, expected, got));
        };
        assert_eq!(difference(&text(&ours), &text(&ours)), None);
        check(&|job| job.sync = true, "", ["sync: false", "sync: true"]);
        let first = ours.tables[0].table_id();
        let of = |id| format!("table {id}");
        check(&|job| job.tables.swap(0, 1), &of(first), ["Sparse", "Dense"]);
        let len = |job: &mut JobTables| {
            job.tables.iter_mut().for_each(|table| {
                if let TableConfig::Dense { len, .. } = table {
                    *len = 7;
                }
            })
        };
        let dense = ours.tables.iter().find(|table| table.kind() == "dense").unwrap().table_id();
        check(&len, &of(dense), ["len: 5", "len: 7"]);
        let seed = |job: &mut JobTables| {
            if let TableConfig::Sparse(config) = &mut job.tables[0] {
                config.entry = crate::Entry::CountFilter(3);
            }
        };
        let place = format!("table {first}");
        let mut theirs = ours.clone();
        seed(&mut theirs);
        let (ours, theirs) = (text(&ours), text(&theirs));
        assert!(difference(&ours, &theirs).unwrap().place.starts_with(&place));
        assert_eq!(
            difference("a\nb", "a").unwrap(),
            Difference { place: String::new(), expected: "b", got: END }
        );
    }
}
