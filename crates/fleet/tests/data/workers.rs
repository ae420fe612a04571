//! Data and metrics of several workers, as real processes.

use crate::launch::{self, assert_success, init, run, run_in, stderr_of};
use crate::{Folder, line, loaded, parameters, regression, text_files};
use fleet::WorkerExchange;
use fleet::data::{Batch, Exchange, Loader, LoaderOptions};
use fleet::prelude::*;
use fleet_testhost::process;
use std::path::Path;
use std::process::Output;
use std::sync::Arc;

/// Records per worker: enough for several rounds of a shuffle.
const RECORDS: usize = 5000;

/// Runs a job in a rank.
fn work(job: &str, folder: &Path) -> Result<()> {
    match job {
        "shuffle" => shuffle(),
        "shuffle_and_die" => shuffle_and_die(),
        "metrics" => metrics(),
        "uneven" => uneven(folder),
        other => panic!("no job {other}"),
    }
}

/// Returns the words after `key` on a line that the rank printed.
fn printed(output: &Output, key: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let start = format!("{key}: ");
    let line = text.lines().find_map(|line| line.split(&start).nth(1));
    let line = line.unwrap_or_else(|| panic!("no '{key}' in {text}\n{}", stderr_of(output)));
    line.split_whitespace().map(str::to_string).collect()
}

/// Makes a dataset of ids that no other worker has; workers have different numbers of them.
fn numbered(rank: usize) -> Result<InMemoryDataset> {
    let folder = Folder::new("numbered");
    let count = RECORDS + 100 * rank;
    let text: String = (0..count).map(|id| format!("1 {}\n", rank * 100_000 + id)).collect();
    let schema = Schema::new([Slot::dense_ids("id", [1])])?;
    let options = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
    Ok(loaded(DatasetOptions { seed: 7, ..options }, &[folder.file("ids", text.as_bytes())]))
}

fn ids(dataset: &InMemoryDataset) -> Result<String> {
    let mut batch = Batch::new(dataset.layout());
    let places: Vec<u64> = (0..dataset.memory_data_size() as u64).collect();
    dataset.fill(&places, &mut batch)?;
    let ids: Vec<String> =
        batch.tensor("id")?.to_vec::<i64>()?.iter().map(i64::to_string).collect();
    Ok(ids.join(" "))
}

fn shuffle() -> Result<()> {
    let fleet = init()?;
    let mut dataset = numbered(fleet.worker_index())?;
    assert_eq!(fleet.shuffle_data_size(&dataset)?, 0);
    for round in ["first", "second"] {
        dataset.global_shuffle(&mut fleet.exchange()?)?;
        println!("{round}: {}", ids(&dataset)?);
    }
    let sizes = (fleet.memory_data_size(&dataset)?, fleet.shuffle_data_size(&dataset)?);
    println!("sizes: {} {}", sizes.0, sizes.1);
    fleet.finish()
}

/// An exchange that kills its process in the third call, on rank 1.
struct Dying {
    exchange: WorkerExchange,
    calls: usize,
}

impl Exchange for Dying {
    fn rank(&self) -> usize {
        self.exchange.rank()
    }

    fn world_size(&self) -> usize {
        self.exchange.world_size()
    }

    fn all_to_all(&mut self, outgoing: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        self.calls += 1;
        if self.calls == 3 && self.rank() == 1 {
            // As the kernel kills it: without destructors or leaving the job.
            let own = std::process::id().to_string();
            std::process::Command::new("kill").args(["-9", &own]).status().unwrap();
            std::thread::park();
        }
        self.exchange.all_to_all(outgoing)
    }
}

fn shuffle_and_die() -> Result<()> {
    let fleet = init()?;
    let mut dataset = numbered(fleet.worker_index())?;
    let before = ids(&dataset)?;
    let outcome = dataset.global_shuffle(&mut Dying { exchange: fleet.exchange()?, calls: 0 });
    println!("kept: {}", ids(&dataset)? == before);
    outcome
}

fn metrics() -> Result<()> {
    let fleet = init()?;
    let metrics = fleet.metrics();
    let rank = fleet.worker_index() as f64;
    let mut scope = Scope::new();
    // Worker 0 has counted the lower half of the recorded buckets, worker 1 the upper half.
    let positives = [[0i64, 1, 0, 2, 0, 0, 0, 0], [0, 0, 0, 0, 3, 1, 5, 9]];
    let negatives = [[7i64, 5, 4, 2, 0, 0, 0, 0], [0, 0, 0, 0, 3, 0, 1, 1]];
    let own = fleet.worker_index();
    scope.set("positives", Tensor::from_slice(&positives[own], [1, 8])?);
    let negatives = Tensor::from_slice(&negatives[own], [1, 8])?;
    println!("auc: {}", metrics.auc((&scope, "positives"), &negatives)?);
    println!("acc: {}", metrics.acc(3.0 + rank, 5.0)?);
    println!("rmse: {}", metrics.rmse(9.0 + rank * 27.0, &[4.0 + 5.0 * rank])?);
    println!("mae: {}", metrics.mae(3.5, 7.0)?);
    println!("max: {}", metrics.max(&[rank, 1.0 - rank])?.iter().sum::<f64>());
    println!("min: {}", metrics.min(&[rank, 1.0 - rank])?.iter().sum::<f64>());
    println!("sum: {}", metrics.sum(&[rank, 10.0])?[1]);
    let missing = metrics.sum((&scope, "postives")).unwrap_err().to_string();
    assert!(missing.contains("did you mean 'positives'?"), "{missing}");
    fleet.finish()
}

