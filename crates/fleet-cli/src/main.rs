//! `fleet`: looks into program files, converts and runs them, without a line of Rust.
//!
//! Results go to the standard output and messages to the standard error. The exit code is 0 when all
//! went well, 1 for an error (a file, a program, a run), 2 for a wrong command line. What training
//! needs beyond one program on one machine is not done here.

mod demo;
mod inspect;
mod run;

use clap::{Parser, Subcommand, ValueEnum};
use fleet_base::{Error, Result};
use fleet_format::Form;
use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Looks into Fleet programs, converts and runs them
///
/// PROGRAM is a file in text or binary form, which is detected, or the folder of a saved model.
#[derive(Parser)]
#[command(name = "fleet", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Prints a program as text
    Print { program: PathBuf },
    /// Checks a program and reports every error
    Verify { program: PathBuf },
    /// Counts ops, parameters, work and memory
    Stats(inspect::StatsArgs),
    /// Converts a program between its text and its binary form
    Convert {
        input: PathBuf,
        output: PathBuf,
        /// The form of OUTPUT; by default the one that INPUT has not
        #[arg(long, value_enum)]
        to: Option<To>,
    },
    /// Runs a program with tensors from .npy files
    Run(run::RunArgs),
    /// Trains a model on generated data, as a first look
    Demo(demo::DemoArgs),
}

#[derive(Clone, Copy, ValueEnum)]
enum To {
    Text,
    Binary,
}

fn main() -> ExitCode {
    let args = Args::parse();
    let mut out = Output { stdout: std::io::stdout().lock() };
    match dispatch(args.command, &mut out).and_then(|()| out.finish()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Stop::ReaderLeft) => ExitCode::SUCCESS,
        Err(Stop::Failed(error)) => {
            // Nobody is left to be told when this fails too.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn dispatch(command: Command, out: &mut Output) -> Result<(), Stop> {
    match command {
        Command::Print { program } => inspect::print(&program, out),
        Command::Verify { program } => inspect::verify(&program, out),
        Command::Stats(args) => inspect::stats(&args, out),
        Command::Convert { input, output, to } => {
            let to = to.map(|to| match to {
                To::Text => Form::Text,
                To::Binary => Form::Binary,
            });
            inspect::convert(&input, &output, to)
        }
        Command::Run(args) => run::run(&args, out),
        Command::Demo(args) => demo::run(&args, out),
    }
}

/// Why a command ends early.
enum Stop {
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
struct Output {
    stdout: std::io::StdoutLock<'static>,
}

impl Output {
    fn line(&mut self, text: impl std::fmt::Display) -> Result<(), Stop> {
        Self::check(writeln!(self.stdout, "{text}"))
    }

    fn text(&mut self, text: impl std::fmt::Display) -> Result<(), Stop> {
        Self::check(write!(self.stdout, "{text}"))
    }

    fn flush(&mut self) -> Result<(), Stop> {
        Self::check(self.stdout.flush())
    }

    fn finish(&mut self) -> Result<(), Stop> {
        self.flush()
    }

    fn check(result: std::io::Result<()>) -> Result<(), Stop> {
        result.map_err(|error| match error.kind() {
            ErrorKind::BrokenPipe => Stop::ReaderLeft,
            _ => Stop::Failed(Error::unavailable(format!("cannot write the output: {error}"))),
        })
    }
}
