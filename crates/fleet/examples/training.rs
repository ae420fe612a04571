//! A whole training: epochs with a validation, early stop, checkpoints and files of scalars.
//! `cargo run --release --example training [EPOCHS] [FOLDER]`, or with several workers
//! `fleetrun --nproc_per_node=2 target/release/examples/training [EPOCHS] [FOLDER]`.
//! The same command continues an interrupted training.

use fleet::prelude::*;
use fleet::trainer::{Evaluation, Every, Goal, Source, StopFlag, Trained, from_fn};
use fleet_synth::{Digits, IMAGE_PIXELS};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Batch size of all workers together.
const BATCH: usize = 128;
/// First of the digits that training does not see.
const UNSEEN: u64 = 1 << 40;

/// Returns `batches` batches of digits, of which this worker takes its share.
fn digits(fleet: &Fleet, first: u64, batches: u64) -> impl Source + use<> {
    let rows = BATCH / fleet.worker_num();
    let first = first + (rows * fleet.worker_index()) as u64;
    let digits = Digits::new(1);
    let make = move |_epoch, batch, feeds: &mut fleet::trainer::Feeds| {
        let mut images = Tensor::zeros(DType::F32, [rows as i64, IMAGE_PIXELS as i64])?;
        let mut labels = Tensor::zeros(DType::I64, [rows as i64, 1])?;
        let sample = first + batch * BATCH as u64;
        digits.fill_batch_f32(images.as_mut_slice()?, labels.as_mut_slice()?, sample)?;
        feeds.set("image", images);
        feeds.set("label", labels);
        Ok(true)
    };
    from_fn(make).batches(batches)
}

/// Trains for at most `epochs` epochs as one process of a job, with its files in a folder.
pub fn train_in(folder: &Path, epochs: u64) -> Result<Trained> {
    let fleet = Fleet::collective()?;
    let net = Net::new();
    let image = net.data("image", [-1, IMAGE_PIXELS as i64], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    let logits = image.fc(Fc::new(64).act(Act::Relu)).dropout(0.1).fc(10);
    let (loss, accuracy) = (logits.cross_entropy(label), logits.accuracy(label, 1));
    let optimizer = fleet.distributed_optimizer(Adam::new(2e-3), &DistributedStrategy::new());
    let job = optimizer.minimize(&net, loss)?;
    let (loss, accuracy) = (loss.name(), accuracy.name());
    let mut session = fleet.session(net.build()?, &job, ExecOptions::default())?;

    let evaluation = Evaluation::new().mean("loss", &loss).mean("accuracy", &accuracy);
    let trained = Trainer::new(&fleet)
        .epochs(epochs)
        .watch("loss", &loss)
        .validate(evaluation, digits(&fleet, UNSEEN, 8), Every::Epoch)
        .goal(Goal::highest("accuracy"))
        .early_stop(5)
        .checkpoints(folder.join("checkpoints"), CheckpointPolicy::default())
        .scalars(folder)
        .stop_on(&StopFlag::on_terminate()?)
        .run(&mut session, digits(&fleet, 0, 40))?;
    fleet.finish()?;
    Ok(trained)
}

/// Trains for at most this many epochs, in a temporary folder.
pub fn train(epochs: u64) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("fleet-training-{}", std::process::id()));
    let trained = train_in(&folder, epochs);
    std::fs::remove_dir_all(&folder).map_err(|error| Error::io("remove", &folder, &error))?;
    let best = trained?.best.map_or(0.0, |best| best.value);
    match best > 0.5 {
        true => Ok(()),
        false => Err(Error::invalid("the network has not learned the digits").got(best)),
    }
}

fn main() -> Result<ExitCode> {
    let mut args = std::env::args().skip(1);
    let epochs = args.next().map_or(Ok(20), |epochs| epochs.parse())?;
    let folder = args.next().map_or("training".into(), PathBuf::from);
    let trained = train_in(&folder, epochs)?;
    if let Some(best) = trained.best {
        println!("best accuracy {:.4}, after step {}", best.value, best.step);
    }
    Ok(trained.exit_code())
}
