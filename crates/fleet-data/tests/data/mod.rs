pub mod datasets;
pub mod formats;
pub mod images;
pub mod multislot;
pub mod pipes;
