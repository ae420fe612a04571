//! Problems of a job file as text, and as one error.

use crate::features::Finding;
use crate::file::Text;
use fleet_base::{Error, Result};
use fleet_config::{Place, Problem, Severity};

/// Returns all errors among problems as one error, each on its own line.
pub fn fail_on_errors(problems: &[Problem]) -> Result<()> {
    let errors: Vec<&Problem> = problems.iter().filter(|problem| problem.is_error()).collect();
    if errors.is_empty() {
        return Ok(());
    }
    let lines: String = errors.iter().map(|problem| format!("\n{problem}")).collect();
    let count = fleet_base::text::counted(errors.len(), "error");
    Err(Error::invalid(format!("the job file has {count}{lines}")))
}

/// Returns what the data shows as problems of the job file.
pub fn of_findings(findings: &[Finding], text: &Text) -> Vec<Problem> {
    let problem = |finding: &Finding| Problem {
        severity: if finding.is_error { Severity::Error } else { Severity::Warning },
        path: finding.path.clone(),
        place: place_of(text, &finding.path),
        file: Some(text.file.clone()),
        message: finding.message.clone(),
        why: String::new(),
        help: finding.help.clone(),
    };
    let mut problems: Vec<Problem> = findings.iter().map(problem).collect();
    problems.sort_by_key(|problem| problem.place);
    problems
}

/// Returns the position of a field, or of the nearest table that is there.
fn place_of(text: &Text, path: &str) -> Option<Place> {
    let (mut entries, mut place) = (&text.root[..], None);
    for key in path.split('.') {
        let Some(entry) = entries.iter().find(|entry| entry.key == key) else { break };
        place = Some(entry.at);
        match &entry.node.data {
            crate::file::Data::Table(inner) => entries = inner,
            _ => break,
        }
    }
    place
}
