//! Real processes that share memory: a normal run, a killed rank, a stopped rank, different calls,
//! and sixty-four ranks. No resources may leak. Other tests also use the code that starts
//! processes.

use fleet_base::Result;
use fleet_comm::{GroupOptions, ReduceOp, World};
use fleet_net::{
    Abort, Limits, Log, StoreClient, StoreServer, TcpFabric, TcpOptions, Token, Vigilance,
};
use fleet_testhost::process;
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TOKEN: &str = "FLEET_COMM_TEST_TOKEN";
/// Far more than any test needs.
pub const WAIT_MAX: Duration = Duration::from_secs(120);

/// The ranks of larger jobs are processes of this test.
#[test]
fn a_job_of_one_rank() {
    if let Some(role) = process::role() {
        return run_as_rank(&role, work);
    }
    let world = World::threads(1).remove(0);
    let group = world.group("world", &[0], &GroupOptions::default()).expect("opens");
    let mut data = [3.0f32];
    group.all_reduce("x", &mut data, ReduceOp::Avg).expect("one rank");
    assert_eq!(data, [3.0]);
}

/// This process in a job that [`Job`] has started.
pub struct RankContext {
    pub world: World,
    /// The work to do.
    pub what: String,
    /// Address of the store, and the secret of the job.
    pub store: (std::net::SocketAddr, Token),
}

/// Does the work of a rank and prints how it ended. The role has the rank, the number of ranks, the
/// address of the store, and the work to do.
pub fn run_as_rank(role: &str, work: impl FnOnce(RankContext) -> Result<()>) {
    let parts: Vec<&str> = role.split(' ').collect();
    let [rank, ranks, address, what] = parts[..] else { panic!("four words: {role}") };
    let (rank, ranks) = (rank.parse().expect("a rank"), ranks.parse().expect("a number"));
    match join_job(rank, ranks, address, what).and_then(work) {
        Ok(()) => println!("\nended well"),
        Err(error) => println!("\nfailed: {}", error.to_string().replace('\n', " | ")),
    }
}

fn join_job(rank: usize, ranks: usize, address: &str, what: &str) -> Result<RankContext> {
    let limits = Limits::within(WAIT_MAX);
    let token = Token::from_text(&std::env::var(TOKEN).unwrap_or_default())?;
    let address: std::net::SocketAddr = address.parse().expect("an address");
    let store = StoreClient::connect(address, &token, &limits)?;
    let tcp = TcpOptions::new("job", rank, ranks).interface("127.0.0.1");
    let fabric = TcpFabric::start(&store, &token, tcp, &limits)?;
    let world = World::new(Arc::new(fabric), Arc::new(store), Abort::new());
    Ok(RankContext { world, what: what.to_string(), store: (address, token) })
}

fn work(place: RankContext) -> Result<()> {
    let (world, what) = (place.world, place.what.as_str());
    let (rank, ranks) = (world.rank(), world.size());
    let all: Vec<usize> = (0..ranks).collect();
    let options = GroupOptions {
        silence: Duration::from_secs(1),
        deadlock_timeout: Duration::from_secs(if what.starts_with("cross") { 1 } else { 60 }),
        ..GroupOptions::default()
    };
    // The connection to the store exists by now.
    let before = usage();
    let group = world.group("world", &all, &options)?;
    assert_eq!(group.backend(), "shared memory");
    let mut data = vec![rank as i64 + 1; 100_000];
    group.all_reduce("first", &mut data, ReduceOp::Sum)?;
    assert_eq!(data[99_999], (ranks * (ranks + 1) / 2) as i64);
    println!("\nready");
    match what {
        "end" => {
            group.barrier("last")?;
            drop(group);
            assert!(usage_returns_to(before), "{:?}, before: {before:?}", usage());
            Ok(())
        }
        "differ" => {
            let mut more = [0.0f32; 5];
            let label = if rank == 1 { "other" } else { "same" };
            group.all_reduce(label, &mut more, ReduceOp::Sum)
        }
        "cross" | "cross-mesh" | "cross-busy" => {
            if what == "cross-busy" && rank == 1 {
                // Simulates a loader that reads ahead. It ends with the process.
                std::thread::spawn(|| {
                    loop {
                        std::hint::spin_loop();
                    }
                });
            }
            let options = GroupOptions { shared_memory: what != "cross-mesh", ..options };
            let (a, b) = (world.group("a", &all, &options)?, world.group("b", &all, &options)?);
            let own = if rank == 1 { &b } else { &a };
            own.all_reduce("mine", &mut [0.0f32; 5], ReduceOp::Sum)
        }
        _ => loop {
            group.all_reduce("again", &mut data, ReduceOp::Max)?;
        },
    }
}

/// Number of open descriptors, threads, and maps of shared memory.
pub fn usage() -> [usize; 3] {
    let count = |path: &str| std::fs::read_dir(path).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let shared = maps.lines().filter(|line| line.contains("fleet-comm")).count();
    [count("/proc/self/fd"), count("/proc/self/task"), shared]
}

/// Waits until the usage is at most `before`; false on timeout. Threads are joined, but the kernel
/// may list one for a moment longer.
pub fn usage_returns_to(before: [usize; 3]) -> bool {
    let begin = Instant::now();
    let is_more = || usage().iter().zip(before).any(|(now, before)| *now > before);
    while is_more() && begin.elapsed() < WAIT_MAX {
        std::thread::sleep(Duration::from_millis(5));
    }
    !is_more()
}

pub struct Job {
    ranks: Vec<(Child, BufReader<ChildStdout>)>,
    _server: StoreServer,
}

