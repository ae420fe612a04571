//! Optimizers: an update of one parameter, or, in the fused ops, of many in one sweep.
//!
//! A rule uses the gradient `g = GradScale * Grad`, plus the regularization term `coeff * w` for
//! "l2_decay" or `coeff * sign(w)` for "l1_decay". The learning rate is `LearningRate * lr_scale`.
//! ParamOut and the other outputs are the same variables as the inputs that they update. If
//! SkipUpdate (a bool) is true, nothing changes, whatever the gradients are.
//!
//! With sparse rows, duplicates are summed first and only the rows in use are updated (except in
//! adam without `lazy_mode`). Regularization then applies to these rows only.

pub(crate) mod adadelta;
pub(crate) mod adagrad;
pub(crate) mod adam;
pub(crate) mod adamax;
pub(crate) mod adamw;
pub mod check_finite_and_unscale;
pub(crate) mod lamb;
pub(crate) mod lars_momentum;
pub mod lr_schedule;
pub(crate) mod momentum;
pub(crate) mod rmsprop;
pub(crate) mod sgd;
pub mod update_loss_scaling;

mod common;
mod forms;
mod parts;
mod reduced;
mod sparse;
