//! Metrics of a model that are exact over any number of batches, threads and workers.
//!
//! There are two forms:
//!
//! * The documented functions ([`sum`], [`max`], [`min`], [`acc`], [`auc`], [`mae`], [`mse`],
//!   [`rmse`]) take the counts of a worker and reduce them over a [`Group`].
//! * The accumulators ([`Auc`], [`Classification`], [`Regression`], ..) take predictions and count
//!   themselves. They merge with each other, and reduce over a group in one call
//!   ([`Accumulator::all_reduce`]).
//!
//! [`RankedScores`] has all scores of one process, for exact curves of a report.
//!
//! A group is anything that reduces a slice of `f64` over workers, such as a closure. This crate
//! depends on neither programs nor networks.
//!
//! ```
//! use fleet_metrics::{Accumulator, Alone, Auc};
//! let mut first = Auc::new(4095)?;
//! first.add(&[0.9, 0.2], &[1.0, 0.0])?;
//! let mut second = Auc::new(4095)?;
//! second.add(&[0.7, 0.3], &[1.0, 1.0])?;
//! first.merge(&second)?;
//! first.all_reduce(&mut Alone)?; // over all workers
//! assert_eq!(first.value(), 1.0);
//! # Ok::<(), fleet_base::Error>(())
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod auc;
mod classification;
mod group;
mod group_auc;
mod ranked;
mod ranking;
mod regression;
mod worker;

pub use auc::Auc;
pub use classification::{Classification, Confusion, TopK};
pub use group::{Accumulator, Alone, Group, Reduce};
pub use group_auc::GroupAuc;
pub use ranked::{RankedScores, ScoreGroup};
pub use ranking::{Ranking, RankingMeans, Retrieval};
pub use regression::Regression;
pub use worker::{acc, auc, mae, max, min, mse, rmse, sum};

use fleet_base::{Error, Result};

/// Checks that there are as many labels as predictions.
fn expect_pairs(predictions: usize, labels: usize) -> Result<()> {
    expect_count("labels", predictions, labels)
}

/// Checks that there is one value of `what` per prediction.
fn expect_count(what: &str, predictions: usize, count: usize) -> Result<()> {
    if predictions == count {
        return Ok(());
    }
    let message = format!("different numbers of predictions and {what}");
    Err(Error::invalid(message).expected(predictions).got(count))
}

/// Returns whether a label is positive, which is above one half. Rejects anything but a number
/// between 0 and 1.
fn is_positive(label: f32, index: usize) -> Result<bool> {
    if (0.0..=1.0).contains(&label) {
        return Ok(label > 0.5);
    }
    Err(Error::invalid(format!("label {index} is out of range")).expected("0 to 1").got(label))
}

/// Rejects predictions outside 0 to 1.
fn probability(prediction: f32, index: usize) -> Result<f64> {
    if (0.0..=1.0).contains(&prediction) {
        return Ok(f64::from(prediction));
    }
    Err(Error::invalid(format!("prediction {index} is not a probability"))
        .expected("0 to 1")
        .got(prediction)
        .help("apply sigmoid or softmax to logits"))
}

/// Rejects weights that are negative or not finite.
fn expect_weights(weights: &[f32], predictions: usize) -> Result<()> {
    expect_count("weights", predictions, weights.len())?;
    let wrong = weights.iter().position(|weight| !weight.is_finite() || *weight < 0.0);
    wrong.map_or(Ok(()), |index| {
        Err(Error::invalid(format!("weight {index} is out of range"))
            .expected("a number that is 0 or more")
            .got(weights[index]))
    })
}

/// Returns a / b, or 0 if b is 0.
fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}
