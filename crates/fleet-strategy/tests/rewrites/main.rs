//! Strategies: the rewritten programs, and the results of training.

mod branches;
mod buckets;
mod chains;
mod class_parallel;
mod combinations;
mod compressed;
mod custom;
mod decisions;
mod descriptors;
mod effects;
mod local;
mod numbers;
mod pipeline;
mod programs;
mod regions;
mod rules;
mod servers;
mod sharded_pipeline;
mod sharding;
mod tables;
mod tensor_parallel;
mod wire;
mod world;
