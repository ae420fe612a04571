//! Scores the rows of a dataset with a saved model: the same code for reports and predictions.

use crate::features::{Features, INPUT_GROUP, INPUT_LABEL, INPUT_WEIGHT, slot_of_slice};
use crate::saved::SavedModel;
use fleet::data::{Batch, BatchSource, Dataset, Prefetch};
use fleet_base::{Error, Result};
use fleet_metrics::RankedScores;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{Scope, ScopedJoinHandle};

/// Scores, labels and slices of the rows of a part.
#[derive(Clone, Default)]
pub struct Scored {
    /// Scores, row after row.
    pub scores: Vec<f32>,
    /// Labels: 0 or 1, the number of a class, or a number. All labels of a row are beside each
    /// other, as its scores are.
    pub labels: Vec<f32>,
    /// The weight of each row, if rows have weights.
    pub weights: Vec<f32>,
    /// The group of each row, if rows are ranked in groups.
    pub groups: Vec<u64>,
    /// For each slice: the number of each row's value, or -1.
    pub slices: Vec<Vec<i64>>,
}

impl Scored {
    /// Returns the weight of a row: 1 without weights.
    pub fn weight(&self, row: usize) -> f64 {
        self.weights.get(row).map_or(1.0, |weight| f64::from(*weight))
    }

    /// Ranks some rows by their scores, with labels that are 0 or 1. Rows of rankings have no
    /// weight of their own.
    pub fn ranked(&self, rows: &[usize], labels: &[f32]) -> Result<RankedScores> {
        let scores: Vec<f32> = rows.iter().map(|row| self.scores[*row]).collect();
        if self.weights.is_empty() {
            return RankedScores::new(&scores, labels);
        }
        let weights: Vec<f32> = rows.iter().map(|row| self.weights[*row]).collect();
        RankedScores::weighted(&scores, labels, &weights)
    }

    /// Returns the number of rows.
    pub fn rows(&self, features: &Features) -> usize {
        self.labels.len() / (1 + features.other_labels.len())
    }

    /// Returns scores, labels and weights of one of several labels, of some rows.
    pub fn of_label(&self, label: usize, count: usize, rows: &[usize]) -> Scored {
        let of = |all: &[f32]| rows.iter().map(|row| all[row * count + label]).collect();
        let weights = rows.iter().filter_map(|row| self.weights.get(*row).copied()).collect();
        let (scores, labels) = (of(&self.scores), of(&self.labels));
        Scored { scores, labels, weights, ..Scored::default() }
    }

    /// Returns whether all scores are numbers. Those of a training that diverged are not.
    pub fn is_finite(&self) -> bool {
        self.scores.iter().all(|score| score.is_finite())
    }
}

/// Batches that are read ahead.
const AHEAD: usize = 2;
/// Batches of each scoring thread: one that is scored, and one that waits.
const BATCHES_PER_THREAD: usize = 2;

/// Calls a function with the scores of each batch, in the order of the rows. While it runs, other
/// threads score the next batches, and read those after them.
pub fn for_each_batch(
    model: &mut SavedModel,
    dataset: &dyn Dataset,
    call: impl FnMut(&[f32], &Batch) -> Result<()>,
) -> Result<()> {
    let batches = Prefetch::start(dataset.sources(1)?, dataset.layout(), AHEAD)?;
    let mut models: Vec<SavedModel> = (0..model.threads()).map(|_| model.share()).collect();
    std::thread::scope(|scope| {
        let mut workers: Vec<Worker<'_>> =
            models.iter_mut().map(|model| Worker::start(scope, model)).collect();
        let scored = score_in_turn(&mut workers, batches, dataset, call);
        let ended: Result<()> = workers.into_iter().try_for_each(Worker::end);
        scored.and(ended)
    })
}

