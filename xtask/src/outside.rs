//! `cargo xtask outside`: builds and tests the crate in `tests/outside`, which depends on Fleet as
//! crates of users do.

use crate::cargo;
use std::path::Path;

const MANIFEST: &str = "--manifest-path=tests/outside/Cargo.toml";

/// Only kernels are optimised, so that the crates of Fleet compile fast.
const SETTINGS: [&str; 2] =
    ["--config=profile.dev.debug=0", "--config=profile.dev.package.\"*\".debug=0"];

pub fn run(root: &Path, args: &[&str]) -> Result<(), String> {
    // The versions of the workspace, without a second list in the repository.
    let (from, to) = (root.join("Cargo.lock"), root.join("tests/outside/Cargo.lock"));
    std::fs::copy(&from, &to).map_err(|error| format!("{}: {error}", to.display()))?;
    cargo("format of the outside crate", &["fmt", MANIFEST, "--check"])?;
    // The target folder of the workspace: some dependencies outside Fleet are compiled once.
    let folder = match std::env::var_os("CARGO_TARGET_DIR") {
        Some(_) => &[][..],
        None => &["--target-dir=target"],
    };
    cargo("outside crate", &[&["test", MANIFEST][..], folder, &SETTINGS[..], args].concat())
}
