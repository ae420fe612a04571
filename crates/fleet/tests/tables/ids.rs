//! Ids of tables on servers.

use fleet::prelude::*;
use fleet::ps::{CommunicatorOptions, LocalServers, ServerTables};
use fleet::servers::{Place, ServerJob, Worker};
use std::sync::Arc;

fn worker(any_id: bool) -> Worker {
    let net = Net::new();
    let table = || SparseEmbedding::new(1000, 4).weight("words").any_id(any_id);
    let [a, b] = ["first", "second"]
        .map(|name| net.data(name, [-1, 2], DType::I64).sparse_embedding(table()).flatten(1));
    let loss = net.concat(&[a, b], 1).fc(1).mean();
    let place = Place { worker: 0, worker_count: 1, server_count: 1, half_async: false };
    let strategy = DistributedStrategy::new().with_a_sync(false);
    let job = ServerJob::minimize(&net, loss, &Sgd::new(0.1).into(), None, &strategy, place);
    let job = job.unwrap();
    let servers = ServerTables::all(&job.tables).unwrap();
    let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
    let (programs, options) = (net.build().unwrap(), CommunicatorOptions::default());
    Worker::start(client, programs, &job, ExecOptions::threads(1), options).unwrap()
}

#[test]
fn a_negative_id_is_an_error_unless_every_number_is_an_id() {
    let good = Tensor::from_slice(&[1i64, 2, 3, 4], [2, 2]).unwrap();
    let bad = Tensor::from_slice(&[1i64, 2, -7, 4], [2, 2]).unwrap();
    let feed = [("first", &good), ("second", &bad)];
    let mut checked = worker(false);
    checked.look_ahead(&feed).unwrap();
    let error = checked.run(&feed, &[]).unwrap_err().to_string();
    for words in [
        "negative id in a lookup of table 'words': expected an id >= 0, got -7",
        "at variable 'second', position 2",
        "help: if ids are hashes of 64 bits, set any_id(true)",
    ] {
        assert!(error.contains(words), "'{words}' is not in: {error}");
    }
    assert_eq!(checked.table_stats("words").unwrap().row_count, 0, "no row was made");
    checked.run(&[("first", &good), ("second", &good)], &[]).unwrap();
    // An id above the declared rows gets a row.
    let large = Tensor::from_slice(&[1i64, 2, 1 << 50, 4], [2, 2]).unwrap();
    checked.run(&[("first", &good), ("second", &large)], &[]).unwrap();
    checked.flush().unwrap();
    assert_eq!(checked.table_stats("words").unwrap().row_count, 5);
    checked.stop().unwrap();

    let mut hashed = worker(true);
    hashed.run(&feed, &[]).unwrap();
    hashed.flush().unwrap();
    assert_eq!(hashed.table_stats("words").unwrap().row_count, 5);
    hashed.stop().unwrap();
}
