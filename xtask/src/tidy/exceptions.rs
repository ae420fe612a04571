//! `xtask/tidy.txt`: the number of places of a rule that a file may have.

use super::Finding;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

const FILE: &str = "xtask/tidy.txt";
const HEAD: &str = "\
# Places that break a house rule (`cargo xtask tidy`): RULE COUNT PATH. The counts only shrink.
";

type Counts = BTreeMap<(String, String), usize>;

/// Compares the findings with the list, and lowers its numbers if `shrink` is set.
pub fn compare(root: &Path, findings: &[Finding], shrink: bool) -> Result<Vec<String>, String> {
    let file = root.join(FILE);
    let text = std::fs::read_to_string(&file).map_err(|error| format!("{FILE}: {error}"))?;
    let allowed = parse(&text)?;
    let mut found = Counts::new();
    for finding in findings {
        *found.entry((finding.rule.to_string(), finding.path.clone())).or_default() += 1;
    }
    if shrink {
        let lower = |key: &(String, String), count: &usize| (*count).min(count_of(&found, key));
        let lowered: Counts =
            allowed.iter().map(|(key, count)| (key.clone(), lower(key, count))).collect();
        std::fs::write(&file, print(&lowered)).map_err(|error| format!("{FILE}: {error}"))?;
        return Ok(excess(findings, &found, &lowered));
    }
    let mut errors = excess(findings, &found, &allowed);
    for (key, count) in &allowed {
        let now = count_of(&found, key);
        if now < *count {
            let (rule, path) = key;
            errors.push(format!(
                "{FILE}: {rule} {path}: expected {now}, got {count} (cargo xtask tidy --shrink)"
            ));
        }
    }
    Ok(errors)
}

fn count_of(counts: &Counts, key: &(String, String)) -> usize {
    counts.get(key).copied().unwrap_or(0)
}

/// Lists every place of a rule in a file with more of them than allowed.
fn excess(findings: &[Finding], found: &Counts, allowed: &Counts) -> Vec<String> {
    let mut errors = Vec::new();
    for (key, count) in found {
        let limit = count_of(allowed, key);
        if *count <= limit {
            continue;
        }
        let (rule, path) = key;
        let known =
            if limit > 0 { format!(" ({limit} of these are known)") } else { String::new() };
        for finding in findings.iter().filter(|it| it.rule == rule && it.path == *path) {
            errors.push(format!("{path}:{}: {rule}: {}{known}", finding.line, finding.message));
        }
    }
    errors
}

fn parse(text: &str) -> Result<Counts, String> {
    let mut counts = Counts::new();
    for (index, line) in text.lines().enumerate() {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let parts: Vec<&str> = line.splitn(3, ' ').collect();
        let count = parts.get(1).and_then(|count| count.parse().ok());
        match (&parts[..], count) {
            ([rule, _, path], Some(count)) => {
                counts.insert((rule.to_string(), path.to_string()), count);
            }
            _ => {
                let place = format!("{FILE}:{}", index + 1);
                return Err(format!("{place}: expected RULE COUNT PATH, got '{line}'"));
            }
        }
    }
    Ok(counts)
}

fn print(counts: &Counts) -> String {
    let mut text = HEAD.to_string();
    for ((rule, path), count) in counts.iter().filter(|(_, count)| **count > 0) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{rule} {count} {path}");
    }
    text
}
