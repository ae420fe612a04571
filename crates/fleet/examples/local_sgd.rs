//! LocalSGD: workers train alone and average their parameters every 4 steps, for slow networks.
//! `fleetrun --nproc_per_node=2 target/release/examples/local_sgd [STEPS]`

mod digits;

use fleet::prelude::*;
use fleet::strategy::LocalSgdConfig;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let local = LocalSgdConfig::default().with_k_steps(4).with_begin_step(20); // every step before
    let strategy = DistributedStrategy::new().use_localsgd(local);
    digits::train(steps, Sgd::new(0.1), &strategy, digits::mlp)?;
    Ok(())
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
