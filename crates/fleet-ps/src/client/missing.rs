//! The workers missing at a barrier, and the servers' knowledge of them.

use crate::message::Body;
use crate::server::WorkerSign;
use fleet_base::{Error, Result};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

/// Limit on the missing workers that a log line names.
const NAMES_MAX: usize = 8;

/// Missing workers; the most recent sign that any server has of each counts.
#[derive(Default)]
pub(super) struct Missing(BTreeMap<u32, WorkerSign>);

impl Missing {
    /// Adds a server's answer; returns whether any worker is missing there.
    pub fn add_answer(&mut self, answer: &[u8]) -> Result<bool> {
        let numbers = Body(answer).numbers::<u32>(answer.len() as u64 / 4)?;
        for fields in numbers.chunks_exact(3) {
            let sign = WorkerSign::from_numbers([fields[1], fields[2]])?;
            let known = self.0.entry(fields[0]).or_insert(sign);
            if sign.span < known.span {
                *known = sign;
            }
        }
        Ok(!numbers.is_empty())
    }

    /// Returns the error of a worker that is lost, if any is: of the first one that was. Workers
    /// that are lost later may have failed because of it.
    pub fn lost(&self, silent_after: Duration) -> Option<Error> {
        let lost = self.0.iter().filter(|(_, sign)| sign.is_lost(silent_after));
        let (worker, sign) = lost.max_by_key(|(worker, sign)| (sign.span, Reverse(**worker)))?;
        let others = match self.0.len() {
            1 => String::new(),
            _ => format!("; missing: {}", self.names()),
        };
        let error = Error::unavailable(format!("worker {worker} {}{others}", sign.loss_text()));
        Some(error.caused_by(*worker as usize).help(
            "see the end of its logs for the cause; a synchronous job fails if it loses a worker",
        ))
    }

    /// Lists the missing workers and what is known of them, for a log line.
    pub fn describe(&self) -> String {
        let one =
            |(worker, sign): (&u32, &WorkerSign)| format!("worker {worker} ({})", sign.describe());
        let named: Vec<String> = self.0.iter().take(NAMES_MAX).map(one).collect();
        let more = self.0.len().saturating_sub(NAMES_MAX);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        named.join(", ") + &rest
    }

    pub fn names(&self) -> String {
        let names: Vec<String> = self.0.keys().map(|worker| format!("worker {worker}")).collect();
        names.join(", ")
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}
