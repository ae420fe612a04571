//! Rust code in documents is quoted from examples and from the outside crate, which tests compile
//! and run.

use std::path::Path;

const QUOTED: [&str; 2] = ["crates/fleet/examples", "tests/outside/src"];

/// Checks that every block of Rust in a document occurs, line by line, in a file of [`QUOTED`].
/// Blocks that are sketches are marked `rust,ignore`.
pub fn check(root: &Path, errors: &mut Vec<String>) -> Result<(), String> {
    let mut examples = Vec::new();
    for folder in QUOTED {
        examples.append(&mut texts(&root.join(folder), "rs")?);
    }
    let examples: Vec<Vec<&str>> = examples.iter().map(|(_, text)| trimmed_lines(text)).collect();
    let mut documents = texts(&root.join("docs"), "md")?;
    let readme = std::fs::read_to_string(root.join("README.md")).map_err(|e| e.to_string())?;
    documents.push(("README.md".into(), readme));
    for (name, text) in &documents {
        for block in text.split("```rust\n").skip(1) {
            let code = trimmed_lines(block.split("```").next().unwrap_or_default());
            let quoted = |lines: &Vec<&str>| lines.windows(code.len().max(1)).any(|w| w == code);
            if !examples.iter().any(quoted) {
                let first = code.first().copied().unwrap_or_default();
                errors.push(format!(
                    "{name}: Rust block that begins with '{first}' is in no file of {}, \
                     so it is not compiled",
                    QUOTED.join(" or ")
                ));
            }
        }
    }
    Ok(())
}

fn trimmed_lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// Returns name and text of the files in a folder with this extension.
fn texts(folder: &Path, extension: &str) -> Result<Vec<(String, String)>, String> {
    let context = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(context)?.flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|found| found == extension) {
            let text = std::fs::read_to_string(&path).map_err(context)?;
            found.push((path.display().to_string(), text));
        }
    }
    Ok(found)
}
