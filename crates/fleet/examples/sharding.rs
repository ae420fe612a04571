//! Sharding: the workers divide the optimizer state (stage 1), so each of them has a part of it.
//! `fleetrun --nproc_per_node=2 target/release/examples/sharding [STEPS]`

mod digits;

use fleet::prelude::*;
use fleet::strategy::ShardingConfig;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let sharding = ShardingConfig::default().with_stage(1);
    let strategy = DistributedStrategy::new().use_sharding(sharding);
    let session = digits::train(steps, Adam::new(0.002), &strategy, digits::mlp)?;
    let held = session.scope.names().filter(|name| name.ends_with("_moment1_0"));
    println!("this worker has the moments of {} parameters", held.count());
    Ok(())
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
