//! Gradient merge: an update every 4 steps, with the mean of their gradients, like a batch four
//! times as large. Workers communicate only in those steps.
//! `fleetrun --nproc_per_node=2 target/release/examples/gradient_merge [STEPS]`

mod digits;

use fleet::prelude::*;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let strategy = DistributedStrategy::new().use_gradient_merge(4);
    digits::train(steps, Momentum::new(0.02, 0.9), &strategy, digits::mlp)?;
    Ok(())
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
