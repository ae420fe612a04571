//! `cargo xtask python`: builds the Python package into a virtual environment and runs its tests.
//! It needs Python 3.9 or later with `venv`, and the package index on the first run.

use crate::{Outcome, cargo, succeeded};
use std::path::Path;
use std::process::Command;

const MANIFEST: &str = "--manifest-path=python/Cargo.toml";

/// Packages for the build and the tests.
const PACKAGES: &[&str] =
    &["maturin>=1.7,<2", "numpy", "onnx>=1.16", "onnxruntime>=1.17", "pytest"];

pub fn run(root: &Path, args: &[&str]) -> Outcome {
    cargo("format of the Python crate", &["fmt", MANIFEST, "--check"])?;
    cargo("lints of the Python crate", &["clippy", MANIFEST, "--", "-D", "warnings"])?;
    let environment = root.join("target/python");
    let bin = environment.join("bin");
    let call = |program: &Path, args: &[&str]| {
        println!("== python: {} {}", program.display(), args.join(" "));
        let mut command = Command::new(program);
        command.args(args).current_dir(root).env("VIRTUAL_ENV", &environment);
        succeeded("python", command.status())
    };
    if !bin.join("python").exists() {
        call(Path::new("python3"), &["-m", "venv", "target/python"])?;
    }
    // The list of an environment that another version made may be shorter.
    let (list, wanted) = (environment.join("fleet-packages.txt"), PACKAGES.join("\n"));
    if std::fs::read_to_string(&list).ok().as_ref() != Some(&wanted) {
        call(&bin.join("pip"), &[&["install", "--quiet"], PACKAGES].concat())?;
        std::fs::write(&list, wanted).map_err(|error| format!("{}: {error}", list.display()))?;
    }
    call(&bin.join("maturin"), &["develop", "--quiet"])?;
    call(&bin.join("python"), &[&["-m", "pytest", "-q"], args].concat())
}
