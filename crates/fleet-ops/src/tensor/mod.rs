//! Ops that create, move and select elements.

pub mod assign;
pub(crate) mod broadcast_view;
pub mod concat;
pub(crate) mod expand;
pub mod fill;
pub(crate) mod flip;
pub(crate) mod gather;
pub mod micro_batch_slice;
pub mod nonzero_rows;
pub(crate) mod one_hot;
pub(crate) mod pad;
pub mod random;
pub mod reshape;
pub(crate) mod scatter;
pub(crate) mod slice;
pub mod transpose;
pub(crate) mod tril_triu;
