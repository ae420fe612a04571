//! Jobs of several processes. The ranks are this test binary, started again to run
//! `workers::a_worker` alone; the test itself plays the launcher.

use fleet::topology::{Env, Topology};
use fleet::{Fleet, Result};
use fleet_net::{Log, StoreServer, Token, Vigilance};
use std::process::{Child, Command, Output, Stdio};

/// What this process is to do, where it is a rank.
pub fn work() -> Option<(String, String)> {
    let work = std::env::var("FLEET_TEST_DATA_JOB").ok()?;
    let (name, argument) = work.split_once(' ')?;
    Some((name.to_string(), argument.to_string()))
}

pub fn init() -> Result<Fleet> {
    Fleet::init(Topology::collective(&Env::process())?)
}

/// Starts the ranks of a job and waits for all.
pub fn run(name: &str, argument: &str, ranks: usize) -> Vec<Output> {
    let token = Token::generate().unwrap();
    let server =
        StoreServer::bind("127.0.0.1:0", &token, Vigilance::default(), Log::stderr()).unwrap();
    let endpoints: Vec<String> = (0..ranks).map(|rank| format!("127.0.0.1:{}", 1 + rank)).collect();
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "workers::a_worker", "--nocapture", "--test-threads", "1"])
            .env("FLEET_TEST_DATA_JOB", format!("{name} {argument}"))
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
    // All are read at once: one that prints more than a pipe holds must not wait for another.
    let wait = |child: Child| std::thread::spawn(move || child.wait_with_output().unwrap());
    let waiting: Vec<_> = (0..ranks).map(|rank| wait(start(rank))).collect();
    waiting.into_iter().map(|it| it.join().unwrap()).collect()
}

pub fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The words behind `key` on a line that the rank has printed.
pub fn printed(output: &Output, key: &str) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let start = format!("{key}: ");
    let line = text.lines().find_map(|line| line.split(&start).nth(1));
    let line = line.unwrap_or_else(|| panic!("no '{key}' in {text}\n{}", said(output)));
    line.split_whitespace().map(str::to_string).collect()
}
