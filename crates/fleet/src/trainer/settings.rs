//! Settings of a training.

use super::evaluate::Evaluation;
use super::event::Callback;
use super::progress::Progress;
use super::source::Source;
use super::stop::StopFlag;
use crate::{CheckpointPolicy, Fleet};
use fleet_base::{Error, Result, text};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

/// How often to validate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// At the end of each epoch.
    Epoch,
    /// After each step that is a multiple of this, and after the last one.
    Steps(u64),
}

/// The value of the validation by which models are compared.
///
/// ```
/// use fleet::trainer::Goal;
/// let goal = Goal::lowest("loss").by_at_least(0.01);
/// assert!(goal.is_better(0.48, Some(0.5)) && !goal.is_better(0.495, Some(0.5)));
/// assert!(Goal::highest("AUC").is_better(0.7, None));
/// assert!(!goal.is_better(f64::NAN, None));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Goal {
    label: String,
    /// 1 if higher values are better, else -1.
    sign: f64,
    least: f64,
}

impl Goal {
    /// Compares by a metric whose lowest value is best.
    pub fn lowest(label: &str) -> Goal {
        Goal { label: label.to_string(), sign: -1.0, least: 0.0 }
    }

    /// Compares by a metric whose highest value is best.
    pub fn highest(label: &str) -> Goal {
        Goal { label: label.to_string(), sign: 1.0, least: 0.0 }
    }

    /// Counts an improvement only if it is larger than this.
    pub fn by_at_least(self, difference: f64) -> Goal {
        Goal { least: difference, ..self }
    }

    /// Returns the label of the metric.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns whether a value is better than the best one so far. NaN never is.
    pub fn is_better(&self, value: f64, best: Option<f64>) -> bool {
        match best {
            None => !value.is_nan(),
            Some(best) => self.sign * (value - best) > self.least,
        }
    }
}

/// A validation: its metrics, its data, and how often it runs.
pub(super) struct Validation<'a> {
    pub evaluation: Evaluation,
    pub data: Box<dyn Source + 'a>,
    pub every: Every,
}

pub(super) struct Settings<'a> {
    pub epochs: Option<u64>,
    pub steps: Option<u64>,
    /// Labels and variables.
    pub watched: Vec<(String, String)>,
    pub looks_ahead: bool,
    /// Step after which a model resumes that was restored otherwise.
    pub resume_after: Option<u64>,
    pub validation: Option<Validation<'a>>,
    pub goal: Option<Goal>,
    pub patience: Option<u64>,
    pub checkpoints: Option<(PathBuf, CheckpointPolicy)>,
    /// Names and values that must not change when the training resumes.
    pub constants: Vec<(String, String)>,
    pub scalars: Option<PathBuf>,
    pub scalars_every: u64,
    pub callbacks: Vec<Box<Callback<'a>>>,
    /// `None` is the usual display.
    pub progress: Option<Progress<'a>>,
    pub stop: Option<StopFlag>,
    pub clock: Box<dyn Fn() -> Duration + 'a>,
}

impl<'a> Settings<'a> {
    /// Returns the columns of the files of scalars.
    pub fn columns(&self) -> Vec<String> {
        let train = self.watched.iter().map(|(label, _)| format!("train/{label}"));
        let valid = self.validation.iter().flat_map(|it| it.evaluation.labels());
        train.chain(valid.map(|label| format!("valid/{label}"))).collect()
    }

    /// Returns whether a worker of synchronous servers agrees with the others on its steps. Workers
    /// meet for that, which those of a job that is restarted cannot do again.
    pub fn has_agreements(&self) -> bool {
        self.validation.is_some() || self.stop.is_some()
    }

    /// Takes the display of this worker.
    pub fn take_progress(&mut self, fleet: &Fleet) -> Progress<'a> {
        self.progress.take().unwrap_or_else(|| Progress::auto(fleet))
    }

    /// Checks the settings against each other, before anything runs.
    pub fn check(&self) -> Result<()> {
        let valid = self.validation.iter().flat_map(|it| it.evaluation.labels());
        let known: Vec<&str> = valid.collect();
        let watched = self.watched.iter().map(|(label, _)| label.as_str());
        check_labels("watched value", watched)?;
        check_labels("metric of the validation", known.iter().copied())?;
        let zero = [
            ("epochs", self.epochs),
            ("steps", self.steps),
            ("patience", self.patience),
            ("interval of scalars", Some(self.scalars_every)),
            (
                "interval of the validation",
                self.validation.as_ref().and_then(|it| it.every.steps()),
            ),
        ];
        if let Some((what, _)) = zero.iter().find(|(_, value)| *value == Some(0)) {
            return Err(Error::invalid(format!("invalid {what}")).expected("at least 1").got(0));
        }
        let Some(goal) = &self.goal else {
            return match self.patience {
                None => Ok(()),
                Some(_) => Err(Error::invalid("early stop needs a goal")
                    .help("call Trainer::goal with a metric of the validation")),
            };
        };
        if known.contains(&goal.label()) {
            return Ok(());
        }
        let hint = text::did_you_mean(goal.label(), known.iter().copied());
        Err(Error::invalid(format!("the goal is no metric of the validation{hint}"))
            .expected(match known.is_empty() {
                true => "a validation (Trainer::validate)".to_string(),
                false => format!("one of {}", known.join(", ")),
            })
            .got(format!("'{}'", goal.label())))
    }
}

impl Every {
    fn steps(self) -> Option<u64> {
        match self {
            Every::Epoch => None,
            Every::Steps(steps) => Some(steps),
        }
    }
}

/// Checks labels, which are columns of files: different, and without separators.
fn check_labels<'a>(what: &str, labels: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for label in labels {
        let is_plain = |c: char| !c.is_control() && !"\",\\".contains(c);
        if label.is_empty() || !label.chars().all(is_plain) {
            return Err(Error::invalid(format!("invalid label of a {what}"))
                .expected("text without commas, quotes, backslashes and control characters")
                .got(format!("{label:?}")));
        }
        if !seen.insert(label) {
            return Err(Error::invalid(format!("a label names more than one {what}"))
                .got(format!("'{label}' twice")));
        }
    }
    Ok(())
}
