//! The Python package: its wheels, environments with an installed wheel, and its tests.
//!
//! It needs Python 3.9 or later with `venv`, and the package index on the first run.

use crate::{Outcome, cargo, succeeded};
use std::path::{Path, PathBuf};
use std::process::Command;

const MANIFEST: &str = "--manifest-path=python/Cargo.toml";

/// Packages of every environment: the builder of wheels, and what the package needs.
const BUILD: &[&str] = &["maturin>=1.7,<2", "numpy"];
const TESTS: &[&str] = &["mypy", "onnx>=1.16", "onnxruntime>=1.17", "pytest"];
/// For tests that are skipped without them.
const ALL_TESTS: &[&str] = &["pandas", "pyarrow", "torch"];

/// Installs a wheel into `target/python` and runs the tests; `args` go to pytest.
pub fn run(root: &Path, args: &[&str]) -> Outcome {
    cargo("format of the Python crate", &["fmt", MANIFEST, "--check"])?;
    cargo("lints of the Python crate", &["clippy", MANIFEST, "--", "-D", "warnings"])?;
    test(root, TESTS, args)
}

/// Runs the tests with all packages that Fleet works with.
pub fn run_all(root: &Path, args: &[&str]) -> Outcome {
    test(root, &[TESTS, ALL_TESTS].concat(), args)
}

fn test(root: &Path, packages: &[&str], args: &[&str]) -> Outcome {
    let environment = Environment::create(root, "target/python", packages)?;
    environment.install_fleet(&[])?;
    environment.call("python", &[&["-m", "pytest", "-q"], args].concat())
}

/// Builds a wheel for other machines into `target/wheels`: optimized, and for old systems too.
pub fn wheel(root: &Path) -> Outcome {
    let environment = Environment::create(root, "target/python-wheel", &["maturin[zig]>=1.7,<2"])?;
    // Zig links against an old glibc, wherever this runs.
    let zig = ["--zig", "--compatibility", "manylinux2014"];
    let system: &[&str] = if cfg!(target_os = "linux") { &zig } else { &[] };
    let args = [&["--release"], system].concat();
    let file = environment.build(&args, &root.join("target/wheels"))?;
    println!("{}", file.display());
    Ok(())
}

/// Returns the interpreter of an environment with the optimized package.
pub fn optimized(root: &Path) -> Result<PathBuf, String> {
    let environment = Environment::create(root, "target/python-bench", &[])?;
    environment.install_fleet(&["--release"])?;
    Ok(environment.bin.join("python"))
}

/// A virtual environment of Python.
struct Environment<'a> {
    root: &'a Path,
    folder: PathBuf,
    bin: PathBuf,
}

impl Environment<'_> {
    fn create<'a>(
        root: &'a Path,
        folder: &str,
        packages: &[&str],
    ) -> Result<Environment<'a>, String> {
        let path = root.join(folder);
        let environment = Environment { root, bin: path.join("bin"), folder: path };
        if !environment.bin.join("pip").exists() {
            environment.start(Path::new("python3"), &["-m", "venv", folder])?;
        }
        let install = ["install", "--quiet", "--disable-pip-version-check"];
        environment.call("pip", &[&install, BUILD, packages].concat())?;
        Ok(environment)
    }

    /// Builds a wheel of the package and installs it in place of an older one.
    fn install_fleet(&self, args: &[&str]) -> Outcome {
        // In the environment, since several may be built at once.
        let wheel = self.build(&[&["--quiet"], args].concat(), &self.folder.join("wheel"))?;
        let wheel = wheel.to_string_lossy();
        let install = ["install", "--quiet", "--force-reinstall", "--no-deps", &wheel];
        self.call("pip", &install)
    }

    /// Builds a wheel into an empty folder and returns its path.
    fn build(&self, args: &[&str], folder: &Path) -> Result<PathBuf, String> {
        // Without older wheels.
        let _ = std::fs::remove_dir_all(folder);
        let out = folder.to_string_lossy();
        self.call("maturin", &[&["build", "--out", &out], args].concat())?;
        let files = std::fs::read_dir(folder).map_err(|error| format!("{out}: {error}"))?;
        let mut wheels = files.filter_map(|file| Some(file.ok()?.path()));
        wheels.next().ok_or_else(|| format!("{out}: maturin built no wheel"))
    }

    fn call(&self, program: &str, args: &[&str]) -> Outcome {
        self.start(&self.bin.join(program), args)
    }

    fn start(&self, program: &Path, args: &[&str]) -> Outcome {
        println!("== python: {} {}", program.display(), args.join(" "));
        // Maturin looks for Zig by the interpreter of the search path.
        let path = std::env::var_os("PATH").unwrap_or_default();
        let paths = [self.bin.clone()].into_iter().chain(std::env::split_paths(&path));
        let path = std::env::join_paths(paths).map_err(|error| format!("PATH: {error}"))?;
        let mut command = Command::new(program);
        command.args(args).current_dir(self.root);
        command.env("VIRTUAL_ENV", &self.folder).env("PATH", path);
        succeeded("python", command.status())
    }
}
