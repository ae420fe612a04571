//! LARS, for large batches: Momentum with a rate for each layer, set by the norms of its weights
//! and gradients. `fleetrun --nproc_per_node=2 target/release/examples/lars [STEPS]`

mod digits;

use fleet::prelude::*;
use fleet::strategy::LarsConfig;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let lars = LarsConfig::default()
        .with_lars_coeff(0.01)
        .with_lars_weight_decay(0.0005)
        .with_exclude_from_weight_decay([".b_0"]); // biases: plain Momentum
    let strategy = DistributedStrategy::new().use_lars(lars);
    digits::train(steps, Momentum::new(0.5, 0.9), &strategy, digits::mlp)?;
    Ok(())
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
