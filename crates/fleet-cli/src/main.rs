//! `fleet`: inspects, converts and runs program files, without a line of Rust.
//!
//! Results go to the standard output and messages to the standard error. The exit code is 0 for
//! success, 1 for an error (a file, a program, a run), and 2 for a wrong command line. `fleetrun`
//! starts jobs of several processes or machines.

mod data;
mod demo;
mod doctor;
mod durable;
mod env;
mod inspect;
mod output;
#[cfg(feature = "grpc")]
mod ps;
mod rewrite;
mod run;
mod strategy;
mod trace;

use clap::{Parser, Subcommand, ValueEnum};
use fleet_format::Form;
use output::{Output, Stop};
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
    /// Makes, checks, shows, explains and converts strategies
    #[command(subcommand)]
    Strategy(strategy::Command),
    /// Lists the environment variables of Fleet: value, default, meaning
    Env(env::EnvArgs),
    /// Prints what a strategy makes of a program, for any number of ranks
    Rewrite(rewrite::RewriteArgs),
    /// Says what the time of a traced step went into, and what communication compute did not hide
    Trace(trace::TraceArgs),
    /// Trains a model on generated data, as a first look
    Demo(demo::DemoArgs),
    /// Generated data sets
    #[command(subcommand)]
    Data(data::DataCommand),
    /// Looks into the folders of durable parameter servers
    #[command(subcommand)]
    Durable(durable::Command),
    /// Checks the machines of a job: names, reachability, clocks, latency and bandwidth
    ///
    /// Run the same command on every machine, within the time of --wait. The first one prints the
    /// report.
    Doctor(doctor::DoctorArgs),
    /// Looks into running parameter servers; saves, loads and shrinks their tables (feature grpc)
    #[cfg(feature = "grpc")]
    #[command(subcommand)]
    Ps(ps::Command),
    /// Looks into running parameter servers; saves, loads and shrinks their tables (feature grpc)
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
    let args: Args = output::parsed(std::env::args_os());
    Output::run(|out| dispatch(args.command, out))
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
        Command::Strategy(command) => strategy::run(&command, out),
        Command::Env(args) => env::run(&args, out),
        Command::Rewrite(args) => rewrite::rewrite(&args, out),
        Command::Trace(args) => trace::run(&args, out),
        Command::Demo(args) => demo::run(&args, &alone()?, out),
        Command::Data(command) => data::run(&command, out),
        Command::Durable(command) => durable::run(&command, out),
        Command::Doctor(args) => doctor::run(&args, out),
        #[cfg(feature = "grpc")]
        Command::Ps(command) => ps::run(&command, out),
        #[cfg(not(feature = "grpc"))]
        Command::Ps { rest } => Err(fleet::Error::unsupported("this fleet was built without gRPC")
            .got(format!("ps {}", rest.join(" ")))
            .help("build it with the feature `grpc` (cargo build -p fleet-cli --features grpc)")
            .into()),
    }
}

/// Initialises a job of one worker, regardless of the environment.
fn alone() -> fleet::Result<fleet::Fleet> {
    fleet::Fleet::init(fleet::Topology::collective(&fleet::topology::Env::new())?)
}
