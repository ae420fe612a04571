//! `fleetrun`: starts training jobs. The launcher is a library of its own. This command adds the
//! built-in jobs, which it runs by starting itself again with a hidden first argument.

use clap::Parser;
use fleet::Fleet;
use fleet::app::parse_args;
use fleet_base::output::Output;
use fleet_launch::{Builtins, FileJobs, OwnProcess};
use std::process::ExitCode;

/// The demos of `fleet demo` as jobs.
const BUILTINS: Builtins<'static> = Builtins {
    argument: "__demo",
    prefix: "demo:",
    names: &["wide_deep", "lenet", "word2vec", "bert", "resnet", "gpt"],
    not_on_servers: fleet_demo::UNSUPPORTED_ON_SERVERS,
    files: Some(FILE_JOBS),
};

/// Job files.
const FILE_JOBS: FileJobs<'static> = FileJobs { argument: "__job", prefix: "job:" };

/// Train a demo model as a job
#[derive(Parser)]
#[command(
    name = "fleetrun demo:NAME",
    bin_name = "fleetrun demo:NAME",
    override_usage = "fleetrun [FLAGS] demo:NAME [OPTIONS]"
)]
struct DemoCommand {
    #[command(flatten)]
    demo: fleet_demo::DemoArgs,
}

/// Train on your own data, as a job file describes
#[derive(Parser)]
#[command(
    name = "fleetrun job:FILE",
    bin_name = "fleetrun job:FILE",
    override_usage = "fleetrun [FLAGS] job:FILE [OPTIONS]"
)]
struct JobCommand {
    #[command(flatten)]
    job: fleet_job::train::TrainArgs,
}

/// Runs the command `fleetrun` and returns its exit code. `own.executable` is a file that runs this
/// function with its arguments: the launcher starts it for guards and built-in jobs.
pub fn fleetrun(own: OwnProcess) -> ExitCode {
    if own.args.first().is_some_and(|first| first == BUILTINS.argument) {
        // The hidden argument takes the place of the program's name.
        let command: DemoCommand = parse_args(own.args);
        return Output::run(|out| fleet_demo::run(&command.demo, &Fleet::join(&own.env)?, out));
    }
    if own.args.first().is_some_and(|first| first == FILE_JOBS.argument) {
        let command: JobCommand = parse_args(own.args);
        return Output::run(|out| {
            fleet_job::train::run(&command.job, &Fleet::join(&own.env)?, out)
        });
    }
    ExitCode::from(fleet_launch::main(own, &BUILTINS))
}
