//! Tasks of this repository; `cargo xtask help` lists them.

#![forbid(unsafe_code)]

mod bench;
mod deny;
mod guide;
mod outside;
mod picture;
mod python;
mod sanitize;
mod slow;
mod tidy;

use clap::Parser;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Instant;

/// Tasks of this repository
#[derive(clap::Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Task {
    /// Everything that a change must pass: format, lints, tidy, documentation, tests
    Ci,
    /// The house rules that the compiler does not check
    Tidy(tidy::Options),
    /// Applies the changes shown by docs/add-an-op.md to a copy of the tree, and tests them
    Guide,
    /// Builds and tests the crate of a user, in tests/outside; arguments go to cargo test
    #[command(disable_help_flag = true)]
    Outside {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Installs the Python package into target/python and runs its tests; arguments go to pytest
    #[command(disable_help_flag = true)]
    Python {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// The same with torch, pandas, pyarrow and mypy (a large download)
    #[command(disable_help_flag = true)]
    PythonAll {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Builds a wheel for other machines into target/wheels
    Wheel,
    /// Licences, bans, sources and advisories of dependencies (needs cargo-deny)
    Deny,
    /// Builds and tests features with many dependencies (some minutes)
    Features,
    /// Lints for ARM and for macOS (rustup target add aarch64-unknown-linux-gnu
    /// aarch64-apple-darwin)
    Targets,
    /// The tests; arguments go to cargo test
    #[command(disable_help_flag = true)]
    Test {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// The whole table of faults on real jobs (some minutes); arguments select cases by name
    Faults {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Rewrites the expectations in tests/filetests from the current results
    Bless,
    /// Benchmarks, compared with peers or with another build
    Bench(bench::Options),
    /// Tests crates with unsafe code under a sanitizer (needs nightly) or loom
    Sanitize(sanitize::Options),
    /// Lists the slowest tests and test binaries
    Slow(slow::Options),
    /// Draws the screen of a command as SVG
    Picture(picture::Options),
}

type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let outcome = match Task::parse() {
        Task::Ci => ci(),
        Task::Features => features(),
        Task::Targets => targets(),
        Task::Tidy(options) => tidy::run(&root(), &options),
        Task::Guide => guide::run(&root()),
        Task::Outside { args } => outside::run(&root(), &strs(&args)),
        Task::Python { args } => python::run(&root(), &strs(&args)),
        Task::PythonAll { args } => python::run_all(&root(), &strs(&args)),
        Task::Wheel => python::wheel(&root()),
        Task::Deny => deny::run(&root()),
        Task::Test { args } => {
            cargo("test", &[&["test", "--workspace"][..], &strs(&args)].concat())
        }
        Task::Faults { words } => faults(&words),
        Task::Bless => bless(),
        Task::Bench(options) => bench::run(&root(), &options),
        Task::Sanitize(options) => sanitize::run(&root(), &options),
        Task::Slow(options) => slow::run(&root(), &options),
        Task::Picture(options) => picture::run(&options),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("error: {message}");
            ExitCode::FAILURE
        }
    }
}

fn ci() -> Outcome {
    cargo("format", &["fmt", "--all", "--check"])?;
    // With the feature that changes interfaces between crates; `tests` compiles without it.
    let lints = ["clippy", "--workspace", "--all-targets", OF_SERVERS, "--", "-D", "warnings"];
    cargo("lints", &lints)?;
    tidy::run(&root(), &tidy::Options::default())?;
    // Only this resolves the links of the documentation.
    cargo("documentation", &["doc", "--workspace", "--no-deps", "--lib"])?;
    cargo("build of tests", &["test", "--workspace", "--no-run"])?;
    // Tests wait for processes about half of the time, in which other crates can compile.
    std::thread::scope(|scope| {
        // The guide and the package have folders of their own, so the tests start at once.
        let beside = scope.spawn(|| ["guide", "outside", "python"].map(output_of));
        // One run shows the failures of all crates.
        let tests = cargo("tests", &["test", "--workspace", "--no-fail-fast"]);
        let beside = beside.join().map_err(|_| "a task beside the tests panicked".to_string())?;
        beside.into_iter().try_for_each(|task| task)?;
        tests
    })
}

/// Runs a task of this program, and prints its output once it has ended.
fn output_of(task: &str) -> Outcome {
    // Through cargo: the build of tests may have replaced the file of this program.
    let mut command = Command::new(env!("CARGO"));
    let output = command.args(["xtask", task]).current_dir(root()).output();
    let output = output.map_err(|error| format!("cannot start {task}: {error}"))?;
    let texts = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    println!("== {task}\n{}{}", texts[0], texts[1]);
    succeeded(task, Ok(output.status))
}

/// Lints for other platforms than this one.
fn targets() -> Outcome {
    for target in ["aarch64-unknown-linux-gnu", "aarch64-apple-darwin"] {
        let lints = ["clippy", "--workspace", "--all-targets", "--target", target];
        cargo(target, &[&lints[..], &["--", "-D", "warnings"]].concat())?;
    }
    Ok(())
}

/// gRPC, which has many dependencies: control of servers, and predictions. Its tests are among
/// those of [`features`].
const OF_SERVERS: &str = "--features=fleet-ps/grpc,fleet-serve/grpc,fleet-cli/grpc";

/// Readers of files and stores of other systems. Only their users turn them on, and they take five
/// minutes to build, so they are not part of `ci`.
const FEATURES: &[&str] = &["--package", "fleet-data", "--all-features", "--all-targets"];

/// Control of servers and predictions over gRPC.
const GRPC: &[&str] =
    &["--package=fleet-ps", "--package=fleet-serve", "--package=fleet-cli", OF_SERVERS];

fn features() -> Outcome {
    cargo("lints", &[&["clippy"], FEATURES, &["--", "-D", "warnings"]].concat())?;
    cargo("tests", &[&["test"], &FEATURES[..3]].concat())?;
    let lints = [&["clippy", "--all-targets"], GRPC, &["--", "-D", "warnings"]].concat();
    let tests = ["--", "control::", "grpc::", "message::"];
    cargo("lints of gRPC", &lints)?;
    cargo("tests of gRPC", &[&["test"], GRPC, &tests].concat())
}

/// Runs all cases of `crates/fleet-cli/tests/faults`; the tests run some of them.
fn faults(words: &[String]) -> Outcome {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(root()).args(["test", "-p", "fleet-cli", "--test", "faults", "--"]);
    succeeded("faults", command.args(words).env("FLEET_FAULTS", "all").status())
}

fn bless() -> Outcome {
    let status = Command::new(env!("CARGO"))
        .args(["test", "--workspace", "filetests"])
        .env("FLEET_BLESS", "1")
        .current_dir(root())
        .status();
    succeeded("bless", status)
}

fn cargo(what: &str, args: &[&str]) -> Outcome {
    println!("== {what}: cargo {}", args.join(" "));
    let begun = Instant::now();
    let status = Command::new(env!("CARGO")).args(args).current_dir(root()).status();
    println!("== {what}: {} s", begun.elapsed().as_secs());
    succeeded(what, status)
}

fn succeeded(what: &str, status: std::io::Result<std::process::ExitStatus>) -> Outcome {
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed ({status})")),
        Err(error) => Err(format!("cannot start {what}: {error}")),
    }
}

fn strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// Returns the root of the workspace: the parent of this crate.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).unwrap_or(here)
}
