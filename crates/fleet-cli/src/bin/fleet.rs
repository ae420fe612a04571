//! The binary `fleet`.

use fleet_topology::Env;
use std::process::ExitCode;

fn main() -> ExitCode {
    fleet_cli::fleet(std::env::args_os().collect(), &Env::process())
}
