//! Items that are drawn for each batch of a retrieval, as those that the users did not choose.
//!
//! The rows of the drawn items follow the rows of the batch. The network takes the vectors of items
//! from all rows, and users and losses from those of the batch (`model/retrieval.rs`).

use crate::data::JobData;
use crate::features::{Applied, INPUT_ITEM, INPUT_LOG_FREQUENCY};
use crate::split::Part;
use fleet::trainer::{Feeds, Pass, Position, Source};
use fleet::{Shape, Tensor};
use fleet_base::rng::Sequence;
use fleet_base::{Error, Result};
use fleet_data::{Batch, Block, RowRef};
use std::sync::Arc;

/// How items are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draws {
    /// Items for each batch.
    pub count: usize,
    /// Items are drawn in proportion to their number of rows to this power.
    pub power: f64,
    /// Seed of the draws.
    pub seed: u64,
    /// The worker, whose draws are its own.
    pub worker: u64,
}

/// All items of the training rows, and how they are drawn.
pub struct Negatives {
    applied: Arc<Applied>,
    /// The first training row of each item.
    items: Block,
    /// For each item: the sum of the weights up to it.
    sums: Vec<f64>,
    draws: Draws,
}

impl Negatives {
    /// Reads the items of the training rows.
    pub fn read(data: &JobData, applied: &Arc<Applied>, draws: Draws) -> Result<Negatives> {
        let items = data.distinct(applied, Part::Train, INPUT_ITEM)?;
        let column = items.column(applied.schema().index(INPUT_LOG_FREQUENCY)?);
        let log = |row| column.floats(row).and_then(|all| all.first()).copied().unwrap_or(0.0);
        let sums = sums((0..items.len()).map(log), draws.power);
        if items.is_empty() {
            return Err(Error::invalid("no training row has an item to draw")
                .help("check the columns of the user and the item, and the label"));
        }
        Ok(Negatives { applied: Arc::clone(applied), items, sums, draws })
    }

    /// Draws the items of a batch. They follow from the seed, the worker, the epoch and the batch
    /// alone, so that a training that resumes draws the same ones.
    fn drawn(&self, epoch: u64, batch: u64) -> Vec<RowRef> {
        let stream = self.draws.worker << EPOCH_BITS | epoch;
        let mut random = Sequence::new(self.draws.seed ^ SEED, stream);
        random.seek(batch * self.draws.count as u64);
        let all = self.sums.last().copied().unwrap_or(0.0);
        let draw = |random: &mut Sequence| {
            let at = random.unit() * all;
            let row = self.sums.partition_point(|sum| *sum <= at).min(self.sums.len() - 1);
            RowRef { block: 0, row: row as u32 }
        };
        (0..self.draws.count).map(|_| draw(&mut random)).collect()
    }
}

/// Keeps the draws apart from other random numbers of the same seed.
const SEED: u64 = 0x6e65_6761_7469_7665;
/// Bits of a stream's number that count epochs.
const EPOCH_BITS: u32 = 40;

/// Returns the sums of the weights up to each item: its frequency to a power.
fn sums(log_frequencies: impl Iterator<Item = f32>, power: f64) -> Vec<f64> {
    let add = |sum: &mut f64, log: f32| {
        *sum += (power * f64::from(log)).exp();
        Some(*sum)
    };
    log_frequencies.scan(0.0, add).collect()
}

/// A source whose batches are followed by drawn items, if there are any.
pub struct WithNegatives<'n, S> {
    /// The batches.
    pub source: S,
    /// The items.
    pub negatives: Option<&'n Negatives>,
}

impl<S: Source> Source for WithNegatives<'_, S> {
    fn pass(&mut self, epoch: u64, from: Position) -> Result<Box<dyn Pass + '_>> {
        let pass = self.source.pass(epoch, from)?;
        let Some(negatives) = self.negatives else { return Ok(pass) };
        Ok(Box::new(NegativesPass {
            pass,
            negatives,
            epoch,
            batch: from.batches,
            own: Feeds::default(),
            drawn: Batch::new(&negatives.applied.layout(false)?),
        }))
    }

    fn batches_after(&self, from: Position) -> Option<u64> {
        self.source.batches_after(from)
    }

    fn redistribute(&self, from: Position, saved: usize, now: usize) -> Position {
        self.source.redistribute(from, saved, now)
    }
}

