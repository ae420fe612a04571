//! Jobs of `mpirun`, compared with the naive reference and Fleet's own groups; death of a rank.
//!
//! They run if FLEET_MPIRUN names an mpirun or PATH contains one. FLEET_MPI_LIBRARY may name its
//! libmpi.

use crate::reference;
use fleet_base::Result;
use fleet_comm::{Algorithm, GroupOptions, Mpi, MpiOptions, ReduceOp};
use fleet_testhost::mpirun::{self, LIBRARY, text};
use fleet_testhost::process;
use std::path::PathBuf;
use std::process::Output;
use std::time::Duration;

/// Works as a rank and prints the outcome.
fn run_as_rank(what: &str) {
    // One write, so that the lines of ranks do not mix.
    match work(what) {
        Ok(()) => println!("\nended well\n"),
        Err(error) => println!("\nfailed: {}\n", error.to_string().replace('\n', " | ")),
    }
}

fn work(what: &str) -> Result<()> {
    let options =
        MpiOptions { library: std::env::var_os(LIBRARY).map(PathBuf::from), ..Default::default() };
    let job = Mpi::start(&options)?;
    assert!(job.version().contains("MPI"), "{}", job.version());
    let world = job.world();
    let all: Vec<usize> = (0..job.size()).collect();
    let own = GroupOptions { timeout: Duration::from_secs(60), ..Default::default() };
    let native = GroupOptions { shared_memory: false, ..own.clone() };
    let ours = GroupOptions { native: false, ..native.clone() };
    match what {
        "all" => {
            let group = world.group("native", &all, &native)?;
            assert!(group.backend().contains("MPI"), "{}", group.backend());
            reference::all_of(&group)?;
            let group = world.group("ours", &all, &ours)?;
            assert_eq!(group.backend(), "mesh");
            reference::all_of(&group)?;
            let shared = world.group("shared", &all, &own)?;
            assert_eq!(shared.backend(), "shared memory");
            reference::all_of(&shared)?;
            same_as_shared_memory(&world.group("again", &all, &native)?, &shared)?;
            for algorithm in Algorithm::ALL {
                let options = GroupOptions { algorithm, ..ours.clone() };
                let group = world.group(&format!("{algorithm:?}"), &all, &options)?;
                let mut data = vec![job.rank() as i64 + 1; 3_000_001];
                group.all_reduce("long", &mut data, ReduceOp::Sum)?;
                let sum = (job.size() * (job.size() + 1) / 2) as i64;
                assert!(data.iter().all(|x| *x == sum), "{algorithm:?}");
            }
            let part =
                shared.split(Some(job.rank() as u32 % 2), 0)?.expect("every rank has a color");
            part.barrier("part")?;
        }
        "differ" => {
            let group = world.group("native", &all, &native)?;
            let label = if job.rank() == 1 { "other" } else { "same" };
            return group.all_reduce(label, &mut [0.0f32; 5], ReduceOp::Sum);
        }
        _ => {
            let group = world.group("native", &all, &native)?;
            let mut data = vec![1.0f32; 100_000];
            loop {
                group.all_reduce("again", &mut data, ReduceOp::Max)?;
                if job.rank() == 1 {
                    // SAFETY: kills this process itself.
                    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
                }
            }
        }
    }
    job.finish()
}

/// Sums of small integers are exact in any order, and so are halves of odd ones.
fn same_as_shared_memory(native: &fleet_comm::Group, shared: &fleet_comm::Group) -> Result<()> {
    for length in [1usize, 999, 400_001] {
        for op in ReduceOp::ALL {
            let own = |i: usize| ((i * 7 + native.rank() * 3) % 5) as f32 - 1.0;
            let mut a: Vec<f32> = (0..length).map(own).collect();
            let mut b = a.clone();
            native.all_reduce("a", &mut a, op)?;
            shared.all_reduce("b", &mut b, op)?;
            assert_eq!(a, b, "{op} of {length}");
        }
    }
    Ok(())
}

fn run(ranks: usize, what: &str) -> Option<Output> {
    mpirun::run(ranks, "mpi::everything_on_two_and_four_ranks", what, &[])
}

#[test]
fn everything_on_two_and_four_ranks() {
    if let Some(what) = process::role() {
        return run_as_rank(&what);
    }
    for ranks in [2, 4] {
        let Some(output) = run(ranks, "all") else { return };
        let text = text(&output);
        assert_eq!(text.matches("ended well").count(), ranks, "{text}");
        assert!(output.status.success(), "{text}");
    }
}

#[test]
fn ranks_that_differ_are_told() {
    let Some(output) = run(2, "differ") else { return };
    let text = text(&output);
    let told = "ranks of group 'native' call different collectives";
    // mpirun may end the other rank as soon as one has ended.
    assert!(text.contains(told) && text.contains("'other'") && text.contains("'same'"), "{text}");
}

#[test]
fn a_death_is_an_error() {
    let Some(output) = run(2, "die") else { return };
    assert!(!output.status.success(), "{}", text(&output));
}
