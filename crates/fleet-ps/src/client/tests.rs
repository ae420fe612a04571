//! Workers with servers in this process, checked in closed form.

use super::*;
use crate::{
    Arrival, Barriers, CtrAccessor, Initializer, NonFinite, PullMode, Push, Rule, ServerTables,
    SparseConfig, SparseTable, TableAccess, TableAdmin, TableConfig, rule, rule::Sgd,
};

use plain::sparse;
pub(crate) use plain::{DENSE, GEO, SPARSE, STEPS};

#[path = "../../tests/job.rs"]
mod plain;

const CLICK: u32 = 4;

fn click() -> SparseConfig {
    let ctr = CtrAccessor { embedx_threshold: 0.0, ..CtrAccessor::default() };
    let ctr = CtrAccessor { pull_show_click: true, ..ctr };
    SparseConfig {
        rule: Rule::CtrAdagrad(rule::CtrAdagrad::default()),
        initializer: Initializer::Constant(0.0),
        accessor: crate::Accessor::Ctr(ctr),
        shard_count: 4,
        ..SparseConfig::ctr(CLICK, 2)
    }
}

pub(crate) fn job(server_count: usize, worker_count: usize, sync: bool) -> JobTables {
    let mut job = plain::job(server_count, worker_count, sync);
    job.tables.push(TableConfig::Sparse(click()));
    job
}

fn workers(job: &JobTables) -> Vec<LocalServers> {
    let servers = ServerTables::all(job).unwrap();
    (0..job.worker_count).map(|worker| LocalServers::new(&servers, worker).unwrap()).collect()
}

fn pull(worker: &impl TableAccess, ids: &[u64]) -> Vec<f32> {
    let mut rows = vec![f32::NAN; ids.len() * 2];
    worker.pull_sparse(SPARSE, ids.into(), &mut rows, PullMode::Train).unwrap();
    rows
}

fn dense(worker: &impl TableAccess) -> Vec<f32> {
    let mut values = vec![f32::NAN; 5];
    worker.pull_dense(DENSE, &mut values).unwrap();
    values
}

/// With any number of servers, a worker sees the results of a single table.
#[test]
fn servers_together_are_one_table() {
    let mut rng = fleet_base::rng::Sequence::new(5, 0);
    for servers in 1..5 {
        let worker = &workers(&job(servers, 1, false))[0];
        let (plain, clicks) =
            (SparseTable::new(sparse()).unwrap(), SparseTable::new(click()).unwrap());
        for batch in 0..20 {
            let ids: Vec<u64> = (0..batch * 3).map(|_| rng.below(40) * 7).collect();
            let numbers = |width: usize, rng: &mut fleet_base::rng::Sequence| -> Vec<f32> {
                (0..ids.len() * width).map(|_| rng.below(16) as f32 - 8.0).collect()
            };
            let grads = numbers(2, &mut rng);
            worker.push_sparse(SPARSE, None, Push::new(&ids, &grads)).unwrap();
            plain.push(Push::new(&ids, &grads)).unwrap();
            let mut want = vec![0.0; ids.len() * 2];
            plain.pull(&ids, &mut want, PullMode::Train).unwrap();
            assert_eq!(pull(worker, &ids), want);

            let grads = numbers(3, &mut rng);
            let ones = vec![2.0; ids.len()];
            let slots: Vec<u32> = ids.iter().map(|id| *id as u32).collect();
            let push = match batch % 2 {
                0 => Push::new(&ids, &grads),
                _ => Push {
                    shows: Some(&ones),
                    clicks: Some(&ones),
                    slots: Some(&slots),
                    ..Push::new(&ids, &grads)
                },
            };
            worker.push_sparse(CLICK, None, push).unwrap();
            clicks.push(push).unwrap();
            let (mut got, mut want) = (vec![0.0; ids.len() * 5], vec![1.0; ids.len() * 5]);
            clicks.pull(&ids, &mut want, PullMode::Infer).unwrap();
            worker.pull_sparse(CLICK, (&ids).into(), &mut got, PullMode::Infer).unwrap();
            assert_eq!(got, want);
        }
        assert_eq!(worker.stats(SPARSE).unwrap().row_count, plain.stats().row_count);
        assert_eq!(worker.shrink(SPARSE, Some(0)).unwrap(), 0);
    }
}

