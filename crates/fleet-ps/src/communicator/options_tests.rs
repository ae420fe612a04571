//! The effect of each option of a worker's traffic, observed at the servers.

use super::tests::{DENSE, SPARSE, job, workers};
use super::*;
use crate::{Ids, JobTables, SparseConfig, Step, TableAccess};
use fleet_base::sync::{lock, wait_while};
use std::sync::Condvar;
use std::time::Instant;

const STEPS: u32 = 2;
/// A second table of rows, and a second dense one.
const MORE_ROWS: u32 = 3;
const MORE_NUMBERS: u32 = 4;
/// Long enough for any machine; no test waits this long.
const DEADLINE: Duration = Duration::from_secs(60);

/// A request to the servers.
#[derive(Clone, Debug, PartialEq)]
enum RecordedRequest {
    PushRows,
    PushNumbers,
    PullRows,
    /// By the thread of this name.
    PullNumbers(String),
    Rate(f32),
    Steps(u32),
}

type Condition = dyn Fn(&[RecordedRequest]) -> bool + Send + Sync;

/// Servers in this process that record the requests, and that can delay their answers.
struct Watched {
    servers: Servers,
    requests: Mutex<Vec<RecordedRequest>>,
    changed: Condvar,
    /// A push continues when this holds for the recorded requests, its own included.
    may_continue: Box<Condition>,
    /// A pull continues when so many pulls are recorded, its own included.
    pulls_together: AtomicU64,
}

impl Watched {
    fn new(
        may_continue: impl Fn(&[RecordedRequest]) -> bool + Send + Sync + 'static,
    ) -> Arc<Watched> {
        Watched::of_worker(0, may_continue)
    }

    fn of_worker(
        worker: usize,
        may_continue: impl Fn(&[RecordedRequest]) -> bool + Send + Sync + 'static,
    ) -> Arc<Watched> {
        let mut job = job(worker + 1, false);
        job.tables.push(TableConfig::GlobalStep { table_id: STEPS });
        for table in job.tables.clone() {
            job.tables.extend(match table {
                TableConfig::Sparse(config) => {
                    let name = "more rows".into();
                    Some(TableConfig::Sparse(SparseConfig { table_id: MORE_ROWS, name, ..config }))
                }
                TableConfig::Dense { rule, non_finite, options, .. } => {
                    let (table_id, params) = (MORE_NUMBERS, vec![("bias".into(), 3)]);
                    Some(TableConfig::Dense { table_id, params, rule, non_finite, options })
                }
                _ => None,
            });
        }
        let servers = workers(&job).remove(worker);
        let may_continue = Box::new(may_continue);
        let (requests, changed, pulls_together) = Default::default();
        Arc::new(Watched { servers, requests, changed, may_continue, pulls_together })
    }

    /// Makes this many pulls wait for each other.
    fn pulls_wait_for_each_other(&self, count: u64) {
        lock(&self.requests).clear();
        self.pulls_together.store(count, Relaxed);
    }

    fn until_pulls_are_together(&self) -> Result<()> {
        let count = self.pulls_together.load(Relaxed);
        self.until("other pulls", |requests| pulls(requests) >= count)
    }

    fn record(&self, request: RecordedRequest) {
        lock(&self.requests).push(request);
        self.changed.notify_all();
    }

    /// Makes pushes check their condition again.
    fn wake(&self) {
        drop(lock(&self.requests));
        self.changed.notify_all();
    }

    /// Waits until a condition holds for the recorded requests.
    fn until(&self, what: &str, holds: impl Fn(&[RecordedRequest]) -> bool) -> Result<()> {
        let requests = lock(&self.requests);
        let (_requests, has_timed_out) =
            wait_while(&self.changed, requests, DEADLINE, |requests| !holds(requests));
        match has_timed_out {
            true => Err(Error::internal(format!("timed out waiting for {what}"))),
            false => Ok(()),
        }
    }

    fn count(&self, what: &RecordedRequest) -> usize {
        lock(&self.requests).iter().filter(|request| *request == what).count()
    }
}

fn pulls(requests: &[RecordedRequest]) -> u64 {
    let is_pull = |request: &&RecordedRequest| {
        matches!(request, RecordedRequest::PullRows | RecordedRequest::PullNumbers(_))
    };
    requests.iter().filter(is_pull).count() as u64
}

