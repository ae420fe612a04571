pub mod datasets;
pub mod multislot;
pub mod pipes;
