//! The binary `fleetrun`.

use fleet_launch::OwnProcess;
use fleet_topology::Env;
use std::process::ExitCode;

fn main() -> ExitCode {
    let args = std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    let executable = std::env::current_exe();
    fleet_cli::fleetrun(OwnProcess { args, env: Env::process(), executable })
}
