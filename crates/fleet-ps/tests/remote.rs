//! Working servers, and the errors of mistakes.

use crate::common::{DENSE, Fleet, GEO, SPARSE, STEPS, dense, job, options, pull, sparse};
use crate::saves::Folder;
use fleet_base::ErrorKind;
use fleet_net::Token;
use fleet_net::calls::{CallClient, CallOptions, CallServer, Conversation};
use fleet_net::{Limits, Log};
use fleet_ps::{
    Arrival, Barriers, JobTables, LocalServers, NonFinite, PullMode, Push, RemoteOptions,
    RemoteServers, SaveFormat, SaveMode, ServerTables, SparseConfig, TableAccess, TableAdmin,
    TableConfig, TableServer, Tables,
};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

#[test]
fn remote_servers_are_local_ones() {
    for server_count in [1, 3] {
        let job = job(server_count, 2, false);
        let fleet = Fleet::start(&job);
        let tables = ServerTables::all(&job).unwrap();
        let mut rng = fleet_base::rng::Sequence::new(3, 0);
        let remote: Vec<RemoteServers> = (0..2).map(|worker| fleet.worker(worker)).collect();
        let local: Vec<LocalServers> =
            (0..2).map(|worker| LocalServers::new(&tables, worker).unwrap()).collect();
        for step in 0..40u32 {
            let ids: Vec<u64> = (0..step * 5).map(|_| rng.below(300)).collect();
            let grads: Vec<f32> = (0..ids.len() * 2).map(|_| rng.below(9) as f32).collect();
            let worker = step as usize % 2;
            let run = |servers: &dyn TableAccess| {
                servers.push_sparse(SPARSE, None, Push::new(&ids, &grads)).unwrap();
                servers.push_geo(GEO, None, (&ids).into(), &grads).unwrap();
                servers.push_dense(DENSE, None, &[step as f32; 5]).unwrap();
                servers.set_rate_scale(DENSE, 1.0 / (step + 1) as f32).unwrap();
                let (mut rows, mut values) = (vec![0.0; ids.len() * 2], vec![0.0; 5]);
                servers.pull_sparse(SPARSE, (&ids).into(), &mut rows, PullMode::Train).unwrap();
                servers.pull_dense(DENSE, &mut values).unwrap();
                let steps = servers.push_steps(STEPS, None, step).unwrap();
                (rows, values, steps, servers.pull_geo(GEO).unwrap())
            };
            assert_eq!(run(&remote[worker]), run(&local[worker]), "step {step}");
        }
        let (remote, local) = (remote[0].stats(SPARSE).unwrap(), local[0].stats(SPARSE).unwrap());
        assert_eq!((remote.row_count, remote.pushed), (local.row_count, local.pushed));
    }
}

/// A server that answers when the expected number of requests is in flight to all servers.
struct Crowd {
    server: u64,
    agreed: bool,
    here: Arc<(Mutex<usize>, Condvar)>,
}

impl Conversation for Crowd {
    fn call(&mut self, _: u8, _: &[u8], answer: &mut Vec<u8>) -> fleet_base::Result<()> {
        if !self.agreed {
            // The first request of a connection compares the jobs. The answer is the server's
            // number and its life.
            self.agreed = true;
            answer.extend(self.server.to_le_bytes());
            answer.extend(7u64.to_le_bytes());
            return Ok(());
        }
        let (count, changed) = &*self.here;
        let mut count = count.lock().unwrap();
        *count += 1;
        changed.notify_all();
        let patience = Duration::from_secs(60);
        let waited = changed.wait_timeout_while(count, patience, |count| *count < CROWD);
        assert!(!waited.unwrap().1.timed_out(), "requests came one after another");
        // The first server has three of five numbers.
        let numbers = if self.server == 0 { 3 } else { 2 };
        answer.resize(numbers * 4, 0);
        Ok(())
    }
}

/// Four threads at two servers.
const CROWD: usize = 8;

