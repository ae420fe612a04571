//! Subjects of commits: `area: imperative`, up to 65 characters.

use std::path::Path;
use std::process::Command;

const CHARACTERS: usize = 65;
/// The commits after the one that added this file follow the rule.
const RULE: &str = "xtask/src/tidy/subjects.rs";

pub fn check(root: &Path, errors: &mut Vec<String>) -> Result<(), String> {
    let Some(first) = git(root, &["log", "--diff-filter=A", "--format=%H", "--", RULE])? else {
        return Ok(());
    };
    let Some(first) = first.lines().last().map(str::to_string) else { return Ok(()) };
    let range = format!("{first}..HEAD");
    let log = git(root, &["log", "--no-merges", "--format=%h %s", &range])?.unwrap_or_default();
    for line in log.lines() {
        let Some((commit, subject)) = line.split_once(' ') else { continue };
        if let Some(fault) = fault(subject) {
            errors.push(format!("commit {commit}: {fault}: '{subject}'"));
        }
    }
    Ok(())
}

fn fault(subject: &str) -> Option<String> {
    let length = subject.chars().count();
    if length > CHARACTERS {
        return Some(format!("the subject has {length} characters: expected up to {CHARACTERS}"));
    }
    let is_area = |area: &str| {
        !area.is_empty()
            && area.chars().all(|c| c.is_ascii_lowercase() || " -_./,0123456789".contains(c))
    };
    match subject.split_once(": ") {
        Some((area, text)) if is_area(area) && !text.ends_with('.') && !text.is_empty() => None,
        _ => Some("expected 'area: imperative' without a final dot".to_string()),
    }
}

/// Runs git; `None` outside of a repository, such as in an unpacked archive.
fn git(root: &Path, args: &[&str]) -> Result<Option<String>, String> {
    let output = Command::new("git").args(args).current_dir(root).output();
    let output = output.map_err(|error| format!("cannot start git: {error}"))?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subjects() {
        for right in ["ps: resume async workers", "fleet-ps, net: send errors in parts"] {
            assert_eq!(fault(right), None);
        }
        let long = format!("ps: {}", "x".repeat(CHARACTERS));
        for wrong in ["Workers come back", "ps: resume.", "PS: resume", "ps: ", ": x", &long] {
            assert!(fault(wrong).is_some(), "{wrong}");
        }
    }
}
