//! Shared code of the strategy examples: generated digits, each worker with its share of every
//! batch.

use fleet::prelude::*;
use fleet::strategy::cost;
use fleet_synth::{Digits, IMAGE_PIXELS};

/// Batch size of all workers together.
const BATCH: usize = 256;

/// A network of two layers.
#[allow(dead_code)] // some examples have their own
pub fn mlp(image: Var<'_>) -> Var<'_> {
    image.fc(Fc::new(128).act(Act::Relu)).fc(10)
}

/// Trains `network` under a strategy; worker 0 prints the communication and the progress. Returns
/// the session, so that the strategy's state can be inspected.
pub fn train(
    steps: u64,
    optimizer: impl Into<OptimizerDesc>,
    strategy: &DistributedStrategy,
    network: fn(Var<'_>) -> Var<'_>,
) -> Result<Session> {
    let fleet = Fleet::collective()?;
    let net = Net::new();
    let image = net.data("image", [-1, IMAGE_PIXELS as i64], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    let logits = network(image);
    let (loss, accuracy) = (logits.cross_entropy(label), logits.accuracy(label, 1));
    let job = fleet.distributed_optimizer(optimizer, strategy).minimize(&net, loss)?;
    // Workers that share layers have the same samples.
    let (copy, copies) = job.plan.copy;
    let share = BATCH / copies;
    let (loss, accuracy) = (loss.name(), accuracy.name());
    let mut session = fleet.session(net.build()?, &job, ExecOptions::default())?;
    fleet.util().print_on_rank(cost::cost(&session.programs.main), 0);

    let digits = Digits::new(1);
    let mut images = Tensor::zeros(DType::F32, [share as i64, IMAGE_PIXELS as i64])?;
    let mut labels = Tensor::zeros(DType::I64, [share as i64, 1])?;
    for step in 1..=steps {
        let sample = step * BATCH as u64 + (share * copy) as u64;
        digits.fill_batch_f32(images.as_mut_slice()?, labels.as_mut_slice()?, sample)?;
        let out = session.run(&[("image", &images), ("label", &labels)], &[&loss, &accuracy])?;
        if step % steps.div_ceil(10) == 0 {
            let own = [f64::from(out[0].item::<f32>()?), f64::from(out[1].item::<f32>()?)];
            let mean = fleet.util().all_reduce(&own, ReduceOp::Avg)?;
            let line = format!("step {step}: loss {:.4}, accuracy {:.4}", mean[0], mean[1]);
            fleet.util().print_on_rank(line, 0);
        }
    }
    fleet.meet(&mut session)?; // workers that train alone have separate models until here
    fleet.finish()?;
    Ok(session)
}

/// Returns the number on the command line, or 200.
#[allow(dead_code)] // tests call `train` themselves
pub fn steps() -> Result<u64> {
    Ok(std::env::args().nth(1).map_or(Ok(200), |steps| steps.parse())?)
}
