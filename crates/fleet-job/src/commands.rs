//! `fleet job`: checks, trains and describes job files.

use crate::check::check;
use crate::data::JobData;
use crate::file;
use crate::init::{self, InitArgs};
use crate::origin::Origin;
use crate::problems::of_findings;
use crate::report::{self, ReportArgs};
use crate::schema;
use crate::train::{self, TrainArgs};
use clap::{Args, Subcommand};
use fleet::topology::Env;
use fleet::{Error, Fleet};
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Result, text};
use fleet_config::Problem;
use std::path::{Path, PathBuf};

/// A command about job files.
#[derive(Subcommand)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub enum JobCommand {
    /// Look at files, and write a commented job file for them
    Init(InitArgs),
    /// Find the problems of a job file and of its data, without training
    Check(CheckArgs),
    /// Train a job in this process; fleetrun job:FILE trains it in several
    Train(TrainArgs),
    /// Show the report of a model, or measure it on other files
    Report(ReportArgs),
    /// Print the JSON schema of job files, for editors
    Schema,
    /// Print all fields of job files as Markdown tables
    Fields,
}

/// Arguments of `fleet job check`.
#[derive(Args)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub struct CheckArgs {
    /// Job file
    pub file: PathBuf,
    /// Number of rows of the data to read
    #[arg(long, value_name = "N", default_value_t = 200_000)]
    pub rows: u64,
}

/// Runs a command in this process.
pub fn run(command: &JobCommand, fleet: &Fleet, out: &mut Output) -> Result<(), ExitReason> {
    match command {
        JobCommand::Init(args) => init::run(args, fleet.env(), out),
        JobCommand::Check(args) => check_job(args, fleet.env(), out),
        JobCommand::Train(args) => train::run(args, fleet, out),
        JobCommand::Report(args) => report::run(args, fleet.env(), out),
        JobCommand::Schema => out.line(format!("{:#}", schema::json_schema())),
        JobCommand::Fields => out.text(schema::markdown()),
    }
}

/// Checks a file, and up to `rows_max` rows of its data. Returns the problems, and what was read.
pub(crate) fn check_file(file: &Path, env: &Env, rows_max: u64) -> Result<(Vec<Problem>, String)> {
    let (text, _) = file::read(file)?;
    let (job, mut problems) = check(&text);
    if problems.iter().any(|problem| problem.is_error()) {
        return Ok((problems, String::new()));
    }
    let data = JobData::open(&job, &Origin::new(file.parent().unwrap_or(Path::new("")), env)?)?;
    let fitted = data.fit(rows_max)?;
    problems.extend(of_findings(&fitted.findings, &text));
    let rows = fitted.counts.train + fitted.counts.validation + fitted.counts.test;
    let only = if rows == rows_max { "the first " } else { "" };
    let files = text::counted(data.files().len(), "file");
    Ok((problems, format!(", {only}{} rows of {files}", text::count(rows as f64))))
}

fn check_job(args: &CheckArgs, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    let (problems, seen) = check_file(&args.file, env, args.rows)?;
    problems.iter().try_for_each(|problem| out.line(problem))?;
    let errors = problems.iter().filter(|problem| problem.is_error()).count();
    if errors > 0 {
        let (file, count) = (args.file.display(), text::counted(errors, "error"));
        return Err(Error::invalid(format!("{file} has {count}")).into());
    }
    let warnings = match problems.len() {
        0 => "no problems".to_string(),
        count => text::counted(count, "warning"),
    };
    out.line(format!("{}: {warnings}{seen}", args.file.display()))
}
