//! `fleet new` writes the crate of `tests/outside`, which CI builds and tests.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// Runs `fleet new` in an empty folder.
fn new(test: &str, args: &[&str]) -> (PathBuf, Output) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("new").join(test);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_fleet"));
    let output = command.arg("new").args(args).current_dir(&folder).output().unwrap();
    (folder, output)
}

/// Returns the files of a crate, with their paths in it.
fn files(folder: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false => {
                    let text = std::fs::read_to_string(&path).unwrap();
                    found.push((path.strip_prefix(folder).unwrap().to_path_buf(), text));
                }
            }
        }
    }
    found.sort();
    found
}

/// Returns the crate that CI tests, without what a build leaves in it.
fn tested() -> Vec<(PathBuf, String)> {
    let mut found = files(&Path::new(ROOT).join("tests/outside/src"));
    found.iter_mut().for_each(|(path, _)| *path = Path::new("src").join(&*path));
    for path in ["Cargo.toml", "tests/jobs.rs"] {
        let text = std::fs::read_to_string(Path::new(ROOT).join("tests/outside").join(path));
        found.push((path.into(), text.unwrap()));
    }
    found.sort();
    found
}

#[test]
fn the_crate_is_the_tested_one() {
    let (folder, output) = new("same", &["outside"]);
    assert!(output.status.success(), "{output:?}");
    let crate_path = std::fs::canonicalize(Path::new(ROOT).join("crates/fleet")).unwrap();
    let dependency = format!("path = {crate_path:?}");
    let mut expected = tested();
    assert_eq!(expected[0].0, Path::new("Cargo.toml"));
    expected[0].1 = expected[0].1.replace("path = \"../../crates/fleet\"", &dependency);
    assert_eq!(files(&folder.join("outside")), expected);
}

#[test]
fn the_name_and_the_dependency_are_those_of_the_command_line() {
    let (folder, output) = new("named", &["my-model", "--git", "https://example.com/fleet"]);
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("cd my-model"), "{said}");
    let made = files(&folder.join("my-model"));
    assert!(made.iter().all(|(_, text)| !text.contains("outside")), "{made:?}");
    let manifest = &made[0].1;
    assert!(manifest.contains("name = \"my-model\""), "{manifest}");
    assert!(manifest.contains("fleet = { git = \"https://example.com/fleet\" }"), "{manifest}");
}

#[test]
fn wrong_names_and_folders_are_refused() {
    let check = |args: &[&str], part: &str| {
        let (folder, output) = new("wrong", args);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains(part), "{error}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    };
    check(&["2nd"], "invalid name of a crate");
    check(&["fleet"], "invalid name of a crate");
    check(&["a/b"], "invalid name of a crate");
    check(&["mine", "--path", "."], "no checkout of Fleet found");
    let (folder, _) = new("twice", &["mine"]);
    let mut again = Command::new(env!("CARGO_BIN_EXE_fleet"));
    let output = again.args(["new", "mine"]).current_dir(&folder).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("mine exists already"), "{output:?}");
}
