//! Starts the ranks of a job: this test binary again, told by its environment what to do.

use fleet_net::{Log, StoreServer, Token, Vigilance};
use std::process::{Child, Command, Output, Stdio};

/// Names the job of a started rank, and a folder that it may use.
pub const JOB: &str = "FLEET_TEST_JOB";
pub const FOLDER: &str = "FLEET_TEST_FOLDER";

/// Starts the ranks of a job and waits for all.
pub fn run(job: &str, ranks: usize) -> Vec<Output> {
    run_in(job, ranks, "")
}

pub fn run_in(job: &str, ranks: usize, folder: &str) -> Vec<Output> {
    let token = Token::generate().unwrap();
    let server =
        StoreServer::bind("127.0.0.1:0", &token, Vigilance::default(), Log::stderr()).unwrap();
    let endpoints: Vec<String> = (0..ranks).map(|rank| format!("127.0.0.1:{}", 1 + rank)).collect();
    let start = |rank: usize| -> Child {
        Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "a_rank", "--nocapture", "--test-threads", "1"])
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
    let children: Vec<Child> = (0..ranks).map(start).collect();
    children.into_iter().map(|child| child.wait_with_output().unwrap()).collect()
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

/// Ends this process as the kernel does it: no destructor, no goodbye.
pub fn die_now() -> ! {
    Command::new("kill").args(["-9", &std::process::id().to_string()]).status().unwrap();
    loop {
        std::thread::park();
    }
}
