//! Parameter servers and workers on two machines (addresses of the loopback network). One of the
//! machines loses a process, or is lost entirely.

use crate::demos::{is_at_work, process_with, worker};
use crate::machines::{Machine, pair};
use crate::{Place, signal, until};
use std::path::PathBuf;

fn folder(machine: &Machine) -> PathBuf {
    machine.place.folder.canonicalize().unwrap()
}

fn kill(what: &str, pid: impl Fn() -> Option<u32>) {
    until(what, || pid().is_some());
    signal(pid().unwrap(), "KILL");
}

/// The other machine's worker waits for the server, which restarts with its tables, and in the end
/// trains alone.
#[test]
fn a_job_that_waits_for_nobody_outlives_a_server_and_a_worker_of_another_machine() {
    let line = "--nnodes 2 --server_num 1 --worker_num 1 demo:wide_deep --samples 60000 \
                --threads 1 --durable kept";
    let (first, second) = pair("apart_async", "", line);
    let own = folder(&second);
    until("the first machine's worker", || is_at_work(&first.place));
    kill("the second server", || process_with("TRAINING_ROLE=PSERVER", &own));
    // A restarted server waits longer for workers that have not connected to it yet.
    until("the workers' word of its return", || {
        [&first, &second].iter().all(|machine| {
            let log = machine.place.read("log/workerlog.0");
            log.lines().any(|it| {
                it.contains("server 1 at 127.0.0.2:") && it.contains(" is reachable again ")
            })
        })
    });
    kill("the second worker", || worker(1, &own));
    let second = second.check(
        137,
        &[
            "server 1 on 127.0.0.2 (pid ",
            "server 1 is started again (1 of 3)",
            "error: worker 1 on 127.0.0.2 (pid ",
            "the other workers go on without worker 1",
        ],
    );
    let first = first.check(137, &["the job is done without a worker: worker 1 on 127.0.0.2"]);
    let log = first.read("log/workerlog.0");
    assert!(log.contains("AUC         0."), "{log}");
    for (place, server) in [(first, 0), (second, 1)] {
        let log = place.read("log/serverlog.0");
        assert!(log.contains("worker 1 is lost"), "server {server}: {log}");
    }
}

/// Uses lists of hosts instead of numbers. All processes stop, and all name the dead worker.
#[test]
fn a_synchronous_job_ends_with_a_worker_of_another_machine() {
    let strategy = Place::new("apart_strategy", "").path("job.prototxt");
    std::fs::write(&strategy, "a_sync: false").unwrap();
    let line = format!(
        "--servers 127.0.0.1,127.0.0.2 --workers 127.0.0.1,127.0.0.2 demo:wide_deep \
         --samples 100000000 --threads 1 --strategy {}",
        strategy.display()
    );
    let (first, second) = pair("apart_sync", "", &line);
    let own = folder(&second);
    until("a step", || first.place.read("log/workerlog.0").contains("sync on "));
    kill("the second worker", || worker(1, &own));
    first.check(137, &["error: worker 1 on 127.0.0.2 (pid ", "was killed by SIGKILL (9)"]);
    second.check(137, &["error: worker 1 on 127.0.0.2 (pid "]);
}

/// If a launcher dies, all its processes die, and with them a part of the tables.
#[test]
fn a_job_ends_with_a_machine() {
    let line = "--nnodes 2 --server_num 1 --worker_num 1 demo:wide_deep --samples 100000000 \
                --threads 1";
    let (first, mut second) = pair("apart_lost", "", line);
    let own = folder(&second);
    until("the first machine's worker", || {
        first.place.read("log/workerlog.0").contains("async on ")
    });
    second.child.kill().unwrap();
    second.child.wait().unwrap();
    first.check(1, &["error: machine 127.0.0.2 is lost: "]);
    until("the end of its processes", || process_with("TRAINING_ROLE=PSERVER", &own).is_none());
}