/// Worker 0 has 30 records, and worker 1 has 47: 3 batches of 10, and 5.
fn uneven(folder: &Path) -> Result<()> {
    let fleet = init()?;
    let net = Net::new();
    let loss = regression(&net);
    let strategy = DistributedStrategy::new();
    let job = fleet.distributed_optimizer(Sgd::new(0.3), &strategy).minimize(&net, loss)?;
    let mut session = fleet.session(net.build()?, &job, ExecOptions::threads(1))?;
    let file = folder.join(format!("part-{}", fleet.worker_index()));
    let dataset = loaded(text_files(&session, 10), &[file]);
    let run = DatasetRun::new().together(&fleet);
    let report = session.train_from_dataset(&dataset, run)?;
    println!("report: {} {} {}", report.batches, report.records, report.records_dropped);
    println!("parameters: {:?}", parameters(&session));
    // The loader itself divides the samples evenly among workers.
    let samples = Arc::new(loaded(text_files(&session, 10), &[folder.join("part-0")]));
    let mut batch = Batch::new(samples.layout());
    let (rank, world_size) = (fleet.worker_index(), fleet.worker_num());
    let options = LoaderOptions { batch_size: 5, rank, world_size, ..LoaderOptions::default() };
    let mut loader = Loader::new(samples, options)?;
    while loader.next(&mut batch)? {
        session.run(&batch.feeds(), &[])?;
    }
    fleet.finish()
}

#[test]
fn a_global_shuffle_loses_and_doubles_nothing() {
    if let Some((job, folder)) = launch::work() {
        return process::end(work(&job, &folder));
    }
    for ranks in 1..=4 {
        let outputs = run("shuffle", ranks);
        let mut expected: Vec<usize> = (0..ranks)
            .flat_map(|rank| (0..RECORDS + 100 * rank).map(move |id| rank * 100_000 + id))
            .collect();
        expected.sort_unstable();
        for output in &outputs {
            assert!(output.status.success(), "{}", stderr_of(output));
            assert_eq!(printed(output, "sizes"), vec![expected.len().to_string(); 2]);
        }
        let shuffled = |round: &str| -> Vec<usize> {
            let ids = outputs.iter().flat_map(|output| printed(output, round));
            ids.map(|id| id.parse().unwrap()).collect()
        };
        let (first, second) = (shuffled("first"), shuffled("second"));
        assert!(first != second && first != expected, "{ranks} workers: not shuffled");
        for mut all in [first, second] {
            all.sort_unstable();
            assert!(all == expected, "{ranks} workers: lost or doubled");
        }
    }
}

#[test]
fn a_worker_killed_in_a_shuffle_is_named_and_nothing_is_lost() {
    let outputs = run("shuffle_and_die", 3);
    for rank in [0, 2] {
        let text = stderr_of(&outputs[rank]);
        assert!(!outputs[rank].status.success(), "{text}");
        assert!(text.contains("rank 1 (host") && text.contains("died"), "{text}");
        assert_eq!(printed(&outputs[rank], "kept"), ["true"]);
    }
}

#[test]
fn metrics_are_those_of_all_workers() {
    for output in &run("metrics", 2) {
        assert!(output.status.success(), "{}", stderr_of(output));
        let near = |key: &str, expected: f64| {
            let value: f64 = printed(output, key)[0].parse().unwrap();
            assert!((value - expected).abs() < 1e-9, "{key}: {value}, not {expected}");
        };
        near("auc", 0.8964803312629399);
        near("acc", 0.7);
        near("rmse", (45.0f64 / 13.0).sqrt());
        near("mae", 0.5);
        near("max", 2.0);
        near("min", 0.0);
        near("sum", 20.0);
    }
}

#[test]
fn workers_with_unequal_shards_stop_together() {
    let folder = Folder::new("uneven");
    for (part, count) in [(0, 30), (1, 47)] {
        let text: String = (0..count).map(line).collect();
        folder.file(&format!("part-{part}"), text.as_bytes());
    }
    let outputs = run_in("uneven", 2, folder.path.to_str().unwrap());
    assert_success(&outputs);
    assert_eq!(printed(&outputs[0], "report"), ["3", "30", "0"]);
    assert_eq!(printed(&outputs[1], "report"), ["3", "30", "17"]);
    assert_eq!(printed(&outputs[0], "parameters"), printed(&outputs[1], "parameters"));
}
