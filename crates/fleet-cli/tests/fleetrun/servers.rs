//! Parameter-server jobs.

use crate::{Place, Said};

#[test]
fn servers_are_stopped_when_workers_are_done() {
    let script = "echo $TRAINING_ROLE ${PADDLE_TRAINER_ID-none} on $PADDLE_PORT\n\
                  if [ $TRAINING_ROLE = PSERVER ]; then\n\
                  trap 'touch saved.$PADDLE_PORT; exit 0' TERM\n\
                  touch up.$PADDLE_PORT; while :; do sleep 0.05; done; fi\n\
                  until [ $(ls up.* 2>/dev/null | wc -l) = 2 ]; do sleep 0.05; done";
    let place = Place::new("servers", script);
    let said = place.run("--server_num=2 --worker_num=2 job.py");
    said.check(0, &["parameter server, 2 servers, 2 workers"]);
    assert_eq!(place.count("saved."), 2, "servers had time to save");
    assert!(said.out.starts_with("TRAINER 0 on "), "{}", said.out);
    assert!(place.read("log/serverlog.1").starts_with("PSERVER none on "));
    assert!(place.read("log/workerlog.1").starts_with("TRAINER 1 on "));
}

#[test]
fn a_dead_server_is_started_again_until_it_is_enough() {
    // The server dies until its third start; the worker waits for that one.
    let script = "if [ $TRAINING_ROLE = TRAINER ]; then\n\
                  until [ -e up ]; do sleep 0.05; done; exit 0; fi\n\
                  echo start $FLEET_RESTART_COUNT; [ $FLEET_RESTART_COUNT = 2 ] || exit 9\n\
                  touch up; sleep 600";
    let place = Place::new("server_restart", script);
    let said = place.run("--server_num 1 --worker_num 1 job.py");
    said.check(0, &["server 0 on 127.0.0.1 (pid ", "exited with code 9", "started again (2 of 3)"]);
    assert_eq!(place.read("log/serverlog.0"), "start 0\nstart 1\nstart 2\n");
    let place = Place::new("server_restart_none", script);
    place
        .run("--server_num 1 --worker_num 1 --max_restart 0 job.py")
        .check(9, &["error: server 0"]);
    let place = Place::new("server_restart_few", script);
    place
        .run("--server_num 1 --worker_num 1 --max_restart 1 job.py")
        .check(9, &["started again (1 of 1)"]);
}

/// A command line that is refused once is refused again.
#[test]
fn a_server_that_refuses_its_command_line_is_not_started_again() {
    let place = Place::new("server_usage", "");
    let said = place.run("--server_num=1 --worker_num=2 demo:wide_deep --no_such_flag 1");
    assert!(said.code.is_some_and(|code| code != 0), "{:?}", said.code);
    assert!(!said.err.contains("is started again"), "{}", said.err);
    // Workers refuse it as well, and may be the first to end.
    let is_refused = said.err.contains("it refused its command line");
    assert!(is_refused || said.err.contains("error: worker"), "{}", said.err);
    assert!(said.err.contains("--no_such_flag"), "{}", said.err);
}

/// An error before the server served would recur at the next start.
#[test]
fn a_server_that_never_served_is_not_started_again() {
    let place = Place::new("server_start", "");
    std::fs::write(place.path("kept"), "a file").unwrap();
    let line = |flags: &str| {
        format!(
            "--server_num=1 --worker_num=1 --log_overwrite {flags} demo:wide_deep --samples 1024 \
             --durable kept"
        )
    };
    let told = "cannot list kept: Not a directory";
    // The error is marked as permanent, so the flag does not matter.
    for flags in ["", "--max_restart 1"] {
        let said = place.run(&line(flags));
        let why = "it is not started again: another start would end with the same error";
        said.check(1, &["error: server 0", told, why]);
        assert!(!said.err.contains("is started again"), "{}", said.err);
        assert_eq!(said.err.matches(told).count(), 1, "{}", said.err);
        assert_eq!(place.read("log/serverlog.0").matches(told).count(), 1);
    }
    // Without an error of Fleet, the flag decides.
    let script =
        "[ $TRAINING_ROLE = PSERVER ] || sleep 600\nprintf starting > $FLEET_REPORT; exit 9";
    let place = Place::new("server_start_script", script);
    let said = place.run("--server_num=1 --worker_num=1 job.py");
    said.check(9, &["error: server 0", "it failed before it served", "--max_restart N"]);
    assert!(!said.err.contains("is started again ("), "{}", said.err);
    let said = place.run("--server_num=1 --worker_num=1 --max_restart 1 job.py");
    said.check(9, &["error: server 0", "is started again (1 of 1)"]);
}

/// Workers have finished by then, and cannot report it.
#[test]
fn a_server_that_cannot_write_its_last_snapshot_is_reported() {
    let script = "[ $TRAINING_ROLE = PSERVER ] ||\n\
                  { until [ -e leaves ]; do sleep 0.05; done; exit 0; }\n\
                  printf leaving > $FLEET_REPORT; touch leaves; sleep 1; echo no space\n\
                  printf 'failed - final served\\nno space' > $FLEET_REPORT; exit 5";
    let place = Place::new("last_snapshot", script);
    let said = place.run("--server_num=1 --worker_num=1 job.py");
    said.check(5, &["error: server 0 on ", "| no space", " without 1 server, "]);
}