#[test]
fn dense_tables_rates_and_steps() {
    for servers in [1, 2, 7] {
        let workers = workers(&job(servers, 2, false));
        workers[0].set_dense(DENSE, &[1.0, 2.0, 3.0, 4.0, 5.0]).unwrap();
        workers[1].push_dense(DENSE, None, &[2.0, 0.0, 0.0, 0.0, -2.0]).unwrap();
        assert_eq!(dense(&workers[0]), [0.0, 2.0, 3.0, 4.0, 6.0]);
        workers[0].set_rate_scale(DENSE, 0.0).unwrap();
        workers[0].push_dense(DENSE, None, &[9.0; 5]).unwrap();
        assert_eq!(dense(&workers[1]), [0.0, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(workers[0].push_steps(STEPS, None, 10).unwrap(), 10);
        assert_eq!(workers[1].push_steps(STEPS, None, 5).unwrap(), 15);
    }
}

/// Every kind of table, filled and then cleared, behaves like a new one.
#[test]
fn a_table_that_was_cleared_is_a_new_one() {
    for sync in [false, true] {
        let [cleared, fresh] = [0, 1].map(|_| workers(&job(3, 2, sync)));
        let fill = |worker: &LocalServers| {
            let ids: Vec<u64> = (0..50).collect();
            worker.push_sparse(SPARSE, None, Push::new(&ids, &[1.0; 100])).unwrap();
            worker.push_sparse(CLICK, None, Push::new(&ids, &[1.0; 150])).unwrap();
            pull(worker, &ids);
            worker.push_geo(GEO, None, (&ids).into(), &[1.0; 100]).unwrap();
            worker.set_dense(DENSE, &[3.0; 5]).unwrap();
            worker.push_dense(DENSE, None, &[1.0; 5]).unwrap();
            worker.push_steps(STEPS, None, 7).unwrap();
        };
        fill(&cleared[0]);
        assert_eq!(cleared[0].clear(SPARSE).unwrap(), 50);
        assert_eq!(cleared[0].clear(GEO).unwrap(), 50);
        for table in [CLICK, DENSE, STEPS] {
            cleared[0].clear(table).unwrap();
        }
        assert!(cleared[1].pull_geo(GEO).unwrap().0.is_empty());
        assert_eq!(cleared[0].push_steps(STEPS, None, 0).unwrap(), 0);
        assert_eq!(dense(&cleared[0]), [0.0; 5]);
        for worker in [&cleared[0], &fresh[0]] {
            fill(worker);
        }
        if sync {
            for workers in [&cleared, &fresh] {
                workers[1].finish().unwrap();
                workers[0].arrive(Arrival::Sent).unwrap();
            }
        }
        assert_eq!(pull(&cleared[0], &[0, 49]), pull(&fresh[0], &[0, 49]));
        assert_eq!(dense(&cleared[0]), dense(&fresh[0]));
        assert_eq!(cleared[1].pull_geo(GEO).unwrap(), fresh[1].pull_geo(GEO).unwrap());
        for table in [SPARSE, CLICK, GEO] {
            let count = |worker: &LocalServers| worker.stats(table).unwrap().row_count;
            assert_eq!(count(&cleared[0]), count(&fresh[0]), "table {table}");
        }
        assert!(cleared[0].clear(99).unwrap_err().to_string().contains("no such table"));
    }
}

#[test]
fn geo_workers_exchange_what_changed() {
    let workers = workers(&job(3, 2, false));
    workers[0].push_geo(GEO, None, (&[4, 9, 4]).into(), &[1.0, 0.0, 5.0, 5.0, 1.0, 0.0]).unwrap();
    let (ids, rows) = workers[1].pull_geo(GEO).unwrap();
    assert_eq!((ids, rows), (vec![9, 4], vec![6.0, 6.0, 3.0, 1.0]), "server by server");
    assert!(workers[0].pull_geo(GEO).unwrap().0.is_empty());
    let mut rows = [0.0; 2];
    workers[0].pull_sparse(GEO, (&[9]).into(), &mut rows, PullMode::Infer).unwrap();
    assert_eq!(rows, [6.0, 6.0]);
}

/// N workers that each push the mean over their part equal one that pushes the mean over all.
#[test]
fn synchronous_pushes_are_one_step_of_the_mean() {
    for servers in [1, 3] {
        let workers = workers(&job(servers, 2, true));
        for round in 1..=3 {
            std::thread::scope(|scope| {
                for (worker, own) in workers.iter().enumerate() {
                    scope.spawn(move || {
                        let step = (worker + 1) as f32;
                        // Both workers push id 5, and each pushes another one of its own.
                        let ids = [5, 10 + worker as u64, 5];
                        let grads = [step, 0.0, step, step, step, 0.0];
                        own.push_sparse(SPARSE, None, Push::new(&ids, &grads)).unwrap();
                        own.push_dense(DENSE, None, &[step; 5]).unwrap();
                        own.push_sparse(CLICK, None, Push::new(&[1], &[0.0; 3])).unwrap();
                        let before = pull(own, &[5]);
                        own.arrive(Arrival::Sent).unwrap();
                        // The mean of 2 and 4 at a rate of a half.
                        assert_eq!(pull(own, &[5]), [before[0] - 1.5, before[1]]);
                        own.arrive(Arrival::Received).unwrap();
                    });
                }
            });
            let round = round as f32;
            assert_eq!(dense(&workers[0]), [-0.75 * round; 5]);
            let (one, two) = (1.0 - 0.25 * round, 1.0 - 0.5 * round);
            assert_eq!(pull(&workers[1], &[10, 11]), [one, one, two, two]);
            let mut row = [0.0; 5];
            workers[0].pull_sparse(CLICK, (&[1]).into(), &mut row, PullMode::Infer).unwrap();
            assert_eq!(row[0], 2.0 * round, "shows are sums");
        }
        assert!(!workers[1].finish().unwrap());
        // The remaining worker is all there is.
        workers[0].push_sparse(SPARSE, None, Push::new(&[6], &[1.0, 1.0])).unwrap();
        workers[0].arrive(Arrival::Sent).unwrap();
        assert_eq!(pull(&workers[0], &[6]), [0.5, 0.5]);
        assert!(workers[0].finish().unwrap(), "the last one");
    }
}

/// Records the servers that a worker informs of its end, and answers 0.
#[derive(Default)]
struct RecordingTransport(std::sync::Mutex<Vec<Vec<usize>>>);

impl Transport for RecordingTransport {
    fn exchange(&self, requests: &[Message<'_>]) -> Vec<Result<Vec<u8>>> {
        assert!(requests.iter().all(|request| request.method == crate::request::Method::Finish));
        self.0.lock().unwrap().push(requests.iter().map(|request| request.server).collect());
        requests.iter().map(|_| Ok(vec![0])).collect()
    }
}

/// The last worker stops all servers. By then, no server may owe another worker an answer.
#[test]
fn who_decides_that_all_have_finished_is_told_last() {
    let worker = Client::over(&job(3, 2, true), 0, RecordingTransport::default()).unwrap();
    assert!(!worker.finish().unwrap());
    assert_eq!(*worker.transport.0.lock().unwrap(), [vec![1, 2], vec![0]]);
}

#[test]
fn who_is_missing_at_a_barrier_is_named() {
    let servers = ServerTables::all(&job(2, 3, true)).unwrap();
    let brief = Duration::from_millis(1);
    let worker = LocalServers::new(&servers, 0).unwrap().with_patience(brief);
    let error = worker.arrive(Arrival::Sent).unwrap_err();
    assert!(
        error.to_string().contains("got 2 missing: worker 1, worker 2\n  at worker 0"),
        "{error}"
    );
}

#[test]
fn mistakes_are_named() {
    let worker = &workers(&job(2, 1, false))[0];
    let check = |result: Result<()>, words: &str| {
        let error = result.unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("at worker 0"), "{error}");
    };
    let mut row = [0.0; 2];
    check(
        worker.pull_sparse(9, (&[1]).into(), &mut row, PullMode::Train),
        "no such table: expected one of [0, 1, 2, 3, 4], got 9",
    );
    check(worker.push_dense(SPARSE, None, &[0.0; 5]), "table 0 is a sparse table: expected dense");
    check(worker.push_dense(DENSE, None, &[0.0; 4]), "expected 5, got 4\n  at table 1");
    check(worker.push_sparse(SPARSE, None, Push::new(&[1], &[0.0; 3])), "expected 2, got 3");
    check(
        worker.push_sparse(SPARSE, None, Push::new(&[3], &[0.0, f32::NAN])),
        "got NaN for id 3, column 1",
    );
    assert_eq!(worker.stats(SPARSE).unwrap().non_finite, 1);
    check(worker.push_dense(DENSE, None, &[f32::INFINITY; 5]), "server 0, request of worker 0");
    let servers = ServerTables::all(&job(2, 1, false)).unwrap();
    assert!(
        LocalServers::new(&servers, 1).is_err() && LocalServers::new(&servers[..1], 0).is_err()
    );
    assert!(ServerTables::new(&job(2, 1, false), 2).is_err());
    let mut twice = job(1, 1, false);
    twice.tables.push(TableConfig::GlobalStep { table_id: 0 });
    assert!(ServerTables::all(&twice).is_err());
}
