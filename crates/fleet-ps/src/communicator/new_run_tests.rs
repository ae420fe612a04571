//! Synchronous jobs that die as a whole, at any request, and are restarted on durable servers. They
//! learn the same bits as a job that never died.

use super::tests::{DENSE, SPARSE, job};
use super::*;
use crate::client::local::Local;
use crate::client::{Client, Transport};
use crate::request::{Message, Read, Request};
use crate::server::Caller;
use crate::{
    Arrival, Barriers, Durability, JobTables, LocalServers, RunControl, START_ROUNDS, ServerTables,
    TableAccess,
};
use fleet_base::disk::{Disk, SimDisk};
use fleet_base::rng::Sequence;
use std::path::Path;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::Ordering::SeqCst;

const WORKERS: usize = 2;
const STEP_COUNT: u64 = 12;

/// The number of a run, and its requests until it dies.
#[derive(Clone)]
struct Run {
    number: u64,
    left: Arc<AtomicI64>,
}

/// The servers of a process that dies with the others of its run.
struct FailingServers {
    local: Local,
    left: Arc<AtomicI64>,
}

impl Transport for FailingServers {
    fn exchange(&self, requests: &[Message<'_>]) -> Vec<Result<Vec<u8>>> {
        requests.iter().map(|request| self.call(request)).collect()
    }
}

impl FailingServers {
    fn call(&self, request: &Message<'_>) -> Result<Vec<u8>> {
        // The number of waits depends on the scheduling of threads and has no effect, so they are
        // not counted.
        let bytes = request.bytes();
        let (stamp, content) = Request::decode(request.method, &bytes)?;
        let brief = match content {
            Request::Read(Read::Wait { at, round, .. }) => {
                Some(Read::Wait { at, round, timeout: Duration::from_millis(1) }.into())
            }
            _ => None,
        };
        if self.left.fetch_sub(i64::from(brief.is_none()), SeqCst) <= 0 {
            return Err(Error::unavailable("the process has died"));
        }
        match brief {
            Some(brief) => self.local.call(&Message::new(request.server, stamp, &brief)),
            None => self.local.call(request),
        }
    }
}

/// Runs one worker of a run.
fn worker(servers: &[Arc<ServerTables>], job: &JobTables, worker: usize, run: &Run) -> Result<()> {
    let caller = Caller { worker, client: run.number * WORKERS as u64 + worker as u64 + 1 };
    let failing = FailingServers { local: Local::new(servers, caller), left: run.left.clone() };
    let client = Arc::new(Client::over(job, worker, failing)?);
    for round in 0..START_ROUNDS {
        if round == 1 && worker == 0 && client.settle()? == 0 {
            client.set_dense(DENSE, &[1.0, 2.0, 3.0])?;
        }
        client.arrive(Arrival::Received)?;
    }
    let done = client.rounds(Arrival::Sent)?;
    if done > 0 {
        client.adopt()?;
    }
    let options = CommunicatorOptions::default();
    let communicator =
        Communicator::start(client.clone(), PushMode::Sync, options, Rates::constant())?;
    if done > 0 {
        communicator.resume(&crate::Progress::default().settled(done))?;
    }
    for step in done + 1..=STEP_COUNT {
        // Worker 1 has no rows in some steps.
        let ids: &[u64] = if step % 3 == 0 && worker == 1 { &[] } else { &[step, 7, 2] };
        let mut rows = vec![0.0; ids.len()];
        communicator.look_up(SPARSE, ids, &mut rows, PullMode::Train)?;
        let mut dense = [0.0; 3];
        client.pull_dense(DENSE, &mut dense)?;
        // Gradients depend on the parameters that they are computed from.
        let scale = 0.1 * (worker + 1) as f32;
        let grads: Vec<f32> = rows.iter().map(|row| scale * row + dense[0]).collect();
        let dense: Vec<f32> = dense.iter().map(|value| scale * value + step as f32).collect();
        // Worker 1 skips some steps, and both skip others.
        if step % 4 == 1 && worker == 1 || step % 5 == 4 {
            communicator.skip();
        } else {
            communicator.push_sparse(SPARSE, Push::new(ids, &grads))?;
            communicator.push_dense(DENSE, &[&dense])?;
        }
        communicator.sent()?;
        communicator.received()?;
    }
    communicator.flush()
}

/// Starts both workers; returns whether they reached the end.
fn run(servers: &[Arc<ServerTables>], job: &JobTables, run: Run) -> bool {
    std::thread::scope(|scope| {
        let start = |number| {
            let run = &run;
            scope.spawn(move || worker(servers, job, number, run))
        };
        let workers: Vec<_> = (0..WORKERS).map(start).collect();
        let ends: Vec<Result<()>> = workers.into_iter().map(|it| it.join().unwrap()).collect();
        ends.iter().all(Result::is_ok)
    })
}

/// Returns the bits of everything that the tables have learned.
fn learned(servers: &[Arc<ServerTables>]) -> Vec<u32> {
    let reader = LocalServers::new(servers, 0).unwrap();
    let ids: Vec<u64> = (0..=STEP_COUNT).collect();
    let (mut rows, mut dense) = (vec![0.0; ids.len()], [0.0; 3]);
    reader.pull_sparse(SPARSE, (&ids).into(), &mut rows, PullMode::Infer).unwrap();
    reader.pull_dense(DENSE, &mut dense).unwrap();
    rows.iter().chain(&dense).map(|value: &f32| value.to_bits()).collect()
}

/// Starts servers that resume from a disk.
fn servers_on(disk: &SimDisk, job: &JobTables) -> Vec<Arc<ServerTables>> {
    let durability = || Durability::in_folder("kept");
    let start = |server| ServerTables::durable_on(disk.handle(), job, server, durability());
    (0..job.server_count).map(|server| start(server).unwrap()).collect()
}

#[test]
fn a_restarted_synchronous_job_learns_the_same_bits() {
    let job = JobTables { sync: true, ..job(WORKERS, false) };
    let forever = || Arc::new(AtomicI64::new(i64::MAX));
    let want = {
        let servers = ServerTables::all(&job).unwrap();
        assert!(run(&servers, &job, Run { number: 0, left: forever() }));
        learned(&servers)
    };
    for seed in 0..60u64 {
        let mut rng = Sequence::new(seed, 8);
        let disk = SimDisk::new(seed);
        let mut deaths = Vec::new();
        for number in 0..4 {
            let servers = servers_on(&disk, &job);
            servers.iter().for_each(|server| server.begin_run().unwrap());
            let left = if number < 3 { rng.below(120) as i64 } else { i64::MAX };
            deaths.push(left);
            let left = Arc::new(AtomicI64::new(left));
            let is_done = run(&servers, &job, Run { number, left });
            assert!(is_done || number < 3, "seed {seed}, dies after {deaths:?} requests");
            if number < 3 && rng.below(2) == 0 {
                servers.iter().for_each(|server| server.snapshot_now().unwrap());
            }
            if number == 3 {
                assert_eq!(learned(&servers), want, "seed {seed}, dies after {deaths:?} requests");
            }
        }
    }
}

/// One worker arrives at the first barrier of some servers, and the whole job dies.
#[test]
fn arrivals_of_a_run_that_died_at_its_start_do_not_count() {
    let job = JobTables { sync: true, ..job(WORKERS, false) };
    for (first, requests) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
        let disk = SimDisk::new(0);
        let run_of = |number, requests| Run { number, left: Arc::new(AtomicI64::new(requests)) };
        let servers = servers_on(&disk, &job);
        worker(&servers, &job, first, &run_of(0, requests)).unwrap_err();
        drop(servers);
        let servers = servers_on(&disk, &job);
        servers.iter().for_each(|server| server.begin_run().unwrap());
        assert!(run(&servers, &job, run_of(1, i64::MAX)), "worker {first}, {requests} requests");
    }
}

#[test]
fn folders_of_different_moments_are_refused() {
    let job = JobTables { sync: true, ..job(WORKERS, false) };
    let disk = SimDisk::new(0);
    let forever = Arc::new(AtomicI64::new(i64::MAX));
    assert!(run(&servers_on(&disk, &job), &job, Run { number: 0, left: forever }));
    // Server 1 has lost its folder.
    let lost = Path::new("kept/server-001");
    for name in disk.list(lost).unwrap() {
        disk.remove(&lost.join(name)).unwrap();
    }
    let servers = servers_on(&disk, &job);
    servers.iter().for_each(|server| server.begin_run().unwrap());
    let error = LocalServers::new(&servers, 0).unwrap().settle().unwrap_err().to_string();
    assert!(error.contains("the servers' folders are at different steps"), "{error}");
    assert!(error.contains("expected step 12, or the one before it, got step 0"), "{error}");
}