#[test]
fn requests_are_on_their_way_to_all_servers_at_once() {
    let (token, here) = (Token::generate().unwrap(), Arc::default());
    let servers = [0, 1].map(|server| {
        let here: Arc<(Mutex<usize>, Condvar)> = Arc::clone(&here);
        let open = move |_: &[u8], _| {
            let crowd = Crowd { server, agreed: false, here: here.clone() };
            Ok(Box::new(crowd) as Box<dyn Conversation>)
        };
        let options = CallOptions::default();
        CallServer::bind("127.0.0.1:0", &token, options, Log::silent(), open).unwrap()
    });
    let addresses = servers.each_ref().map(CallServer::address);
    let worker = RemoteServers::connect(&job(2, 1, false), 0, &addresses, &token, options());
    let worker = worker.unwrap();
    std::thread::scope(|scope| {
        for _ in 0..CROWD / 2 {
            scope.spawn(|| assert_eq!(dense(&worker), [0.0; 5]));
        }
    });
}

/// The smallest and the largest ids, and those that are negative as signed numbers, survive on
/// their servers and in a save.
#[test]
fn ids_are_any_64_bit_numbers() {
    let ids = [0, 1, u64::from(u32::MAX) + 1, i64::MAX as u64, i64::MIN as u64, u64::MAX];
    let grads: Vec<f32> = (0..2 * ids.len()).map(|at| at as f32).collect();
    let fleet = Fleet::start(&job(3, 1, false));
    let worker = fleet.worker(0);
    worker.push_sparse(SPARSE, None, Push::new(&ids, &grads)).unwrap();
    let want: Vec<f32> = grads.iter().map(|grad| 1.0 - 0.5 * grad).collect();
    assert_eq!(pull(&worker, &ids), want);
    let folder = Folder::new("any-ids");
    for format in [SaveFormat::Text, SaveFormat::Binary] {
        worker.save(Tables::All, &folder.0, SaveMode::All, format).unwrap();
        let again = Fleet::start(&job(2, 1, false));
        again.worker(0).load(Tables::All, &folder.0).unwrap();
        assert_eq!(pull(&again.worker(0), &ids), want, "{format:?}");
    }
}

/// Workers train in step. While one thread waits at the barrier, another continues to make
/// requests.
#[test]
fn a_synchronous_job_and_its_end() {
    let fleet = Fleet::start(&job(2, 3, true));
    std::thread::scope(|scope| {
        for number in 0..3 {
            let fleet = &fleet;
            scope.spawn(move || {
                let worker = fleet.worker(number);
                for round in 1..=10 {
                    let own = [10 + number as u64, 1];
                    worker.push_sparse(SPARSE, None, Push::new(&own, &[3.0; 4])).unwrap();
                    worker.push_dense(DENSE, None, &[6.0 * number as f32; 5]).unwrap();
                    std::thread::scope(|inner| {
                        let waits = inner.spawn(|| worker.arrive(Arrival::Sent).unwrap());
                        while !waits.is_finished() {
                            worker.pull_dense(DENSE, &mut [0.0; 5]).unwrap();
                        }
                    });
                    let all = -1.5 * round as f32;
                    assert_eq!(pull(&worker, &[1]), [1.0 + all; 2]);
                    assert_eq!(dense(&worker), [2.0 * all; 5]);
                    worker.arrive(Arrival::Received).unwrap();
                }
                if worker.finish().unwrap() {
                    worker.stop().unwrap();
                }
            });
        }
    });
    fleet.servers.into_iter().for_each(|server| server.run().unwrap());
}

