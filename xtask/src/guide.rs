//! `cargo xtask guide`: applies the changes that `docs/add-an-op.md` shows to a copy of the tree,
//! and runs the tests of ops there. A page that shows how to do something must work.

use crate::succeeded;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

const PAGE: &str = "docs/add-an-op.md";
/// The ops that the page adds, to which the tests are restricted.
const OPS: [&str; 2] = ["softshrink", "moving_average"];

/// Compiled as fast as possible: the kernels of a few small cases need no optimisation.
const SETTINGS: [&str; 4] =
    ["opt-level=0", "debug=0", "package.\"*\".opt-level=0", "package.fleet-kernels.opt-level=0"];

pub fn run(root: &Path) -> Result<(), String> {
    let copy = root.join("target/guide/tree");
    copy_tree(root, &copy)?;
    let page = read(&root.join(PAGE))?;
    let changes = diffs(&page);
    if changes.len() != OPS.len() {
        return Err(format!("{PAGE}: expected {} diffs, got {}", OPS.len(), changes.len()));
    }
    for change in changes {
        apply(&copy, change)?;
    }
    for op in OPS {
        let mut command = Command::new(env!("CARGO"));
        command.args(["test", "--package=fleet-ops", "--test=ops", "--target-dir=../target"]);
        for setting in SETTINGS {
            command.args(["--config", &format!("profile.dev.{setting}")]);
        }
        let status = command.current_dir(&copy).env("FLEET_OP", op).status();
        succeeded(&format!("the cases of {op}, as {PAGE} shows them"), status)?;
    }
    Ok(())
}

/// Returns the diffs of a page.
fn diffs(page: &str) -> Vec<&str> {
    let blocks = page.split("\n```diff\n").skip(1);
    blocks.filter_map(|block| Some(block.split_once("```\n")?.0)).collect()
}

/// Copies the files of the repository, as they are in the working tree. Files that have not changed
/// keep their time, so that they are not compiled again.
fn copy_tree(root: &Path, copy: &Path) -> Result<(), String> {
    let mut command = Command::new("git");
    command.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = command.current_dir(root).output().map_err(|error| format!("git: {error}"))?;
    if !listed.status.success() {
        return Err("git ls-files failed".to_string());
    }
    if copy.exists() {
        std::fs::remove_dir_all(copy).map_err(|error| at(copy, error))?;
    }
    for name in String::from_utf8_lossy(&listed.stdout).split_terminator('\0') {
        let (from, to) = (root.join(name), copy.join(name));
        // Files that were deleted are still listed.
        if !from.is_file() {
            continue;
        }
        let folder = to.parent().unwrap_or(copy);
        std::fs::create_dir_all(folder).map_err(|error| at(folder, error))?;
        std::fs::copy(&from, &to).map_err(|error| at(&to, error))?;
        let time = from.metadata().and_then(|found| found.modified());
        let file = std::fs::File::options().write(true).open(&to);
        let kept = time.and_then(|time| file?.set_modified(time));
        kept.map_err(|error| at(&to, error))?;
    }
    Ok(())
}

fn apply(copy: &Path, change: &str) -> Result<(), String> {
    let mut command = Command::new("git");
    // Not the repository around the copy.
    command.args(["apply", "-"]).env("GIT_DIR", copy.join("none"));
    let mut child = (command.current_dir(copy).stdin(Stdio::piped()).spawn())
        .map_err(|error| format!("git apply: {error}"))?;
    let written = child.stdin.take().map(|mut input| input.write_all(change.as_bytes()));
    let ended = child.wait().map_err(|error| format!("git apply: {error}"))?;
    match (written, ended.success()) {
        (Some(Ok(())), true) => Ok(()),
        _ => Err(format!("a diff of {PAGE} does not fit the tree:\n{change}")),
    }
}

fn read(path: &Path) -> Result<String, String> {
    std::fs::read_to_string(path).map_err(|error| at(path, error))
}

fn at(path: &Path, error: impl std::fmt::Display) -> String {
    format!("{}: {error}", path.display())
}
