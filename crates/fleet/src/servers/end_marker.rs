//! The mark in the job's store that its servers have finished: a worker that connects later must
//! not wait for them.

use crate::Fleet;
use fleet_net::{Limits, Store, StoreClient, Token, resolve};
use fleet_ps::IsOver;
use std::net::SocketAddr;
use std::time::Duration;

/// Key of the mark, and the store that holds it.
#[derive(Clone)]
pub(super) struct EndMarker {
    address: SocketAddr,
    token: Token,
    key: String,
}

/// Timeout for the store; if it does not answer, it has ended with the job.
const STORE_TIMEOUT: Duration = Duration::from_secs(2);

impl EndMarker {
    /// Returns `None` without a store: late workers then wait as for a server that restarts.
    pub(super) fn new(fleet: &Fleet, token: &Token) -> Option<EndMarker> {
        let job = fleet.topology().job();
        let address = resolve(&job.store.as_ref()?.to_string()).ok()?;
        // Servers and workers restart one by one, so all starts count as one attempt.
        let attempt = fleet_topology::Job { restarts: 0, ..job.clone() }.attempt();
        Some(EndMarker { address, token: token.clone(), key: format!("{attempt}/servers/ended") })
    }

    /// Sets the mark; called by a server that has served until the end of the job.
    pub(super) fn set(&self) {
        let limits = Limits::within(STORE_TIMEOUT);
        // If this fails, late workers wait until their deadline instead.
        let _ = StoreClient::connect(self.address, &self.token, &limits)
            .and_then(|store| store.set(&self.key, b"1", &limits));
    }

    fn is_set(&self) -> bool {
        let limits = Limits::within(STORE_TIMEOUT);
        StoreClient::connect(self.address, &self.token, &limits)
            .and_then(|store| store.get(&self.key, &limits))
            .is_ok_and(|mark| mark.is_some())
    }

    pub(super) fn into_is_over(self) -> IsOver {
        IsOver::new(move || self.is_set())
    }
}