impl TableAccess for Watched {
    fn worker(&self) -> usize {
        self.servers.worker()
    }

    fn job(&self) -> &JobTables {
        self.servers.job()
    }

    fn pull_sparse(
        &self,
        table: u32,
        ids: Ids<'_>,
        rows: &mut [f32],
        mode: PullMode,
    ) -> Result<()> {
        self.record(RecordedRequest::PullRows);
        self.until_pulls_are_together()?;
        self.servers.tables.pull_sparse(table, ids, rows, mode)
    }

    fn push_sparse(&self, table: u32, step: Option<Step>, push: Push<'_>) -> Result<()> {
        self.record(RecordedRequest::PushRows);
        self.until("the condition of a push of rows", &self.may_continue)?;
        self.servers.tables.push_sparse(table, step, push)
    }

    fn pull_dense(&self, table: u32, values: &mut [f32]) -> Result<()> {
        let name = std::thread::current().name().unwrap_or_default().to_string();
        self.record(RecordedRequest::PullNumbers(name));
        self.until_pulls_are_together()?;
        self.servers.tables.pull_dense(table, values)
    }

    fn push_dense(&self, table: u32, step: Option<Step>, grad: &[f32]) -> Result<()> {
        self.record(RecordedRequest::PushNumbers);
        self.until("the condition of a push of numbers", &self.may_continue)?;
        self.servers.tables.push_dense(table, step, grad)
    }

    fn set_dense(&self, table: u32, values: &[f32]) -> Result<()> {
        self.servers.tables.set_dense(table, values)
    }

    fn set_rate_scale(&self, table: u32, scale: f32) -> Result<()> {
        self.record(RecordedRequest::Rate(scale));
        self.servers.tables.set_rate_scale(table, scale)
    }

    fn push_geo(
        &self,
        table: u32,
        step: Option<Step>,
        ids: Ids<'_>,
        differences: &[f32],
    ) -> Result<()> {
        self.servers.tables.push_geo(table, step, ids, differences)
    }

    fn pull_geo(&self, table: u32) -> Result<(Vec<u64>, Vec<f32>)> {
        self.servers.tables.pull_geo(table)
    }

    fn push_steps(&self, table: u32, step: Option<Step>, count: u32) -> Result<u64> {
        self.record(RecordedRequest::Steps(count));
        self.servers.tables.push_steps(table, step, count)
    }
}

impl From<Arc<Watched>> for Servers {
    fn from(watched: Arc<Watched>) -> Servers {
        let servers = watched.servers.clone();
        Servers { tables: watched, ..servers }
    }
}

fn start(servers: &Arc<Watched>, options: CommunicatorOptions) -> Communicator {
    let rates = Rates::constant();
    Communicator::start(servers.clone(), PushMode::Async, options, rates).unwrap()
}

fn push_row(communicator: &Communicator) {
    communicator.push_sparse(SPARSE, Push::new(&[5], &[1.0])).unwrap();
}

/// The first gradient is in flight when the others are queued; those are merged up to the limit.
#[test]
fn so_many_gradients_become_one_push() {
    for (merge_count_max, pushes) in [(1, 7), (3, 3), (4, 3), (6, 2), (100, 2)] {
        let options =
            CommunicatorOptions { merge_count_max, wait_count_max: 0, ..Default::default() };
        let is_open = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let opens = is_open.clone();
        let servers = Watched::new(move |_| opens.load(Relaxed));
        let communicator = start(&servers, options);
        push_row(&communicator);
        servers
            .until("the first push", |requests| requests.contains(&RecordedRequest::PushRows))
            .unwrap();
        (0..6).for_each(|_| push_row(&communicator));
        is_open.store(true, Relaxed);
        servers.wake();
        communicator.flush().unwrap();
        assert_eq!(servers.count(&RecordedRequest::PushRows), pushes, "{merge_count_max}");
        let mut row = [0.0];
        communicator.look_up(SPARSE, &[5], &mut row, PullMode::Train).unwrap();
        assert_eq!(row, [-7.0]);
    }
}

