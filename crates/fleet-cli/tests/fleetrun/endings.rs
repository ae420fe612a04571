//! Endings of collective jobs.

use crate::{Place, Said, signal, until};

#[test]
fn success_leaves_logs_and_says_so() {
    let place =
        Place::new("success", "echo hello from $PADDLE_TRAINER_ID of $PADDLE_TRAINERS_NUM: $*");
    let said = place.run("--nproc_per_node 3 job.py a --b c");
    said.check(0, &["collective, 3 workers", "fleetrun: done in"]);
    assert_eq!(said.out, "hello from 0 of 3: a --b c\n");
    assert_eq!(place.read("log/workerlog.2"), "hello from 2 of 3: a --b c\n");
    let endpoints = place.read("log/endpoints.log");
    assert!(endpoints.starts_with("PADDLE_TRAINER_ENDPOINTS: \n127.0.0.1:"), "{endpoints}");
    assert_eq!(endpoints.lines().count(), 4);
}

#[test]
fn the_first_death_is_reported_and_ends_the_job_with_its_code() {
    let script = "if [ $PADDLE_TRAINER_ID = 1 ]; then\n\
                  for i in $(seq 30); do echo line $i; done; exit 7; fi\nsleep 600";
    let place = Place::new("code", script);
    let said = place.run("--nproc_per_node 3 job.py");
    said.check(
        7,
        &[
            "error: worker 1 on 127.0.0.1 (pid ",
            "exited with code 7 after",
            "the end of log/workerlog.1:\n  | line 11\n",
            "  | line 30\n",
            "stopping 2 processes",
            "ABORT!!! Out of all 3 trainers, the trainer process with rank=[1] was aborted. \
         Please check its log.",
        ],
    );
    assert!(!said.err.contains("line 10\n"), "20 lines, no more");
}

#[test]
fn a_signal_has_its_name() {
    let place = Place::new("segv", "kill -s SEGV $$; sleep 600");
    place
        .run("job.py")
        .check(139, &["was killed by SIGSEGV (11", "it wrote nothing to log/workerlog.0"]);
    let place = Place::new("sigkill", "kill -s KILL $$; sleep 600");
    // The report of memory depends on whether the kernel gives a reason.
    place.run("job.py").check(137, &["was killed by SIGKILL (9)"]);
    let place = Place::new("cpu_limit", "kill -s XCPU $$; sleep 600");
    place
        .run("job.py")
        .check(152, &["was killed by SIGXCPU (24", "its limit of CPU time (ulimit -t)"]);
}

/// A stopped process receives SIGTERM once it continues, so the launcher need not wait long.
#[test]
fn a_stopped_process_ends_in_order_too() {
    let script = "if [ $PADDLE_TRAINER_ID = 0 ]; then trap 'touch ended; exit 0' TERM\n\
                  touch stopped; kill -s STOP $$\n\
                  while :; do sleep 0.1; done; fi\n\
                  while [ ! -e stopped ]; do sleep 0.1; done; exit 3";
    let place = Place::new("stopped", script);
    let said = place.run("--nproc_per_node 2 --stop_timeout 600 job.py");
    said.check(3, &["exited with code 3", "stopping 1 process"]);
    assert!(place.path("ended").exists() && !said.err.contains("is killed"), "{}", said.err);
}

#[test]
fn a_hang_at_the_start_is_an_error() {
    // The first worker is checked first, so it is named even if the other one also writes too late.
    let place = Place::new("hang", "if [ $PADDLE_TRAINER_ID = 1 ]; then echo alive; fi; sleep 600");
    let said = place.run("--nproc_per_node 2 --start_timeout 0.5 job.py");
    said.check(
        124,
        &[
            "worker 0 on 127.0.0.1",
            "hangs at its start: it wrote nothing to log/workerlog.0 in 0.5 s",
        ],
    );
}

#[test]
fn restarts_are_counted_and_told_to_the_script() {
    let script = "echo attempt $FLEET_RESTART_COUNT; [ $FLEET_RESTART_COUNT = 2 ] || exit 5";
    let place = Place::new("restart", script);
    place
        .run("--max_restart 2 job.py")
        .check(0, &["started again (1 of 2)", "started again (2 of 2)"]);
    assert_eq!(place.read("log/workerlog.0"), "attempt 0\nattempt 1\nattempt 2\n");
    let place = Place::new("restart_too_few", script);
    place.run("--max_restart 1 job.py").check(5, &["started again (1 of 1)", "exited with code 5"]);
}

#[test]
fn signals_to_the_launcher_stop_the_job_in_order() {
    for (name, code) in [("INT", 130), ("TERM", 143), ("HUP", 129)] {
        let script = "trap 'echo saved > saved.$PADDLE_TRAINER_ID; exit 0' TERM\n\
                      touch up.$PADDLE_TRAINER_ID; while :; do sleep 0.05; done";
        let place = Place::new(&format!("signal_{name}"), script);
        let child = place.start("--nproc_per_node 2 job.py");
        until("both workers' start", || place.count("up.") == 2);
        signal(child.id(), name);
        let said = Said::new(child.wait_with_output().unwrap());
        said.check(code, &[&format!("stopped by SIG{name}")]);
        assert_eq!(place.count("saved."), 2, "workers had time to save");
    }
}

#[test]
fn who_ignores_sigterm_is_killed() {
    let place = Place::new("deaf", "trap '' TERM; touch up; while :; do sleep 0.05; done");
    let child = place.start("--stop_timeout 0.3 job.py");
    until("the start", || place.path("up").exists());
    signal(child.id(), "TERM");
    Said::new(child.wait_with_output().unwrap())
        .check(143, &["worker 0 did not end within 0.3 s of SIGTERM"]);
}

#[test]
fn sixty_four_children() {
    let script = "echo $PADDLE_CURRENT_ENDPOINT; touch up.$PADDLE_TRAINER_ID\n\
                  until [ -e go ]; do sleep 0.2; done";
    let place = Place::new("many", script);
    let child = place.start("--nproc_per_node 64 job.py");
    until("all 64 at once", || place.count("up.") == 64);
    std::fs::write(place.path("go"), "").unwrap();
    Said::new(child.wait_with_output().unwrap()).check(0, &["64 workers"]);
    let all: std::collections::HashSet<String> =
        (0..64).map(|rank| place.read(&format!("log/workerlog.{rank}"))).collect();
    assert_eq!(all.len(), 64, "endpoints differ");
}

#[test]
fn two_launchers_at_once_share_no_port() {
    let script = "echo $PADDLE_CURRENT_ENDPOINT; touch up.$PADDLE_TRAINER_ID\n\
                  until [ -e ../go ]; do sleep 0.05; done";
    let base = Place::new("two", "");
    let places = [Place::new("two/a", script), Place::new("two/b", script)];
    let children = places.each_ref().map(|place| place.start("--nproc_per_node 16 job.py"));
    until("all workers' start", || places.iter().all(|place| place.count("up.") == 16));
    std::fs::write(base.path("go"), "").unwrap();
    for child in children {
        Said::new(child.wait_with_output().unwrap()).check(0, &[]);
    }
    let logs = places
        .iter()
        .flat_map(|place| (0..16).map(|rank| place.read(&format!("log/workerlog.{rank}"))));
    assert_eq!(logs.collect::<std::collections::HashSet<_>>().len(), 32);
}
