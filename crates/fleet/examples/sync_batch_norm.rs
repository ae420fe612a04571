//! Synchronous batch norm: mean and variance over the batches of all workers, for small batches per
//! worker. `fleetrun --nproc_per_node=2 target/release/examples/sync_batch_norm [STEPS]`

mod digits;

use fleet::prelude::*;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let strategy = DistributedStrategy::new().with_sync_batch_norm(true);
    digits::train(steps, Momentum::new(0.1, 0.9), &strategy, normed)?;
    Ok(())
}

fn normed(image: Var<'_>) -> Var<'_> {
    image.fc(128).batch_norm(BatchNorm::new().act(Act::Relu)).fc(10)
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
