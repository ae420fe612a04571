//! Layers: convolution, pooling, normalization, embedding, attention.

pub mod batch_norm;
pub mod c_embedding;
pub mod conv2d;
pub(crate) mod dropout;
pub(crate) mod flash_attn;
pub(crate) mod flash_attn_qkvpacked;
pub(crate) mod fused_batch_norm_act;
pub(crate) mod fused_bn_add_activation;
pub(crate) mod fused_embedding_concat;
pub(crate) mod layer_norm;
pub(crate) mod log_softmax;
pub mod lookup_table_v2;
pub(crate) mod pool2d;
pub(crate) mod softmax;
pub mod sync_batch_norm;

pub(crate) mod axis;
pub(crate) mod random;
mod rank_sums;
mod window;
