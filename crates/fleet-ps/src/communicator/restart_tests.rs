//! Workers that die in the middle of a step, at any request, and are restarted: each batch is
//! applied to each table once.

use super::tests::{DENSE, SPARSE, job};
use super::*;
use crate::client::local::Local;
use crate::client::{Client, Transport};
use crate::request::Message;
use crate::server::Caller;
use crate::{Durability, JobTables, LocalServers, RunControl, ServerTables, TableAccess};
use fleet_base::rng::Sequence;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering::SeqCst};

/// Servers that a process reaches a limited number of times. Later requests fail, as after its
/// death.
struct FailingServers {
    local: Local,
    left: AtomicI64,
}

impl Transport for FailingServers {
    fn exchange(&self, requests: &[Message<'_>]) -> Vec<Result<Vec<u8>>> {
        let call = |request: &Message<'_>| {
            if self.left.fetch_sub(1, SeqCst) <= 0 {
                return Err(Error::unavailable("the process has died"));
            }
            self.local.call(request)
        };
        requests.iter().map(call).collect()
    }
}

const STEPS: u32 = 2;
const STEP_COUNT: u64 = 30;
const REPORT_EVERY: u32 = 3;

/// The input of a step. In some steps, all rows are on one server.
fn batch(step: u64) -> (Vec<u64>, Vec<f32>, [f32; 3]) {
    let ids = match step % 3 {
        0 => vec![2, 4],
        1 => vec![1, 2, 100 + step],
        _ => vec![7],
    };
    let grads = ids.iter().map(|id| (step + id % 10) as f32).collect();
    (ids, grads, [step as f32, 1.0, 2.0])
}

/// A process of the worker, which dies after a number of requests.
fn process(
    servers: &[Arc<ServerTables>],
    job: &JobTables,
    (number, requests): (u64, i64),
    mode: PushMode,
    options: CommunicatorOptions,
) -> Result<()> {
    let caller = Caller { worker: 0, client: number + 1 };
    let failing =
        FailingServers { local: Local::new(servers, caller), left: AtomicI64::new(requests) };
    let client = Arc::new(Client::over(job, 0, failing)?);
    let before = if number > 0 { Some(client.adopt()?) } else { None };
    let rates = Rates { steps_table: Some(STEPS), report_every: REPORT_EVERY, ..Rates::constant() };
    let communicator = Communicator::start(client, mode, options, rates)?;
    let mut done = 0;
    if let Some(progress) = &before {
        communicator.resume(progress)?;
        done = progress.complete;
    }
    for step in done + 1..=STEP_COUNT {
        let (ids, grads, dense) = batch(step);
        communicator.push_sparse(SPARSE, Push::new(&ids, &grads))?;
        communicator.push_dense(DENSE, &[&dense])?;
        communicator.sent()?;
    }
    communicator.flush()
}

fn check(servers: &[Arc<ServerTables>], context: &str) {
    let reader = LocalServers::new(servers, 0).unwrap();
    reader.adopt().unwrap();
    let mut want = std::collections::BTreeMap::<u64, f32>::new();
    let mut dense_want = [0.0; 3];
    for step in 1..=STEP_COUNT {
        let (ids, grads, dense) = batch(step);
        ids.iter().zip(grads).for_each(|(id, grad)| *want.entry(*id).or_default() -= grad);
        dense_want.iter_mut().zip(dense).for_each(|(want, grad)| *want -= grad);
    }
    let ids: Vec<u64> = want.keys().copied().collect();
    let mut rows = vec![0.0; ids.len()];
    reader.pull_sparse(SPARSE, (&ids).into(), &mut rows, PullMode::Infer).unwrap();
    assert_eq!(rows, want.values().copied().collect::<Vec<f32>>(), "{context}");
    let mut dense = [0.0; 3];
    reader.pull_dense(DENSE, &mut dense).unwrap();
    assert_eq!(dense, dense_want, "{context}");
    assert_eq!(reader.push_steps(STEPS, None, 0).unwrap(), STEP_COUNT, "{context}");
}

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// Starts the servers; with a folder, they are durable and resume from it.
fn servers_of(job: &JobTables, folder: Option<&Folder>) -> Vec<Arc<ServerTables>> {
    let Some(folder) = folder else { return ServerTables::all(job).unwrap() };
    let start = |server| ServerTables::durable(job, server, Durability::in_folder(&folder.0));
    (0..job.server_count).map(|server| start(server).unwrap()).collect()
}

#[test]
fn every_batch_is_in_every_table_once() {
    let mut job = job(1, false);
    job.tables.push(TableConfig::GlobalStep { table_id: STEPS });
    for seed in 0..120u64 {
        let mut rng = Sequence::new(seed, 7);
        let mode = match seed % 2 {
            0 => PushMode::Async,
            _ => PushMode::HalfAsync,
        };
        let options = CommunicatorOptions {
            merge_count_max: 1 + rng.below(4) as usize,
            thread_count: 1 + rng.below(3) as usize,
            wait_count_max: 0,
            ..CommunicatorOptions::default()
        };
        let path =
            std::env::temp_dir().join(format!("fleet-ps-back-{}-{seed}", std::process::id()));
        let folder = (seed % 5 == 0).then_some(Folder(path));
        let mut servers = servers_of(&job, folder.as_ref());
        let mut deaths = Vec::new();
        for number in 0..4 {
            let requests = if number < 3 { rng.below(90) as i64 } else { i64::MAX };
            deaths.push(requests);
            let context =
                format!("seed {seed}, {mode:?}, {options:?}, dies after {deaths:?} requests");
            let outcome = process(&servers, &job, (number, requests), mode, options);
            assert!(number < 3 || outcome.is_ok(), "{context}: {outcome:?}");
            if folder.is_some() && number < 3 {
                if rng.below(2) == 0 {
                    servers.iter().for_each(|server| server.snapshot_now().unwrap());
                }
                servers.clear();
                servers = servers_of(&job, folder.as_ref());
            }
            if number == 3 {
                check(&servers, &context);
            }
        }
    }
}
