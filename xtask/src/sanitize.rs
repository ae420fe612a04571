//! `cargo xtask sanitize`: tests of the crates with unsafe code under a sanitizer of the nightly
//! toolchain (`rustup toolchain install nightly --component rust-src`).
//!
//! The thread sanitizer needs a standard library that is built with it, hence `-Zbuild-std`.

use crate::succeeded;
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
pub struct Options {
    sanitizer: Sanitizer,
    /// Crates to test; all of those that allow unsafe code by default
    crates: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Sanitizer {
    Address,
    Thread,
}

const CRATES: [&str; 5] = ["fleet-tensor", "fleet-kernels", "fleet-exec", "fleet-ps", "fleet-comm"];

pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let name = match options.sanitizer {
        Sanitizer::Address => "address",
        Sanitizer::Thread => "thread",
    };
    let mut command = Command::new("rustup");
    command.current_dir(root).args(["run", "nightly", "cargo", "test", "--lib", "--tests"]);
    command.args(["--target", &host()?, "--target-dir", &format!("target/sanitize/{name}")]);
    if let Sanitizer::Thread = options.sanitizer {
        command.arg("-Zbuild-std");
    }
    let all = CRATES.map(String::from);
    let crates = if options.crates.is_empty() { &all[..] } else { &options.crates[..] };
    crates.iter().for_each(|name| {
        command.args(["--package", name]);
    });
    // Children of tests end without freeing, by design.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    command.env("RUSTFLAGS", format!("-Zsanitizer={name}"));
    succeeded("sanitizer", command.status())
}

/// Returns the target triple of this machine. A sanitizer must not apply to build scripts, so the
/// target is always given.
fn host() -> Result<String, String> {
    let output = Command::new("rustup")
        .args(["run", "nightly", "rustc", "--version", "--verbose"])
        .output()
        .map_err(|error| format!("cannot start rustup: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from).ok_or_else(|| "the nightly toolchain is not installed".to_string())
}
