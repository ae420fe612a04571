//! LAMB, for large batches: Adam with a step for each layer, set by the norm of its weights.
//! `fleetrun --nproc_per_node=2 target/release/examples/lamb [STEPS]`

mod digits;

use fleet::prelude::*;
use fleet::strategy::LambConfig;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let lamb =
        LambConfig::default().with_lamb_weight_decay(0.01).with_exclude_from_weight_decay([".b_0"]);
    let strategy = DistributedStrategy::new().use_lamb(lamb);
    digits::train(steps, Adam::new(0.01), &strategy, digits::mlp)?;
    Ok(())
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
