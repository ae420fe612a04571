//! The workers missing at a barrier, and the servers' knowledge of them.

use crate::message::Body;
use crate::server::Sign;
use fleet_base::{Error, Result};
use std::collections::BTreeMap;
use std::time::Duration;

/// Limit on the missing workers that a log line names.
const NAMES_SAID: usize = 8;

/// Missing workers; the most recent sign that any server has of each counts.
#[derive(Default)]
pub(super) struct Missing(BTreeMap<u32, Sign>);

impl Missing {
    /// Adds a server's answer; returns whether any worker is missing there.
    pub fn add(&mut self, answer: &[u8]) -> Result<bool> {
        let numbers = Body(answer).u32s(answer.len() as u64 / 4)?;
        for told in numbers.chunks_exact(3) {
            let sign = Sign::from_numbers([told[1], told[2]])?;
            let known = self.0.entry(told[0]).or_insert(sign);
            if sign.span < known.span {
                *known = sign;
            }
        }
        Ok(!numbers.is_empty())
    }

    /// Returns the error of a worker that is lost, if any is.
    pub fn lost(&self, silent_after: Duration) -> Option<Error> {
        let (worker, sign) = self.0.iter().find(|(_, sign)| sign.is_lost(silent_after))?;
        let others = match self.0.len() {
            1 => String::new(),
            _ => format!("; missing are {}", self.names()),
        };
        let error = Error::unavailable(format!("worker {worker} {}{others}", sign.text()));
        Some(error.caused_by(*worker as usize).help(
            "the end of its log says why; workers of a synchronous job stand or fall together",
        ))
    }

    /// Lists the missing workers and what is known of them, for a log line.
    pub fn words(&self) -> String {
        let one = |(worker, sign): (&u32, &Sign)| format!("worker {worker} ({})", sign.brief());
        let said: Vec<String> = self.0.iter().take(NAMES_SAID).map(one).collect();
        let more = self.0.len().saturating_sub(NAMES_SAID);
        let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
        said.join(", ") + &rest
    }

    pub fn names(&self) -> String {
        let names: Vec<String> = self.0.keys().map(|worker| format!("worker {worker}")).collect();
        names.join(", ")
    }

    pub fn count(&self) -> usize {
        self.0.len()
    }
}
