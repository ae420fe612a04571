//! `fleet predict`: scores of the rows of files, by a model folder.

use crate::features::{Features, Meaning};
use crate::keep::Kept;
use crate::origin::{self, Origin};
use crate::raw::{RawFormat, format_of};
use crate::rows::{BadLabels, JobRows, Share};
use crate::saved::{SCORE_ROWS, SavedModel};
use crate::scoring::for_each_batch;
use crate::threads::Threads;
use clap::Args;
use fleet::data::{DatasetOptions, QueueDataset};
use fleet::topology::Env;
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result, text};
use fleet_data::FloatTable;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Scores the rows of files.
#[derive(Args, Clone, Debug)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub struct PredictArgs {
    /// Model folder that a job wrote
    pub model: PathBuf,
    /// Files with the rows: names or patterns, also of object stores; a label is not needed.
    /// made:ctr/FIRST..END are generated rows
    #[arg(long, value_name = "FILES", required = true, num_args = 1..)]
    pub data: Vec<String>,
    /// File for the scores, .csv or .parquet: a row for each row, in the order of the files
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Columns of the files that are copied beside the scores, as text
    #[arg(long, value_name = "COLUMN", num_args = 1..)]
    pub keep: Vec<String>,
    #[command(flatten)]
    pub threads: Threads,
}

/// Runs the command.
pub fn run(args: &PredictArgs, env: &Env, out: &mut Output) -> Result<(), ExitReason> {
    let begin = Instant::now();
    origin::check_local("the file of scores", &args.out)?;
    FloatTable::check_name(&args.out)?;
    let options = args.threads.options();
    let mut model = SavedModel::open(&args.model, options)?;
    let origin = Origin::new("", env)?;
    let dataset = open(&model, &origin, &args.data, None)?;
    let names = names(&model.features);
    let mut kept = kept(&model, &origin, args, &names)?;
    let mut table = FloatTable::with_texts(&args.out, &args.keep, &names)?;
    let width = model.scores();
    let (mut rows, mut texts) = (0u64, Vec::new());
    for_each_batch(&mut model, &dataset, |scores, _| {
        let count = scores.len() / width;
        rows += count as u64;
        texts.clear();
        if let Some(kept) = &mut kept {
            kept.read(count, &mut texts)?;
        }
        table.write_rows(&texts, scores)
    })?;
    table.finish()?;
    let seconds = begin.elapsed().as_secs_f64();
    let (count, rate) = (text::count(rows as f64), text::count(rows as f64 / seconds.max(1e-9)));
    out.line(format!(
        "{count} rows scored in {seconds:.1} s, {rate} rows/s: {}",
        args.out.display()
    ))
}

/// Opens the columns that are copied, if any. Names are those of the files, or of the job file.
fn kept(
    model: &SavedModel,
    origin: &Origin,
    args: &PredictArgs,
    scores: &[String],
) -> Result<Option<Kept>> {
    if args.keep.is_empty() {
        return Ok(None);
    }
    for (at, name) in args.keep.iter().enumerate() {
        if args.keep[..at].contains(name) || scores.contains(name) {
            return Err(Error::invalid(format!("the output would have two columns '{name}'"))
                .at("--keep")
                .help("keep a column once, and none that is called like the scores"));
        }
    }
    let job = &model.job;
    let source = |name: &String| {
        job.column(name).map_or_else(|| name.clone(), |column| column.source.clone())
    };
    let files = origin.expand(&args.data)?;
    let first = files.first().ok_or_else(|| Error::invalid("no files to score"))?;
    let format = format_of(&job.data, &job.columns, first)?.of_files("--keep")?;
    let columns: Vec<String> = args.keep.iter().map(source).collect();
    Ok(Some(Kept::open(origin, format, files, &columns)?))
}

/// Opens files without labels. A row that cannot be read is an error: skipping it would shift the
/// scores of all rows after it.
pub(crate) fn open(
    model: &SavedModel,
    origin: &Origin,
    patterns: &[String],
    format: Option<RawFormat>,
) -> Result<QueueDataset> {
    let files = origin.expand(patterns)?;
    let first = files.first().ok_or_else(|| Error::invalid("no files to score"))?;
    let format = match format {
        Some(format) => format,
        None => format_of(&model.job.data, &model.job.columns, first)?,
    };
    let raw = model.raw(origin, format)?;
    let applied = model.apply(&raw)?;
    let rows = JobRows {
        raw: raw.pass(),
        applied: Arc::clone(&applied),
        part: None,
        share: Share::ALL,
        window: None,
        bad: Arc::new(BadLabels::at_most(0)),
    };
    let layout = applied.layout(false)?;
    let options = DatasetOptions { layout, batch_size: SCORE_ROWS, ..DatasetOptions::new(rows)? };
    let mut dataset = QueueDataset::new(options)?;
    dataset.set_filelist(files)?;
    Ok(dataset)
}

/// Returns the names of the scores: `score`, or one for each class or label.
fn names(features: &Features) -> Vec<String> {
    let score_of = |names: &[String]| names.iter().map(|name| format!("score_{name}")).collect();
    match &features.label.meaning {
        Meaning::Classes(classes) => score_of(classes),
        _ if features.has_labels() => score_of(&features.label_names()),
        _ => vec!["score".to_string()],
    }
}