/// A step is never further ahead of the pushes than the length of the queue.
#[test]
fn so_many_gradients_wait_and_one_more_waits_with_the_step() {
    for queue_len_max in [1, 3] {
        let handed = Arc::new(AtomicU64::new(0));
        let far = Arc::new(AtomicU64::new(0));
        let (seen, most) = (handed.clone(), far.clone());
        let servers = Watched::new(move |requests| {
            let pushed =
                requests.iter().filter(|request| **request == RecordedRequest::PushRows).count()
                    as u64;
            let ahead = seen.load(Relaxed).saturating_sub(pushed);
            most.fetch_max(ahead, Relaxed);
            // The first push continues when the queue is full.
            pushed > 1 || ahead == queue_len_max
        });
        let options =
            CommunicatorOptions { queue_len_max: queue_len_max as usize, ..Default::default() };
        let communicator = start(&servers, options);
        for _ in 0..40 {
            push_row(&communicator);
            handed.fetch_add(1, Relaxed);
            servers.wake();
        }
        communicator.flush().unwrap();
        assert_eq!(far.load(Relaxed), queue_len_max);
        assert_eq!(servers.count(&RecordedRequest::PushRows), 40);
    }
}

/// With enough time to wait, all three gradients become one push, without a flush.
#[test]
fn a_sender_looks_so_often_for_more() {
    let servers = Watched::new(|_| true);
    let options =
        CommunicatorOptions { merge_count_max: 3, wait_count_max: 10_000, ..Default::default() };
    let communicator = start(&servers, options);
    (0..3).for_each(|_| push_row(&communicator));
    servers
        .until("a push of all", |requests| requests.contains(&RecordedRequest::PushRows))
        .unwrap();
    communicator.flush().unwrap();
    assert_eq!(servers.count(&RecordedRequest::PushRows), 1);

    // With a single wait, one gradient is pushed alone.
    let servers = Watched::new(|_| true);
    let options = CommunicatorOptions { merge_count_max: 3, ..Default::default() };
    let communicator = start(&servers, options);
    let begun = Instant::now();
    push_row(&communicator);
    servers
        .until("a push of one", |requests| requests.contains(&RecordedRequest::PushRows))
        .unwrap();
    assert!(begun.elapsed() >= POLL_SPAN);
}

/// Each push continues when the other has begun.
#[test]
fn so_many_threads_send_at_once() {
    let both = |requests: &[RecordedRequest]| {
        requests.contains(&RecordedRequest::PushRows)
            && requests.contains(&RecordedRequest::PushNumbers)
    };
    let servers = Watched::new(both);
    let communicator =
        start(&servers, CommunicatorOptions { thread_count: 2, ..Default::default() });
    push_row(&communicator);
    communicator.push_dense(DENSE, &[&[1.0; 3]]).unwrap();
    communicator.flush().unwrap();
}

#[test]
fn parameters_are_received_by_the_sender_or_by_a_thread_of_their_own() {
    for (receives_apart, by) in [(false, "ps-send"), (true, "ps-receive")] {
        let servers = Watched::new(|_| true);
        let options = CommunicatorOptions { receives_apart, ..Default::default() };
        let communicator = start(&servers, options);
        communicator.push_dense(DENSE, &[&[1.0; 3]]).unwrap();
        let pulled = RecordedRequest::PullNumbers(by.to_string());
        servers.until("parameters", |requests| requests.contains(&pulled)).unwrap();
        let others = |request: &&RecordedRequest| {
            matches!(request, RecordedRequest::PullNumbers(name)
                if name.starts_with("ps-") && name != by)
        };
        assert_eq!(lock(&servers.requests).iter().find(others), None);
    }
}

/// Two pulls continue only when both are recorded, so one thread alone would time out.
#[test]
fn so_many_tables_are_looked_up_ahead_at_once() {
    let servers = Watched::new(|_| true);
    let options = CommunicatorOptions { look_ahead_thread_count: 2, ..Default::default() };
    let communicator = start(&servers, options);
    servers.pulls_wait_for_each_other(2);
    for table in [SPARSE, MORE_ROWS] {
        communicator.look_ahead(table, vec![5], 1);
    }
    servers.until("both requests", |requests| pulls(requests) == 2).unwrap();
    for table in [SPARSE, MORE_ROWS] {
        communicator.look_up(table, &[5], &mut [0.0], PullMode::Train).unwrap();
    }
    assert_eq!(communicator.stats().looked_ahead, 2);
}

