//! Adaptive LocalSGD: LocalSGD whose interval follows the loss. The better the model, the more
//! often workers average their parameters.
//! `fleetrun --nproc_per_node=2 target/release/examples/adaptive_local_sgd [STEPS]`

mod digits;

use fleet::prelude::*;
use fleet::strategy::AdaptiveLocalSgdConfig;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let local = AdaptiveLocalSgdConfig::default().with_init_k_steps(8).with_begin_step(20);
    let strategy = DistributedStrategy::new().use_adaptive_localsgd(local);
    let session = digits::train(steps, Sgd::new(0.1), &strategy, digits::mlp)?;
    if let Ok(interval) = session.scope.tensor("k_steps") {
        println!("final interval between averages: {} steps", interval.item::<i64>()?);
    }
    Ok(())
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
