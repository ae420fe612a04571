//! Inference alone, from the save of a job of `servers_dataset`: servers load the tables, workers
//! the rest, and no process trains.
//!
//! `fleetrun --server_num=1 --worker_num=2 target/release/examples/servers_infer FOLDER`, or alone.
//! FOLDER is the one that `servers_dataset` was given; the numbers of servers and workers may
//! differ.

use fleet::prelude::*;
use fleet::servers::UnknownIds;
use std::path::Path;

#[allow(dead_code)] // the part that trains
mod servers_dataset;

/// Infers from the save in a folder, as one process of a job.
pub fn infer_in(folder: &Path) -> Result<()> {
    let fleet = Fleet::parameter_server()?;
    let net = Net::new();
    let model = servers_dataset::network(&net);
    let (loss, probability) = (model.loss.name(), model.probability.name());
    // Network, strategy and optimizer must be those of the job that saved: they define the tables.
    let strategy = DistributedStrategy::new().with_a_sync(false);
    let optimizer = fleet.distributed_optimizer(Adagrad::new(0.1), &strategy);
    let job = optimizer.minimize_on_servers(&net, model.loss)?;
    if fleet.is_server() {
        fleet.init_server(&job)?.run()?;
        return Ok(());
    }
    let (programs, saved) = (net.build()?, folder.join("saved"));
    let mut infer =
        fleet.distributed_infer(programs, &job, Some(&saved), ExecOptions::default())?;

    // Ids that were in no record have no row, and get none here either.
    let ids = Tensor::from_slice(&[0i64, 3, 6, 1 << 39, 1, 2, 4, 5], [2, 4])?;
    for unknown in [UnknownIds::Zeros, UnknownIds::InitialValues] {
        infer.set_unknown_ids(unknown);
        let found = infer.run(&[("ids", &ids)], &[&probability])?;
        println!("unknown ids as {unknown:?}: {:?}", found[0].to_vec::<f32>()?);
    }

    let schema = fleet::slots_of(infer.program(), &["ids", "click"])?;
    let options = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
    let mut dataset = QueueDataset::new(DatasetOptions { batch_size: 200, ..options })?;
    let files = fleet::data::glob(&folder.join("part-*").to_string_lossy())?;
    dataset.set_filelist(fleet.util().get_file_shard(&files)?)?;
    let run = DatasetRun::new().fetch("loss", &loss).print_period(10);
    let report = infer.infer_from_dataset(&dataset, run)?;
    println!("{} records", report.records);
    infer.stop()
}

/// Trains for this many passes in a temporary folder, and infers from the save.
pub fn train(passes: u64) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("fleet-servers-infer-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
    let outcome = servers_dataset::train_in(&folder, passes).and_then(|_| infer_in(&folder));
    // Remaining files are harmless.
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        Some(folder) => infer_in(Path::new(&folder)),
        None => train(5),
    }
}
