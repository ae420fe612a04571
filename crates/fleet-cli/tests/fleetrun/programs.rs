//! The documents' programs for parameter servers, as real processes: wide & deep on Criteo's logs
//! through a data generator, and streaming over hours and days.

use crate::Place;
use fleet::prelude::*;
use fleet_testhost::process;

#[path = "../../../fleet/examples/criteo.rs"]
#[allow(dead_code)] // main
mod criteo;

#[path = "../../../fleet/examples/streaming.rs"]
#[allow(dead_code)] // main
mod streaming;

const CRITEO: &str = "programs::criteo_trains_and_is_tested_in_every_mode";
const STREAMING: &str = "programs::hours_are_trained_and_saved";

fn start(place: &Place, test: &str, role: &str) {
    let mut command = place.command("--server_num=1 --worker_num=2 --log_overwrite");
    let output = process::append(&mut command, test, role).output().unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stderr), place.read("log/workerlog.0"));
}

fn train(mode: &str) -> Result<()> {
    let folder = std::env::current_dir().unwrap().join(mode);
    let exe = std::env::current_exe().unwrap();
    // The samples are the lines that begin with their 13 numbers; the others are of the harness.
    let reader = format!(
        "TEST_PROCESS_ROLE=reader '{}' --exact {CRITEO} --nocapture --test-threads=2 | \
         grep '^13 '",
        exe.display()
    );
    criteo::train_in(&folder, mode, 2, &reader).map(drop)
}

#[test]
fn criteo_trains_and_is_tested_in_every_mode() {
    match process::role().as_deref() {
        None => {}
        Some("reader") => return process::end(criteo::read()),
        Some(mode) => return process::end(train(mode)),
    }
    let place = Place::new("criteo", "");
    for mode in ["sync", "async", "geo"] {
        start(&place, CRITEO, mode);
        let log = place.read("log/workerlog.0");
        let areas: Vec<f64> = log
            .lines()
            .filter_map(|line| line.split_once("Global Metrics ---> auc: ")?.1.split_once(','))
            .map(|(area, _)| area.parse().unwrap())
            .collect();
        // A pass of training and one of the test, twice, over the files of both workers.
        assert_eq!(areas.len(), 4, "{mode}: {log}");
        // In async, it depends on the load of the machine how many gradients become one update.
        assert!(mode == "async" || areas[3] > 0.6, "{mode}: {log}");
        assert!(log.contains("TRAIN ---> pass: 1 loss: "), "{mode}: {log}");
        assert!(log.contains("records: 6000") && log.contains("records: 2000"), "{mode}: {log}");
    }
}

#[test]
fn hours_are_trained_and_saved() {
    if process::role().is_some() {
        let folder = std::env::current_dir().unwrap();
        return process::end(streaming::train_in(&folder, 2).map(drop));
    }
    let place = Place::new("streaming", "");
    start(&place, STREAMING, "job");
    let log = place.read("log/workerlog.0");
    for (line, mode) in [
        ("20210222 0", "Base"),
        ("20210222 1", "Delta"),
        ("20210223 0", "Base"),
        ("20210223 1", "Delta"),
    ] {
        let saved = log.lines().find(|it| it.contains(&format!("{line}: loss")));
        let saved = saved.unwrap_or_else(|| panic!("no hour {line} in {log}"));
        assert!(saved.ends_with(&format!("({mode})")), "{saved}");
        assert!(place.path(&format!("model/{}", line.replace(' ', "/"))).is_dir());
    }
    assert_eq!(log.matches("rows that are not used").count(), 2, "{log}");
}
