//! The changes that passes make to the text of programs.

use crate::output::{ExitReason, Output};
use fleet::passes::Observer;
use fleet_ir::Program;
use std::collections::HashMap;

/// Records the changes of every pass.
#[derive(Default)]
pub struct Changes {
    /// The programs before the pass that runs.
    before: Vec<String>,
    /// Pass, program and changes, in order; without passes that changed nothing.
    found: Vec<(String, &'static str, Vec<Change>)>,
}

impl Observer for Changes {
    fn before(&mut self, _: &str, programs: &[(&'static str, &Program)]) {
        self.before = programs.iter().map(|(_, program)| program.to_string()).collect();
    }

    fn after(&mut self, pass: &str, programs: &[(&'static str, &Program)]) {
        for ((name, program), before) in programs.iter().zip(&self.before) {
            let changes = difference(before, &program.to_string());
            if !changes.is_empty() {
                self.found.push((pass.to_string(), *name, changes));
            }
        }
    }
}

impl Changes {
    pub fn print(&self, out: &mut Output) -> Result<(), ExitReason> {
        for (pass, program, changes) in &self.found {
            out.line(format!("== {pass}: {program}"))?;
            for Change { at, removed, added } in changes {
                out.line(format!("@ line {}", at + 1))?;
                removed.iter().try_for_each(|line| out.line(format!("-{line}")))?;
                added.iter().try_for_each(|line| out.line(format!("+{line}")))?;
            }
        }
        Ok(())
    }
}

/// Removed and added lines, and the index of the old line before which the change starts.
struct Change {
    at: usize,
    removed: Vec<String>,
    added: Vec<String>,
}

/// Returns the line changes that turn one text into another. Common lines, in order, stay.
fn difference(before: &str, after: &str) -> Vec<Change> {
    let (a, b): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let start = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let tail = a[start..].iter().rev().zip(b[start..].iter().rev()).take_while(|(x, y)| x == y);
    let tail = tail.count();
    changes(start, &a[start..a.len() - tail], &b[start..b.len() - tail])
}

/// Walks both lists. Where they differ, finds the nearest line at which they match again. Programs
/// grow by insertions, for which this finds the shortest difference.
fn changes(start: usize, a: &[&str], b: &[&str]) -> Vec<Change> {
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (at, line) in b.iter().enumerate() {
        places.entry(line).or_default().push(at);
    }
    let owned = |lines: &[&str]| lines.iter().map(ToString::to_string).collect();
    let mut found = Vec::new();
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            (i, j) = (i + 1, j + 1);
            continue;
        }
        let sync_point = (i..a.len()).find_map(|x| {
            let list = places.get(a[x])?;
            let y = list[list.partition_point(|y| *y < j)..].first()?;
            Some((x, *y))
        });
        let (x, y) = sync_point.unwrap_or((a.len(), b.len()));
        found.push(Change { at: start + i, removed: owned(&a[i..x]), added: owned(&b[j..y]) });
        (i, j) = (x, y);
    }
    found
}
