//! Behaviour that only real processes show: kill -9, SIGSTOP, and leaks.

use fleet_base::{Error, Result};
use fleet_net::{
    Abort, Deadline, Fabric, Limits, Log, Membership, Store, StoreClient, StoreServer, TcpFabric,
    TcpOptions, Token, Transfer, Vigilance, host,
};
use fleet_testhost::process;
use rustix::process::{Pid, Signal, kill_process};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// Exit code of a child that has lost the store and cannot report there.
const STORE_LOST: i32 = 77;
const GROUP: &str = "job/0";

fn long() -> Limits {
    Limits::within(Duration::from_secs(90))
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap()
}

/// Works as a rank of a ring until a transfer fails, and reports the error.
fn run_as_rank() {
    let error = ring().unwrap_err();
    if error.message().starts_with("the host of the store is lost") {
        std::process::exit(STORE_LOST);
    }
    let (store, key) = (own_store(), format!("error/{}", variable("RANK")));
    store.set(&key, error.to_string().as_bytes(), &long()).unwrap();
}

/// The store is started before the children, so only a lost store exhausts this deadline.
fn own_store() -> StoreClient {
    let token = Token::from_text(&variable("TOKEN")).unwrap();
    let limits = Limits::within(Duration::from_secs(15));
    StoreClient::connect(variable("STORE").parse().unwrap(), &token, &limits).unwrap()
}

/// Runs a ring until a transfer fails.
fn ring() -> Result<()> {
    let (rank, size) = (variable("RANK").parse().unwrap(), variable("SIZE").parse().unwrap());
    let token = Token::from_text(&variable("TOKEN"))?;
    let address = variable("STORE").parse().unwrap();
    let store = own_store();
    let abort = Abort::new();
    let _membership = Membership::join(address, &token, GROUP, host::own_member(rank), &long(), {
        let abort = abort.clone();
        move |notice| {
            abort.fire(notice.error());
        }
    })?;
    let mut options = TcpOptions::new(GROUP, rank, size).store(address);
    options.notice_wait = Duration::from_secs(60);
    let fabric = TcpFabric::start(&store, &token, options, &long())?;
    let mesh = fabric.open("ring", &(0..size).collect::<Vec<_>>())?;
    let limits = Limits::new(Deadline::never(), &abort);
    let (data, mut into) = (vec![rank as u8; 1000], vec![0; 1000]);
    for turn in 0u64.. {
        let (to, from) = ((rank + 1) % size, (rank + size - 1) % size);
        mesh.transfer(
            &mut [Transfer::Send { to, data: &data }, Transfer::Recv { from, into: &mut into }],
            &limits,
        )?;
        if turn == 3 {
            store.set(&format!("running/{rank}"), &std::process::id().to_le_bytes(), &long())?;
        }
    }
    Ok(())
}

struct Job {
    server: StoreServer,
    token: Token,
    store: StoreClient,
    children: Vec<Child>,
}

impl Job {
    fn start(size: usize, vigilance: Vigilance) -> Job {
        let token = Token::generate().unwrap();
        let server = StoreServer::bind("127.0.0.1:0", &token, vigilance, Log::silent()).unwrap();
        let store = StoreClient::connect(server.address(), &token, &long()).unwrap();
        let children = (0..size)
            .map(|rank| {
                process::command("processes::kill_9_is_known_to_all", "rank")
                    .stdout(Stdio::null())
                    .stdin(Stdio::null())
                    .env("STORE", server.address().to_string())
                    .env("TOKEN", token.to_text())
                    .env("RANK", rank.to_string())
                    .env("SIZE", size.to_string())
                    .spawn()
                    .unwrap()
            })
            .collect();
        let job = Job { server, token, store, children };
        job.wait("running", 0..size);
        job
    }

