//! Finds the cause when several workers fail one after the other.
//!
//! A worker that waits for another one fails when that one does, and often ends first: the cause
//! may still be printing its panic. Workers that use Fleet report which worker's failure caused
//! theirs.

use std::collections::BTreeSet;

/// Known state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Running,
    /// It exited with code 0.
    Ended,
    Failed {
        /// The worker that its report names as the cause.
        culprit: Option<usize>,
    },
    /// It belongs to another machine.
    Elsewhere,
}

/// The worker to which reports of a failure lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// This worker has ended, and its failure has no other cause.
    Ended(usize),
    /// This worker is named as the cause, and its end is not known yet.
    Open(usize),
}

/// Follows reports from the failed worker `rank` to the worker that caused its failure.
pub fn cause(rank: usize, fate: impl Fn(usize) -> Fate) -> Cause {
    let (mut at, mut seen) = (rank, BTreeSet::new());
    loop {
        // Workers that name each other give no cause, so the starting worker counts as the cause.
        if !seen.insert(at) {
            return Cause::Ended(rank);
        }
        match fate(at) {
            Fate::Failed { culprit: Some(other) } if other != at => at = other,
            Fate::Failed { .. } | Fate::Ended => return Cause::Ended(at),
            Fate::Running | Fate::Elsewhere => return Cause::Open(at),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Cause, Fate, cause};

    #[test]
    fn reports_lead_to_the_cause() {
        let failed = |culprit| Fate::Failed { culprit };
        let check = |fates: &[Fate], expected: Cause| {
            let fate = |rank: usize| fates.get(rank).copied().unwrap_or(Fate::Elsewhere);
            assert_eq!(cause(0, fate), expected, "{fates:?}");
        };
        check(&[failed(None), failed(Some(0))], Cause::Ended(0));
        check(&[failed(Some(0)), failed(None)], Cause::Ended(0));
        check(&[failed(Some(1)), failed(None)], Cause::Ended(1));
        check(&[failed(Some(1)), Fate::Ended], Cause::Ended(1));
        check(&[failed(Some(1)), failed(Some(2)), failed(Some(2))], Cause::Ended(2));
        check(&[failed(Some(1)), Fate::Running], Cause::Open(1));
        check(&[failed(Some(9)), Fate::Running], Cause::Open(9));
        check(&[failed(Some(1)), failed(Some(0))], Cause::Ended(0));
    }
}
