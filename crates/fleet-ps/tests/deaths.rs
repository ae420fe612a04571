//! Workers that die, stop or restart, in real processes, and the errors of the others.

use crate::common::{DENSE, Fleet, dense, job, options};
use crate::durable::Process;
use crate::saves::Folder;
use fleet_base::ErrorKind;
use fleet_net::{Log, Token};
use fleet_ps::{
    Arrival, Barriers, RemoteOptions, RemoteServers, RunControl, START_ROUNDS, TableAccess,
};
use fleet_testhost::process;
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const TOKEN: &str = "PS_DEATHS_TOKEN";

/// A worker in a process of its own: meets the others and waits to be killed. The role has whether
/// the job is synchronous, the number of workers, its rank, and the addresses of its servers.
fn a_worker(role: &str) {
    let [sync, workers, rank, addresses] = role.split(' ').collect::<Vec<_>>()[..] else {
        panic!("{role}")
    };
    let addresses: Vec<SocketAddr> = addresses.split(',').map(|it| it.parse().unwrap()).collect();
    let token = Token::from_text(&std::env::var(TOKEN).unwrap()).unwrap();
    let job = job(addresses.len(), workers.parse().unwrap(), sync == "true");
    let rank = rank.parse().unwrap();
    let worker = RemoteServers::connect(&job, rank, &addresses, &token, vigilant()).unwrap();
    (0..START_ROUNDS).for_each(|_| worker.arrive(Arrival::Received).unwrap());
    worker.push_dense(DENSE, None, &[2.0; 5]).unwrap();
    loop {
        std::thread::park();
    }
}

/// Silence is noticed after three seconds, so that a test does not last half a minute.
fn vigilant() -> RemoteOptions {
    RemoteOptions { log: Log::silent(), silent_after: Duration::from_secs(3), ..options() }
}

struct Other(Child);

impl Other {
    fn start(fleet: &Fleet, sync: bool) -> Other {
        Other::start_of(fleet, sync, 2, 1)
    }

    fn start_of(fleet: &Fleet, sync: bool, workers: usize, rank: usize) -> Other {
        let addresses: Vec<String> = fleet.addresses().iter().map(ToString::to_string).collect();
        let test = "deaths::a_worker_that_is_killed_is_named_to_the_others_of_a_synchronous_job";
        let child =
            process::command(test, &format!("{sync} {workers} {rank} {}", addresses.join(",")))
                .env(TOKEN, fleet.token.to_text())
                .stdout(Stdio::null())
                .spawn();
        Other(child.unwrap())
    }

    fn signal(&self, name: &str) {
        signal(&self.0, name);
    }
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

impl Drop for Other {
    fn drop(&mut self) {
        // It may have been killed before.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns a job of worker 0 in this process and worker 1 in another, after the start rounds.
fn together(sync: bool) -> (Fleet, RemoteServers, Other) {
    let fleet = Fleet::start(&job(2, 2, sync));
    let other = Other::start(&fleet, sync);
    let (addresses, options) = (fleet.addresses(), vigilant());
    let worker = RemoteServers::connect(&fleet.job, 0, &addresses, &fleet.token, options).unwrap();
    (0..START_ROUNDS).for_each(|_| worker.arrive(Arrival::Received).unwrap());
    (fleet, worker, other)
}

/// Waits until the push of the other worker is applied.
fn other_has_pushed(worker: &RemoteServers) {
    let begun = Instant::now();
    while dense(worker) != [-1.0; 5] {
        assert!(begun.elapsed() < Duration::from_secs(60), "the other has pushed nothing");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_worker_that_is_killed_is_named_to_the_others_of_a_synchronous_job() {
    if let Some(role) = process::role() {
        return a_worker(&role);
    }
    let (_fleet, worker, other) = together(true);
    other.signal("KILL");
    let begun = Instant::now();
    let error = worker.arrive(Arrival::Sent).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("worker 1 is lost: it closed its last connection"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(60), "not by the timeout: {text}");
}

/// Worker 2 is killed, and worker 1 ends later, as one does that fails because of the other.
#[test]
fn the_first_of_several_lost_workers_is_named() {
    let fleet = Fleet::start(&job(2, 3, true));
    let others = [1, 2].map(|rank| Other::start_of(&fleet, true, 3, rank));
    let (addresses, options) = (fleet.addresses(), vigilant());
    let worker = RemoteServers::connect(&fleet.job, 0, &addresses, &fleet.token, options).unwrap();
    (0..START_ROUNDS).for_each(|_| worker.arrive(Arrival::Received).unwrap());
    others[1].signal("KILL");
    std::thread::sleep(Duration::from_secs(1));
    others[0].signal("KILL");
    // Both are lost when this worker comes to the barrier.
    std::thread::sleep(Duration::from_secs(5));
    let error = worker.arrive(Arrival::Sent).unwrap_err();
    assert_eq!(error.culprit(), Some(2), "{error}");
    let text = error.to_string();
    assert!(text.contains("worker 2 is lost: it closed its last connection"), "{text}");
    assert!(text.contains("missing: worker 1, worker 2"), "{text}");
}

#[test]
fn a_worker_that_is_stopped_is_named_too() {
    let (_fleet, worker, other) = together(true);
    // It is alive but idle: its heartbeats keep it from being lost.
    let worker = worker.with_patience(Duration::from_secs(5));
    let text = worker.arrive(Arrival::Sent).unwrap_err().to_string();
    assert!(text.contains("1 missing: worker 1"), "{text}");
    other.signal("STOP");
    let worker = worker.with_patience(Duration::from_secs(120));
    let text = worker.arrive(Arrival::Sent).unwrap_err().to_string();
    assert!(text.contains("worker 1 is unresponsive: no heartbeat for"), "{text}");
}

#[test]
fn others_go_on_where_nobody_waits_for_anybody() {
    let (_fleet, worker, other) = together(false);
    other_has_pushed(&worker);
    other.signal("KILL");
    worker.arrive(Arrival::Received).unwrap();
    worker.push_dense(DENSE, None, &[2.0; 5]).unwrap();
    assert_eq!(dense(&worker), [-2.0; 5], "what it had pushed stays");
    assert_eq!(worker.rounds(Arrival::Received).unwrap(), START_ROUNDS + 1);
    assert!(worker.finish().unwrap(), "no other worker is left");
}

/// The last live worker has finished, so no worker will stop the servers.
#[test]
fn servers_end_when_the_others_are_lost() {
    let (fleet, worker, other) = together(false);
    other.signal("KILL");
    // Whether the servers have noticed the death or not, no worker stops them.
    worker.finish().unwrap();
    drop(worker);
    fleet.servers.into_iter().for_each(|server| server.run().unwrap());
}

#[test]
fn who_comes_back_is_waited_for_again() {
    let (fleet, worker, other) = together(false);
    other.signal("KILL");
    drop(other);
    worker.arrive(Arrival::Received).unwrap();
    let again = fleet.worker(1);
    assert_eq!(again.rounds(Arrival::Received).unwrap(), START_ROUNDS + 1);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| worker.arrive(Arrival::Received));
        again.arrive(Arrival::Received).unwrap();
        waits.join().unwrap().unwrap();
    });
    assert!(!again.finish().unwrap() && worker.finish().unwrap());
}

/// A durable server in a process of its own, its address, and the log of its workers.
struct Durable {
    process: Process,
    address: Arc<Mutex<SocketAddr>>,
    folder: Folder,
    token: Token,
    log: Log,
}

impl Durable {
    fn start(name: &str, log: Log) -> Durable {
        let (folder, token) = (Folder::new(name), Token::generate().unwrap());
        let (process, address) = Process::start(&folder, &token);
        Durable { process, address: Arc::new(Mutex::new(address)), folder, token, log }
    }

