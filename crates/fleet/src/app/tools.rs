//! The commands, as one list for command lines.

use super::{env, inspect, rewrite, run, strategy, trace};
use clap::{Subcommand, ValueEnum};
use fleet_base::output::{ExitReason, Output};
use fleet_format::Form;
use fleet_topology::Env;
use std::path::PathBuf;

/// Commands that inspect, convert and run programs.
#[derive(Subcommand)]
pub enum Tools {
    /// Print a program as text
    Print {
        /// Program file, or the folder of a saved model
        program: PathBuf,
    },
    /// Check a program and report every error
    Verify {
        /// Program file, or the folder of a saved model
        program: PathBuf,
    },
    /// Count ops, parameters, work and memory
    Stats(inspect::StatsArgs),
    /// Convert a program between text and binary form
    Convert {
        /// Program file
        input: PathBuf,
        /// Output file
        output: PathBuf,
        /// Form of OUTPUT [default: the opposite of INPUT's]
        #[arg(long, value_enum)]
        to: Option<To>,
    },
    /// Run a program with tensors from .npy files
    Run(run::RunArgs),
    /// Create, check, show, explain and convert strategies
    #[command(subcommand)]
    Strategy(strategy::Command),
    /// List the environment variables of Fleet: value, default, meaning
    Env(env::EnvArgs),
    /// Print the programs that a strategy rewrites a program into, for any number of ranks
    Rewrite(rewrite::RewriteArgs),
    /// Show the time shares of a traced step and its exposed communication
    Trace(trace::TraceArgs),
}

/// Form of a program file.
#[derive(Clone, Copy, ValueEnum)]
pub enum To {
    Text,
    Binary,
}

impl Tools {
    /// Runs the command.
    pub fn run(&self, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
        match self {
            Tools::Print { program } => inspect::print(program, out),
            Tools::Verify { program } => inspect::verify(program, out),
            Tools::Stats(args) => inspect::stats(args, out),
            Tools::Convert { input, output, to } => {
                let to = to.map(|to| match to {
                    To::Text => Form::Text,
                    To::Binary => Form::Binary,
                });
                inspect::convert(input, output, to)
            }
            Tools::Run(args) => run::run(args, out),
            Tools::Strategy(command) => strategy::run(command, out),
            Tools::Env(args) => env::run(args, env, out),
            Tools::Rewrite(args) => rewrite::rewrite(args, out),
            Tools::Trace(args) => trace::run(args, out),
        }
    }
}
