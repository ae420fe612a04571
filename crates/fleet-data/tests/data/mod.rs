pub mod datasets;
pub mod formats;
pub mod multislot;
pub mod pipes;