    fn wait(&self, prefix: &str, ranks: impl Iterator<Item = usize>) -> Vec<String> {
        let keys: Vec<String> = ranks.map(|rank| format!("{prefix}/{rank}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let values = self.store.wait(&keys, &long()).unwrap();
        values.into_iter().map(|value| String::from_utf8_lossy(&value).into_owned()).collect()
    }

    fn signal(&self, rank: usize, signal: Signal) {
        kill_process(Pid::from_child(&self.children[rank]), signal).unwrap();
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It may have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A death must be known within 5 s. Wall time depends on the machine, so check the cause: the
/// default grace period of a closed connection, and not the silence timeout.
#[test]
fn kill_9_is_known_to_all() {
    if process::role().is_some() {
        return run_as_rank();
    }
    assert!(Vigilance::default().grace < Duration::from_secs(5), "what is promised");
    let never = Vigilance { silence: Duration::from_secs(3600), ..Vigilance::default() };
    let mut job = Job::start(4, never);
    let pid = job.children[2].id();
    job.signal(2, Signal::KILL);
    let status = job.children[2].wait().unwrap();
    assert!(!status.success());
    for error in job.wait("error", [0, 1, 3].into_iter()) {
        let words = format!("rank 2 (host {}, pid {pid}) died", host::name());
        assert!(error.starts_with(&words), "{error}");
    }
}

#[test]
fn the_launcher_says_how() {
    let vigilance = Vigilance { grace: Duration::from_secs(60), ..Vigilance::default() };
    let mut job = Job::start(3, vigilance);
    job.signal(0, Signal::KILL);
    job.children[0].wait().unwrap();
    let mut member = host::own_member(0);
    member.pid = job.children[0].id();
    job.server.report_end(GROUP, &member, "killed by signal 9 (SIGKILL)");
    for error in job.wait("error", 1..3) {
        assert!(error.contains("died: killed by signal 9 (SIGKILL); last heartbeat"), "{error}");
    }
}

#[test]
fn a_stopped_process_is_known_to_all() {
    let vigilance = Vigilance {
        beat: Duration::from_millis(200),
        silence: Duration::from_secs(4),
        ..Vigilance::default()
    };
    let job = Job::start(3, vigilance);
    let pid = job.children[1].id();
    job.signal(1, Signal::STOP);
    for error in job.wait("error", [0, 2].into_iter()) {
        let words = format!("rank 1 (host {}, pid {pid}) has been unresponsive for ", host::name());
        assert!(error.starts_with(&words), "{error}");
        let why = error.contains("the process is stopped (SIGSTOP or a debugger)");
        let what = error.contains(&format!("resume it with kill -CONT {pid}"));
        assert!(cfg!(not(target_os = "linux")) || why && what, "{error}");
    }
    job.signal(1, Signal::CONT);
    // It is notified that the others have given it up.
    job.wait("error", 1..2);
}

#[test]
fn the_death_of_the_store_is_known_to_all() {
    let mut job = Job::start(2, Vigilance::default());
    // The children can report only by their exit code.
    let token = Token::generate().unwrap();
    let other = StoreServer::bind("127.0.0.1:0", &token, Vigilance::default(), Log::silent());
    drop(std::mem::replace(&mut job.server, other.unwrap()));
    for child in &mut job.children {
        assert_eq!(child.wait().unwrap().code(), Some(STORE_LOST));
    }
    assert_ne!(job.token, token);
}

#[test]
fn nothing_is_left_behind() {
    if process::role().is_some() {
        return leaks();
    }
    let mut command = process::command("processes::nothing_is_left_behind", "job");
    command.stdout(Stdio::null()).stdin(Stdio::null());
    assert!(command.status().unwrap().success());
}

/// Runs in a process of its own, where no other test opens files or starts threads.
fn leaks() {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    if !std::path::Path::new("/proc/self/task").exists() {
        return;
    }
    cycle();
    let before = (count("fd"), count("task"));
    for _ in 0..10 {
        cycle();
    }
    // Threads are joined, but the kernel may list one for a moment longer, in `before` too.
    let start = Instant::now();
    let is_more = || count("fd") > before.0 || count("task") > before.1;
    while is_more() && start.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let after = (count("fd"), count("task"));
    assert!(!is_more(), "descriptors and threads: {before:?} before, {after:?} after");
}

/// A whole job, in which a rank dies half-way.
fn cycle() {
    let token = Token::generate().unwrap();
    let server =
        StoreServer::bind("127.0.0.1:0", &token, Vigilance::default(), Log::silent()).unwrap();
    let (token, address) = (&token, server.address());
    std::thread::scope(|scope| {
        for rank in 0..3 {
            scope.spawn(move || {
                let store = StoreClient::connect(address, token, &long()).unwrap();
                let abort = Abort::new();
                let member = host::own_member(rank);
                let membership =
                    Membership::join(address, token, GROUP, member, &long(), |_| {}).unwrap();
                let options = TcpOptions::new(GROUP, rank, 3).store(address);
                let fabric = TcpFabric::start(&store, token, options, &long()).unwrap();
                let mesh = fabric.open("m", &[0, 1, 2]).unwrap();
                let (to, from) = ((rank + 1) % 3, (rank + 2) % 3);
                let (data, mut into) = (vec![0; 2_000_000], vec![0; 2_000_000]);
                for round in 0..3 {
                    if (rank, round) == (1, 2) {
                        break;
                    }
                    let result = mesh.transfer(
                        &mut [
                            Transfer::Send { to, data: &data },
                            Transfer::Recv { from, into: &mut into },
                        ],
                        &mesh.limits(Duration::from_secs(90), &abort),
                    );
                    // Bytes sent to the dead rank may still fit into the kernel's buffers.
                    let either = (rank, round) == (0, 2);
                    assert!(either || result.is_ok() == (round < 2), "{result:?}");
                }
                abort.fire(Error::unavailable("the end"));
                membership.leave();
            });
        }
    });
}
