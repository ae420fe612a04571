//! The example of data sets on parameter servers, as real processes, and inference from its save.

use crate::Place;
use fleet::prelude::*;
use fleet::servers::UnknownIds;
use fleet_testhost::process;
use std::path::Path;

#[path = "../../../fleet/examples/servers_dataset.rs"]
#[allow(dead_code)] // main
mod servers_dataset;

/// Works as a process of a job. The launcher starts it in the folder of the test.
fn work(job: &str) -> Result<()> {
    let folder = &std::env::current_dir().unwrap();
    match job {
        "train" => servers_dataset::train_in(folder, 6).map(|area| {
            area.into_iter().for_each(|area| println!("\nAUC of all {area}"));
        }),
        "grown" => grow(folder),
        // The save is loaded by the worker for all servers, or by each server for its part.
        _ => infer(folder, job == "servers_load"),
    }
}

/// Loads the save and predicts, without changing the tables.
fn infer(folder: &Path, servers_load: bool) -> Result<()> {
    let dir = folder.join("saved");
    let fleet = Fleet::from_env()?;
    let net = Net::new();
    let model = servers_dataset::network(&net);
    let probability = model.probability.name();
    let strategy = DistributedStrategy::new().with_a_sync(false);
    let optimizer = fleet.distributed_optimizer(Adagrad::new(0.1), &strategy);
    let job = optimizer.minimize_on_servers(&net, model.loss)?;
    if fleet.is_server() {
        let server = match servers_load {
            true => fleet.init_server_from(&job, &dir, None)?,
            false => fleet.init_server(&job)?,
        };
        server.run()?;
        return Ok(());
    }
    let (load, options) = ((!servers_load).then_some(dir.as_path()), ExecOptions::threads(1));
    let mut infer = fleet.distributed_infer(net.build()?, &job, load, options)?;
    let table = job.plan.tables.sparse[0].table_id();
    let rows = infer.servers().admin.stats(table)?.row_count;
    let ids = Tensor::from_slice(&IDS, [2, 4])?;
    for (name, unknown) in [("zeros", UnknownIds::Zeros), ("initial", UnknownIds::InitialValues)] {
        infer.set_unknown_ids(unknown);
        let found = infer.run(&[("ids", &ids)], &[&probability])?;
        println!("\n{name} {:?}", found[0].to_vec::<f32>()?);
    }
    println!("\nrows {rows} {}", infer.servers().admin.stats(table)?.row_count);
    infer.stop()
}

/// Continues the save with a network that has one more table.
fn grow(folder: &Path) -> Result<()> {
    let dir = folder.join("saved");
    let (fleet, net) = (Fleet::from_env()?, Net::new());
    let model = servers_dataset::network(&net);
    let probability = model.probability.name();
    let more = SparseEmbedding::new(10, 2).weight("more_table");
    let more = net.data("more", [-1, 1], DType::I64).sparse_embedding(more).mean();
    let strategy = DistributedStrategy::new().with_a_sync(false);
    let optimizer = fleet.distributed_optimizer(Adagrad::new(0.1), &strategy);
    let job = optimizer.minimize_on_servers(&net, model.loss + more)?;
    if fleet.is_server() {
        return fleet.init_server_incremental(&job, &dir)?.run();
    }
    let mut worker = fleet.prepare_worker(net.build()?, &job, ExecOptions::threads(1))?;
    worker.load_vars_where(&dir, |var| var.is_parameter())?;
    let mut worker = worker.start()?;
    let mut infer = worker.infer()?;
    infer.set_unknown_ids(UnknownIds::InitialValues);
    let ids = Tensor::from_slice(&IDS, [2, 4])?;
    println!("\ngrown {:?}", infer.run(&[("ids", &ids)], &[&probability])?[0].to_vec::<f32>()?);
    worker.stop()
}

const IDS: [i64; 8] = [0, 3, 6, 1 << 39, 1, 2, 4, 5];

const TEST: &str = "clicks::files_are_shuffled_over_workers_trained_on_saved_and_inferred_with";

fn start(place: &Place, job: &str, line: &str) {
    let mut command = place.command(line);
    let output = process::append(&mut command, TEST, job).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stderr), place.read("log/workerlog.0"));
}

/// Returns the rest of the log's line after these words.
#[track_caller]
fn said(log: &str, words: &str) -> String {
    let line = log.lines().find_map(|line| line.split_once(words));
    line.unwrap_or_else(|| panic!("no '{words}' in:\n{log}")).1.trim().to_string()
}

#[test]
fn files_are_shuffled_over_workers_trained_on_saved_and_inferred_with() {
    if let Some(job) = process::role() {
        return process::end(work(&job));
    }
    let place = Place::new("clicks", "");
    start(&place, "train", "--server_num=2 --worker_num=2 --log_overwrite");
    let (first, second) = (place.read("log/workerlog.0"), place.read("log/workerlog.1"));
    // A shuffle balances the workers' records, and surplus records of a worker are dropped.
    let number = |words: &str| -> u64 {
        said(&first, words).split_whitespace().next().and_then(|it| it.parse().ok()).expect(words)
    };
    assert!((11_000..=12_000).contains(&number("pass 6: ")), "{first}");
    assert!((5_500..=6_500).contains(&number("inference over ")), "{first}");
    let area: f64 = said(&first, "AUC of all ").parse().unwrap();
    assert_eq!(said(&second, "AUC of all ").parse(), Ok(area), "metrics are those of all");
    assert!(area > 0.7, "AUC {area}");

    let trained = said(&first, "predicted click probabilities: ");
    for job in ["worker_loads", "servers_load"] {
        start(&place, job, "--server_num=3 --worker_num=1 --log_overwrite");
        let log = place.read("log/workerlog.0");
        assert_eq!(said(&log, "initial "), trained, "{job}: three servers have what two saved");
        assert_ne!(said(&log, "zeros "), trained, "{job}: an unknown id reads as zeros");
        assert_eq!(said(&log, "rows "), "400 400", "{job}: unknown ids get no rows");
    }
    start(&place, "grown", "--server_num=1 --worker_num=1 --log_overwrite");
    assert_eq!(said(&place.read("log/workerlog.0"), "grown "), trained, "rows and layers continue");
    let log = place.read("log/serverlog.0");
    assert!(log.contains("server 0: ") && log.contains("lacks tables that start empty: more"));
}
