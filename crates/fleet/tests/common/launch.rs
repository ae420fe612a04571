//! Starts the ranks of a job: this test binary again, told by its environment what to do. Its root
//! module has a test `a_rank`, which does nothing in the process of the tests and the job's work in
//! a rank. The test that calls [`run`] plays the launcher.

use fleet::topology::{Env, Topology};
use fleet::{Fleet, Result};
use fleet_net::{Log, StoreServer, Token, Vigilance};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

/// Names the job of a started rank, and a folder that it may use.
pub const JOB: &str = "FLEET_TEST_JOB";
const FOLDER: &str = "FLEET_TEST_FOLDER";

/// What this process is to do where it is a rank: the job, and the folder that it may use.
pub fn work() -> Option<(String, PathBuf)> {
    let job = std::env::var(JOB).ok()?;
    Some((job, std::env::var_os(FOLDER).unwrap_or_default().into()))
}

/// Ends a rank as its job has ended.
pub fn end(outcome: Result<()>) {
    if let Err(error) = outcome {
        eprintln!("error: {error}");
        std::process::exit(1);
    }
}

pub fn init() -> Result<Fleet> {
    Fleet::init(Topology::collective(&Env::process())?)
}

/// Jobs here take a second or two; on a loaded machine a few times that. One that takes so long
/// hangs.
const HANGS: Duration = Duration::from_secs(120);

/// Numbers and processes of ranks that have not ended. None outlives the test that has started it.
#[derive(Default)]
struct Running(BTreeMap<usize, u32>);

impl Drop for Running {
    fn drop(&mut self) {
        for pid in self.0.values() {
            // It may be ending just now.
            let _ = Command::new("kill").args(["-9", &pid.to_string()]).status();
        }
    }
}

/// Starts the ranks of a job and waits for all.
pub fn run(job: &str, ranks: usize) -> Vec<Output> {
    run_in(job, ranks, "")
}

pub fn run_in(job: &str, ranks: usize, folder: &str) -> Vec<Output> {
    run_with(job, ranks, folder, &[])
}

/// With more in the environment.
pub fn run_with(
    job: &str,
    ranks: usize,
    folder: &str,
    environment: &[(&str, &str)],
) -> Vec<Output> {
    let token = Token::generate().unwrap();
    let server =
        StoreServer::bind("127.0.0.1:0", &token, Vigilance::default(), Log::stderr()).unwrap();
    let endpoints: Vec<String> = (0..ranks).map(|rank| format!("127.0.0.1:{}", 1 + rank)).collect();
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_rank", "--nocapture", "--test-threads", "1"])
            .envs(environment.iter().copied())
            .env(JOB, job)
            .env(FOLDER, folder)
            .env("FLEET_STORE", server.address().to_string())
            .env("FLEET_TOKEN", token.to_text())
            .env("PADDLE_TRAINER_ID", rank.to_string())
            .env("PADDLE_TRAINERS_NUM", ranks.to_string())
            .env("PADDLE_TRAINER_ENDPOINTS", endpoints.join(","))
            .env("PADDLE_CURRENT_ENDPOINT", &endpoints[rank])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut running = Running::default();
    let (tell, told) = std::sync::mpsc::channel();
    for rank in 0..ranks {
        let child = start(rank);
        running.0.insert(rank, child.id());
        let tell = tell.clone();
        std::thread::spawn(move || tell.send((rank, child.wait_with_output())));
    }
    let mut outputs = BTreeMap::new();
    while !running.0.is_empty() {
        let Ok((rank, output)) = told.recv_timeout(HANGS) else {
            panic!("job '{job}' of '{folder}' hangs: ranks {:?} do not end", running.0.keys());
        };
        running.0.remove(&rank);
        outputs.insert(rank, output.unwrap());
    }
    outputs.into_values().collect()
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every rank came to its end.
pub fn all_well(outputs: &[Output]) {
    for output in outputs {
        assert!(output.status.success(), "{}", said(output));
    }
}

#[cfg(unix)]
#[test]
fn ranks_do_not_outlive_a_test_that_fails() {
    let mut rank = Command::new("sleep").arg("600").spawn().unwrap();
    let failed = std::panic::catch_unwind(|| {
        let _running = Running(BTreeMap::from([(0, rank.id())]));
        std::panic::resume_unwind(Box::new("as a panic, without words"));
    });
    assert!(failed.is_err());
    let status = rank.wait().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
}
