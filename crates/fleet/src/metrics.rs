//! Metrics over all workers of a job: `fleet.metrics`.
//!
//! A count is a number, a slice, a tensor, or a variable of a scope by its name. Counts are reduced
//! over the job's workers, and every worker gets the same value. The accumulators of
//! `fleet-metrics` are re-exported here; [`Fleet::metrics`] is a group for them.

use crate::numbers::numbers;
use crate::{Fleet, Scope};
use fleet_base::{Error, Result};
use fleet_comm::ReduceOp;
use fleet_tensor::{Layout, Tensor};

pub use fleet_metrics::{
    Accumulator, Alone, Auc, Classification, Confusion, Group, GroupAuc, Reduce, Regression, TopK,
};

/// The counts of one worker.
pub enum Counted<'a> {
    /// One number.
    Number(f64),
    /// Several numbers.
    Numbers(&'a [f64]),
    /// A tensor of any type of numbers.
    Tensor(&'a Tensor),
    /// A variable of a scope, by its name.
    Variable(&'a Scope, &'a str),
}

impl From<f64> for Counted<'_> {
    fn from(number: f64) -> Self {
        Counted::Number(number)
    }
}

impl<'a> From<&'a [f64]> for Counted<'a> {
    fn from(numbers: &'a [f64]) -> Self {
        Counted::Numbers(numbers)
    }
}

impl<'a, const N: usize> From<&'a [f64; N]> for Counted<'a> {
    fn from(numbers: &'a [f64; N]) -> Self {
        Counted::Numbers(numbers)
    }
}

impl<'a> From<&'a Tensor> for Counted<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Counted::Tensor(tensor)
    }
}

impl<'a> From<(&'a Scope, &'a str)> for Counted<'a> {
    fn from((scope, name): (&'a Scope, &'a str)) -> Self {
        Counted::Variable(scope, name)
    }
}

impl<'a> From<(&'a Scope, &'a String)> for Counted<'a> {
    fn from((scope, name): (&'a Scope, &'a String)) -> Self {
        Counted::Variable(scope, name)
    }
}

impl Counted<'_> {
    fn numbers(self) -> Result<Vec<f64>> {
        match self {
            Counted::Number(number) => Ok(vec![number]),
            Counted::Numbers(numbers) => Ok(numbers.to_vec()),
            Counted::Tensor(tensor) => numbers(&tensor.to_layout(Layout::RowMajor)?, usize::MAX),
            Counted::Variable(scope, name) => numbers(&scope.tensor(name)?, usize::MAX),
        }
    }

    /// Returns the first number, the value of a scalar count.
    fn first(self) -> Result<f64> {
        self.numbers()?
            .first()
            .copied()
            .ok_or_else(|| Error::invalid("empty count").expected("at least one number"))
    }
}

/// Metrics over the workers of a job. All workers must make the same calls.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::Fleet;
/// let fleet = Fleet::collective()?;
/// let metrics = fleet.metrics();
/// assert_eq!(metrics.acc(7.0, 10.0)?, 0.7);
/// assert_eq!(metrics.sum(&[1.0, 2.0])?, [1.0, 2.0]);
/// assert_eq!((metrics.max(3.0)?, metrics.min(3.0)?), (vec![3.0], vec![3.0]));
/// assert_eq!(metrics.mae(3.5, 7.0)?, 0.5);
/// assert_eq!((metrics.mse(18.0, 8.0)?, metrics.rmse(18.0, 8.0)?), (2.25, 1.5));
///
/// // Counts that a program keeps in its scope, by name.
/// let mut scope = Scope::new();
/// scope.set("positives", Tensor::from_slice(&[0i64, 0, 0, 4], [1, 4])?);
/// scope.set("negatives", Tensor::from_slice(&[5i64, 0, 0, 0], [1, 4])?);
/// assert_eq!(metrics.auc((&scope, "positives"), (&scope, "negatives"))?, 1.0);
///
/// // Accumulators are reduced over the same workers.
/// use fleet::metrics::{Accumulator, Auc};
/// let mut auc = Auc::new(4095)?;
/// auc.add(&[0.9, 0.2], &[1.0, 0.0])?;
/// auc.all_reduce(&mut fleet.metrics())?;
/// assert_eq!(auc.value(), 1.0);
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct Metrics<'f>(&'f Fleet);