/// Each mistake is an error with its own message, and the server continues.
#[test]
fn mistakes_are_told_and_the_server_stays_up() {
    let fleet = Fleet::start(&job(2, 1, false));
    let worker = fleet.worker(0);
    let check = |result: fleet_base::Result<()>, kind: ErrorKind, words: &[&str]| {
        let error = result.unwrap_err();
        let text = error.to_string();
        assert!(error.kind() == kind && words.iter().all(|words| text.contains(words)), "{text}");
        assert_eq!(pull(&worker, &[77]), [1.0; 2], "it serves on");
    };
    check(
        worker.push_sparse(SPARSE, None, Push::new(&[5], &[0.0, f32::NAN])),
        ErrorKind::Numeric,
        &["got NaN for id 5, column 1", "sparse table 0", "server 1, request of worker 0"],
    );
    check(worker.push_dense(9, None, &[0.0]), ErrorKind::Invalid, &["no such table", "got 9"]);
    let connect = |job: &JobTables, token: &Token| {
        RemoteServers::connect(job, 0, &fleet.addresses(), token, options()).map(drop)
    };
    let stranger = Token::generate().unwrap();
    check(connect(&fleet.job, &stranger), ErrorKind::Invalid, &["rejected the job token"]);
    let mut other = job(2, 1, false);
    other.tables[0] = TableConfig::Sparse(SparseConfig { dim: 3, ..sparse() });
    check(
        connect(&other, &fleet.token),
        ErrorKind::Invalid,
        &[
            "worker's tables differ from this server's: expected dim: 2, got dim: 3",
            "table 0",
            "server 0",
        ],
    );
    let swapped: Vec<_> = fleet.addresses().into_iter().rev().collect();
    let error = RemoteServers::connect(&fleet.job, 0, &swapped, &fleet.token, options());
    check(error.map(drop), ErrorKind::Invalid, &["expected server 0, got server 1"]);
    let error = RemoteServers::connect(&fleet.job, 0, &swapped[..1], &fleet.token, options());
    check(error.map(drop), ErrorKind::Invalid, &["expected 2 addresses, got 1"]);
}

/// Every policy, over the network: a rejected push changes nothing, and is counted all the same.
#[test]
fn pushes_that_are_not_finite_follow_the_policy() {
    // Numbers start at 1 in rows and at 0 elsewhere, and decrease by half of a gradient.
    for (policy, row, number) in [
        (NonFinite::Refuse, None, None),
        (NonFinite::Count, Some([f32::NAN, 0.5]), Some(f32::NEG_INFINITY)),
        (NonFinite::Clip(4.0), Some([1.0, 0.5]), Some(-2.0)),
    ] {
        let mut job = job(2, 1, false);
        for table in &mut job.tables {
            match table {
                TableConfig::Sparse(config) => config.non_finite = policy,
                TableConfig::Dense { non_finite, .. } => *non_finite = policy,
                TableConfig::Geo(_) | TableConfig::GlobalStep { .. } => {}
            }
        }
        let fleet = Fleet::start(&job);
        let worker = fleet.worker(0);
        let pushed = worker.push_sparse(SPARSE, None, Push::new(&[5], &[f32::NAN, 1.0]));
        assert_eq!(pushed.is_ok(), row.is_some(), "{policy:?}: {pushed:?}");
        let got = pull(&worker, &[5]).into_iter().zip(row.unwrap_or([1.0; 2]));
        for (got, want) in got {
            assert!(got == want || (got.is_nan() && want.is_nan()), "{policy:?}: {got}");
        }
        let mut grad = [0.0; 5];
        grad[0] = f32::INFINITY;
        let pushed = worker.push_dense(DENSE, None, &grad);
        assert_eq!(pushed.is_ok(), number.is_some(), "{policy:?}: {pushed:?}");
        assert_eq!(dense(&worker)[0], number.unwrap_or(0.0), "{policy:?}");
        for table in [SPARSE, DENSE] {
            assert_eq!(worker.stats(table).unwrap().non_finite, 1, "{policy:?}, table {table}");
        }
    }
}

