//! `fleet`: inspects, converts and runs program files, without a line of Rust.
//!
//! Results go to the standard output and messages to the standard error. The exit code is 0 for
//! success, 1 for an error (a file, a program, a run), and 2 for a wrong command line. `fleetrun`
//! starts jobs of several processes or machines.

#[cfg(feature = "grpc")]
use crate::ps;
use crate::{checkpoint, data, doctor, durable, export, new};
use clap::{Parser, Subcommand};
use fleet::app::{Models, Tools, parse_args};
use fleet_base::output::{ExitReason, Output};
use fleet_topology::Env;
use std::ffi::OsString;
use std::process::ExitCode;

/// Inspect, convert and run Fleet programs
///
/// PROGRAM is a file in text or binary form (detected), the folder of a saved model, or model:NAME,
/// a network of the zoo: lenet, resnet18, resnet50, vgg16, bert, gpt, wide_deep, deepfm, word2vec.
/// model:NAME/startup is its startup program. In Rust, fleet::format::save_program writes the
/// programs of a network.
#[derive(Parser)]
#[command(name = "fleet", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Tools(Tools),
    /// Create a crate with an op, an optimizer, a data format, a metric, a network and jobs of your
    /// own, to start from
    New(new::NewArgs),
    /// Train a demo model on generated data
    Demo(fleet_demo::DemoArgs),
    /// Train on your own data, as a job file describes: check the file, train, list its fields
    #[command(subcommand)]
    Job(fleet_job::commands::JobCommand),
    /// Train variants of a job, and keep the best one: successive halving over the fields of [tune]
    Tune(fleet_job::tune::TuneArgs),
    /// Score the rows of files with a model that a job trained
    Predict(fleet_job::predict::PredictArgs),
    /// Find the best items for users, with a model of two towers that a job trained
    Recommend(fleet_job::recommend::RecommendArgs),
    /// Serve predictions of a model that a job trained, and recommendations, over HTTP
    Serve(fleet_serve::ServeArgs),
    /// Generate data sets
    #[command(subcommand)]
    Data(data::DataCommand),
    /// Write a saved model in the format of other programs
    ///
    /// An embedding table on parameter servers becomes a constant with the rows of the save; other
    /// ids read as zeros.
    Export(export::ExportArgs),
    /// Inspect, verify and convert checkpoints of jobs and saves of models
    #[command(subcommand)]
    Checkpoint(checkpoint::Command),
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

/// Runs the command `fleet`. The first argument is the name of the program. A wrong command line,
/// and one that asks for help, ends the process.
pub fn fleet(args: Vec<OsString>, env: &Env) -> ExitCode {
    let args: Args = parse_args(args);
    Output::run(|out| dispatch(args.command, env, out))
}

fn dispatch(command: Command, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    match command {
        Command::Tools(command) => command.run(&Models::default(), env, out),
        Command::New(args) => new::run(&args, out),
        Command::Demo(args) => fleet_demo::run(&args, &alone(env)?, out),
        Command::Job(command) => fleet_job::commands::run(&command, &alone(env)?, out),
        Command::Tune(args) => fleet_job::tune::run(&args, &alone(env)?, out),
        Command::Predict(args) => fleet_job::predict::run(&args, env, out),
        Command::Recommend(args) => fleet_job::recommend::run(&args, env, out),
        Command::Serve(args) => fleet_serve::run(&args, env, out),
        Command::Data(command) => data::run(&command, env, out),
        Command::Export(args) => export::run(&args, out),
        Command::Checkpoint(command) => checkpoint::run(&command, out),
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

/// Initialises a job of one worker. Of the environment, it has only the settings of object stores.
fn alone(env: &Env) -> fleet::Result<fleet::Fleet> {
    fleet::Fleet::join(&fleet_job::embed::store_settings(env))
}