impl Fleet {
    /// Returns the metrics over the workers of this job.
    pub fn metrics(&self) -> Metrics<'_> {
        Metrics(self)
    }
}

impl Group for Metrics<'_> {
    fn all_reduce(&mut self, reduce: Reduce, values: &mut [f64]) -> Result<()> {
        let op = match reduce {
            Reduce::Sum => ReduceOp::Sum,
            Reduce::Max => ReduceOp::Max,
            Reduce::Min => ReduceOp::Min,
        };
        match self.0.workers()? {
            Some(group) => group.all_reduce("fleet.metrics", values, op),
            None => Ok(()),
        }
    }
}

impl<'f> Metrics<'f> {
    fn group(&self) -> Metrics<'f> {
        Metrics(self.0)
    }

    /// Returns the elementwise sum over workers, row-major.
    pub fn sum<'a>(&self, input: impl Into<Counted<'a>>) -> Result<Vec<f64>> {
        fleet_metrics::sum(&input.into().numbers()?, &mut self.group())
    }

    /// Returns the elementwise maximum over workers, row-major.
    pub fn max<'a>(&self, input: impl Into<Counted<'a>>) -> Result<Vec<f64>> {
        fleet_metrics::max(&input.into().numbers()?, &mut self.group())
    }

    /// Returns the elementwise minimum over workers, row-major.
    pub fn min<'a>(&self, input: impl Into<Counted<'a>>) -> Result<Vec<f64>> {
        fleet_metrics::min(&input.into().numbers()?, &mut self.group())
    }

    /// Returns correct predictions divided by all predictions.
    pub fn acc<'a, 'b>(
        &self,
        correct: impl Into<Counted<'a>>,
        total: impl Into<Counted<'b>>,
    ) -> Result<f64> {
        let (correct, total) = (correct.into().first()?, total.into().first()?);
        fleet_metrics::acc(correct, total, &mut self.group())
    }

    /// Returns the mean absolute error, from the sum of errors and the number of samples.
    pub fn mae<'a, 'b>(
        &self,
        abserr: impl Into<Counted<'a>>,
        total_ins_num: impl Into<Counted<'b>>,
    ) -> Result<f64> {
        let (abserr, count) = (abserr.into().first()?, total_ins_num.into().first()?);
        fleet_metrics::mae(abserr, count, &mut self.group())
    }

    /// Returns the mean squared error, from the sum of errors and the number of samples.
    pub fn mse<'a, 'b>(
        &self,
        sqrerr: impl Into<Counted<'a>>,
        ins_num: impl Into<Counted<'b>>,
    ) -> Result<f64> {
        let (sqrerr, count) = (sqrerr.into().first()?, ins_num.into().first()?);
        fleet_metrics::mse(sqrerr, count, &mut self.group())
    }

    /// Returns the square root of [`Metrics::mse`].
    pub fn rmse<'a, 'b>(
        &self,
        sqrerr: impl Into<Counted<'a>>,
        total_ins_num: impl Into<Counted<'b>>,
    ) -> Result<f64> {
        self.mse(sqrerr, total_ins_num).map(f64::sqrt)
    }

    /// Returns the area under the ROC curve, from positives and negatives per score bucket.
    pub fn auc<'a, 'b>(
        &self,
        stat_pos: impl Into<Counted<'a>>,
        stat_neg: impl Into<Counted<'b>>,
    ) -> Result<f64> {
        let (positives, negatives) = (stat_pos.into().numbers()?, stat_neg.into().numbers()?);
        fleet_metrics::auc(&positives, &negatives, &mut self.group())
    }
}