#[test]
fn so_many_tables_are_received_at_once() {
    let options = CommunicatorOptions {
        receives_apart: true,
        receive_thread_count: 2,
        ..CommunicatorOptions::default()
    };
    for mode in [PushMode::Async, PushMode::HalfAsync] {
        let servers = Watched::new(|_| true);
        let rates = Rates::constant();
        let communicator = Communicator::start(servers.clone(), mode, options, rates).unwrap();
        servers.pulls_wait_for_each_other(2);
        for table in [DENSE, MORE_NUMBERS] {
            communicator.push_dense(table, &[&[1.0; 3]]).unwrap();
        }
        communicator.sent().unwrap();
        servers.until("both requests", |requests| pulls(requests) == 2).unwrap();
        if mode == PushMode::Async {
            continue;
        }
        // Each is received once for a step.
        let mut values = [0.0; 3];
        for table in [DENSE, MORE_NUMBERS] {
            communicator.dense(table, &mut [&mut values]).unwrap();
            assert_eq!(values, [-1.0; 3]);
        }
        assert_eq!(pulls(&lock(&servers.requests)), 2);
        communicator.sent().unwrap();
        communicator.received().unwrap();
        // Values that the step did not take are not used later.
        servers.servers.tables.set_dense(DENSE, &[7.0; 3]).unwrap();
        communicator.dense(DENSE, &mut [&mut values]).unwrap();
        assert_eq!(values, [7.0; 3]);
    }
}

/// Steps are reported at the interval, and the rate is that of all reported steps.
#[test]
fn steps_are_reported_every_so_often() {
    for (report_every, reports) in [(1, 7), (3, 2), (10, 0)] {
        let servers = Watched::new(|_| true);
        let rates = Rates {
            steps_table: Some(STEPS),
            report_every,
            tables: vec![(DENSE, Arc::new(|step| 1.0 / (1.0 + step as f64)))],
        };
        let (mode, options) = (PushMode::Async, CommunicatorOptions::default());
        rates.begin(&*servers, 0).unwrap();
        let communicator = Communicator::start(servers.clone(), mode, options, rates).unwrap();
        (0..7).for_each(|_| communicator.sent().unwrap());
        communicator.flush().unwrap();
        assert_eq!(servers.count(&RecordedRequest::Steps(report_every)), reports, "{report_every}");
        let last = (1.0 / (1.0 + (reports as u32 * report_every) as f64)) as f32;
        let rates = lock(&servers.requests);
        let rate = rates.iter().rfind(|request| matches!(request, RecordedRequest::Rate(_)));
        assert_eq!(rate, Some(&RecordedRequest::Rate(last)), "{report_every}");
    }
}

/// Rates resume from the count that a save has restored, or that other workers have made since.
#[test]
fn the_first_rate_is_that_of_the_steps_that_servers_have_counted() {
    let servers = Watched::new(|_| true);
    servers.servers.tables.push_steps(STEPS, None, 3).unwrap();
    let rates = Rates {
        steps_table: Some(STEPS),
        report_every: 10,
        tables: vec![(DENSE, Arc::new(|step| 1.0 / (1.0 + step as f64)))],
    };
    rates.begin(&*servers, 0).unwrap();
    assert_eq!(servers.count(&RecordedRequest::Rate(0.25)), 1);
}

/// A worker that resumes pushes at the rate of its step, even if it is the first to resume.
#[test]
fn every_worker_sets_the_rate_from_which_it_resumes() {
    for steps_table in [None, Some(STEPS)] {
        let servers = Watched::of_worker(1, |_| true);
        servers.servers.tables.push_steps(STEPS, None, 3).unwrap();
        let tables = vec![(DENSE, Arc::new(|step: u64| 1.0 / (1.0 + step as f64)) as RateOf)];
        let rates = Rates { steps_table, report_every: 10, tables };
        let (mode, options) = (PushMode::Async, CommunicatorOptions::default());
        let communicator = Communicator::start(servers.clone(), mode, options, rates).unwrap();
        communicator.set_steps_done(3).unwrap();
        assert_eq!(servers.count(&RecordedRequest::Rate(0.25)), 1);
    }
}
