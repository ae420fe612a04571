//! What a metric needs of a group of workers, and what all accumulators can do.

use fleet_base::{Error, Result};

/// How values of workers become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    Sum,
    Max,
    Min,
}

/// Workers whose numbers can be reduced; all of them make the same calls.
pub trait Group {
    /// Replaces every value by its reduction over the workers.
    fn all_reduce(&mut self, reduce: Reduce, values: &mut [f64]) -> Result<()>;
}

/// A closure is a group.
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

/// The only worker.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Group for Alone {
    fn all_reduce(&mut self, _: Reduce, _: &mut [f64]) -> Result<()> {
        Ok(())
    }
}

/// Counts that add up: of batches, of threads, of workers.
pub trait Accumulator {
    /// The counts; all that the metric follows from.
    fn counts(&self) -> &[f64];

    fn counts_mut(&mut self) -> &mut [f64];

    /// Forgets everything, as before an evaluation.
    fn reset(&mut self) {
        self.counts_mut().fill(0.0);
    }

    /// Adds what another one of the same settings has counted.
    fn merge(&mut self, other: &Self) -> Result<()>
    where
        Self: Sized,
    {
        if self.counts().len() != other.counts().len() {
            return Err(Error::invalid("metrics of different settings do not add up")
                .expected(format!("{} counts", self.counts().len()))
                .got(other.counts().len()));
        }
        for (to, from) in self.counts_mut().iter_mut().zip(other.counts()) {
            *to += from;
        }
        Ok(())
    }

    /// Replaces the counts by their sums over all workers. Called twice, it counts twice.
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