/// The worker may still be loading data, so the others keep waiting.
#[test]
fn a_worker_that_does_not_join_is_named() {
    let script = "[ $PADDLE_TRAINER_ID = 0 ] || until [ -e go ]; do sleep 0.05; done\n\
                  printf joined > $FLEET_REPORT; until [ -e done ]; do sleep 0.05; done\n\
                  printf finished > $FLEET_REPORT";
    let place = Place::new("absent", script);
    let mut command = place.command("--nproc_per_node 2 --silence_timeout 3 job.py");
    let mut child = command.stderr(std::fs::File::create(place.path("said")).unwrap()).spawn();
    let child = child.as_mut().unwrap();
    crate::until("a warning", || {
        let said = place.read("said");
        said.contains("warning: worker 1 on ") && said.contains("and 1 worker waits for it")
    });
    std::fs::write(place.path("go"), "").unwrap();
    crate::until("its word that it joins", || place.read("said").contains(") has joined"));
    std::fs::write(place.path("done"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0), "{}", place.read("said"));
    let said = place.run("--nproc_per_node 2 --start_timeout 1 --log_dir other job.py");
    assert_eq!(said.code, Some(0), "both join at once: {}", said.err);
}

#[test]
fn a_dead_worker_ends_the_job() {
    let script = "[ $TRAINING_ROLE = PSERVER ] && sleep 600\n\
                  [ $PADDLE_TRAINER_ID = 0 ] && sleep 600\nexit 4";
    let place = Place::new("worker_death", script);
    place
        .run("--server_num 1 --worker_num 2 job.py")
        .check(4, &["error: worker 1", "exited with code 4"]);
}

#[test]
fn others_go_on_without_a_worker_that_said_they_can() {
    let script = "[ $TRAINING_ROLE = PSERVER ] && sleep 600\n: > $FLEET_EXPENDABLE\n\
                  if [ $PADDLE_TRAINER_ID = 1 ]; then echo last words; kill -9 $$; fi\n\
                  until [ -e go ]; do sleep 0.05; done; echo went on";
    let place = Place::new("worker_lost", script);
    let child = place.start("--server_num 1 --worker_num 2 job.py");
    crate::until("its last words", || place.read("log/workerlog.1").contains("last words"));
    std::fs::write(place.path("go"), "").unwrap();
    let said = Said::new(child.wait_with_output().unwrap());
    said.check(137, &["error: worker 1 on 127.0.0.1 (pid ", "| last words", " without 1 worker, "]);
    assert_eq!(said.err.matches("was killed by SIGKILL (9)").count(), 2, "{}", said.err);
    assert_eq!(said.out, "went on\n");
}

/// The log that is shown is that of a worker which runs.
#[test]
fn the_next_log_is_shown_when_the_first_worker_is_lost() {
    let script = "[ $TRAINING_ROLE = PSERVER ] && sleep 600\n: > $FLEET_EXPENDABLE\n\
                  echo hello from $PADDLE_TRAINER_ID; [ $PADDLE_TRAINER_ID = 0 ] && exit 3\n\
                  until [ -e go ]; do sleep 0.05; done; echo went on";
    let place = Place::new("worker_lost_first", script);
    let file = |name: &str| std::fs::File::create(place.path(name)).unwrap();
    let mut command = place.command("--server_num 1 --worker_num 2 job.py");
    let mut child = command.stdout(file("out")).stderr(file("said")).spawn().unwrap();
    let line = "fleetrun: log/workerlog.1 is shown from here on\n";
    crate::until("another log", || place.read("said").contains(line));
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(3), "{}", place.read("said"));
    let out = place.read("out");
    assert!(out.starts_with("hello from 0\n") && out.ends_with("went on\n"), "{out}");
}

/// A worker that does not use Fleet does nothing wrong by running on.
#[test]
fn a_plain_worker_that_is_left_over_is_ended_with_the_reason() {
    let script = "[ $TRAINING_ROLE = PSERVER ] && exit 0; sleep 600";
    let place = Place::new("left_over_plain", script);
    place.run("--server_num 1 --worker_num 1 --leave_timeout 0.5 job.py").check(
        124,
        &[
            "error: worker 0 on 127.0.0.1 (pid ",
            " still runs and was left over for 0.5 s when its job was done: all servers had exited",
            "help: --leave_timeout SECONDS gives it more time",
        ],
    );
}

#[test]
fn heterogeneous_jobs_have_their_logs() {
    let script =
        "echo $TRAINING_ROLE stage ${STAGE_ID-none}; [ $TRAINING_ROLE = TRAINER ] || sleep 600";
    let place = Place::new("heter", script);
    place
        .run("--server_num 1 --worker_num 1 --heter_worker_num 1;1 job.py")
        .check(0, &["2 heterogeneous workers"]);
    assert_eq!(place.read("log/workerlog.0"), "TRAINER stage 1\n");
    assert_eq!(place.read("log/serverlog.0"), "PSERVER stage none\n");
    assert!(place.path("log/heterlog.1").exists());
}

/// A server that reports that it writes its tables gets time for it, not just half a second.
#[test]
fn a_server_that_writes_its_tables_is_waited_for() {
    let script = "[ $TRAINING_ROLE = PSERVER ] ||\n\
                  { until [ -e leaves ]; do sleep 0.05; done; exit 0; }\n\
                  printf leaving > $FLEET_REPORT\ntouch leaves\nsleep 2; touch written";
    let place = Place::new("leaves", script);
    place.run("--server_num=1 --worker_num=1 job.py").check(0, &["fleetrun: done in"]);
    assert!(place.path("written").exists());
}
