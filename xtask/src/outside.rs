//! `cargo xtask outside`: builds and tests the crate in `tests/outside`, which depends on Fleet as
//! crates of users do.

use crate::cargo;
use std::path::Path;

const MANIFEST: &str = "--manifest-path=tests/outside/Cargo.toml";

/// Only kernels are optimised, so that the crates of Fleet compile fast, and the target folder is
/// that of the workspace: dependencies outside Fleet are compiled once.
const SETTINGS: [&str; 3] = [
    "--target-dir=target",
    "--config=profile.dev.debug=0",
    "--config=profile.dev.package.\"*\".debug=0",
];

pub fn run(root: &Path, args: &[&str]) -> Result<(), String> {
    // The versions of the workspace, without a second list in the repository.
    let (from, to) = (root.join("Cargo.lock"), root.join("tests/outside/Cargo.lock"));
    std::fs::copy(&from, &to).map_err(|error| format!("{}: {error}", to.display()))?;
    cargo("format of the outside crate", &["fmt", MANIFEST, "--check"])?;
    cargo("outside crate", &[&["test", MANIFEST][..], &SETTINGS[..], args].concat())
}
