//! Detects workers of parameter servers with different strategies: the tables may be equal, and the
//! workers would train in different modes.

use super::ServerJob;
use crate::Fleet;
use crate::agree::{Disagreement, FirstDifference, digest, strategy_text};
use fleet_base::{Error, Result};
use fleet_net::{Limits, Store, StoreClient, Token, resolve};
use std::time::Duration;

/// A worker's strategy in the job's store, published for the other workers.
pub(super) struct PublishedStrategy {
    store: StoreClient,
    prefix: String,
    worker: usize,
}

/// Timeout for the store; without an answer nothing is compared.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

impl PublishedStrategy {
    /// Publishes the strategy; called before the workers meet. Returns `None` without a reachable
    /// store: then nothing is compared.
    pub(super) fn new(fleet: &Fleet, job: &ServerJob, token: &Token) -> Option<PublishedStrategy> {
        let topology = fleet.topology();
        let endpoint = topology.job().store.as_ref().filter(|_| topology.worker_num() > 1)?;
        let limits = Limits::within(STORE_TIMEOUT);
        let address = resolve(&endpoint.to_string()).ok()?;
        let store = StoreClient::connect(address, token, &limits).ok()?;
        // Workers restart one by one, so all starts count as one attempt.
        let attempt = fleet_topology::Job { restarts: 0, ..topology.job().clone() }.attempt();
        let (prefix, worker) = (format!("{attempt}/strategy/"), topology.rank());
        let text = format!("{}exchange: {:?}\n", strategy_text(&job.strategy), job.plan.exchange);
        store.set(&format!("{prefix}{worker}"), text.as_bytes(), &limits).ok()?;
        Some(PublishedStrategy { store, prefix, worker })
    }

    /// Compares the strategies of all workers; called after they have met. Returns an error on
    /// workers that differ from most.
    pub(super) fn compare(&self) -> Result<()> {
        let found =
            self.store.list(&self.prefix, &Limits::within(STORE_TIMEOUT)).unwrap_or_default();
        let worker = |key: &str| key[self.prefix.len()..].parse::<usize>().ok();
        let mut texts: Vec<(usize, String)> = found
            .iter()
            .filter_map(|(key, text)| {
                Some((worker(key)?, String::from_utf8_lossy(text).into_owned()))
            })
            .collect();
        texts.sort_unstable();
        let digests: Vec<i64> = texts.iter().map(|(_, text)| digest(text)).collect();
        let Some(odd) = Disagreement::of(&digests) else { return Ok(()) };
        let Some(own) = odd.ranks.iter().find(|at| texts[**at].0 == self.worker) else {
            return Ok(());
        };
        let (usual, text) = &texts[odd.usual];
        let difference = FirstDifference::of(text, &texts[*own].1);
        let error = "workers have different strategies";
        let own = format!("worker {}", self.worker);
        Err(Error::invalid(format!("{error}: {own} and worker {usual} differ"))
            .at(format!("strategy, {difference}"))
            .help("give every worker the same strategy")
            .caused_by(self.worker))
    }
}
