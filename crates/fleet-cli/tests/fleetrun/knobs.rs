//! Environment variables for servers and workers of a job, as real processes.

use crate::{Place, Said};
use std::process::Command;

/// A job whose server never listens.
const SILENT: &str = "[ $TRAINING_ROLE = PSERVER ] && sleep 600\n\
                      exec \"$FLEETRUN\" __demo wide_deep --samples 64";

fn silent(place: &Place) -> Command {
    let mut command = place.command("--server_num 1 --worker_num 1 job.py");
    command.env("FLEETRUN", env!("CARGO_BIN_EXE_fleetrun"));
    command
}

#[test]
fn a_request_is_tried_for_as_long_as_the_deadline() {
    let place = Place::new("knob_deadline", SILENT);
    let said = Said::new(silent(&place).env("FLAGS_rpc_deadline", "300").output().unwrap());
    said.check(1, &["error: worker 0"]);
    let log = place.read("log/workerlog.0");
    for part in ["server 0 at 127.0.0.1:", "300ms"] {
        assert!(log.contains(part), "'{part}' is not in:\n{log}");
    }
    let said = Said::new(silent(&place).env("FLAGS_rpc_deadline", "soon").output().unwrap());
    said.check(1, &["error: worker 0"]);
    let log = place.read("log/workerlog.0");
    assert!(log.contains("FLAGS_rpc_deadline") && log.contains("soon"), "{log}");
}

#[test]
fn without_the_barrier_a_server_that_does_not_listen_is_an_error() {
    let place = Place::new("knob_barrier", SILENT);
    let said = Said::new(silent(&place).env("FLAGS_LAUNCH_BARRIER", "0").output().unwrap());
    said.check(1, &["error: worker 0"]);
    let log = place.read("log/workerlog.0");
    for part in ["launch_barrier is off", "no listener at [127.0.0.1:"] {
        assert!(log.contains(part), "'{part}' is not in:\n{log}");
    }
}

#[test]
fn servers_print_their_tables_when_they_are_asked_to() {
    let place = Place::new("knob_debug", "");
    for (value, prints) in [("0", false), ("1", true)] {
        let mut command = place.command(
            "--server_num 2 --worker_num 1 --log_overwrite demo:wide_deep --samples 1024 \
             --threads 1",
        );
        Said::new(command.env("PSERVER_DEBUG", value).output().unwrap()).check(0, &[]);
        for server in 0..2 {
            let log = place.read(&format!("log/serverlog.{server}"));
            let title = format!("fleet: tables of server {server}:\nserver_param {{\n");
            assert_eq!(log.contains(&title), prints, "{log}");
            assert_eq!(log.contains("trainer_num: 1") && log.contains("dims: 16"), prints, "{log}");
        }
        let log = place.read("log/workerlog.0");
        assert_eq!(log.contains("fleet: tables of worker 0:\nworker_param {\n"), prints, "{log}");
    }
}
