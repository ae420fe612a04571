//! Jobs that `mpirun` starts: ranks find each other through MPI.

use crate::{BATCH, RANKS, STEPS, parameters, session, step};
use fleet::DistributedStrategy;
use fleet::Fleet;
use fleet::topology::Env;
use fleet_testhost::mpirun::{run, text};

#[test]
fn alone_under_mpirun_is_alone() {
    let env = Env::from([("OMPI_COMM_WORLD_SIZE", "1"), ("PMI_SIZE", "1")]);
    let fleet = Fleet::join(&env).unwrap();
    assert_eq!((fleet.worker_num(), fleet.topology().is_non_distributed()), (1, true));
}

#[test]
fn a_library_that_is_not_there() {
    let env = Env::from([("OMPI_COMM_WORLD_SIZE", "2"), ("FLEET_MPI_LIBRARY", "/nowhere")]);
    let error = Fleet::join(&env).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("/nowhere"), "{error}");
}

#[test]
fn ranks_train_what_one_trains_on_all_of_the_batch() {
    let alone = Fleet::join(&Env::new()).unwrap();
    let mut whole = session(&alone, &DistributedStrategy::new()).unwrap();
    (0..STEPS).for_each(|number| step(&mut whole, number, 0, BATCH).unwrap());
    let expected = parameters(&whole);
    // Over shared memory, and over the library's collectives.
    for (job, shared) in [("train", "1"), ("train", "0"), ("train in rings", "0")] {
        let environment = [("FLEET_SHARED_MEMORY", shared)];
        let Some(output) = run(2, RANKS, job, &environment) else { return };
        let said = text(&output);
        assert!(output.status.success(), "{said}");
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("parameters ")).collect();
        assert_eq!(lines.len(), 2, "{said}");
        for line in lines {
            let words = line.split("parameters ").nth(1).unwrap_or_default().split(' ');
            let got: Vec<f32> = words.map(|bits| f32::from_bits(bits.parse().unwrap())).collect();
            assert_eq!(got.len(), expected.len());
            for (a, b) in got.iter().zip(&expected) {
                assert!((a - b).abs() <= 1e-6, "{job}: {a} and {b}");
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_early_is_an_error() {
    let Some(output) = run(2, RANKS, "leave early", &[]) else { return };
    let said = text(&output);
    assert!(!output.status.success() && said.contains("before it had finished"), "{said}");
}
