//! Restarted servers: in this process, and killed in the middle of their work.

use crate::common::{DENSE, GEO, SPARSE, STEPS, job, options, pull};
use crate::saves::Folder;
use fleet_base::Error;
use fleet_net::calls::CallOptions;
use fleet_net::{Log, Token};
use fleet_ps::{
    Arrival, Barriers, Durability, Entry, Flush, JobTables, LocalServers, PullMode, Push,
    RemoteServers, SaveFormat, SaveMode, ServerTables, TableAccess, TableAdmin, TableConfig,
    TableServer, Tables,
};
use fleet_testhost::process;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

fn start(job: &JobTables, folder: &Folder) -> Arc<ServerTables> {
    ServerTables::durable(job, 0, Durability::in_folder(&folder.0)).unwrap()
}

fn own_folder(folder: &Folder) -> std::path::PathBuf {
    folder.0.join("server-000")
}

fn train(worker: &LocalServers, step: u64) {
    let ids = [step, 1000];
    worker.push_sparse(SPARSE, None, Push::new(&ids, &[0.5; 4])).unwrap();
    worker.push_dense(DENSE, None, &[0.5; 5]).unwrap();
    worker.push_geo(GEO, None, (&ids).into(), &[1.0; 4]).unwrap();
    worker.push_steps(STEPS, None, 1).unwrap();
}

/// Checks the result of steps 0 to `steps`.
fn check(worker: &LocalServers, steps: u64) {
    let mut rows = [0.0; 4];
    worker.pull_sparse(SPARSE, (&[0, 1000]).into(), &mut rows, PullMode::Infer).unwrap();
    let all = 1.0 - 0.25 * steps as f32;
    assert_eq!(rows, [0.75, 0.75, all, all], "{steps} steps");
    let mut values = [0.0; 5];
    worker.pull_dense(DENSE, &mut values).unwrap();
    assert_eq!(values, [-0.25 * steps as f32; 5]);
    assert_eq!(worker.push_steps(STEPS, None, 0).unwrap(), steps);
}

#[test]
fn a_server_that_is_started_again_has_everything() {
    for flush in [Flush::Kernel, Flush::Disk] {
        let (folder, job) = (Folder::new("again"), job(1, 2, false));
        let durability = Durability { flush, ..Durability::in_folder(&folder.0) };
        let mut steps = 0;
        for start in 0..6 {
            let server = ServerTables::durable(&job, 0, durability.clone()).unwrap();
            let second = ServerTables::durable(&job, 0, durability.clone()).map(drop).unwrap_err();
            assert!(second.to_string().contains("is in use by another process"), "{second}");
            let worker = LocalServers::new(std::slice::from_ref(&server), 0).unwrap();
            if start > 0 {
                check(&worker, steps);
            }
            worker.set_rate_scale(SPARSE, 1.0).unwrap();
            for _ in 0..10 {
                train(&worker, steps);
                steps += 1;
            }
            // With and without a snapshot, and with pushes after it.
            if start % 2 == 0 {
                server.snapshot_now().unwrap();
                let names: Vec<_> = std::fs::read_dir(own_folder(&folder))
                    .unwrap()
                    .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                    .collect();
                assert_eq!(names.len(), 4, "lock, job, the snapshot and its log: {names:?}");
                train(&worker, steps);
                steps += 1;
            }
        }
        let other = LocalServers::new(&[start(&job, &folder)], 1).unwrap();
        let (ids, rows) = other.pull_geo(GEO).unwrap();
        assert_eq!(ids.len() as u64, steps + 1, "what the other worker changed, and no more");
        assert_eq!(rows[rows.len() - 2..], [1.0 + steps as f32; 2], "id 1000");
    }
}