    fn worker(&self, worker: usize, silent_after: Duration) -> RemoteServers {
        let address = self.address.clone();
        let options = RemoteOptions { log: self.log.clone(), silent_after, ..options() };
        let resolve = move |_| Ok(*address.lock().unwrap());
        RemoteServers::connect_with(&job(1, 2, false), worker, resolve, &self.token, options)
            .unwrap()
    }

    fn start_again(&mut self) {
        self.process.kill();
        let (process, address) = Process::start(&self.folder, &self.token);
        self.process = process;
        *self.address.lock().unwrap() = address;
    }
}

/// Waits until a line of a log contains these words.
fn until(lines: &impl Fn() -> Vec<String>, words: &str) {
    let begun = Instant::now();
    while !lines().iter().any(|line| line.contains(words)) {
        assert!(begun.elapsed() < Duration::from_secs(60), "'{words}' is not in {:?}", lines());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn who_dies_before_it_comes_to_a_server_that_was_started_again_is_gone_soon() {
    let (log, lines) = Log::collect();
    let mut server = Durable::start("not-back", log);
    let (worker, other) = (server.worker(0, Duration::ZERO), server.worker(1, Duration::ZERO));
    let meet = |worker: &RemoteServers| {
        (0..START_ROUNDS).for_each(|_| worker.arrive(Arrival::Received).unwrap());
    };
    std::thread::scope(|scope| {
        scope.spawn(|| meet(&other));
        meet(&worker);
        // The barrier waits for a live worker, and logs that.
        scope.spawn(|| worker.arrive(Arrival::Received).unwrap());
        until(&lines, "worker 0 waits for worker 1 (last heartbeat ");
        other.arrive(Arrival::Received).unwrap();
    });
    until(&lines, "worker 0 continues after ");
    drop(other);
    server.start_again();
    worker.arrive(Arrival::Received).unwrap();
    // The reason is not its silence, which takes longer.
    let why = worker.workers().unwrap()[1].why();
    assert!(why.starts_with("is lost: it has not reconnected since the server restarted"), "{why}");
    assert!(worker.finish().unwrap(), "no other worker is left");
}

#[test]
fn a_server_that_is_stopped_is_told_to_who_may_wait_for_it() {
    let (log, lines) = Log::collect();
    let server = Durable::start("stopped", log);
    let _worker = server.worker(0, Duration::from_secs(3));
    signal(&server.process.0, "STOP");
    until(&lines, "no answer to heartbeats for ");
    signal(&server.process.0, "CONT");
    until(&lines, " is reachable again after ");
}
