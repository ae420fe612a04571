//! The trials of a stage, trained by one or more threads.

use super::results::{Outcome, Results, State};
use super::{Search, Trials, rows_key};
use crate::lines::Lines;
use crate::train::collective::{Length, RankModel, RankRows};
use fleet::ExecOptions;
use fleet::trainer::{Ended, Trained};
use fleet_base::file::write_file;
use fleet_base::output::ExitReason;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::channel;

/// The rows of a thread's last trial, with the parts of the job that they follow from.
pub(super) type LastRows = Option<(String, RankRows)>;

impl Search<'_> {
    /// Trains the trials of a stage, unless an earlier run of the search has done so.
    pub(super) fn run_stage(
        &mut self,
        stage: usize,
        out: &mut Lines<'_>,
    ) -> Result<(), ExitReason> {
        let chosen = self.chosen(stage);
        let Search { trials, results, results_file, rows, .. } = self;
        let mut waiting = VecDeque::new();
        for trial in chosen {
            if results.has(trial, stage) {
                continue;
            }
            match results.last(trial).filter(|last| last.state != State::Halved).cloned() {
                // It has no more steps to make.
                Some(last) => results.add(Outcome { stage, ..last })?,
                None => waiting.push_back(trial),
            }
        }
        let threads = self.parallel.min(waiting.len()).max(1);
        let options = ExecOptions::threads((self.threads.started() / threads).max(1));
        let (trials, waiting) = (&*trials, Mutex::new(waiting));
        let (send, outcomes) = channel();
        std::thread::scope(|scope| {
            for rows in rows.iter_mut().take(threads) {
                let (send, waiting, options) = (send.clone(), &waiting, &options);
                scope.spawn(move || {
                    while let Some(trial) = next(waiting) {
                        let outcome = trials.outcome(trial, stage, options, rows);
                        // The receiver outlives the threads.
                        let _ = send.send(outcome);
                    }
                });
            }
            drop(send);
            let mut ended = Ok(());
            for outcome in outcomes {
                let recorded = match outcome {
                    Some(outcome) => record(trials, results, results_file, outcome, out),
                    None => Err(ExitReason::Terminated),
                };
                if recorded.is_err() {
                    // The trainings that run stop after a step, and save their checkpoints.
                    trials.stop.request();
                    lock(&waiting).clear();
                }
                ended = ended.and(recorded);
            }
            ended
        })
    }
}

fn next(waiting: &Mutex<VecDeque<usize>>) -> Option<usize> {
    lock(waiting).pop_front()
}

/// Shows and saves the outcome of a trial.
fn record(
    trials: &Trials<'_>,
    results: &mut Results,
    file: &Path,
    outcome: Outcome,
    out: &mut Lines<'_>,
) -> Result<(), ExitReason> {
    let (names, all) = trials.fields();
    let values: Vec<String> = names
        .iter()
        .zip(all[outcome.trial])
        .map(|(path, value)| format!("{path} = {value}"))
        .collect();
    let said = match outcome.state {
        State::Failed => format!("failed: {}", outcome.error),
        _ => {
            let value = results.shown(outcome.value);
            format!("{} {value} after {} steps", results.goal(), outcome.steps)
        }
    };
    let (number, of) = (outcome.trial + 1, all.len());
    out.line(format!("trial {number:>3}/{of}  {said}  ({})", values.join(", ")))?;
    out.flush()?;
    results.add(outcome)?;
    write_file(file, results.csv(&names, &all).as_bytes())?;
    Ok(())
}

impl Trials<'_> {
    /// Trains a trial up to the end of a stage. `None` if the search was requested to stop.
    fn outcome(
        &self,
        trial: usize,
        stage: usize,
        options: &ExecOptions,
        rows: &mut LastRows,
    ) -> Option<Outcome> {
        // Its rows are lost, too. The panic has been printed.
        let train = AssertUnwindSafe(|| self.train(trial, stage, options, rows));
        let trained = catch_unwind(train).unwrap_or_else(|_| {
            Err(Error::internal("the training panicked; the reason was printed before"))
        });
        match trained {
            Ok(trained) if trained.ended == Ended::Requested => None,
            Ok(trained) => Some(Outcome {
                trial,
                stage,
                steps: trained.step,
                value: trained.best.as_ref().map(|best| best.value),
                best_step: trained.best.as_ref().map(|best| best.step),
                seconds: trained.seconds,
                state: match trained.ended {
                    Ended::EarlyStop => State::EarlyStop,
                    _ if stage + 1 == self.stages.len() => State::Finished,
                    _ => State::Halved,
                },
                error: String::new(),
            }),
            Err(error) => {
                let (state, error) = (State::Failed, error.to_string());
                Some(Outcome { trial, stage, state, error, ..Outcome::default() })
            }
        }
    }

    fn train(
        &self,
        trial: usize,
        stage: usize,
        options: &ExecOptions,
        last: &mut LastRows,
    ) -> Result<Trained> {
        let plan = self.plan(trial, options.clone())?;
        let mut model = RankModel::new(&plan, self.fleet)?;
        let key = rows_key(&plan.job);
        let mut rows = match last.take() {
            Some((known, mut rows)) if known == key => {
                rows.set_batch(plan.job.train.batch)?;
                rows
            }
            _ => model.rows(&plan)?,
        };
        let (steps, every) = self.length(&plan, stage);
        let length = Length { steps: Some(steps), every: Some(every) };
        let trained = model.train(&plan, self.fleet, &mut rows, length, &self.stop);
        *last = Some((key, rows));
        trained
    }
}
