//! Metrics computed in the program.

pub mod accuracy;
pub mod auc;
