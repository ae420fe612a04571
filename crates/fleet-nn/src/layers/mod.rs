//! Layers with parameters, and layers made of several ops. Each file has the options of a layer and
//! the method that takes them.

mod attention;
mod batch_norm;
mod class_loss;
mod conv2d;
mod dropout;
mod embedding;
mod fc;
mod layer_norm;
mod linear;
mod multi_head_attention;
mod pool2d;
mod sparse_embedding;
mod split;
mod transformer;

pub use attention::Attention;
pub use batch_norm::BatchNorm;
pub use class_loss::{ClassLoss, ClassSample};
pub use conv2d::{Conv2d, Padding, Pair};
pub use dropout::Dropout;
pub use embedding::Embedding;
pub use fc::Fc;
pub use layer_norm::LayerNorm;
pub use linear::Linear;
pub use multi_head_attention::MultiHeadAttention;
pub use pool2d::Pool2d;
pub use sparse_embedding::{Entry, SparseEmbedding};
pub use split::Split;
pub use transformer::TransformerLayer;

/// Position of the channels in images that are fed and fetched. Kernels use the layout that suits
/// them, independently of this option.
///
/// ```
/// use fleet_nn::prelude::*;
/// assert_eq!(DataFormat::default(), DataFormat::Nchw);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DataFormat {
    /// Batch, channels, height, width.
    #[default]
    Nchw,
    /// Batch, height, width, channels.
    Nhwc,
}

impl DataFormat {
    pub(crate) fn name(self) -> &'static str {
        match self {
            DataFormat::Nchw => "NCHW",
            DataFormat::Nhwc => "NHWC",
        }
    }

    pub(crate) fn channel_axis(self) -> i64 {
        match self {
            DataFormat::Nchw => 1,
            DataFormat::Nhwc => -1,
        }
    }
}
