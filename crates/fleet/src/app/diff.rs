//! The changes that passes make to the text of programs.

use fleet_base::output::{ExitReason, Output};
use fleet_ir::Program;
use fleet_passes::Observer;

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

/// Returns the line changes that turn one text into another.
fn difference(before: &str, after: &str) -> Vec<Change> {
    let (old, new): (Vec<&str>, Vec<&str>) = (before.lines().collect(), after.lines().collect());
    let owned = |lines: &[&str]| lines.iter().map(ToString::to_string).collect();
    similar::capture_diff_slices(similar::Algorithm::Myers, &old, &new)
        .into_iter()
        .filter(|change| change.tag() != similar::DiffTag::Equal)
        .map(|change| {
            let (removed, added) = (change.old_range(), change.new_range());
            Change { at: removed.start, removed: owned(&old[removed]), added: owned(&new[added]) }
        })
        .collect()
}
