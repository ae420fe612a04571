//! Training from CSV files, beside training on rows that are in memory.
//!
//! One job trains for one epoch: one pass fits the features, then rows are parsed, hashed and
//! trained on, with a validation at the end. The reference is the part of the same training that
//! has all rows in memory already: the time of [`fleet::Trainer`], with its validation. So both
//! sides train the same model on the same batches.

use crate::measure::{Options, print_rates};
use crate::serving::{CATEGORIES, NUMBERS, csv, rows, write};
use fleet::{Error, Fleet, Result};
use fleet_base::temporary::TemporaryFolder;
use fleet_job::{embed, train};
use fleet_topology::Env;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

/// Files, and rows of each.
const FILES: u64 = 4;
const FILE_ROWS: usize = 200_000;

/// Whether the rows of the job are loaded or streamed.
#[derive(Clone, Copy, PartialEq)]
pub enum Rows {
    Loaded,
    Streamed,
}

/// A training: seconds with reading, seconds of the trainer alone, and the result.
struct Timed {
    all: f64,
    trainer: f64,
    auc: f64,
    loss: f64,
}

/// Speed of a training from CSV files, as a share of that of the same training in memory.
pub fn run(options: &Options, kind: Rows) -> Result<()> {
    let folder = TemporaryFolder::new(&std::env::temp_dir(), "fleet-bench-csv")?;
    let folder = folder.path();
    for file in 0..FILES {
        write(&folder.join(format!("day-{file}.csv")), &csv(&rows(50 + file, FILE_ROWS)))?;
    }
    let (steps, warmup) = options.counts(3, 0);
    let mut shares = Vec::new();
    for step in 0..warmup + steps {
        let loaded = train(options, folder, Rows::Loaded)?;
        let from_files = match kind {
            Rows::Loaded => None,
            Rows::Streamed => Some(train(options, folder, Rows::Streamed)?),
        };
        let from_files = from_files.as_ref().unwrap_or(&loaded);
        println!(
            "from files {:.2} s (AUC {:.4}, loss {:.4}), from memory {:.2} s (AUC {:.4}, loss \
             {:.4})",
            from_files.all,
            from_files.auc,
            from_files.loss,
            loaded.trainer,
            loaded.auc,
            loaded.loss
        );
        if step >= warmup {
            shares.push(loaded.trainer / from_files.all);
        }
    }
    print_rates(options, "of the speed in memory", shares);
    Ok(())
}

fn train(options: &Options, folder: &Path, rows: Rows) -> Result<Timed> {
    let job = folder.join("job.toml");
    write(&job, &job_text(rows))?;
    let args = train::TrainArgs {
        file: job,
        threads: (options.threads as u16).into(),
        fresh: true,
        quiet: true,
        ..train::TrainArgs::default()
    };
    let fleet = Fleet::join(&Env::new())?;
    let (begin, mut all) = (Instant::now(), None);
    // The report, which measures the finished model, follows this line.
    embed::train(&args, &fleet, &mut |line| {
        if line.starts_with("trained") {
            all = Some(begin.elapsed().as_secs_f64());
        }
        Ok(())
    })?;
    let all = all.ok_or_else(|| Error::internal("the job has not reported its training"))?;
    let report = report(&folder.join("model"))?;
    Ok(Timed {
        all,
        trainer: number(&report, "/seconds")?,
        auc: number(&report, "/report/all/auc")?,
        loss: number(&report, "/report/all/loss")?,
    })
}

/// Reads the report of a model folder.
pub fn report(model: &Path) -> Result<serde_json::Value> {
    let path = model.join("report.json");
    let text = std::fs::read_to_string(&path).map_err(|error| Error::io("read", &path, &error))?;
    serde_json::from_str(&text).map_err(|error| Error::internal(error.to_string()))
}

/// Returns a number of a report.
pub fn number(report: &serde_json::Value, pointer: &str) -> Result<f64> {
    let found = report.pointer(pointer).and_then(serde_json::Value::as_f64);
    found.ok_or_else(|| Error::internal("the report lacks a number").got(pointer))
}

fn job_text(rows: Rows) -> String {
    let mut job =
        "version = 1\n[data]\ntrain = \"day-*.csv\"\nvalidation = { share = 0.1 }\n".to_string();
    if rows == Rows::Streamed {
        // The least that can be set.
        job.push_str("memory = \"1MiB\"\n");
    }
    job.push_str("[columns]\nincome = { role = \"label\", positive = \">50K\" }\n");
    for name in NUMBERS {
        let _ = writeln!(job, "{name} = {{ kind = \"number\", embed = \"piecewise\" }}");
    }
    for (name, _) in CATEGORIES {
        let _ = writeln!(job, "{name} = {{ kind = \"category\" }}");
    }
    job.push_str("[train]\nepochs = 1\n");
    job
}
