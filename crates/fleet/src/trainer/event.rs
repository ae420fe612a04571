//! Events of a training, for its callbacks.

use super::evaluate::Evaluated;
use super::model::Model;
use fleet_base::Result;
use std::ops::ControlFlow;

/// An event of a training.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'e> {
    /// A step was made.
    Step {
        /// Number of steps made, including this one and those of earlier runs.
        step: u64,
        /// Number of the epoch, from 0.
        epoch: u64,
        /// Rows of this worker's batch.
        rows: u64,
        /// The watched values of this worker's batch, in the order of [`Trainer::watch`].
        ///
        /// [`Trainer::watch`]: super::Trainer::watch
        values: &'e [f64],
    },
    /// All steps of an epoch were made.
    Epoch {
        /// Number of steps made.
        step: u64,
        /// Number of the epoch, from 0.
        epoch: u64,
    },
    /// The model was validated.
    Validated {
        /// Number of steps made.
        step: u64,
        /// The values over all workers.
        result: &'e Evaluated,
        /// Whether the model is the best so far. Always false without a goal.
        is_best: bool,
    },
    /// A checkpoint was taken. A thread still writes it.
    Saved {
        /// Number of steps made.
        step: u64,
        /// Whether it is that of the best model.
        is_best: bool,
    },
}

/// A callback of a training. `Break` stops it.
pub(super) type Callback<'a> =
    dyn FnMut(&Event<'_>, &mut Model<'_>) -> Result<ControlFlow<()>> + 'a;
