//! Deep gradient compression: after the first 20 steps only the largest 1 % of each large gradient
//! is sent, at the end 0.1 %; the rest accumulates.
//! `fleetrun --nproc_per_node=2 target/release/examples/dgc [STEPS]`

mod digits;

use fleet::prelude::*;
use fleet::strategy::DgcConfig;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let dgc = DgcConfig::default()
        .with_rampup_begin_step(20)
        .with_rampup_step(100)
        .with_sparsity([0.99f32, 0.996, 0.999]);
    let strategy = DistributedStrategy::new().use_dgc(dgc);
    digits::train(steps, Momentum::new(0.02, 0.9), &strategy, digits::mlp)?;
    Ok(())
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
