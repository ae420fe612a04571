//! Mixed precision: products are computed in float16, and the loss is scaled so that small
//! gradients are not lost. `fleetrun --nproc_per_node=2 target/release/examples/amp [STEPS]`

mod digits;

use fleet::prelude::*;
use fleet::strategy::AmpConfig;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let amp = AmpConfig::default()
        .with_init_loss_scaling(32768.0)
        .with_incr_every_n_steps(100) // doubled after this many good steps
        .with_custom_black_list(["tanh"]); // in float32, whatever the inputs are
    let strategy = DistributedStrategy::new().use_amp(amp);
    let session = digits::train(steps, Momentum::new(0.02, 0.9), &strategy, digits::mlp)?;
    println!("loss scaling: {}", session.loss_scaling()?.unwrap_or(1.0));
    Ok(())
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
