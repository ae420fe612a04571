//! Tensor parallelism: the workers share the layers of one model. Each has half of the columns of
//! one layer and the rows of the next, and all have the same samples.
//! `fleetrun --nproc_per_node=2 target/release/examples/tensor_parallel [STEPS]`

mod digits;

use fleet::prelude::*;
use fleet::strategy::HybridConfig;

fn network(image: Var<'_>) -> Var<'_> {
    let wide = image.fc(Fc::new(256).act(Act::Relu).split(Split::Columns));
    wide.fc(Fc::new(64).act(Act::Relu).split(Split::Rows)).fc(10)
}

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let hybrid = HybridConfig::default().with_mp_degree(2);
    let strategy = DistributedStrategy::new().with_hybrid_configs(hybrid);
    let session = digits::train(steps, Adam::new(0.002), &strategy, network)?;
    let shape = session.scope.tensor("fc_0.w_0")?.shape().to_vec();
    println!("this worker has {shape:?} of the [784, 256] weights of the first layer");
    Ok(())
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
