//! Slots for connections: a few for peers that have not shown a credential yet, the rest for those
//! that have.
//!
//! A connection that has shown no valid credential within [`CREDENTIAL_SPAN`] is closed, and the
//! oldest such connection makes room for a new one. So unknown peers cannot keep operators out.

use fleet_base::sync::lock;
use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Limit on connections that have shown a credential; operators and probes are few.
pub(super) const CONNECTIONS_MAX: usize = 64;
/// Limit on connections that have not.
pub(super) const UNAUTHENTICATED_MAX: usize = 32;
/// Time limit for a connection's first call with a credential. Clients make it at once.
pub(super) const CREDENTIAL_SPAN: Duration = Duration::from_secs(10);

/// All slots of a port.
#[derive(Default)]
pub(super) struct Slots(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    /// Oldest first.
    unauthenticated: VecDeque<Arc<SlotEntry>>,
    authenticated: HashSet<u64>,
}

struct SlotEntry {
    id: u64,
    evicted: Notify,
}

/// The slot of one connection, which is free again when this is dropped.
pub(super) struct Slot {
    slots: Arc<Slots>,
    entry: Arc<SlotEntry>,
}

impl Slots {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements.
        lock(&self.0)
    }

    /// Takes a slot for a new connection; also returns whether another connection loses its slot.
    pub fn take(slots: &Arc<Slots>) -> (Arc<Slot>, bool) {
        let mut state = slots.lock();
        let oldest = match state.unauthenticated.len() >= UNAUTHENTICATED_MAX {
            true => state.unauthenticated.pop_front(),
            false => None,
        };
        if let Some(oldest) = &oldest {
            oldest.evicted.notify_one();
        }
        state.next += 1;
        let entry = Arc::new(SlotEntry { id: state.next, evicted: Notify::new() });
        state.unauthenticated.push_back(entry.clone());
        drop(state);
        (Arc::new(Slot { slots: slots.clone(), entry }), oldest.is_some())
    }
}

impl Slot {
    /// Records that the connection has shown a valid credential; false if all slots are taken.
    pub fn authenticate(&self) -> bool {
        let mut state = self.slots.lock();
        if state.authenticated.contains(&self.entry.id) {
            return true;
        }
        if state.authenticated.len() >= CONNECTIONS_MAX {
            return false;
        }
        state.unauthenticated.retain(|entry| entry.id != self.entry.id);
        state.authenticated.insert(self.entry.id)
    }

    fn is_authenticated(&self) -> bool {
        self.slots.lock().authenticated.contains(&self.entry.id)
    }

    /// Returns when the connection has to be closed.
    pub async fn expired(self: Arc<Slot>) {
        tokio::select! {
            () = sleep(CREDENTIAL_SPAN) => {}
            () = self.entry.evicted.notified() => {}
        }
        if self.is_authenticated() {
            // An authenticated connection stays; this future must not keep its slot.
            drop(self);
            std::future::pending().await
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.slots.lock();
        state.unauthenticated.retain(|entry| entry.id != self.entry.id);
        state.authenticated.remove(&self.entry.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_take_no_seat_of_peers() {
        let slots = Arc::new(Slots::default());
        let take = || Slots::take(&slots);
        let mut authenticated: Vec<_> = (0..CONNECTIONS_MAX).map(|_| take().0).collect();
        assert!(authenticated.iter().all(|slot| slot.authenticate() && slot.authenticate()));
        let mut unauthenticated: Vec<_> = (0..UNAUTHENTICATED_MAX).map(|_| take()).collect();
        assert!(unauthenticated.iter().all(|(_, evicts)| !evicts));
        unauthenticated.push(take());
        assert!(unauthenticated[UNAUTHENTICATED_MAX].1, "the oldest connection is evicted");
        assert!(!unauthenticated[UNAUTHENTICATED_MAX].0.authenticate(), "all slots are taken");
        authenticated.pop();
        assert!(unauthenticated[UNAUTHENTICATED_MAX].0.authenticate());
        drop((unauthenticated, authenticated));
        let state = slots.lock();
        assert_eq!((state.unauthenticated.len(), state.authenticated.len()), (0, 0));
    }
}
