//! Chores of the repository. `cargo xtask help` lists them.

mod bench;
#[path = "../../crates/fleet-comm/tests/cable.rs"]
mod cable;
mod deny;
mod picture;
mod terminal;
mod tidy;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

const HELP: &str = "\
usage: cargo xtask COMMAND

  ci      everything that a change must pass: format, lints, tidy, tests
  tidy    the rules of the house that the compiler does not know (layers of crates)
  deny    licences, bans, sources and advisories of dependencies (cargo install cargo-deny --locked)
  features  builds and tests what is behind features and brings many crates (some minutes)
  targets lints for ARM and for macOS (rustup target add aarch64-unknown-linux-gnu aarch64-apple-darwin)
  test    the tests (arguments are handed to cargo test)
  faults  the whole table of faults on real jobs (some minutes); words choose cases by name
  bless   rewrites the expectations in tests/filetests from what the code does now
  bench   benchmarks: cargo xtask bench [NAME ...] [--json] [--threads N] [--rounds N]
          [--peer torch|paddle|polars|gloo|mpi=PYTHON]; names may be prefixes (train, train/bert4)
  picture the screen of a command as SVG: cargo xtask picture FILE [--columns N] [--shown TEXT] -- COMMAND
";

type Outcome = Result<(), String>;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (command, rest) = match args.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", &args[..]),
    };
    let outcome = match command {
        "ci" => ci(),
        "features" => features(),
        "targets" => targets(),
        "tidy" => tidy::run(&root()),
        "deny" => deny::run(&root()),
        "test" => cargo("test", &[&["test", "--workspace"][..], &strs(rest)].concat()),
        "faults" => faults(rest),
        "bless" => bless(),
        "bench" => bench::run(&root(), rest),
        "picture" => picture::run(rest),
        "help" | "--help" | "-h" => {
            print!("{HELP}");
            Ok(())
        }
        other => Err(format!("unknown command '{other}'\n\n{HELP}")),
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
    // One pass with the features that change what crates above see; without them `tests` compiles.
    let lints = ["clippy", "--workspace", "--all-targets", WIRE, OF_JOBS, OF_SERVERS];
    cargo("lints", &[&lints[..], &["--", "-D", "warnings"]].concat())?;
    tidy::run(&root())?;
    cargo("tests", &["test", "--workspace"])?;
    cargo("tests of features", &["test", "-p", "fleet-comm", "-p", "fleet-net", WIRE])?;
    cargo("tests of jobs with features", JOBS)
}

/// What is built elsewhere than here.
fn targets() -> Outcome {
    for target in ["aarch64-unknown-linux-gnu", "aarch64-apple-darwin"] {
        let lints = ["clippy", "--workspace", "--all-targets", "--target", target];
        cargo(target, &[&lints[..], &["--", "-D", "warnings"]].concat())?;
    }
    Ok(())
}

/// MPI, NCCL and TLS.
const WIRE: &str = "--features=fleet-comm/mpi,fleet-comm/nccl,fleet-net/tls";
const OF_JOBS: &str = "--features=fleet/mpi,fleet/nccl,fleet-cli/tls";
/// Control of servers over gRPC, which brings many crates: its tests are among those of [`features`].
const OF_SERVERS: &str = "--features=fleet-ps/grpc,fleet-cli/grpc";

/// Whole jobs under MPI, NCCL and TLS.
const JOBS: &[&str] = &[
    "test",
    "--package=fleet",
    "--package=fleet-cli",
    OF_JOBS,
    "--test=ranks",
    "--test=fleetrun",
    "--",
    "mpi::",
    "nccl::",
    "tls::",
];

/// What reads files and stores of other systems: turned on by those who have them, and five minutes to
/// build, so no part of `ci`.
const FEATURES: &[&str] = &["--package", "fleet-data", "--all-features", "--all-targets"];

/// Servers that answer over gRPC.
const GRPC: &[&str] = &[
    "--package=fleet-ps",
    "--package=fleet-cli",
    "--features=fleet-ps/grpc,fleet-cli/grpc,fleet-cli/tls",
];

fn features() -> Outcome {
    cargo("lints", &[&["clippy"], FEATURES, &["--", "-D", "warnings"]].concat())?;
    cargo("tests", &[&["test"], &FEATURES[..3]].concat())?;
    let lints = [&["clippy", "--all-targets"], GRPC, &["--", "-D", "warnings"]].concat();
    cargo("lints of control over gRPC", &lints)?;
    cargo("tests of control over gRPC", &[&["test"], GRPC, &["--", "control::", "grpc::"]].concat())
}

/// All cases of `crates/fleet-cli/tests/faults`; the tests run some of them.
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
    succeeded(what, Command::new(env!("CARGO")).args(args).current_dir(root()).status())
}

fn succeeded(what: &str, status: std::io::Result<std::process::ExitStatus>) -> Outcome {
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed ({status})")),
        Err(error) => Err(format!("{what} could not be started: {error}")),
    }
}

fn strs(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// The root of the workspace: the parent of this crate.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(PathBuf::from).unwrap_or(here)
}
