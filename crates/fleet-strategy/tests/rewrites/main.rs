//! Strategies: what becomes of programs, and what becomes of training.

mod buckets;
mod chains;
mod numbers;
mod programs;
mod world;
