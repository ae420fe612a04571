//! Results of the trials: a file by which a search resumes, and tables of them.

use fleet_base::file::{make_folder, write_file};
use fleet_base::{Error, Result, input};
use serde::{Deserialize, Serialize};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};

/// Result of a trial at the end of a stage.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The trial.
    pub trial: usize,
    /// The stage.
    pub stage: usize,
    /// Steps so far.
    pub steps: u64,
    /// The best value of the validations; none if it was never a number.
    pub value: Option<f64>,
    /// Step of the best validation.
    pub best_step: Option<u64>,
    /// Duration of the training.
    pub seconds: f64,
    /// Why the training has ended.
    pub state: State,
    /// The error of a trial that failed.
    #[serde(default)]
    pub error: String,
}

/// Why the training of a trial has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// The stage was over.
    #[default]
    Halved,
    /// It has made all steps.
    Finished,
    /// The validations did not improve any more.
    EarlyStop,
    /// An error.
    Failed,
}

impl State {
    fn name(self) -> &'static str {
        match self {
            State::Halved => "halved",
            State::Finished => "finished",
            State::EarlyStop => "early stop",
            State::Failed => "failed",
        }
    }
}

/// Results of a search.
pub struct Results {
    file: PathBuf,
    saved: Saved,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    version: u32,
    /// The search: job file, seed and number of trials.
    key: String,
    goal: String,
    outcomes: Vec<Outcome>,
}

const VERSION: u32 = 1;
const FILE: &str = "tune.json";
/// Each of up to 10,000 trials has a few hundred bytes.
const BYTES_MAX: u64 = 64 << 20;

impl Results {
    /// Opens the results of a search that was interrupted, or begins new ones.
    pub fn open(folder: &Path, key: &str, goal: &str) -> Result<Results> {
        let file = folder.join(FILE);
        let saved = match file.exists() {
            false => {
                make_folder(folder)?;
                let (key, goal) = (key.to_string(), goal.to_string());
                Saved { version: VERSION, key, goal, outcomes: Vec::new() }
            }
            true => {
                let bytes = input::read(&file, "results of a search", BYTES_MAX)?;
                serde_json::from_slice(&bytes).map_err(|error| {
                    Error::invalid(format!("the results of an earlier search are damaged: {error}"))
                        .at(file.display())
                        .help("begin again: --fresh")
                })?
            }
        };
        if saved.key != key || saved.version != VERSION {
            return Err(Error::invalid("another search was interrupted")
                .expected("the same job file, seed and number of trials")
                .got(folder.display())
                .help("resume it with them, or begin again: --fresh"));
        }
        Ok(Results { file, saved })
    }

    /// Adds a result, and saves all of them.
    pub fn add(&mut self, outcome: Outcome) -> Result<()> {
        self.saved.outcomes.push(outcome);
        let text = serde_json::to_string(&self.saved)
            .map_err(|error| Error::internal(format!("cannot write results: {error}")))?;
        write_file(&self.file, text.as_bytes())
    }

    /// Returns the number of results.
    pub fn done(&self) -> usize {
        self.saved.outcomes.len()
    }

    /// Returns whether a trial has a result of a stage.
    pub fn has(&self, trial: usize, stage: usize) -> bool {
        self.saved.outcomes.iter().any(|it| it.trial == trial && it.stage == stage)
    }

    /// Returns the latest result of a trial.
    pub fn last(&self, trial: usize) -> Option<&Outcome> {
        self.saved.outcomes.iter().filter(|it| it.trial == trial).max_by_key(|it| it.stage)
    }

    /// Returns the trials of a stage, the best one first.
    pub fn best(&self, stage: usize) -> Vec<usize> {
        let mut found: Vec<&Outcome> =
            self.saved.outcomes.iter().filter(|it| it.stage == stage).collect();
        found.sort_by(|a, b| self.order(a, b));
        found.into_iter().map(|it| it.trial).collect()
    }

    /// Returns the latest result of each trial: those of later stages first, then the best ones.
    pub fn ranked(&self) -> Vec<Outcome> {
        let outcomes = &self.saved.outcomes;
        let is_last =
            |it: &&Outcome| self.last(it.trial).is_some_and(|last| last.stage == it.stage);
        let mut found: Vec<Outcome> = outcomes.iter().filter(is_last).cloned().collect();
        found.sort_by(|a, b| b.stage.cmp(&a.stage).then(self.order(a, b)));
        found
    }

    /// The best value first; trials without one last.
    fn order(&self, a: &Outcome, b: &Outcome) -> Ordering {
        let is_highest_best = ["auc", "accuracy", "ndcg"].contains(&self.saved.goal.as_str());
        let sign = if is_highest_best { -1.0 } else { 1.0 };
        let key = |it: &Outcome| it.value.map_or(f64::INFINITY, |value| sign * value);
        key(a).total_cmp(&key(b)).then(a.trial.cmp(&b.trial))
    }

    /// Returns the name of the value.
    pub fn goal(&self) -> &str {
        &self.saved.goal
    }

    /// Returns a value as it is shown. Models are compared by the square of the rmse.
    pub fn shown(&self, value: Option<f64>) -> String {
        match value.map(|value| self.meaning(value)) {
            None => "-".to_string(),
            Some(value) => format!("{value:.4}"),
        }
    }

    fn meaning(&self, value: f64) -> f64 {
        if self.saved.goal == "rmse" { value.sqrt() } else { value }
    }

    /// Returns the latest results of all trials as CSV, the best one first.
    pub fn csv(&self, names: &[&str], values: &[&[String]]) -> String {
        let head = ["trial", "state", "steps", "best_step", "seconds", self.goal()];
        let names = names.iter().map(|name| csv_text(name));
        let head = head.iter().map(|name| name.to_string()).chain(names);
        let head: Vec<String> = head.chain(["error".to_string()]).collect();
        let mut out = head.join(",") + "\n";
        for it in self.ranked() {
            let value = it.value.map(|value| self.meaning(value).to_string()).unwrap_or_default();
            let best = it.best_step.map(|step| step.to_string()).unwrap_or_default();
            let own = [
                (it.trial + 1).to_string(),
                it.state.name().to_string(),
                it.steps.to_string(),
                best,
                format!("{:.3}", it.seconds),
                value,
            ];
            let values = values[it.trial].iter().map(|value| csv_text(value));
            let error = csv_text(it.error.lines().next().unwrap_or_default());
            out += &own.into_iter().chain(values).chain([error]).collect::<Vec<_>>().join(",");
            out.push('\n');
        }
        out
    }

    /// Returns the same as lines with columns.
    pub fn table(&self, names: &[&str], values: &[&[String]]) -> Vec<String> {
        let head = ["trial", "state", "steps", self.goal()];
        let head = head.iter().chain(names).map(|name| name.to_string()).collect();
        let mut rows: Vec<Vec<String>> = vec![head];
        for it in self.ranked() {
            let own = [
                (it.trial + 1).to_string(),
                it.state.name().to_string(),
                it.steps.to_string(),
                self.shown(it.value),
            ];
            rows.push(own.into_iter().chain(values[it.trial].iter().cloned()).collect());
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
        let widths: Vec<usize> =
            (0..rows[0].len()).map(|column| width(column).unwrap_or(0)).collect();
        let line = |row: &Vec<String>| {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<_>>().join("  ").trim_end().to_string()
        };
        rows.iter().map(line).collect()
    }
}

fn csv_text(text: &str) -> String {
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}
