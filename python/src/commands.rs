//! The commands `fleet` and `fleetrun`, for the scripts that the package installs.

use fleet::topology::Env;
use fleet_launch::OwnProcess;
use pyo3::prelude::*;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Runs `fleet` and returns its exit code. The first argument is the name of the program.
#[pyfunction]
pub fn run_fleet(py: Python<'_>, args: Vec<OsString>) -> u8 {
    py.detach(|| number(fleet_cli::fleet(args, &Env::process())))
}

/// Runs `fleetrun` and returns its exit code. `executable` is a file that runs this function.
#[pyfunction]
pub fn run_fleetrun(
    py: Python<'_>,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    executable: PathBuf,
) -> u8 {
    let args = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let env = Env::from_iter(env);
    let own = OwnProcess { args, env, executable: Ok(executable) };
    py.detach(|| number(fleet_cli::fleetrun(own)))
}

/// Returns the number of an exit code, which has no accessor, and writes what is left to print.
fn number(code: ExitCode) -> u8 {
    let _ = std::io::stdout().flush();
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == code).unwrap_or(1)
}
