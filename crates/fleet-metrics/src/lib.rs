//! Metrics of a model that are exact over any number of batches, threads and workers.
//!
//! Two forms. The documented functions ([`sum`], [`max`], [`min`], [`acc`], [`auc`], [`mae`],
//! [`mse`], [`rmse`]) take what a worker has counted and reduce it over a [`Group`]. The
//! accumulators ([`Auc`], [`Classification`], [`Regression`], ..) count themselves: they take
//! predictions, merge with each other, and reduce over a group in one call
//! ([`Accumulator::all_reduce`]).
//!
//! A group is anything that reduces a slice of `f64` over workers; a closure will do. This crate
//! knows neither programs nor networks.
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

mod auc;
mod classification;
mod group;
mod group_auc;
mod regression;
mod worker;

pub use auc::Auc;
pub use classification::{Classification, Confusion, TopK};
pub use group::{Accumulator, Alone, Group, Reduce};
pub use group_auc::GroupAuc;
pub use regression::Regression;
pub use worker::{acc, auc, mae, max, min, mse, rmse, sum};

use fleet_base::{Error, Result};

/// Holds the number of labels to the number of predictions.
fn expect_pairs(predictions: usize, labels: usize) -> Result<()> {
    if predictions == labels {
        return Ok(());
    }
    Err(Error::invalid("every prediction needs a label").expected(predictions).got(labels))
}

/// A label above one half is positive; anything but a number between 0 and 1 is a mistake.
fn is_positive(label: f32, index: usize) -> Result<bool> {
    if (0.0..=1.0).contains(&label) {
        return Ok(label > 0.5);
    }
    Err(Error::invalid(format!("label {index} is no label of two classes"))
        .expected("0 or 1")
        .got(label))
}

/// A prediction between 0 and 1.
fn probability(prediction: f32, index: usize) -> Result<f64> {
    if (0.0..=1.0).contains(&prediction) {
        return Ok(f64::from(prediction));
    }
    Err(Error::invalid(format!("prediction {index} is no probability"))
        .expected("between 0 and 1")
        .got(prediction)
        .help("a logit becomes a probability through sigmoid or softmax"))
}

/// a / b, and 0 where there is nothing yet.
fn ratio(a: f64, b: f64) -> f64 {
    if b == 0.0 { 0.0 } else { a / b }
}
