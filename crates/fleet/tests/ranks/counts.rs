//! Counted costs of a step: allocations of a process over real rings.

use crate::launch::{assert_success, run_in};
use crate::strategies::{NAMES, feed, session};
use fleet::prelude::*;

/// Steps per round: enough for every branch of every strategy.
const ROUND: u64 = 6;
/// Heartbeats of the process allocate occasionally. A step that allocates does so in every round.
const ROUNDS: usize = 40;

/// Runs in a rank process.
pub fn allocations(fleet: &Fleet, name: &str) -> Result<()> {
    let mut session = session(fleet, name)?;
    let batches: Vec<(Tensor, Tensor)> =
        (0..ROUND).map(|number| feed(&session, fleet, number)).collect::<Result<_>>()?;
    let feeds: Vec<[(&str, &Tensor); 2]> =
        batches.iter().map(|(x, y)| [("x", x), ("y", y)]).collect();
    let Session { programs, scope, executor, .. } = &mut session;
    let mut out = Vec::new();
    let mut round = || -> Result<usize> {
        let before = crate::counting::allocations();
        for feed in &feeds {
            executor.run_into(&programs.main, scope, feed, &[], &mut out)?;
        }
        Ok(crate::counting::allocations() - before)
    };
    round()?;
    let made = (0..ROUNDS).map(|_| round()).collect::<Result<Vec<usize>>>()?;
    assert_eq!(made.iter().min(), Some(&0), "{name}: allocations of {ROUND} steps: {made:?}");
    fleet.finish()
}

#[test]
fn steps_over_real_rings_allocate_nothing() {
    for name in NAMES {
        assert_success(&run_in("count allocations", 2, name));
    }
}
