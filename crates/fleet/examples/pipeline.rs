//! Pipeline: each worker runs a stage of the network, on eight micro-batches of every batch.
//! `fleetrun --nproc_per_node=2 target/release/examples/pipeline [STEPS]`

mod digits;

use fleet::prelude::*;
use fleet::strategy::PipelineConfig;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let pipeline = PipelineConfig::default().with_accumulate_steps(8);
    let strategy = DistributedStrategy::new().use_pipeline(pipeline);
    let session = digits::train(steps, Adam::new(0.002), &strategy, network)?;
    let held = session.programs.main.parameters().count();
    println!("this worker has {held} of 8 parameters");
    Ok(())
}

/// Without device labels, the network is cut into as many stages as there are workers.
fn network(image: Var<'_>) -> Var<'_> {
    let hidden = (0..3).fold(image, |x, _| x.fc(Fc::new(128).act(Act::Relu)));
    hidden.fc(10)
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