/// A log that is cut at any byte loses only the request at the cut. No crash leaves a log that is
/// cut in its header.
#[test]
fn a_torn_log_loses_what_was_not_acknowledged() {
    const HEADER: usize = 64;
    let (folder, job) = (Folder::new("torn"), job(1, 1, false));
    {
        let worker = LocalServers::new(&[start(&job, &folder)], 0).unwrap();
        (0..3).for_each(|_| worker.push_dense(DENSE, None, &[2.0; 5]).unwrap());
    }
    let (own, torn) = (own_folder(&folder), Folder::new("torn-copy"));
    let bytes = std::fs::read(own.join("log-0")).unwrap();
    let record = (bytes.len() - HEADER) / 3;
    for length in 0..=bytes.len() {
        let copy = own_folder(&torn);
        std::fs::remove_dir_all(&torn.0).unwrap();
        std::fs::create_dir_all(&copy).unwrap();
        std::fs::copy(own.join("job"), copy.join("job")).unwrap();
        std::fs::write(copy.join("log-0"), &bytes[..length]).unwrap();
        if length < HEADER {
            let error = ServerTables::durable(&job, 0, Durability::in_folder(&torn.0));
            let error = error.map(drop).unwrap_err().to_string();
            assert!(error.contains("log-0 is damaged at byte"), "{error}");
            continue;
        }
        let (server, whole) = (start(&job, &torn), (length - HEADER) / record);
        let left = ((length - HEADER) % record) as u64;
        let recovered = server.recovered().unwrap_or_default();
        assert_eq!((recovered.snapshot, recovered.request_count), (None, whole as u64));
        assert_eq!(recovered.cut.map_or(0, |cut| cut.bytes), left);
        assert_eq!(copy.join("aside").exists(), left > 0, "what is cut off is kept");
        let worker = LocalServers::new(&[server], 0).unwrap();
        let mut values = [0.0; 5];
        worker.pull_dense(DENSE, &mut values).unwrap();
        assert_eq!(values, [-(whole as f32); 5]);
        worker.push_dense(DENSE, None, &[2.0; 5]).unwrap();
        drop(worker);
        let worker = LocalServers::new(&[start(&job, &torn)], 0).unwrap();
        worker.pull_dense(DENSE, &mut values).unwrap();
        assert_eq!(values, [-(whole as f32) - 1.0; 5], "what follows is read again");
    }
}

#[test]
fn a_barrier_survives_with_what_waits_for_it() {
    let (folder, job) = (Folder::new("barrier"), job(1, 2, true));
    for snapshot in [false, true] {
        let impatient = |number: usize, server: &Arc<ServerTables>| {
            let worker = LocalServers::new(std::slice::from_ref(server), number).unwrap();
            worker.with_patience(Duration::from_millis(1))
        };
        let before = {
            let server = start(&job, &folder);
            let worker = impatient(0, &server);
            let mut row = [0.0; 2];
            worker.pull_sparse(SPARSE, (&[7]).into(), &mut row, PullMode::Train).unwrap();
            worker.push_sparse(SPARSE, None, Push::new(&[7], &[2.0; 2])).unwrap();
            worker.push_dense(DENSE, None, &[2.0; 5]).unwrap();
            assert!(worker.arrive(Arrival::Sent).is_err(), "alone");
            if snapshot {
                server.snapshot_now().unwrap();
            }
            row[0]
        };
        let server = start(&job, &folder);
        let worker = impatient(1, &server);
        worker.push_sparse(SPARSE, None, Push::new(&[7], &[4.0; 2])).unwrap();
        worker.push_dense(DENSE, None, &[4.0; 5]).unwrap();
        worker.arrive(Arrival::Sent).unwrap();
        let mut row = [0.0; 2];
        worker.pull_sparse(SPARSE, (&[7]).into(), &mut row, PullMode::Train).unwrap();
        assert_eq!(row, [before - 1.5; 2], "the mean of both");
    }
}

/// A worker that skips the step does not count in the mean, also if the server is restarted between
/// its arrival and that of the last worker.
#[test]
fn a_skipped_step_survives_with_its_barrier() {
    let (folder, job) = (Folder::new("skipped"), job(1, 2, true));
    for snapshot in [false, true] {
        let impatient = |number: usize, server: &Arc<ServerTables>| {
            let worker = LocalServers::new(std::slice::from_ref(server), number).unwrap();
            worker.with_patience(Duration::from_millis(1))
        };
        let values = |worker: &LocalServers| {
            let (mut row, mut dense) = ([0.0; 2], [0.0; 5]);
            worker.pull_sparse(SPARSE, (&[7]).into(), &mut row, PullMode::Train).unwrap();
            worker.pull_dense(DENSE, &mut dense).unwrap();
            (row[0], dense[0])
        };
        let before = {
            let server = start(&job, &folder);
            let worker = impatient(0, &server);
            let before = values(&worker);
            assert!(worker.arrive_skipping().is_err(), "alone");
            if snapshot {
                server.snapshot_now().unwrap();
            }
            before
        };
        let server = start(&job, &folder);
        let worker = impatient(1, &server);
        worker.push_sparse(SPARSE, None, Push::new(&[7], &[4.0; 2])).unwrap();
        worker.push_dense(DENSE, None, &[4.0; 5]).unwrap();
        worker.arrive(Arrival::Sent).unwrap();
        let after = values(&worker);
        assert_eq!((after.0 - before.0, after.1 - before.1), (-2.0, -2.0), "4 / 1 * 0.5");
    }
}

