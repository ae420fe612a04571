pub mod multislot;
