//! Ops that create, move and select elements.

pub mod assign;
pub(crate) mod broadcast_view;
pub mod concat;
pub mod expand;
pub mod fill;
pub mod flip;
pub mod gather;
pub mod nonzero_rows;
pub mod one_hot;
pub mod pad;
pub mod random;
pub mod reshape;
pub mod scatter;
pub mod slice;
pub mod transpose;
pub mod tril_triu;
