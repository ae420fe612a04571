//! Parameter-server jobs.

use crate::{Place, Said};

#[test]
fn servers_are_stopped_when_workers_are_done() {
    let script = "echo $TRAINING_ROLE ${PADDLE_TRAINER_ID-none} on $PADDLE_PORT\n\
                  if [ $TRAINING_ROLE = PSERVER ]; then trap 'touch saved.$PADDLE_PORT; exit 0' TERM\n\
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
    let script = "if [ $TRAINING_ROLE = TRAINER ]; then until [ -e up ]; do sleep 0.05; done; exit 0; fi\n\
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

/// What could not be done at the start cannot be done the next time.
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
    let said = place.run(&line(""));
    said.check(1, &["error: server 0", told, "failed before it served", "--max_restart N"]);
    assert!(!said.err.contains("is started again"), "{}", said.err);
    assert_eq!(place.read("log/serverlog.0").matches(told).count(), 1);
    let said = place.run(&line("--max_restart 1"));
    said.check(1, &["error: server 0", told, "is started again (1 of 1)"]);
}

#[test]
fn a_dead_worker_ends_the_job() {
    let script = "[ $TRAINING_ROLE = PSERVER ] && sleep 600\n[ $PADDLE_TRAINER_ID = 0 ] && sleep 600\nexit 4";
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

/// A server that says that it writes its tables is given time for it, not half a second.
#[test]
fn a_server_that_writes_its_tables_is_waited_for() {
    let script = "[ $TRAINING_ROLE = PSERVER ] || { until [ -e leaves ]; do sleep 0.05; done; exit 0; }\n\
                  printf leaves > $FLEET_SERVES\ntouch leaves\nsleep 2; touch written";
    let place = Place::new("leaves", script);
    place.run("--server_num=1 --worker_num=1 job.py").check(0, &["fleetrun: done in"]);
    assert!(place.path("written").exists());
}
