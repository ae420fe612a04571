//! `cargo xtask sanitize`: checks of the crates with unsafe code that are too slow for CI.
//!
//! `address` and `thread` run tests under a sanitizer of the nightly toolchain. `loom` runs the
//! models of hand-offs between threads, whose names start with `loom_`.

use crate::succeeded;
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
pub struct Options {
    check: Check,
    /// Crates to test; all of those that allow unsafe code by default
    crates: Vec<String>,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Check {
    Address,
    Thread,
    Loom,
}

/// Crates whose tests run under sanitizers. The unsafe code of fleet-launch is one system call.
const CRATES: [&str; 5] = ["fleet-tensor", "fleet-kernels", "fleet-exec", "fleet-ps", "fleet-comm"];
/// Crates with models for loom.
const LOOM_CRATES: [&str; 1] = ["fleet-kernels"];
const INSTALL: &str = "rustup toolchain install nightly --profile minimal --component rust-src";

pub fn run(root: &Path, options: &Options) -> Result<(), String> {
    let (mut command, crates) = match options.check {
        Check::Address => (sanitizer("address")?, &CRATES[..]),
        Check::Thread => (sanitizer("thread")?, &CRATES[..]),
        Check::Loom => (loom(), &LOOM_CRATES[..]),
    };
    let all: Vec<String> = crates.iter().map(|name| name.to_string()).collect();
    let crates = if options.crates.is_empty() { &all } else { &options.crates };
    for name in crates {
        command.args(["--package", name]);
    }
    if let Check::Loom = options.check {
        // Other tests of a crate that is compiled for loom do not run: loom's types need a model.
        command.arg("loom_");
    }
    succeeded("sanitize", command.current_dir(root).status())
}

/// Returns `cargo test` with a sanitizer.
fn sanitizer(name: &str) -> Result<Command, String> {
    let mut command = Command::new("rustup");
    command.args(["run", "nightly", "cargo", "test", "--no-fail-fast", "--lib", "--tests"]);
    command.args(["--target", &host()?, "--target-dir", &format!("target/sanitize/{name}")]);
    if name == "thread" {
        // The thread sanitizer needs a standard library that is compiled with it.
        command.arg("-Zbuild-std");
    }
    command.env("RUSTFLAGS", format!("-Zsanitizer={name}"));
    // Children of tests end without freeing, by design.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    // The sanitizer replaces pages without access behind allocations.
    command.env("FLEET_GUARD", "0");
    Ok(command)
}

fn loom() -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.args(["test", "--lib", "--target-dir", "target/sanitize/loom"]);
    command.env("RUSTFLAGS", "--cfg loom");
    command
}

/// Returns the target triple of this machine. A sanitizer must not apply to build scripts, so the
/// target is always given.
fn host() -> Result<String, String> {
    let version = ["run", "nightly", "rustc", "--version", "--verbose"];
    let output = Command::new("rustup").args(version).output();
    let output = output.map_err(|error| format!("cannot start rustup: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let host = text.lines().find_map(|line| line.strip_prefix("host: "));
    host.map(String::from)
        .ok_or_else(|| format!("the nightly toolchain is not installed\n  help: {INSTALL}"))
}