/// An id that pulls have admitted is admitted again, and pushes to it count.
#[test]
fn admissions_are_remembered() {
    let (folder, mut job) = (Folder::new("entry"), job(1, 1, false));
    if let TableConfig::Sparse(config) = &mut job.tables[0] {
        config.entry = Entry::CountFilter(2);
    }
    let mut row = [0.0; 2];
    {
        let worker = LocalServers::new(&[start(&job, &folder)], 0).unwrap();
        for _ in 0..2 {
            worker.pull_sparse(SPARSE, (&[3]).into(), &mut row, PullMode::Train).unwrap();
        }
        worker.push_sparse(SPARSE, None, Push::new(&[3], &[1.0; 2])).unwrap();
    }
    let worker = LocalServers::new(&[start(&job, &folder)], 0).unwrap();
    worker.pull_sparse(SPARSE, (&[3]).into(), &mut row, PullMode::Infer).unwrap();
    assert_eq!(row, [0.5; 2]);
}

#[test]
fn what_a_load_brought_survives_and_another_job_is_refused() {
    let (folder, saved, job) = (Folder::new("loaded"), Folder::new("saved"), job(1, 1, false));
    let old = LocalServers::new(&ServerTables::all(&job).unwrap(), 0).unwrap();
    (0..4).for_each(|step| train(&old, step));
    old.save(Tables::All, &saved.0, SaveMode::All, SaveFormat::Binary).unwrap();
    LocalServers::new(&[start(&job, &folder)], 0).unwrap().load(Tables::All, &saved.0).unwrap();
    let again = LocalServers::new(&[start(&job, &folder)], 0).unwrap();
    // Worker 0 would set these values in a new job.
    again.set_dense(DENSE, &[7.0; 5]).unwrap();
    check(&again, 4);
    drop(again);
    let mut other = job.clone();
    other.tables.remove(0);
    let error = ServerTables::durable(&other, 0, Durability::in_folder(&folder.0)).map(drop);
    let error = error.unwrap_err().to_string();
    assert!(error.contains("durable folder belongs to another job"), "{error}");
}

/// A log with a small limit: snapshots keep it short, and pushes continue.
#[test]
fn a_short_log_is_kept_short() {
    let (folder, job) = (Folder::new("short"), job(1, 1, false));
    let durability = Durability { log_bytes_max: 4000, ..Durability::in_folder(&folder.0) };
    let worker =
        LocalServers::new(&[ServerTables::durable(&job, 0, durability.clone()).unwrap()], 0);
    let worker = worker.unwrap();
    for step in 0..300 {
        train(&worker, step);
        let logs: u64 = std::fs::read_dir(own_folder(&folder))
            .unwrap()
            .filter_map(|entry| entry.unwrap().metadata().ok())
            .map(|file| file.len())
            .sum();
        assert!(logs < 200_000, "{logs} bytes");
    }
    drop(worker);
    // The thread that writes snapshots may hold the tables a moment longer.
    let again = std::iter::repeat_with(|| {
        std::thread::sleep(Duration::from_millis(5));
        ServerTables::durable(&job, 0, durability.clone())
    });
    let server = again.flatten().next().unwrap();
    check(&LocalServers::new(&[server], 0).unwrap(), 300);
}

const TOKEN: &str = "FLEET_PS_TEST_TOKEN";

/// Serves the tables in a folder.
fn serve(folder: String) {
    let token = Token::from_text(&std::env::var(TOKEN).unwrap()).unwrap();
    // Frequent snapshots, so that a kill hits one in every stage.
    let durability =
        Durability { snapshot_every: Duration::from_millis(10), ..Durability::in_folder(folder) };
    let tables = ServerTables::durable(&job(1, 2, false), 0, durability).unwrap();
    let options = CallOptions::default();
    let server = TableServer::bind("127.0.0.1:0", tables, &token, options, Log::silent()).unwrap();
    println!("\naddress {}", server.address());
    server.run().unwrap();
}

/// A server process, killed when it is dropped.
pub struct Process(pub Child);

