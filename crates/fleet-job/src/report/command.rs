//! `fleet job report`: prints the report of a model folder again, or measures other data.

use super::{Report, measure};
use crate::data::JobData;
use crate::job::{Job, TaskKind};
use crate::origin::Origin;
use crate::saved::SavedModel;
use crate::split::Part;
use crate::threads::Threads;
use clap::Args;
use fleet::ExecOptions;
use fleet::topology::Env;
use fleet_base::file::write_file;
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Shows the report of a model.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub struct ReportArgs {
    /// Model folder that a job wrote
    pub model: PathBuf,
    /// Measure these files with labels, instead of the rows that the job kept for its test
    #[arg(long, value_name = "FILES", num_args = 1..)]
    pub data: Vec<String>,
    /// File for the whole report, instead of its main parts on the terminal: .html or .json
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    #[command(flatten)]
    pub threads: Threads,
}

/// Runs the command.
pub fn run(args: &ReportArgs, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    let form = args.out.as_deref().map(form_of).transpose()?;
    let mut report = Report::load(&args.model)?;
    if !args.data.is_empty() {
        let options = args.threads.options();
        let origin = Origin::new("", env)?;
        report = of_files(report, &args.model, (&args.data, &origin), options)?;
    }
    let (Some(path), Some(form)) = (&args.out, form) else {
        if report.report.is_none() {
            return out.line("no rows were kept for a test or a validation");
        }
        return report.lines().into_iter().try_for_each(|line| out.line(line));
    };
    let text = match form {
        Form::Html => report.html(),
        Form::Json => {
            let json = serde_json::to_string_pretty(&report);
            json.map_err(|error| Error::internal(error.to_string()))? + "\n"
        }
    };
    write_file(path, text.as_bytes())?;
    out.line(format!("{:<12}{}", "saved", path.display()))
}

#[derive(Clone, Copy)]
enum Form {
    Html,
    Json,
}

fn form_of(path: &Path) -> Result<Form> {
    match path.extension().and_then(|ending| ending.to_str()) {
        Some("html") => Ok(Form::Html),
        Some("json") => Ok(Form::Json),
        _ => Err(Error::unsupported("format of the report is not supported")
            .expected("a file that ends in .html or .json")
            .got(path.display())),
    }
}

/// Measures all rows of files. The charts of the training stay.
fn of_files(
    report: Report,
    folder: &Path,
    (files, origin): (&[String], &Origin),
    options: ExecOptions,
) -> Result<Report> {
    let mut model = SavedModel::open(folder, options)?;
    if model.job.task == TaskKind::Retrieval {
        return Err(Error::unsupported("a retrieval cannot be measured on other data")
            .help("fleet job report without --data shows the measures of its test rows"));
    }
    let mut job = Job::clone(&model.job);
    job.data.train = files.to_vec();
    (job.data.validation, job.data.test) = (None, None);
    job.data.bad_rows_kept = None;
    let data = JobData::open(&job, origin)?;
    let applied: Arc<_> = data.apply(&model.features)?;
    let mut measured = measure(&mut model, &data, &applied, Part::Train, "data")?;
    let old = report.report.iter().flat_map(|old| old.charts.iter());
    measured.charts.extend(old.filter(|chart| chart.key.starts_with("training.")).cloned());
    Ok(Report { report: Some(measured), ..report })
}
