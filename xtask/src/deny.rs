//! `cargo xtask deny`: licences, bans and sources of all dependencies, and known vulnerabilities if
//! the database can be reached. The rules are in `deny.toml`.

use std::path::Path;
use std::process::{Command, Stdio};

const INSTALL: &str = "cargo install cargo-deny --locked";

pub fn run(root: &Path) -> Result<(), String> {
    let deny = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO"));
        command.arg("deny").args(["--log-level", "error"]).args(args).current_dir(root);
        command
    };
    let version = deny(&["--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !version.is_ok_and(|status| status.success()) {
        return Err(format!("cargo-deny is not installed\n  help: {INSTALL}"));
    }
    check(deny(&["check", "licenses", "bans", "sources"]), "licences, bans or sources")?;
    // Without a network there is no database, and nothing to check against.
    let fetched = deny(&["fetch", "db"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if !fetched.is_ok_and(|status| status.success()) {
        eprintln!("warning: advisories were not checked: the database is unreachable");
        return Ok(());
    }
    check(deny(&["check", "advisories"]), "advisories")
}

fn check(mut command: Command, what: &str) -> Result<(), String> {
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(format!("dependencies break the rules of deny.toml: {what}")),
        Err(error) => Err(format!("cannot run cargo-deny: {error}")),
    }
}
