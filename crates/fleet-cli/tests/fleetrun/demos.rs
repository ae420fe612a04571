//! Jobs that are built in.

use crate::Place;

#[test]
fn a_demo_trains_as_one_worker() {
    let place = Place::new("demo", "");
    let said = place.run("demo:lenet --samples 64 --threads 2 --output saved");
    said.check(0, &["demo:lenet: collective, 1 worker"]);
    for part in ["100 %", "loss ", "samples/s", "unseen digits are read right"] {
        assert!(said.out.contains(part), "'{part}' is not in:\n{}", said.out);
    }
    assert_eq!(place.read("log/workerlog.0"), said.out);
    assert!(place.path("saved").is_dir());
}

#[test]
fn what_is_not_there_yet_is_said() {
    let place = Place::new("demo_distributed", "");
    let said = place.run("--server_num=1 --worker_num=2 demo:wide_deep");
    said.check(1, &["built-in jobs do not run on several processes yet", "2 workers, 1 servers"]);
    place.run("demo:lenet --sample 3").check(2, &["--samples"]);
}