/// Gives each worker a batch in turn, and takes the scores in the same order.
fn score_in_turn(
    workers: &mut [Worker<'_>],
    mut batches: Prefetch,
    dataset: &dyn Dataset,
    mut call: impl FnMut(&[f32], &Batch) -> Result<()>,
) -> Result<()> {
    let count = workers.len();
    let (mut given, mut taken, mut is_end) = (0, 0, false);
    let mut unused: Vec<Scores> = Vec::new();
    loop {
        while !is_end && given - taken < BATCHES_PER_THREAD * count {
            let new = || Scores { batch: Batch::new(dataset.layout()), values: Vec::new() };
            let mut next = unused.pop().unwrap_or_else(new);
            is_end = !batches.next_batch(&mut next.batch)?;
            if !is_end {
                workers[given % count].give(next)?;
                given += 1;
            }
        }
        if taken == given {
            return Ok(());
        }
        let scores = workers[taken % count].take()?;
        taken += 1;
        call(&scores.values, &scores.batch)?;
        unused.push(scores);
    }
}

/// A batch, and its scores once a worker has filled them in.
struct Scores {
    batch: Batch,
    values: Vec<f32>,
}

/// A thread that scores batches.
struct Worker<'s> {
    batches: Sender<Scores>,
    scores: Receiver<Result<Scores>>,
    thread: ScopedJoinHandle<'s, ()>,
}

impl<'s> Worker<'s> {
    fn start<'m: 's>(scope: &'s Scope<'s, '_>, model: &'m mut SavedModel) -> Worker<'s> {
        let (batches, take_batch) = channel::<Scores>();
        let (give_scores, scores) = channel();
        let thread = scope.spawn(move || {
            for mut next in take_batch {
                let scored = model.score(&next.batch).map(|values| {
                    next.values.clear();
                    next.values.extend_from_slice(values);
                });
                // After an error no more scores are taken.
                let _ = give_scores.send(scored.map(|()| next));
            }
        });
        Worker { batches, scores, thread }
    }

    fn give(&self, batch: Scores) -> Result<()> {
        self.batches.send(batch).map_err(|_| has_panicked())
    }

    fn take(&self) -> Result<Scores> {
        self.scores.recv().map_err(|_| has_panicked())?
    }

    /// Waits for the end of the thread.
    fn end(self) -> Result<()> {
        drop(self.batches);
        self.thread.join().map_err(|_| has_panicked())
    }
}

fn has_panicked() -> Error {
    Error::internal("a thread that scores rows has panicked")
}

/// Scores rows that have labels.
pub fn score_labelled(model: &mut SavedModel, dataset: &dyn Dataset) -> Result<Scored> {
    let slices = model.features.slices.len();
    let mut scored = Scored { slices: vec![Vec::new(); slices], ..Scored::default() };
    let parts = Parts::of(model);
    for_each_batch(model, dataset, |scores, batch| {
        add(&mut scored, scores, batch, parts)?;
        for (index, slice) in scored.slices.iter_mut().enumerate() {
            slice.extend_from_slice(batch.tensor(&slot_of_slice(index))?.as_slice::<i64>()?);
        }
        Ok(())
    })?;
    Ok(scored)
}

/// Scores a batch of rows that have labels.
pub fn score_batch(model: &mut SavedModel, batch: &Batch, scored: &mut Scored) -> Result<()> {
    let parts = Parts::of(model);
    add(scored, model.score(batch)?, batch, parts)
}

/// The parts of a batch besides its scores.
#[derive(Clone, Copy)]
struct Parts {
    is_class: bool,
    has_groups: bool,
    has_weights: bool,
}

impl Parts {
    fn of(model: &SavedModel) -> Parts {
        let features = &model.features;
        Parts {
            is_class: model.has_classes(),
            has_groups: features.group.is_some(),
            has_weights: features.weight.is_some(),
        }
    }
}

fn add(scored: &mut Scored, scores: &[f32], batch: &Batch, parts: Parts) -> Result<()> {
    scored.scores.extend_from_slice(scores);
    let labels = batch.tensor(INPUT_LABEL)?;
    match parts.is_class {
        true => scored.labels.extend(labels.as_slice::<i64>()?.iter().map(|it| *it as f32)),
        false => scored.labels.extend_from_slice(labels.as_slice::<f32>()?),
    }
    if parts.has_weights {
        scored.weights.extend_from_slice(batch.tensor(INPUT_WEIGHT)?.as_slice::<f32>()?);
    }
    if parts.has_groups {
        let groups = batch.tensor(INPUT_GROUP)?.as_slice::<i64>()?;
        scored.groups.extend(groups.iter().map(|group| *group as u64));
    }
    Ok(())
}
