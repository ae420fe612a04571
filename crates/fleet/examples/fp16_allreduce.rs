//! Gradients are sent as 16-bit floats, in half the bytes; everything else stays 32-bit.
//! `fleetrun --nproc_per_node=2 target/release/examples/fp16_allreduce [STEPS]`

mod digits;

use fleet::prelude::*;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let strategy = DistributedStrategy::new().with_fp16_allreduce(true);
    digits::train(steps, Momentum::new(0.02, 0.9), &strategy, digits::mlp)?;
    Ok(())
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
