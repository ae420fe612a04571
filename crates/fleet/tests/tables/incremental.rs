//! Incremental training: a network that has changed continues with the tables and layers that an
//! earlier one has saved.

use fleet::prelude::*;
use fleet::ps::{
    CommunicatorOptions, LocalServers, SaveFormat, SaveMode, ServerTables, TableIndex,
};
use fleet::servers::{Place, ServerJob, Worker};
use std::path::PathBuf;
use std::sync::Arc;

/// A folder that is deleted at the end of the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("fleet-{name}-{}", std::process::id()));
        std::fs::remove_dir_all(&path).ok();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A network with one table and two layers; the larger one has a table and a layer more, whose
/// tables come first.
fn network(net: &Net, is_larger: bool) -> Var<'_> {
    let ids = net.data("ids", [-1, 2], DType::I64);
    let table = |name: &str| SparseEmbedding::new(1000, 4).weight(ParamAttr::from(name));
    let more = is_larger.then(|| ids.sparse_embedding(table("more")).flatten(1));
    let rows = ids.sparse_embedding(table("words")).flatten(1);
    let rows = more.map_or(rows, |more| net.concat(&[rows, more], 1));
    let first = Fc::new(3).act(Act::Tanh).weight("first.w");
    let hidden = if is_larger { rows.fc(Fc::new(8).weight("a.w").bias("a.b")) } else { rows };
    hidden.fc(first.bias("first.b")).fc(Fc::new(1).weight("last.w").bias("last.b")).mean()
}

fn job(net: &Net, is_larger: bool, server_count: usize) -> ServerJob {
    let loss = network(net, is_larger);
    let place = Place { worker: 0, worker_count: 1, server_count, half_async: false };
    let strategy = DistributedStrategy::new().with_a_sync(false);
    ServerJob::minimize(net, loss, &Adam::new(0.1).into(), None, &strategy, place).unwrap()
}

const IDS: [i64; 4] = [7, 900, 7, 3];

fn train(worker: &mut Worker, steps: usize) {
    let ids = Tensor::from_slice(&IDS, [2, 2]).unwrap();
    (0..steps).for_each(|_| drop(worker.run(&[("ids", &ids)], &[]).unwrap()));
}

fn value(worker: &Worker, name: &str) -> Vec<f32> {
    worker.session.scope.tensor(name).unwrap().to_vec().unwrap()
}

#[test]
fn a_larger_network_continues_a_smaller_one() {
    let folder = Folder::new("incremental");
    let net = Net::new();
    let old = job(&net, false, 1);
    let servers = ServerTables::all(&old.tables).unwrap();
    let (options, threads) = (CommunicatorOptions::default(), ExecOptions::threads(1));
    let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
    let mut worker =
        Worker::start(client, net.build().unwrap(), &old, threads.clone(), options).unwrap();
    train(&mut worker, 3);
    worker.save_persistables(&folder.0, SaveMode::All, SaveFormat::Binary).unwrap();
    let index = TableIndex::read(&folder.0).unwrap();
    let params: Vec<&str> = index.params().collect();
    assert_eq!(params, ["first.b", "first.w", "last.b", "last.w"]);

    let net = Net::new();
    let new = job(&net, true, 3);
    let ids: Vec<u32> = new.plan.tables.sparse.iter().map(|table| table.table_id()).collect();
    let servers = ServerTables::all(&new.tables).unwrap();
    for server in &servers {
        assert_eq!(server.load_present(&folder.0, &ids).unwrap(), ["more"]);
    }
    let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
    let programs = net.build().unwrap();
    let mut prepared = Worker::prepare(client, programs, &new, threads, options).unwrap();
    let fresh: Vec<f32> = prepared.session.scope.tensor("last.w").unwrap().to_vec().unwrap();
    // Nothing changes unless all names are there, with their shapes.
    let error = prepared.load_vars(&folder.0, &["last.w", "a.w"]).unwrap_err().to_string();
    assert!(error.contains("'a.w'"), "{error}");
    let error = prepared.load_vars(&folder.0, &["last.w", "first.w"]);
    assert!(error.is_ok(), "a layer of 8 columns before it keeps its shape: {error:?}");
    assert_ne!(prepared.session.scope.tensor("last.w").unwrap().to_vec::<f32>().unwrap(), fresh);
    prepared
        .load_vars_where(&folder.0, |var| params.contains(&&var.name[..]) && var.name != "last.w")
        .unwrap();
    let new_layer: Vec<f32> = prepared.session.scope.tensor("a.w").unwrap().to_vec().unwrap();
    let mut larger = prepared.start().unwrap();
    for name in params {
        assert_eq!(value(&larger, name), value(&worker, name), "{name}");
    }
    assert_eq!(value(&larger, "a.w"), new_layer, "a new layer keeps its initial values");
    let rows = |worker: &Worker, table: &str| worker.read_rows(table, &IDS).unwrap();
    assert_eq!(rows(&larger, "words"), rows(&worker, "words"));
    assert_eq!(rows(&larger, "more"), [0.0; 16], "a new table is empty");
    train(&mut larger, 1);
    assert_ne!(rows(&larger, "words"), rows(&worker, "words"));
    larger.stop().unwrap();
    worker.stop().unwrap();
}

/// A save of one process continues on servers.
#[test]
fn a_checkpoint_of_one_process_continues_on_servers() {
    let folder = Folder::new("incremental-alone");
    let net = Net::new();
    let x = net.data("x", [-1, 2], DType::F32);
    net.minimize(x.fc(Fc::new(3).weight("w").bias("b")).mean(), Sgd::new(0.1)).unwrap();
    let mut session = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    let x = Tensor::from_slice(&[1.0f32, 2.0], [1, 2]).unwrap();
    session.run(&[("x", &x)], &[]).unwrap();
    fleet::save_persistables(&folder.0, &session.programs.main, &session.scope).unwrap();

    let net = Net::new();
    let x = net.data("x", [-1, 2], DType::F32);
    let loss = x.fc(Fc::new(3).weight("w").bias("b")).fc(2).mean();
    let place = Place { worker: 0, worker_count: 1, server_count: 2, half_async: false };
    let strategy = DistributedStrategy::new();
    let job = ServerJob::minimize(&net, loss, &Sgd::new(0.1).into(), None, &strategy, place);
    let job = job.unwrap();
    let servers = ServerTables::all(&job.tables).unwrap();
    let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
    let (programs, options) = (net.build().unwrap(), CommunicatorOptions::default());
    let mut prepared =
        Worker::prepare(client, programs, &job, ExecOptions::threads(1), options).unwrap();
    prepared.load_vars_where(&folder.0, |var| var.name == "w").unwrap();
    prepared.load_vars(&folder.0, &["b"]).unwrap();
    let mut worker = prepared.start().unwrap();
    for name in ["w", "b"] {
        let alone: Vec<f32> = session.scope.tensor(name).unwrap().to_vec().unwrap();
        assert_eq!(value(&worker, name), alone);
    }
    worker.stop().unwrap();
}
