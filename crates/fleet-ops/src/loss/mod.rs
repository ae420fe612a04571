//! Losses.

pub mod c_softmax_with_cross_entropy;
pub mod class_cross_entropy;
pub mod cross_entropy;
pub mod huber_loss;
pub mod kldiv_loss;
pub mod label_smooth;
pub mod log_loss;
pub mod nll_loss;
pub mod sigmoid_cross_entropy_with_logits;
pub mod smooth_l1_loss;
pub mod softmax_with_cross_entropy;
pub mod square_error_cost;

mod labels;
mod pointwise;