impl Job {
    fn start(ranks: usize, what: &str) -> Job {
        let mut job =
            Job::launch("processes::a_job_of_one_rank", &[], Vigilance::default(), ranks, what);
        job.wait_until_ready();
        job
    }

    /// Starts the ranks as processes of `test`, which calls [`run_as_rank`].
    pub fn launch(
        test: &str,
        environment: &[(&str, &str)],
        vigilance: Vigilance,
        ranks: usize,
        what: &str,
    ) -> Job {
        let token = Token::generate().expect("random bytes");
        let server =
            StoreServer::bind("127.0.0.1:0", &token, vigilance, Log::silent()).expect("a port");
        let start = |rank: usize| {
            let text = format!("{rank} {ranks} {} {what}", server.address());
            let mut child = process::command(test, &text)
                .envs(environment.iter().copied())
                .env(TOKEN, token.to_text())
                .stdout(Stdio::piped())
                .spawn()
                .expect("a process");
            let out = BufReader::new(child.stdout.take().expect("a pipe"));
            (child, out)
        };
        Job { ranks: (0..ranks).map(start).collect(), _server: server }
    }

    /// Returns when every rank has reported that it is ready.
    pub fn wait_until_ready(&mut self) {
        for (rank, (_, out)) in self.ranks.iter_mut().enumerate() {
            let mut line = String::new();
            while line.trim() != "ready" {
                line.clear();
                let bytes = out.read_line(&mut line).expect("text");
                assert!(bytes > 0 && !line.contains("failed"), "rank {rank}: {line}");
            }
        }
    }

    pub fn signal(&self, rank: usize, signal: i32) {
        // SAFETY: sends a signal to a child that was not waited for yet.
        unsafe { libc::kill(self.ranks[rank].0.id() as i32, signal) };
    }

    pub fn pid(&self, rank: usize) -> u32 {
        self.ranks[rank].0.id()
    }

    /// Returns the remaining output of a rank, after it has ended.
    pub fn end(&mut self, rank: usize) -> String {
        let (child, out) = &mut self.ranks[rank];
        let mut text = String::new();
        out.read_to_string(&mut text).expect("text");
        child.wait().expect("it ends");
        text
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        for (child, _) in &mut self.ranks {
            // Most have ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn left_behind() -> usize {
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    names.filter(|entry| entry.file_name().to_string_lossy().starts_with("fleet-comm")).count()
}

#[test]
fn ranks_end_and_leave_nothing() {
    let mut job = Job::start(3, "end");
    for rank in 0..3 {
        let text = job.end(rank);
        assert!(text.contains("ended well"), "rank {rank}: {text}");
    }
    assert_eq!(left_behind(), 0);
}

/// Shared memory does not use `/dev/shm`. If a file system cannot be mounted, the test prints the
/// reason and ends.
#[test]
fn a_full_dev_shm_changes_nothing() {
    const SCRIPT: &str = "mount -t tmpfs -o size=8k none /dev/shm || exit 77
        dd if=/dev/zero of=/dev/shm/full bs=4k 2>/dev/null
        exec \"$0\" --exact processes::ranks_end_and_leave_nothing";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", SCRIPT]);
    command.arg(std::env::current_exe().expect("this program"));
    match command.output() {
        Ok(output) if matches!(output.status.code(), Some(0 | 101)) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(text.contains("1 passed"), "{text}");
        }
        other => println!("skipped: cannot mount a file system: {other:?}"),
    }
}

#[test]
fn a_killed_rank_is_named_at_once() {
    let mut job = Job::start(3, "loop");
    let begin = Instant::now();
    job.signal(1, libc::SIGKILL);
    for rank in [0, 2] {
        let text = job.end(rank);
        let who = format!("pid {}) died", job.pid(1));
        assert!(text.contains("failed: rank 1 (host") && text.contains(&who), "{text}");
        assert!(text.contains("all_reduce #") && text.contains("'again'"), "{text}");
    }
    assert!(begin.elapsed() < WAIT_MAX);
    assert_eq!(left_behind(), 0);
}

#[test]
fn a_stopped_rank_is_named() {
    let mut job = Job::start(3, "loop");
    job.signal(2, libc::SIGSTOP);
    for rank in [0, 1] {
        let text = job.end(rank);
        assert!(
            text.contains("rank 2 (host") && text.contains("s (SIGSTOP or a debugger)"),
            "{text}"
        );
        assert!(text.contains("help: resume it with kill -CONT"), "{text}");
    }
}

#[test]
fn processes_that_differ_are_told() {
    let mut job = Job::start(3, "differ");
    for rank in 0..3 {
        let text = job.end(rank);
        assert!(text.contains("'other'") && text.contains("'same'"), "rank {rank}: {text}");
    }
}

#[test]
fn ranks_that_wait_in_different_groups_are_told() {
    for what in ["cross", "cross-mesh", "cross-busy"] {
        let mut job = Job::start(2, what);
        let begin = Instant::now();
        for rank in [0, 1] {
            let text = job.end(rank);
            let call = "all_reduce #0 'mine' (sum f32 x 5) of group";
            assert!(
                text.contains("failed: deadlock: ranks wait for each other"),
                "rank {rank}: {text}"
            );
            for part in [format!("{call} 'a'"), format!("{call} 'b' and waits for rank 0")] {
                assert!(text.contains(&part), "{what}, rank {rank}: {text}");
            }
            assert!(text.contains(&format!("pid {}) calls", job.pid(1 - rank))), "{text}");
        }
        assert!(begin.elapsed() < WAIT_MAX);
    }
}

#[test]
fn sixty_four_ranks() {
    let mut job = Job::start(64, "end");
    for rank in 0..64 {
        let text = job.end(rank);
        assert!(text.contains("ended well"), "rank {rank}: {text}");
    }
}
