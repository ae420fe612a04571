//! Layers: convolution, pooling, normalisation, embedding, attention.

pub mod batch_norm;
pub mod fused_batch_norm_act;
pub mod fused_bn_add_activation;
pub mod lookup_table_v2;

mod window;
