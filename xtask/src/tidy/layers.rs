//! Layers: a crate may depend on crates of lower layers and on earlier ones of its own.

use std::path::Path;

/// Every crate, lowest first. A crate may only depend on crates before it.
const LAYERS: [(&str, &[&str]); 7] = [
    ("base", &["fleet-base", "fleet-table", "fleet-tensor", "fleet-topology", "fleet-config"]),
    ("kernels", &["fleet-kernels"]),
    ("program", &["fleet-ir", "fleet-ops", "fleet-passes", "fleet-nn", "fleet-strategy"]),
    ("wire", &["fleet-net", "fleet-comm", "fleet-ps"]),
    (
        "run",
        &["fleet-exec", "fleet-data", "fleet-synth", "fleet-metrics", "fleet-format", "fleet-onnx"],
    ),
    ("surface", &["fleet-launch", "fleet", "fleet-job", "fleet-demo", "fleet-serve", "fleet-cli"]),
    ("dev", &["fleet-testhost", "fleet-testkit", "fleet-bench", "xtask"]),
];

fn rank(name: &str) -> Option<usize> {
    LAYERS.iter().flat_map(|(_, crates)| crates.iter()).position(|known| *known == name)
}

pub fn check(root: &Path, errors: &mut Vec<String>) -> Result<(), String> {
    let crates = root.join("crates");
    let entries =
        std::fs::read_dir(&crates).map_err(|error| format!("{}: {error}", crates.display()))?;
    for entry in entries.flatten() {
        let manifest = entry.path().join("Cargo.toml");
        let Ok(text) = std::fs::read_to_string(&manifest) else { continue };
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(own) = rank(&name) else {
            errors.push(format!("crate {name} has no layer: add it to xtask/src/tidy/layers.rs"));
            continue;
        };
        for dependency in normal_dependencies(&text) {
            if rank(&dependency).is_some_and(|other| other >= own) {
                errors.push(format!("{name} depends on {dependency}, which is in a higher layer"));
            }
        }
    }
    Ok(())
}

/// Returns the Fleet crates under `[dependencies]`; dependencies of tests are not restricted.
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
