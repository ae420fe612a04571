//! Explains why the collectives of a step did not match, if the reason is that ranks fetch
//! different variables.
//!
//! The fetch list of a rank may change how the executor plans a step, and so the step's
//! communication. Ranks compare nothing while steps succeed. When the collectives of a step turn
//! out to differ, each rank publishes its fetch list and its step's communication, and compares
//! them with the others'.

use crate::agree::{Disagreement, FirstDifference, WholeRings, digest, list_ranks};
use crate::report::Reporter;
use fleet_base::sync::lock;
use fleet_base::{Error, ErrorKind, Result};
use fleet_comm::World;
use fleet_net::Limits;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// The first error that ended one of this rank's groups.
pub(crate) type FirstFault = Arc<Mutex<Option<Error>>>;

/// A session's link to the sessions of the other ranks.
pub(crate) struct StepPeers {
    pub world: World,
    /// Prefix of this session's keys in the store.
    pub prefix: String,
    pub rank: usize,
    pub rank_count: usize,
    pub rings: WholeRings,
    pub fault: FirstFault,
    pub reporter: Reporter,
}

/// Timeout for the other ranks, which fail in the same collective at most a moment later.
const PEER_TIMEOUT: Duration = Duration::from_secs(3);
/// Maximum length of a text in the store, whose limit is 1 MiB.
const TEXT_BYTES_MAX: usize = 512 << 10;

impl StepPeers {
    /// Returns whether a step failed because the ranks called different collectives.
    pub(crate) fn disagree(&self) -> bool {
        let fault = lock(&self.fault);
        let differs =
            |error: &Error| error.kind() == ErrorKind::Invalid && error.culprit().is_none();
        fault.as_ref().is_some_and(differs)
    }

    /// Returns the reason for `error` if ranks fetch different variables or plan their steps
    /// differently; otherwise returns `error` itself.
    pub(crate) fn explain(&self, error: Error, fetch: &[&str], communication: &str) -> Error {
        match self.difference(fetch, communication) {
            Ok(Some(reason)) => {
                let reason = reason.at(error.message());
                self.reporter.explained(&reason);
                reason
            }
            // Without texts from the other ranks, the original error is all that is known.
            Ok(None) | Err(_) => error,
        }
    }

    fn difference(&self, fetch: &[&str], communication: &str) -> Result<Option<Error>> {
        let limits = Limits::within(PEER_TIMEOUT);
        let mut own = format!("{}\n{communication}", fetch.join(", "));
        let mut end = own.len().min(TEXT_BYTES_MAX);
        while !own.is_char_boundary(end) {
            end -= 1;
        }
        own.truncate(end);
        let key = |rank: usize| format!("{}/{rank}", self.prefix);
        let store = self.world.store();
        store.set(&key(self.rank), own.as_bytes(), &limits)?;
        let keys: Vec<String> = (0..self.rank_count).map(key).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let texts = store.wait(&keys, &limits)?;
        let texts: Vec<String> =
            texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect();
        let parts: Vec<(&str, &str)> =
            texts.iter().map(|text| text.split_once('\n').unwrap_or_default()).collect();
        let digests: Vec<i64> = parts.iter().map(|(_, steps)| digest(steps)).collect();
        let Some(odd) = Disagreement::of(&digests) else { return Ok(None) };
        let (usual, first) = (parts[odd.usual], parts[odd.ranks[0]]);
        let (what, help) = match usual.0 == first.0 {
            false => (
                "ranks fetch different variables, which changes the communication of their steps",
                "fetch gradients on all ranks or on none",
            ),
            true => (
                "ranks plan their steps differently, which changes their communication",
                "use the same feeds and the same options on every rank",
            ),
        };
        let ranks = list_ranks(&odd.ranks);
        let error = Error::invalid(format!("{what}: {ranks} and rank {} differ", odd.usual))
            .expected(format!("fetches [{}] as on rank {}", usual.0, odd.usual))
            .got(format!("[{}] on rank {}", first.0, odd.ranks[0]))
            .at(format!("communication, {}", FirstDifference::of(usual.1, first.1)));
        Ok(Some(error.help(help).caused_by(odd.ranks[0])))
    }
}
