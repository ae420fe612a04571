//! Digits on several processes, each with its share of every batch:
//! `fleetrun --nproc_per_node=2 target/release/examples/data_parallel [STEPS]`
//! (`cargo build --release --bin fleetrun --example data_parallel` builds both). Without
//! `fleetrun`, one process takes the whole batch.

use fleet::prelude::*;
use fleet::trainer::{Feeds, from_fn};
use fleet_synth::{Digits, IMAGE_PIXELS};

/// Batch size of all workers together.
const BATCH: usize = 256;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let fleet = Fleet::collective()?; // rank, workers and endpoints of this process
    let share = BATCH / fleet.worker_num();
    let first = share * fleet.worker_index();

    let net = Net::new();
    let image = net.data("image", [-1, IMAGE_PIXELS as i64], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    let logits = image.fc(Fc::new(128).act(Act::Relu)).fc(10);
    let (loss, accuracy) = (logits.cross_entropy(label), logits.accuracy(label, 1));

    let strategy = DistributedStrategy::new().with_fuse_grad_size_in_MB(16);
    let optimizer = fleet.distributed_optimizer(Momentum::new(0.1, 0.9), &strategy);
    let job = optimizer.minimize(&net, loss)?;
    let (loss, accuracy) = (loss.name(), accuracy.name());
    let mut session = fleet.session(net.build()?, &job, ExecOptions::default())?;

    let digits = Digits::new(1);
    let data = from_fn(|_epoch, step, feeds: &mut Feeds| {
        let mut images = Tensor::zeros(DType::F32, [share as i64, IMAGE_PIXELS as i64])?;
        let mut labels = Tensor::zeros(DType::I64, [share as i64, 1])?;
        let sample = step * BATCH as u64 + first as u64;
        digits.fill_batch_f32(images.as_mut_slice()?, labels.as_mut_slice()?, sample)?;
        *feeds = Feeds::from([("image", images), ("label", labels)]);
        Ok(true)
    });
    let trainer = Trainer::new(&fleet).watch("loss", &loss).watch("accuracy", &accuracy);
    trainer.run(&mut session, data.batches(steps))?;
    fleet.finish()
}

fn main() -> Result<()> {
    train(std::env::args().nth(1).map_or(Ok(200), |steps| steps.parse())?)
}
