//! The command line and the standard output of a command, and how a command ends.

use clap::Parser;
use fleet_base::text::printable;
use fleet_base::{Error, Result};
use std::ffi::OsString;
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

/// Reads the command line; ends the process where it is wrong or asks for help.
pub fn parsed<T: Parser>(args: impl IntoIterator<Item = impl Into<OsString> + Clone>) -> T {
    T::try_parse_from(args).unwrap_or_else(|error| {
        if !error.use_stderr() {
            error.exit();
        }
        // It quotes arguments.
        let text = error.render().to_string();
        let _ = std::io::stderr().write_all(printable(&text).as_bytes());
        std::process::exit(error.exit_code());
    })
}

/// The standard output. Control characters of files, arguments and peers are printed as escapes.
pub struct Output {
    stdout: std::io::StdoutLock<'static>,
}

impl Output {
    /// Runs a command: errors go to the standard error, and make the exit code 1.
    pub fn run(command: impl FnOnce(&mut Output) -> Result<(), Stop>) -> ExitCode {
        fleet_base::signals::ignore_file_size_signal();
        let mut out = Output { stdout: std::io::stdout().lock() };
        match command(&mut out).and_then(|()| out.flush()) {
            Ok(()) | Err(Stop::ReaderLeft) => ExitCode::SUCCESS,
            Err(Stop::Failed(error)) => {
                // In one piece: others write there too. Nobody is left to be told when this fails
                // too.
                let text = format!("error: {error}\n");
                let _ = std::io::stderr().write_all(text.as_bytes());
                ExitCode::FAILURE
            }
        }
    }

    pub fn line(&mut self, text: impl std::fmt::Display) -> Result<(), Stop> {
        Self::check(writeln!(self.stdout, "{}", printable(&text.to_string())))
    }

    pub fn text(&mut self, text: impl std::fmt::Display) -> Result<(), Stop> {
        Self::check(write!(self.stdout, "{}", printable(&text.to_string())))
    }

    /// Draws on a terminal: control characters take effect.
    pub fn draw(&mut self, text: impl std::fmt::Display) -> Result<(), Stop> {
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
