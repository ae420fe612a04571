//! Programs that use tables of servers in this process.

use crate::separate;
use fleet::prelude::*;
use fleet::ps::{CommunicatorOptions, LocalServers, ServerTables};
use fleet::servers::{Place, ServerJob, Worker};
use fleet_testkit::programs::generate::{self, Peers};
use fleet_testkit::programs::harness::{guarded, is_accepted};
use std::sync::Arc;

/// Widths of the rows of the two sparse tables.
const WIDTHS: [i64; 2] = [8, 3];

pub const PEERS: Peers = Peers::Tables(WIDTHS);

/// Returns a worker of a small network with the tables of [`PEERS`] and a dense one of 64 numbers.
fn worker(seed: u64, threads: usize) -> Result<Worker> {
    let net = Net::new();
    let ids = net.data("ids", [-1, 1], DType::I64);
    let [wide, narrow] = WIDTHS.map(|width| {
        let table = Embedding::new(32, width).sparse();
        ids.embedding(table).flatten(1)
    });
    let loss = wide.fc(Fc::new(8).no_bias()).mean() + narrow.mean();
    let strategy = DistributedStrategy::new().with_a_sync(seed.is_multiple_of(2));
    let place = Place { worker: 0, worker_count: 1, server_count: 2, half_async: false };
    let job = ServerJob::minimize(&net, loss, &Sgd::new(0.1).into(), None, &strategy, place)?;
    let servers = ServerTables::all(&job.tables)?;
    let client = Arc::new(LocalServers::new(&servers, 0)?);
    let options = separate(threads);
    Worker::start(client, net.build()?, &job, options, CommunicatorOptions::default())
}

pub fn attempt(seed: u64) -> Result<bool> {
    let draft = generate::draft_with_peers(seed, PEERS);
    let mut worker = worker(seed, draft.threads)
        .map_err(|error| Error::internal(format!("the worker does not start: {error}")))?;
    let outcome = guarded("a worker", || {
        let mut scope = draft.scope();
        let (feed, fetch) = (draft.feed(), draft.fetch());
        for _ in 0..2 {
            worker.session.executor.run(&draft.program, &mut scope, &feed, &fetch)?;
        }
        Ok(())
    })?;
    // Pushes of the program are applied or refused before the tables are dropped.
    let flushed = guarded("what a worker has sent", || worker.flush())?;
    guarded("the end of a worker", || worker.stop())?.ok();
    Ok(is_accepted(&outcome) && is_accepted(&flushed))
}
