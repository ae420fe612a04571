//! Optimizers: one update each, over one parameter or, fused, over many in one sweep.
//!
//! The gradient that a rule sees is `g = GradScale * Grad`, then the regulariser: `+ coeff * w` for
//! "l2_decay", `+ coeff * sign(w)` for "l1_decay". The learning rate is `LearningRate * lr_scale`.
//! ParamOut and the other outputs are the variables of the inputs that they continue.
//!
//! Over sparse rows, duplicates are summed first and only the rows in use move (adam without
//! `lazy_mode` is the exception); the regulariser then acts on these rows only.

pub mod adadelta;
pub mod adagrad;
pub mod adam;
pub mod adamax;
pub mod adamw;
pub mod check_finite_and_unscale;
pub mod lamb;
pub mod lars_momentum;
pub mod lr_schedule;
pub mod momentum;
pub mod rmsprop;
pub mod sgd;
pub mod update_loss_scaling;

mod common;
mod reduced;
mod sparse;
