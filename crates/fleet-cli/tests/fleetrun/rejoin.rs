//! Restarted workers of parameter servers, and operations of all workers: they give the right
//! result or an error, and never wait for a worker that does not join.

use crate::{Place, Said, signal};
use fleet::prelude::*;
use fleet_testhost::process;
use std::time::{Duration, Instant};

/// Works as a process of a job in which worker 1 dies at some point.
fn take_part(dies: &str) -> Result<()> {
    let fleet = Fleet::from_env()?;
    if fleet.is_server() {
        // Workers meet without servers here.
        loop {
            std::thread::park();
        }
    }
    let dies_now = fleet.worker_index() == 1 && fleet.topology().job().restarts == 0;
    let sum = || fleet.metrics().sum(&[1.0, fleet.worker_index() as f64]);
    if dies_now && dies == "for good" {
        std::fs::write(std::env::var("FLEET_EXPENDABLE").unwrap(), "").unwrap();
    }
    if dies == "after they met" {
        println!("\nfirst {:?}", sum()?);
    }
    if dies_now {
        signal(std::process::id(), "KILL");
    }
    println!("\nlast {:?}", sum()?);
    Ok(())
}

/// Returns the logs of both workers.
fn run(dies: &str, flags: &str, code: i32) -> [String; 2] {
    let place = Place::new(&format!("rejoin/{}", dies.replace(' ', "_")), "");
    let mut command = place.command(&format!("--server_num 1 --worker_num 2 {flags}"));
    let test = "rejoin::one_that_comes_again_before_they_met_takes_part";
    process::append(&mut command, test, dies);
    let begun = Instant::now();
    Said::new(command.output().unwrap()).check(code, &["was killed by SIGKILL (9)"]);
    // Workers wait up to ten minutes for each other to join.
    assert!(
        begun.elapsed() < Duration::from_secs(120),
        "{dies}: the others do not wait for a lost worker"
    );
    [0, 1].map(|worker| place.read(&format!("log/workerlog.{worker}")))
}

#[test]
fn one_that_comes_again_before_they_met_takes_part() {
    if let Some(dies) = process::role() {
        if let Err(error) = take_part(&dies) {
            println!("\nerror: {error}");
        }
        return;
    }
    for log in run("before they met", "--max_restart 1", 0) {
        assert!(log.contains("last [2.0, 1.0]"), "{log}");
    }
}

#[test]
fn one_that_comes_again_after_they_met_is_told_so() {
    let [first, second] = run("after they met", "--max_restart 1", 0);
    assert!(first.contains("first [2.0, 1.0]") && second.contains("first [2.0, 1.0]"), "{second}");
    assert!(second.contains("error: ") && second.contains("cannot join them again"), "{second}");
    assert!(first.contains("error: ") && first.contains("rank 1 "), "{first}");
}

#[test]
fn one_that_does_not_come_again_is_named() {
    let [first, _] = run("for good", "", 137);
    assert!(first.contains("rank 1 ") && first.contains("killed by SIGKILL (9)"), "{first}");
}
