pub mod datasets;
pub mod formats;
pub mod images;
pub mod multislot;
pub mod objects;
pub mod pipes;
pub mod tables;
