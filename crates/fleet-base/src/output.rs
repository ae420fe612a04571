//! Messages on the standard error, and standard output and termination of a command.

use crate::text::printable;
use crate::{Error, Result};
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::sync::OnceLock;

type Receiver = dyn Fn(&str) + Send + Sync;

/// Receiver of the messages of Fleet, if it is not the standard error.
static RECEIVER: OnceLock<Box<Receiver>> = OnceLock::new();

/// Writes a message of Fleet, `fleet: ...`, to the standard error, or passes its text to the
/// receiver of [`send_notes_to`].
pub fn note(text: impl Display) {
    match RECEIVER.get() {
        Some(receiver) => receiver(&text.to_string()),
        None => error_line(format_args!("fleet: {text}")),
    }
}

/// Passes messages of Fleet to `receiver` from now on, which any thread may call. Returns an error
/// if there is a receiver already.
pub fn send_notes_to(receiver: impl Fn(&str) + Send + Sync + 'static) -> Result<()> {
    let taken = |_| Error::invalid("messages have a receiver already");
    RECEIVER.set(Box::new(receiver)).map_err(taken)
}

/// Writes a line to the standard error, in one piece, since other processes write there too. A
/// failure is ignored: a full disk or a closed descriptor never ends a job, as it does with
/// `eprintln!`.
pub fn error_line(text: impl Display) {
    let line = format!("{}\n", printable(&text.to_string()));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Reason for a command to end early.
pub enum ExitReason {
    /// An error, which is printed; the exit code is 1.
    Failed(Error),
    /// The reader of the output has closed it (`fleet print x | head`).
    ReaderClosed,
    /// The command was requested to stop, as by SIGTERM, and has done so in order.
    Terminated,
}

/// Exit code of a command that SIGTERM ends: 128 and the number of the signal.
const EXIT_TERMINATED: u8 = 143;

impl From<Error> for ExitReason {
    fn from(error: Error) -> ExitReason {
        ExitReason::Failed(error)
    }
}

/// The standard output. Control characters of files, arguments and peers are printed as escapes.
pub struct Output {
    stdout: std::io::StdoutLock<'static>,
}

impl Output {
    /// Runs a command. An error is printed to the standard error and makes the exit code 1.
    pub fn run(command: impl FnOnce(&mut Output) -> Result<(), ExitReason>) -> ExitCode {
        crate::signals::ignore_file_size_signal();
        let mut out = Output { stdout: std::io::stdout().lock() };
        match command(&mut out).and_then(|()| out.flush()) {
            Ok(()) | Err(ExitReason::ReaderClosed) => ExitCode::SUCCESS,
            Err(ExitReason::Terminated) => EXIT_TERMINATED.into(),
            Err(ExitReason::Failed(error)) => {
                error_line(format_args!("error: {error}"));
                ExitCode::FAILURE
            }
        }
    }

    /// Writes text and a line end. Control characters are printed as escapes.
    pub fn line(&mut self, text: impl Display) -> Result<(), ExitReason> {
        Self::check(writeln!(self.stdout, "{}", printable(&text.to_string())))
    }

    /// Writes text without a line end. Control characters are printed as escapes.
    pub fn text(&mut self, text: impl Display) -> Result<(), ExitReason> {
        Self::check(write!(self.stdout, "{}", printable(&text.to_string())))
    }

    /// Writes text whose control characters take effect, for drawing on a terminal.
    pub fn draw(&mut self, text: impl Display) -> Result<(), ExitReason> {
        Self::check(write!(self.stdout, "{text}"))
    }

    /// Writes out buffered text.
    pub fn flush(&mut self) -> Result<(), ExitReason> {
        Self::check(self.stdout.flush())
    }

    fn check(result: std::io::Result<()>) -> Result<(), ExitReason> {
        result.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => ExitReason::ReaderClosed,
            _ => ExitReason::Failed(Error::unavailable(format!(
                "cannot write to the standard output: {error}"
            ))),
        })
    }
}
