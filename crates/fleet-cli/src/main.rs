//! `fleet`: inspects, converts and runs program files, without a line of Rust.
//!
//! Results go to the standard output and messages to the standard error. The exit code is 0 for
//! success, 1 for an error (a file, a program, a run), and 2 for a wrong command line. `fleetrun`
//! starts jobs of several processes or machines.

#![forbid(unsafe_code)]

mod args;
mod data;
mod diff;
mod doctor;
mod durable;
mod env;
mod inspect;
#[cfg(feature = "grpc")]
mod ps;
mod rewrite;
mod run;
mod strategy;
mod strategy_file;
mod trace;

use clap::{Parser, Subcommand, ValueEnum};
use fleet_base::output::{ExitReason, Output};
use fleet_format::Form;
use fleet_topology::Env;
use std::path::PathBuf;
use std::process::ExitCode;

/// Inspect, convert and run Fleet programs
///
/// PROGRAM is a file in text or binary form (detected), or the folder of a saved model.
#[derive(Parser)]
#[command(name = "fleet", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
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
    /// Train a demo model on generated data
    Demo(fleet_demo::DemoArgs),
    /// Generate data sets
    #[command(subcommand)]
    Data(data::DataCommand),
    /// Inspect the folders of durable parameter servers
    #[command(subcommand)]
    Durable(durable::Command),
    /// Check the machines of a job: names, reachability, clocks, latency and bandwidth
    ///
    /// Run the same command on every machine, within the time of --wait. The first machine prints
    /// the report.
    Doctor(doctor::DoctorArgs),
    /// Inspect running parameter servers; save, load and shrink their tables (feature grpc)
    #[cfg(feature = "grpc")]
    #[command(subcommand)]
    Ps(ps::Command),
    /// Inspect running parameter servers; save, load and shrink their tables (feature grpc)
    #[cfg(not(feature = "grpc"))]
    Ps {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
        rest: Vec<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum To {
    Text,
    Binary,
}

fn main() -> ExitCode {
    let args: Args = args::parse_args(std::env::args_os());
    Output::run(|out| dispatch(args.command, &Env::process(), out))
}

fn dispatch(command: Command, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
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
        Command::Strategy(command) => strategy::run(&command, out),
        Command::Env(args) => env::run(&args, env, out),
        Command::Rewrite(args) => rewrite::rewrite(&args, out),
        Command::Trace(args) => trace::run(&args, out),
        Command::Demo(args) => fleet_demo::run(&args, &alone()?, out),
        Command::Data(command) => data::run(&command, out),
        Command::Durable(command) => durable::run(&command, out),
        Command::Doctor(args) => doctor::run(&args, out),
        #[cfg(feature = "grpc")]
        Command::Ps(command) => ps::run(&command, env, out),
        #[cfg(not(feature = "grpc"))]
        Command::Ps { rest } => Err(fleet::Error::unsupported("fleet was built without gRPC")
            .got(format!("ps {}", rest.join(" ")))
            .help("build it with the feature `grpc` (cargo build -p fleet-cli --features grpc)")
            .into()),
    }
}

/// Initialises a job of one worker, regardless of the environment.
fn alone() -> fleet::Result<fleet::Fleet> {
    fleet::Fleet::join(&Env::new())
}
