//! Click logs from files, with parameter servers. Every worker loads its share of the files,
//! records are shuffled over all workers, a pass trains on them, and metrics cover all workers.
//! Then the model is saved, and used for inference.
//!
//! `fleetrun --server_num=1 --worker_num=2 target/release/examples/servers_dataset FOLDER`, or
//! alone.

use fleet::metrics::Counted;
use fleet::prelude::*;
use fleet::ps::{SaveFormat, SaveMode};
use fleet::rng::Sequence;
use fleet::servers::UnknownIds;
use std::fmt::Write;
use std::path::Path;

/// Ids of a record.
const IDS: i64 = 4;
/// Number of different ids.
const KNOWN: u64 = 400;
const RECORDS: usize = 6000;

/// The outputs of the network.
pub struct Model<'n> {
    /// Mean logistic loss of a batch.
    pub loss: Var<'n>,
    /// Probability of a click.
    pub probability: Var<'n>,
    positives: Var<'n>,
    negatives: Var<'n>,
}

/// Builds the network.
pub fn network(net: &Net) -> Model<'_> {
    let ids = net.data("ids", [-1, IDS], DType::I64);
    let click = net.data("click", [-1, 1], DType::F32);
    let start = ParamAttr::from("table").init(Init::uniform(-0.1, 0.1));
    let rows = ids.sparse_embedding(SparseEmbedding::new(1i64 << 40, 4).weight(start));
    let logit = rows.flatten(1).fc(Fc::new(16).act(Act::Relu)).fc(1);
    let loss = logit.sigmoid_cross_entropy_with_logits(click).mean();
    let probability = logit.sigmoid();
    let counts = probability.auc(click.cast(DType::I64), Auc::new());
    Model { loss, probability, positives: counts.stat_pos, negatives: counts.stat_neg }
}

/// Writes a share of the logs. Whether a record is clicked depends on its ids.
fn write_logs(path: &Path, share: u64) -> Result<()> {
    let mut rng = Sequence::new(11, share);
    let mut text = String::new();
    for _ in 0..RECORDS {
        let ids: Vec<u64> = (0..IDS).map(|_| rng.below(KNOWN)).collect();
        let liked = ids.iter().filter(|id| *id % 3 == 0).count() as u64;
        let click = u64::from(rng.below(8) < 2 * liked);
        let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{IDS} {} 1 {click}", ids.join(" "));
    }
    std::fs::write(path, text).map_err(|error| Error::io("write", path, &error))
}

/// Trains as one process of a job, and returns the AUC of the last pass over all workers (none on
/// servers).
pub fn train_in(folder: &Path, passes: u64) -> Result<Option<f64>> {
    let fleet = Fleet::parameter_server()?;
    let net = Net::new();
    let model = network(&net);
    let (loss, probability) = (model.loss.name(), model.probability.name());
    let (positives, negatives) = (model.positives.name(), model.negatives.name());
    let strategy = DistributedStrategy::new().with_a_sync(false);
    let optimizer = fleet.distributed_optimizer(Adagrad::new(0.1), &strategy);
    let job = optimizer.minimize_on_servers(&net, model.loss)?;
    if fleet.is_server() {
        fleet.init_server(&job)?.run()?;
        return Ok(None);
    }
    let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::default())?;

    let own = fleet.worker_index();
    let file = folder.join(format!("part-{own}"));
    write_logs(&file, own as u64)?;
    let schema = fleet::slots_of(&worker.session.programs.main, &["ids", "click"])?;
    let options = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
    let mut dataset = InMemoryDataset::new(DatasetOptions { batch_size: 200, seed: 5, ..options })?;
    dataset.set_filelist([file])?;
    dataset.load_into_memory()?;
    let mut area = 0.0;
    for pass in 1..=passes {
        dataset.global_shuffle(&mut fleet.exchange()?)?;
        for counts in [&positives, &negatives] {
            let empty = Tensor::zeros(DType::I64, *worker.session.scope.tensor(counts)?.shape())?;
            worker.session.scope.assign(counts, &empty)?;
        }
        let run = DatasetRun::new().fetch("loss", &loss).print_period(0).together(&fleet);
        let report = worker.train_from_dataset(&dataset, run)?;
        let scope = &worker.session.scope;
        area = fleet.metrics().auc((scope, &positives), Counted::from((scope, &negatives)))?;
        let records = fleet.metrics().sum(report.records as f64)?[0];
        fleet.util().print_on_rank(format!("pass {pass}: {records} records, AUC {area:.4}"), 0);
    }

    if fleet.is_first_worker() {
        worker.save_persistables(folder.join("saved"), SaveMode::All, SaveFormat::Binary)?;
        // New ids read as the initial values of their rows, and get no rows.
        let mut infer = worker.infer()?;
        infer.set_unknown_ids(UnknownIds::InitialValues);
        let ids = Tensor::from_slice(&[0i64, 3, 6, 1 << 39, 1, 2, 4, 5], [2, IDS])?;
        let click = Tensor::zeros(DType::F32, [2, 1])?;
        let found = infer.run(&[("ids", &ids), ("click", &click)], &[&probability])?;
        println!("predicted click probabilities: {:?}", found[0].to_vec::<f32>()?);
        let report = infer.infer_from_dataset(&dataset, DatasetRun::new().print_period(0))?;
        println!("inference over {} records", report.records);
    }
    worker.barrier()?;
    fleet.finish()?;
    worker.stop()?;
    Ok(Some(area))
}

/// Trains for this many passes, in a temporary folder.
pub fn train(passes: u64) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("fleet-servers-dataset-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
    let outcome = train_in(&folder, passes).map(drop);
    // Remaining files are harmless.
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

fn main() -> Result<()> {
    match std::env::args().nth(1) {
        Some(folder) => train_in(Path::new(&folder), 5).map(drop),
        None => train(5),
    }
}
