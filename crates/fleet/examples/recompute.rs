//! Recompute: only the checkpoints of the forward pass are kept; the values between them are
//! computed again when the backward pass needs them. Results are the same to the bit.
//! `fleetrun --nproc_per_node=2 target/release/examples/recompute [STEPS]`

mod digits;

use fleet::prelude::*;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    // The outputs of two layers; if none are named, checkpoints are chosen automatically.
    let strategy = DistributedStrategy::new().use_recompute(["fc_1.tmp_2", "fc_3.tmp_2"]);
    digits::train(steps, Momentum::new(0.02, 0.9), &strategy, deep)?;
    Ok(())
}

fn deep(image: Var<'_>) -> Var<'_> {
    (0..5).fold(image, |x, _| x.fc(Fc::new(64).act(Act::Relu))).fc(10)
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
