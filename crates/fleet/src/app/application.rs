//! A program of a user as one binary: worker, server, launcher and commands.

use super::args::{exit, parse_command};
use super::models::{Models, Network};
use super::tools::Tools;
use crate::Fleet;
use clap::{Arg, Command, FromArgMatches, Subcommand};
use fleet_base::Result;
use fleet_base::output::{Output, error_line};
use fleet_launch::{Builtins, GUARD_ARGUMENT, OwnProcess, asks_for_help};
use fleet_ops::{OpDef, Registry};
use fleet_topology::Env;
use std::ffi::OsString;
use std::process::ExitCode;

/// A job: its part in one process, with the arguments after its name. It returns the exit code.
pub type JobFn = fn(&Fleet, &[String]) -> Result<ExitCode>;

/// The ops, networks and jobs of a program, for [`run()`].
///
/// ```no_run
/// use fleet::app::{self, App};
/// use fleet::prelude::*;
/// use std::process::ExitCode;
///
/// fn network(net: &Net) -> Result<Var<'_>> {
///     let (x, y) = (net.data("x", [-1, 2], DType::F32), net.data("y", [-1, 1], DType::F32));
///     Ok(x.fc(1).mse_loss(y, Reduction::Mean))
/// }
///
/// fn train(fleet: &Fleet, _args: &[String]) -> Result<ExitCode> {
///     let net = Net::new();
///     let loss = network(&net)?;
///     let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &DistributedStrategy::new());
///     let job = optimizer.minimize(&net, loss)?;
///     let session = fleet.session(net.build()?, &job, ExecOptions::default())?;
///     // Train the session.
///     # drop(session);
///     fleet.finish()?;
///     Ok(ExitCode::SUCCESS)
/// }
///
/// fn main() -> ExitCode {
///     let app = App::new(env!("CARGO_PKG_NAME")).version(env!("CARGO_PKG_VERSION"));
///     app::run(app.network("linear", network).job("train", "Train the network", train))
/// }
/// ```
#[derive(Clone)]
pub struct App {
    name: &'static str,
    version: &'static str,
    ops: Vec<&'static OpDef>,
    models: Models,
    jobs: Vec<Job>,
}

#[derive(Clone, Debug)]
struct Job {
    name: &'static str,
    about: &'static str,
    run: JobFn,
}

impl App {
    /// Creates an application without ops, networks and jobs.
    pub fn new(name: &'static str) -> App {
        let (ops, jobs, models) = (Vec::new(), Vec::new(), Models::default());
        App { name, version: "", ops, models, jobs }
    }

    /// Sets the version that `--version` prints.
    pub fn version(self, version: &'static str) -> App {
        App { version, ..self }
    }

    /// Adds ops, which [`Registry::install`] installs.
    pub fn ops(mut self, ops: &[&'static OpDef]) -> App {
        self.ops.extend(ops);
        self
    }

    /// Adds a network, which commands take as `model:NAME`.
    pub fn network(mut self, name: &'static str, network: Network) -> App {
        self.models.add(name, network);
        self
    }

    /// Adds a job. Its text is its help: say which arguments it takes.
    pub fn job(mut self, name: &'static str, about: &'static str, run: JobFn) -> App {
        self.jobs.push(Job { name, about, run });
        self
    }

    /// Returns the command line: the jobs, the launcher and the commands for programs.
    fn command(&self) -> Command {
        let mut command = Command::new(self.name)
            .about("Trains as a job, and prints, runs and checks programs")
            .subcommand_required(true)
            .arg_required_else_help(true);
        if !self.version.is_empty() {
            command = command.version(self.version);
        }
        for Job { name, about, .. } in &self.jobs {
            command = command.subcommand(Command::new(*name).about(*about).arg(remaining("ARGS")));
        }
        let launch = Command::new(LAUNCH)
            .about("Start a job of several processes: the flags of fleetrun, a job, its arguments");
        Tools::augment_subcommands(command.subcommand(launch.arg(remaining("FLAGS JOB ARGS"))))
    }
}

/// Returns an argument for all that follows a command.
fn remaining(name: &'static str) -> Arg {
    Arg::new(name).num_args(0..).trailing_var_arg(true).allow_hyphen_values(true)
}

/// First argument that starts the launcher.
const LAUNCH: &str = "launch";

/// Hidden first argument of the processes that the launcher starts; the job's name follows.
const PROCESS: &str = "__job";

/// Runs the program as its arguments and its environment say, and returns the exit code.
///
/// * `NAME ARGS`: the job of this name, as this process's part: one process alone or, when a
///   launcher has started it, a worker or a server.
/// * `launch FLAGS NAME ARGS`: starts that job as several processes, with the flags of `fleetrun`.
/// * Any other command inspects or runs a program with the ops and networks of the application:
///   `print`, `verify`, `stats`, `convert`, `run`, `rewrite`, `plan`, `strategy`, `env`,
///   `trace`.
pub fn run(app: App) -> ExitCode {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let texts: Vec<String> = args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let first = texts.first().map(String::as_str);
    if first == Some(GUARD_ARGUMENT) {
        return launch(&app, texts);
    }
    if first == Some(LAUNCH) {
        return launch(&app, texts[1..].to_vec());
    }
    if let Err(error) = Registry::install(&app.ops) {
        return failed(&error);
    }
    let own = texts.iter().position(|arg| arg != PROCESS).unwrap_or(texts.len());
    if let Some((name, rest)) = texts[own..].split_first()
        && let Some(job) = app.jobs.iter().find(|job| job.name == name)
        && !asks_for_help(rest)
    {
        let ran = Fleet::from_env().and_then(|fleet| (job.run)(&fleet, rest));
        return ran.unwrap_or_else(|error| failed(&error));
    }
    args.drain(..own);
    args.insert(0, app.name.into());
    let matches = parse_command(app.command(), args);
    let tools = Tools::from_arg_matches(&matches).unwrap_or_else(|error| exit(&error));
    Output::run(|out| tools.run(&app.models, &Env::process(), out))
}

/// Runs the launcher.
fn launch(app: &App, args: Vec<String>) -> ExitCode {
    let names: Vec<&str> = app.jobs.iter().map(|job| job.name).collect();
    let (argument, names) = (PROCESS, &names[..]);
    let jobs = Builtins { argument, prefix: "", names, not_on_servers: &[], files: None };
    let executable = std::env::current_exe();
    ExitCode::from(fleet_launch::main(OwnProcess { args, env: Env::process(), executable }, &jobs))
}

fn failed(error: &fleet_base::Error) -> ExitCode {
    error_line(format_args!("error: {error}"));
    ExitCode::FAILURE
}
