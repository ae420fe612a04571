//! The interface of a group of workers, and the common operations of accumulators.

use fleet_base::{Error, Result};

/// Reduction of the values of several workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// The sum.
    Sum,
    /// The largest value.
    Max,
    /// The smallest value.
    Min,
}

/// A group of workers that can reduce numbers. All workers make the same calls.
pub trait Group {
    /// Replaces every value by its reduction over the workers.
    fn all_reduce(&mut self, reduce: Reduce, values: &mut [f64]) -> Result<()>;
}

/// Any suitable closure is a group.
///
/// ```
/// use fleet_metrics::{Reduce, sum};
/// // Two workers that have counted the same.
/// let mut group = |reduce: Reduce, values: &mut [f64]| {
///     if reduce == Reduce::Sum {
///         values.iter_mut().for_each(|value| *value *= 2.0);
///     }
///     Ok(())
/// };
/// assert_eq!(sum(&[1.0, 2.5], &mut group)?, [2.0, 5.0]);
/// # Ok::<(), fleet_base::Error>(())
/// ```
impl<F: FnMut(Reduce, &mut [f64]) -> Result<()>> Group for F {
    fn all_reduce(&mut self, reduce: Reduce, values: &mut [f64]) -> Result<()> {
        self(reduce, values)
    }
}

/// A group of one worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Group for Alone {
    fn all_reduce(&mut self, _: Reduce, _: &mut [f64]) -> Result<()> {
        Ok(())
    }
}

/// Counts that can be added over batches, threads and workers.
pub trait Accumulator {
    /// Returns the counts, from which the metric is computed.
    fn counts(&self) -> &[f64];

    /// Returns the counts, to be changed.
    fn counts_mut(&mut self) -> &mut [f64];

    /// Sets all counts to zero, as before an evaluation.
    fn reset(&mut self) {
        self.counts_mut().fill(0.0);
    }

    /// Adds the counts of another accumulator with the same settings.
    fn merge(&mut self, other: &Self) -> Result<()>
    where
        Self: Sized,
    {
        if self.counts().len() != other.counts().len() {
            return Err(Error::invalid("cannot merge metrics with different settings")
                .expected(format!("{} counts", self.counts().len()))
                .got(other.counts().len()));
        }
        for (to, from) in self.counts_mut().iter_mut().zip(other.counts()) {
            *to += from;
        }
        Ok(())
    }

    /// Replaces the counts by their sums over all workers. A second call adds them up again.
    fn all_reduce(&mut self, group: &mut dyn Group) -> Result<()> {
        group.all_reduce(Reduce::Sum, self.counts_mut())
    }
}

/// Implements [`Accumulator`] over a field `counts`.
macro_rules! accumulator {
    ($name:ty) => {
        impl crate::Accumulator for $name {
            fn counts(&self) -> &[f64] {
                &self.counts
            }

            fn counts_mut(&mut self) -> &mut [f64] {
                &mut self.counts
            }
        }
    };
}
pub(crate) use accumulator;
