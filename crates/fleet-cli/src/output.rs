//! The standard output of a command, and how a command ends.

use fleet_base::{Error, Result};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

/// Why a command ends early.
pub enum Stop {
    Failed(Error),
    /// Whoever reads the output has enough of it (`fleet print x | head`).
    ReaderLeft,
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// The standard output.
pub struct Output {
    stdout: std::io::StdoutLock<'static>,
}

impl Output {
    /// Runs a command: errors go to the standard error, and make the exit code 1.
    pub fn run(command: impl FnOnce(&mut Output) -> Result<(), Stop>) -> ExitCode {
        let mut out = Output { stdout: std::io::stdout().lock() };
        match command(&mut out).and_then(|()| out.flush()) {
            Ok(()) | Err(Stop::ReaderLeft) => ExitCode::SUCCESS,
            Err(Stop::Failed(error)) => {
                // In one piece: others write there too. Nobody is left to be told when this fails too.
                let text = format!("error: {error}\n");
                let _ = std::io::stderr().write_all(text.as_bytes());
                ExitCode::FAILURE
            }
        }
    }

    pub fn line(&mut self, text: impl std::fmt::Display) -> Result<(), Stop> {
        Self::check(writeln!(self.stdout, "{text}"))
    }

    pub fn text(&mut self, text: impl std::fmt::Display) -> Result<(), Stop> {
        Self::check(write!(self.stdout, "{text}"))
    }

    pub fn flush(&mut self) -> Result<(), Stop> {
        Self::check(self.stdout.flush())
    }

    fn check(result: std::io::Result<()>) -> Result<(), Stop> {
        result.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Stop::ReaderLeft,
            _ => Stop::Failed(Error::unavailable(format!("cannot write the output: {error}"))),
        })
    }
}