/// Bytes that no client of Fleet would send.
#[test]
fn senseless_requests_are_refused() {
    let fleet = Fleet::start(&job(1, 1, false));
    let (address, limits) = (fleet.addresses()[0], Limits::within(Duration::from_secs(60)));
    let hello = [0u8; 16];
    let connect = |hello: &[u8]| {
        CallClient::connect(address, &fleet.token, hello, CallOptions::default(), &limits).unwrap()
    };
    let error = connect(&[1, 2]).call(1, &[&[0; 32]], &limits).unwrap_err();
    assert!(error.to_string().contains("shorter than its header states"), "{error}");
    let error = connect(&hello).call(2, &[&[0; 48]], &limits).unwrap_err();
    assert!(error.to_string().contains("before the description of the job"), "{error}");
    let error = connect(&[9; 16]).call(1, &[&[0; 32]], &limits).unwrap_err();
    assert!(error.to_string().contains("worker number is outside the job"), "{error}");
    let old = b"messages of version 1\n";
    let length = (old.len() as u64).to_le_bytes();
    let error = connect(&hello).call(1, &[&[0; 32], &length, old], &limits).unwrap_err();
    let words = "expected messages of version 8, got messages of version 1";
    assert!(error.to_string().contains(words), "{error}");
    let mut rng = fleet_base::rng::Sequence::new(8, 0);
    let mut client = connect(&hello);
    for _ in 0..3000 {
        // No method that writes files.
        let method = match rng.below(22) as u8 {
            21 => 30,
            method @ 18.. => method + 7,
            method => method,
        };
        let bytes: Vec<u8> = (0..rng.below(90)).map(|_| rng.below(5) as u8).collect();
        // Any outcome but a panic. A stop only ends the wait of a thread that runs the server.
        let _ = client.call(method, &[&bytes], &limits).map(drop);
    }
    assert_eq!(pull(&fleet.worker(0), &[3]).len(), 2);
}

#[test]
fn a_server_that_lost_its_tables_is_told_from_one_that_was_away() {
    let job = job(1, 1, false);
    let mut fleet = Fleet::start(&job);
    let worker = fleet.worker(0);
    let address = fleet.addresses()[0];
    drop(fleet.servers.pop());
    let tables = ServerTables::all(&job).unwrap().remove(0);
    let options = CallOptions::default();
    let again =
        fleet_ps::TableServer::bind(address, tables, &fleet.token, options, Log::silent()).unwrap();
    let error = worker.push_dense(DENSE, None, &[1.0; 5]).unwrap_err();
    assert!(error.to_string().contains("server restarted and lost its tables"), "{error}");
    drop(again);
    let patient = crate::common::options();
    let brief = RemoteOptions { deadline: Duration::from_millis(200), ..patient };
    let addresses = [address];
    let error =
        RemoteServers::connect(&job, 0, &addresses, &fleet.token, brief).map(drop).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(&format!("server 0 at {address}")), "{error}");
}

/// A server with short frames, which saves into one folder.
#[test]
fn what_a_server_refuses_before_it_begins() {
    let folder = Folder::new("root");
    let tables = vec![TableConfig::Sparse(SparseConfig::plain(SPARSE, 8))];
    let job = JobTables { server_count: 1, worker_count: 1, sync: false, tables };
    let (token, tables) = (Token::generate().unwrap(), ServerTables::all(&job).unwrap().remove(0));
    let within = CallOptions { frame_bytes_max: 64 << 10, ..CallOptions::default() };
    let within = (within, Some(folder.0.join("root")));
    let server =
        TableServer::bind_within("127.0.0.1:0", tables, &token, within, Log::silent()).unwrap();
    let worker = RemoteServers::connect(&job, 0, &[server.address()], &token, options()).unwrap();
    // A request of 40 KB whose answer would have 160 KB is rejected, and no row is made.
    let ids: Vec<u64> = (0..5000).collect();
    let mut rows = vec![0.0; 5000 * 8];
    let error = worker.pull_sparse(SPARSE, (&ids).into(), &mut rows, PullMode::Train).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exhausted, "{error}");
    assert!(error.to_string().contains("expected up to 65536 bytes, got 160000"), "{error}");
    assert_eq!(worker.stats(SPARSE).unwrap().row_count, 0);

    let root = folder.0.join("root");
    std::fs::create_dir_all(&root).unwrap();
    let save =
        |dir: &std::path::Path| worker.save(Tables::All, dir, SaveMode::All, SaveFormat::Binary);
    save(&root.join("new")).unwrap();
    worker.load(Tables::All, &root.join("new")).unwrap();
    for outside in [folder.0.join("other"), root.join("../other")] {
        for result in [save(&outside).map(drop), worker.load(Tables::All, &outside).map(drop)] {
            let error = result.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            assert!(error.to_string().contains("outside the servers' save root"), "{error}");
        }
    }
    assert!(!folder.0.join("other").exists());
}
