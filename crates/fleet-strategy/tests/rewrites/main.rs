//! Strategies: what becomes of programs, and what becomes of training.

mod branches;
mod buckets;
mod chains;
mod combinations;
mod effects;
mod numbers;
mod programs;
mod rules;
mod servers;
mod wire;
mod world;
