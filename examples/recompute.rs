//! Recompute: of the forward pass only the checkpoints are kept; what lies between them is computed
//! again when the backward pass wants it. Results are the same to the bit.
//! `fleetrun --nproc_per_node=2 target/release/examples/recompute [STEPS]`

#[path = "digits/mod.rs"]
mod digits;

use fleet::DistributedStrategy;
use fleet::prelude::*;

pub fn train(steps: u64) -> Result<()> {
    // The outputs of two layers; without names, checkpoints are chosen.
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