impl Process {
    pub fn start(folder: &Folder, token: &Token) -> (Process, SocketAddr) {
        let test = "durable::a_server_that_is_killed_and_started_again_loses_and_repeats_nothing";
        let child = process::command(test, folder.0.to_str().unwrap())
            .env(TOKEN, token.to_text())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut process = Process(child);
        let lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix("address ").map(|address| address.parse().unwrap()));
        (process, address.expect("the server printed no address"))
    }

    pub fn kill(&mut self) {
        // SIGKILL.
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_that_is_killed_and_started_again_loses_and_repeats_nothing() {
    if let Some(folder) = process::role() {
        return serve(folder);
    }
    const KILLS: u64 = 5;
    const PUSHES: u64 = 120;
    let (folder, token) = (Folder::new("killed"), Token::generate().unwrap());
    let (mut process, address) = Process::start(&folder, &token);
    let current = Arc::new(Mutex::new(address));
    let (log, lines) = Log::collect();
    let workers: Vec<RemoteServers> = (0..2)
        .map(|worker| {
            let current = current.clone();
            let resolve = move |_| Ok::<_, Error>(*current.lock().unwrap());
            let options = fleet_ps::RemoteOptions { log: log.clone(), ..options() };
            RemoteServers::connect_with(&job(1, 2, false), worker, resolve, &token, options)
                .unwrap()
        })
        .collect();
    let pushed = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for worker in workers.iter().chain(&workers) {
            let pushed = &pushed;
            scope.spawn(move || {
                for step in 0..PUSHES * KILLS / 4 {
                    worker.push_sparse(SPARSE, None, Push::new(&[step, 1000], &[0.5; 4])).unwrap();
                    worker.push_dense(DENSE, None, &[0.5; 5]).unwrap();
                    pushed.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for kill in 1..KILLS {
            while pushed.load(Ordering::SeqCst) < kill * PUSHES {
                std::thread::sleep(Duration::from_millis(1));
            }
            process.kill();
            let (next, address) = Process::start(&folder, &token);
            process = next;
            *current.lock().unwrap() = address;
        }
    });
    let all = PUSHES * KILLS;
    assert_eq!(pushed.load(Ordering::SeqCst), all);
    let total = 1.0 - 0.25 * all as f32;
    assert_eq!(pull(&workers[0], &[1000, 5]), [total, total, 0.0, 0.0]);
    assert_eq!(crate::common::dense(&workers[1]), [-0.25 * all as f32; 5]);
    let lines = lines().join("\n");
    assert!(
        lines.contains("waits for server 0") && lines.contains("is reachable again after"),
        "{lines}"
    );
    workers[0].stop().unwrap();
}

/// A log loses its last records, as on a bad disk. The server starts, but its worker has an
/// acknowledgement of more. Then nothing is served until an operator has accepted the loss.
#[test]
fn a_server_that_lost_acknowledged_pushes_refuses_until_that_is_accepted() {
    let (folder, job, token) =
        (Folder::new("behind"), job(1, 1, false), Token::generate().unwrap());
    let serve = || {
        let tables = start(&job, &folder);
        let options = CallOptions::default();
        TableServer::bind("127.0.0.1:0", tables, &token, options, Log::silent()).unwrap()
    };
    let server = serve();
    let current = Arc::new(Mutex::new(server.address()));
    let resolve = {
        let current = current.clone();
        move |_| Ok::<_, Error>(*current.lock().unwrap())
    };
    let worker = RemoteServers::connect_with(&job, 0, resolve, &token, options()).unwrap();
    (0..4).for_each(|_| worker.push_dense(DENSE, None, &[0.5; 5]).unwrap());
    drop(server);
    let path = own_folder(&folder).join("log-0");
    let file = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 7).unwrap();

    let server = serve();
    let cut = server.tables().recovered().unwrap();
    assert_eq!((cut.request_count, cut.cut.map(|cut| cut.request_count)), (3, Some(0)));
    *current.lock().unwrap() = server.address();
    let error = worker.push_dense(DENSE, None, &[0.5; 5]).unwrap_err().to_string();
    let words = "3 of 4 acknowledged requests of worker 0 are left";
    assert!(error.contains("lost acknowledged pushes") && error.contains(words), "{error}");
    let ended = server.run().unwrap_err().to_string();
    assert!(ended.contains(words) && ended.contains("--accept-loss"), "{ended}");
    let error = ServerTables::durable(&job, 0, Durability::in_folder(&folder.0)).map(drop);
    assert!(error.unwrap_err().to_string().contains(words), "also after a restart");
    assert_eq!(fleet_ps::inspect(&folder.0).unwrap().servers[0].behind.as_deref(), Some(words));

    let losses = fleet_ps::accept_loss(&folder.0).unwrap();
    assert_eq!(losses[0].behind.as_deref(), Some(words));
    assert!(fleet_ps::accept_loss(&folder.0).unwrap().is_empty(), "accepted once");
    let server = serve();
    *current.lock().unwrap() = server.address();
    worker.push_dense(DENSE, None, &[0.5; 5]).unwrap();
    assert_eq!(crate::common::dense(&worker), [-1.0; 5], "three, and the one since");
}
