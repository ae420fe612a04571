//! Processes of a test: its test binary, started again to run that test alone, with a role.
//!
//! A test that starts processes begins with a look at its role, so that it is a test in one process
//! and the work of a rank, server or worker in the others:
//!
//! ```no_run
//! use fleet_testhost::process;
//!
//! // With #[test]:
//! fn a_child_ends() {
//!     if let Some(role) = process::role() {
//!         return println!("works as {role}");
//!     }
//!     let output = process::command("a_child_ends", "rank 1").output().unwrap();
//!     assert!(output.status.success());
//! }
//! ```
//!
//! Tests that start the same kind of process name the test that does its work.

use std::fmt::Display;
use std::process::Command;

const ROLE: &str = "TEST_PROCESS_ROLE";

/// Returns the role of this process, if a test started it.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// Returns the command of a process that runs `test` with a role.
pub fn command(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("this test binary"));
    command.args(args(test)).env(ROLE, role);
    command
}

/// Appends the process to the command line of a launcher, such as `ip netns exec NAME`.
pub fn append<'a>(launcher: &'a mut Command, test: &str, role: &str) -> &'a mut Command {
    let program = std::env::current_exe().expect("this test binary");
    launcher.arg(program).args(args(test)).env(ROLE, role)
}

fn args(test: &str) -> [&str; 4] {
    ["--exact", test, "--nocapture", "--test-threads=1"]
}

/// Ends a process with the outcome of its role: an error is printed and makes the exit code 1.
pub fn end(outcome: Result<(), impl Display>) {
    if let Err(error) = outcome {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}
