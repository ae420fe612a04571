//! Rules of the house that the compiler does not know.
//!
//! Documents: what they show as Rust is quoted from an example, which is compiled and run by tests.
//!
//! Layers: a crate may depend on crates of lower layers and on those in front of it in its own.

use std::path::Path;

/// Every crate, lowest first. A crate may name only crates that stand before it.
const LAYERS: [(&str, &[&str]); 7] = [
    ("base", &["fleet-base", "fleet-tensor", "fleet-topology"]),
    ("kernels", &["fleet-kernels"]),
    ("program", &["fleet-ir", "fleet-ops", "fleet-passes", "fleet-nn", "fleet-strategy"]),
    ("wire", &["fleet-net", "fleet-comm", "fleet-ps"]),
    ("run", &["fleet-exec", "fleet-data", "fleet-metrics", "fleet-format"]),
    ("surface", &["fleet", "fleet-launch", "fleet-cli"]),
    ("dev", &["fleet-testkit", "fleet-bench", "xtask"]),
];

pub fn run(root: &Path) -> Result<(), String> {
    let mut errors = Vec::new();
    check_layers(root, &mut errors)?;
    check_quoted_code(root, &mut errors)?;
    if errors.is_empty() {
        println!("== tidy: fine");
        return Ok(());
    }
    Err(format!("tidy found:\n  {}", errors.join("\n  ")))
}

fn rank(name: &str) -> Option<usize> {
    LAYERS.iter().flat_map(|(_, crates)| crates.iter()).position(|known| *known == name)
}

fn check_layers(root: &Path, errors: &mut Vec<String>) -> Result<(), String> {
    let crates = root.join("crates");
    let entries =
        std::fs::read_dir(&crates).map_err(|error| format!("{}: {error}", crates.display()))?;
    for entry in entries.flatten() {
        let manifest = entry.path().join("Cargo.toml");
        let Ok(text) = std::fs::read_to_string(&manifest) else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(own) = rank(&name) else {
            errors.push(format!("crate {name} is in no layer: add it to xtask/src/tidy.rs"));
            continue;
        };
        for dependency in normal_dependencies(&text) {
            if rank(&dependency).is_some_and(|other| other >= own) {
                errors.push(format!(
                    "{name} may not depend on {dependency}: it is in a higher layer"
                ));
            }
        }
    }
    Ok(())
}

/// Fleet crates under `[dependencies]`; what tests depend on is free.
fn normal_dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut found = Vec::new();
    for line in manifest.lines().map(str::trim) {
        if line.starts_with('[') {
            inside = line == "[dependencies]";
        } else if inside && line.starts_with("fleet") {
            let name: String =
                line.chars().take_while(|c| c.is_alphanumeric() || *c == '-').collect();
            found.push(name);
        }
    }
    found
}

/// Every block of Rust in a document must occur, line by line, in a file of `examples/`; blocks that
/// are sketches are marked `rust,ignore`.
fn check_quoted_code(root: &Path, errors: &mut Vec<String>) -> Result<(), String> {
    let examples = texts(&root.join("examples"), "rs")?;
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
                    "{name}: the Rust block that begins with '{first}' is in no file of examples/, \
                     so nothing compiles it"
                ));
            }
        }
    }
    Ok(())
}

fn trimmed_lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

/// Name and text of the files of a folder that end so.
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
