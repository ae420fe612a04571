//! Layers: convolution, pooling, normalization, embedding, attention.

pub mod batch_norm;
pub mod conv2d;
pub mod dropout;
pub mod flash_attn;
pub mod flash_attn_qkvpacked;
pub mod fused_batch_norm_act;
pub mod fused_bn_add_activation;
pub mod fused_embedding_concat;
pub mod layer_norm;
pub mod log_softmax;
pub mod lookup_table_v2;
pub mod pool2d;
pub mod softmax;
pub mod sync_batch_norm;

pub(crate) mod axis;
mod random;
mod rank_sums;
mod window;
