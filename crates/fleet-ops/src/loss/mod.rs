//! Losses.

pub(crate) mod c_softmax_with_cross_entropy;
pub mod class_cross_entropy;
pub(crate) mod cross_entropy;
pub(crate) mod huber_loss;
pub(crate) mod kldiv_loss;
pub(crate) mod label_smooth;
pub(crate) mod log_loss;
pub(crate) mod nll_loss;
pub(crate) mod sigmoid_cross_entropy_with_logits;
pub(crate) mod smooth_l1_loss;
pub(crate) mod softmax_with_cross_entropy;
pub(crate) mod square_error_cost;

mod labels;
mod pointwise;
