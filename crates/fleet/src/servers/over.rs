//! The mark that the servers of a job have finished: a worker that comes later must not wait for
//! them.

use crate::Fleet;
use fleet_net::{Limits, Store, StoreClient, Token, resolve};
use fleet_ps::IsOver;
use std::net::SocketAddr;
use std::time::Duration;

/// A key in the store of the job.
#[derive(Clone)]
pub(super) struct OverMark {
    address: SocketAddr,
    token: Token,
    key: String,
}

/// A store that does not answer for this long is gone with the job.
const STORE_TIME: Duration = Duration::from_secs(2);

impl OverMark {
    /// `None` without a store: then late workers wait as for a server that is started again.
    pub(super) fn of(fleet: &Fleet, token: &Token) -> Option<OverMark> {
        let job = fleet.topology().job();
        let address = resolve(&job.store.as_ref()?.to_string()).ok()?;
        // Servers and workers are started again one by one, so all starts are one attempt.
        let attempt = fleet_topology::Job { restarts: 0, ..job.clone() }.attempt();
        Some(OverMark { address, token: token.clone(), key: format!("{attempt}/servers/over") })
    }

    /// A server has served to the end of the job.
    pub(super) fn set(&self) {
        let limits = Limits::within(STORE_TIME);
        // Whom it is for finds out by a deadline if this fails.
        let _ = StoreClient::connect(self.address, &self.token, &limits)
            .and_then(|store| store.set(&self.key, b"1", &limits));
    }

    fn is_set(&self) -> bool {
        let limits = Limits::within(STORE_TIME);
        StoreClient::connect(self.address, &self.token, &limits)
            .and_then(|store| store.get(&self.key, &limits))
            .is_ok_and(|mark| mark.is_some())
    }

    pub(super) fn asked_by_workers(self) -> IsOver {
        IsOver::new(move || self.is_set())
    }
}
