//! The commands, as one list for command lines.

use super::models::Models;
use super::{env, execute, inspect, plan, rewrite, strategy, trace};
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
        /// Program: a file, the folder of a saved model, or model:NAME
        program: PathBuf,
    },
    /// Check a program and report every error
    Verify {
        /// Program: a file, the folder of a saved model, or model:NAME
        program: PathBuf,
    },
    /// Count ops, parameters, work and memory
    Stats(inspect::StatsArgs),
    /// Convert a program between text and binary form
    Convert {
        /// Program: a file, the folder of a saved model, or model:NAME
        input: PathBuf,
        /// Output file
        output: PathBuf,
        /// Form of OUTPUT [default: the opposite of INPUT's; text for model:NAME]
        #[arg(long, value_enum)]
        to: Option<To>,
    },
    /// Run a program with tensors from .npy files
    Run(execute::RunArgs),
    /// Create, check, show, explain and convert strategies
    #[command(subcommand)]
    Strategy(strategy::Command),
    /// List the environment variables of Fleet: value, default, meaning
    Env(env::EnvArgs),
    /// Print the programs that a strategy rewrites a program into, for any number of ranks
    Rewrite(rewrite::RewriteArgs),
    /// Compare the layouts of a training on some ranks: predicted step time and memory
    Plan(plan::PlanArgs),
    /// Show the time shares of a traced step and its exposed communication
    Trace(trace::TraceArgs),
}

/// Form of a program file.
#[derive(Clone, Copy, ValueEnum)]
pub enum To {
    /// The text form.
    Text,
    /// The protobuf form.
    Binary,
}

impl Tools {
    /// Runs the command. `models` are the networks that it takes as `model:NAME`.
    pub fn run(&self, models: &Models, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
        match self {
            Tools::Print { program } => inspect::print(program, models, out),
            Tools::Verify { program } => inspect::verify(program, models, out),
            Tools::Stats(args) => inspect::stats(args, models, out),
            Tools::Convert { input, output, to } => {
                let to = to.map(|to| match to {
                    To::Text => Form::Text,
                    To::Binary => Form::Binary,
                });
                inspect::convert(input, output, to, models)
            }
            Tools::Run(args) => execute::run(args, models, out),
            Tools::Strategy(command) => strategy::run(command, models, out),
            Tools::Env(args) => env::run(args, env, out),
            Tools::Rewrite(args) => rewrite::rewrite(args, models, out),
            Tools::Plan(args) => plan::run(args, models, out),
            Tools::Trace(args) => trace::run(args, out),
        }
    }
}
