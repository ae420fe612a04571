//! The help of built-in jobs.

use crate::Place;

/// One process prints the help, and no job starts.
#[test]
fn a_demo_prints_its_help_without_a_job() {
    let place = Place::new("demo_help", "");
    for line in [
        "demo:lenet --help",
        "--nproc_per_node=2 demo:lenet --samples 64 --help",
        "--server_num=1 --worker_num=2 demo:wide_deep -h",
    ] {
        let said = place.run(line);
        assert_eq!(said.code, Some(0), "{line}: {}", said.err);
        let usage = "Usage: fleetrun [FLAGS] demo:NAME [OPTIONS]";
        assert_eq!(said.out.matches(usage).count(), 1, "{line}: {}", said.out);
        assert!(said.err.is_empty() && !place.path("log").exists(), "{line}: {}", said.err);
    }
}