struct NegativesPass<'p> {
    pass: Box<dyn Pass + 'p>,
    negatives: &'p Negatives,
    epoch: u64,
    batch: u64,
    own: Feeds,
    drawn: Batch,
}

impl Pass for NegativesPass<'_> {
    fn next(&mut self, feeds: &mut Feeds) -> Result<bool> {
        if !self.pass.next(&mut self.own)? {
            return Ok(false);
        }
        let rows = self.negatives.drawn(self.epoch, self.batch);
        self.batch += 1;
        self.drawn.fill(&[&self.negatives.items], &rows)?;
        for (name, tensor) in self.own.list() {
            feeds.set(name, joined(tensor, self.drawn.tensor(name)?)?);
        }
        feeds.set_rows(self.own.rows());
        Ok(true)
    }
}

/// Joins the rows of two tensors. Shorter rows are padded with zeros.
fn joined(first: &Tensor, second: &Tensor) -> Result<Tensor> {
    let (mut dims, other) = (first.shape().dims().to_vec(), second.shape().dims().to_vec());
    let rows = [dims[0], other[0]].map(|rows| rows as usize);
    dims[0] += other[0];
    for (dim, other) in dims.iter_mut().zip(&other).skip(1) {
        *dim = (*dim).max(*other);
    }
    let mut out = Tensor::zeros(first.dtype(), Shape::new(&dims)?)?;
    let bytes = out.as_bytes_mut();
    let wide = bytes.len() / (rows[0] + rows[1]).max(1);
    let (own, rest) = bytes.split_at_mut(rows[0] * wide);
    for (to, from, rows) in [(own, first, rows[0]), (rest, second, rows[1])] {
        let pitch = from.as_bytes().len() / rows.max(1);
        if pitch == 0 {
            continue;
        }
        for (to, from) in to.chunks_exact_mut(wide).zip(from.as_bytes().chunks_exact(pitch)) {
            to[..pitch].copy_from_slice(from);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_joined_and_padded() {
        let first = Tensor::from_slice(&[1i64, 2, 3, 4], [2, 2]).unwrap();
        let second = Tensor::from_slice(&[5i64, 6, 7], [1, 3]).unwrap();
        let both = joined(&first, &second).unwrap();
        assert_eq!(both.shape().dims(), [3, 3]);
        assert_eq!(both.to_vec::<i64>().unwrap(), [1, 2, 0, 3, 4, 0, 5, 6, 7]);
        let both = joined(&second, &first).unwrap();
        assert_eq!(both.to_vec::<i64>().unwrap(), [5, 6, 7, 1, 2, 0, 3, 4, 0]);
        let empty = Tensor::from_slice::<i64>(&[], [2, 0]).unwrap();
        assert_eq!(joined(&empty, &empty).unwrap().shape().dims(), [4, 0]);
    }

    /// Items are drawn as often as their frequency to the power says.
    #[test]
    fn draws_have_their_frequencies() {
        let counts = [1.0f64, 10.0, 100.0, 1000.0];
        let log = |count: &f64| (count / 1111.0).ln() as f32;
        for power in [0.0, 0.5, 1.0] {
            let sums = sums(counts.iter().map(log), power);
            let mut random = Sequence::new(1, 2);
            let mut found = [0.0; 4];
            let draws = 200_000;
            for _ in 0..draws {
                let at = random.unit() * sums[3];
                found[sums.partition_point(|sum| *sum <= at)] += 1.0;
            }
            let all: f64 = counts.iter().map(|count| count.powf(power)).sum();
            for (count, found) in counts.iter().zip(found) {
                let (expected, got) = (count.powf(power) / all, found / f64::from(draws));
                assert!((expected - got).abs() < 0.005, "{power}: {expected}, {got}");
            }
        }
    }
}
