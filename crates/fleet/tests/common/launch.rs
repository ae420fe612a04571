//! Starts the ranks of a job, which are processes of the test [`RANKS`](crate::RANKS) with the job
//! as their role. The test that calls [`run`] acts as the launcher.

use crate::RANKS;
use fleet::{Fleet, Result};
use fleet_net::{Log, StoreServer, Token, Vigilance};
use fleet_testhost::process;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

const FOLDER: &str = "FLEET_TEST_FOLDER";

/// Returns the job of this process and its folder, if it is a rank.
pub fn work() -> Option<(String, PathBuf)> {
    Some((process::role()?, std::env::var_os(FOLDER).unwrap_or_default().into()))
}

pub fn init() -> Result<Fleet> {
    Fleet::collective()
}

/// Jobs here take a second or two, and a few times that on a loaded machine. A job that takes
/// longer than this hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Ranks that still run, with their process ids. None outlives the test that started it.
#[derive(Default)]
struct Running(BTreeMap<usize, u32>);

impl Drop for Running {
    fn drop(&mut self) {
        for pid in self.0.values() {
            // The process may be ending already, so a failure is ignored.
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

/// As [`run_in`], with more environment variables.
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
        process::command(RANKS, job)
            .envs(environment.iter().copied())
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
        let Ok((rank, output)) = told.recv_timeout(TIMEOUT) else {
            panic!("job '{job}' of '{folder}' hangs: ranks {:?} do not end", running.0.keys());
        };
        running.0.remove(&rank);
        outputs.insert(rank, output.unwrap());
    }
    outputs.into_values().collect()
}

pub fn stderr_of(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts that every rank succeeded.
pub fn assert_success(outputs: &[Output]) {
    let failed = outputs.iter().filter(|output| !output.status.success());
    let failed: Vec<String> = failed.map(stderr_of).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
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
