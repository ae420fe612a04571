//! Starts processes of tests under `mpirun`: the one that FLEET_MPIRUN names, or the one in PATH.
//! FLEET_MPI_LIBRARY may name its libmpi.

use crate::process;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Variable with the path of the MPI library.
pub const LIBRARY: &str = "FLEET_MPI_LIBRARY";
/// Time limit in seconds: far more than any test needs, far less than a hang.
const SECONDS_MAX: u32 = 300;

/// The mpirun to use, and its library if it is next to it. Prints the reason if there is none.
fn mpirun() -> Option<(PathBuf, Option<PathBuf>)> {
    let named = std::env::var_os("FLEET_MPIRUN").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = named
        .or_else(|| std::env::split_paths(&path).map(|p| p.join("mpirun")).find(|p| p.exists()));
    let Some(found) = found else {
        println!("skipped: FLEET_MPIRUN is not set, and PATH has no mpirun");
        return None;
    };
    let beside = found.parent().and_then(Path::parent).map(|root| root.join("lib"));
    let has_one = |folder: &PathBuf| {
        ["libmpi.so.40", "libmpi.so.12"].iter().any(|name| folder.join(name).exists())
    };
    let library = std::env::var_os(LIBRARY).map(PathBuf::from);
    Some((found, library.or(beside.filter(has_one))))
}

/// Runs `test` with a role in `ranks` processes; `None` if there is no mpirun.
pub fn run(ranks: usize, test: &str, role: &str, environment: &[(&str, &str)]) -> Option<Output> {
    let (mpirun, library) = mpirun()?;
    let mut command = Command::new("timeout");
    command.arg(SECONDS_MAX.to_string()).arg(mpirun).args(["-n", &ranks.to_string()]);
    process::append(&mut command, test, role)
        .env("RUST_BACKTRACE", "0")
        .envs(environment.iter().copied())
        // By default, Open MPI refuses to run as root and with more ranks than cores.
        .env("OMPI_ALLOW_RUN_AS_ROOT", "1")
        .env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")
        .env("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe")
        .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
        .stdin(Stdio::null());
    if let Some(library) = library {
        command.env(LIBRARY, library);
    }
    let output = command.output().expect("mpirun starts");
    assert_ne!(output.status.code(), Some(124), "{test} took {SECONDS_MAX} s: {}", text(&output));
    Some(output)
}

/// Returns what a process wrote to standard output and error.
pub fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}
