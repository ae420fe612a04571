//! Places for connections: a few for peers that have not shown a credential yet, the rest for those
//! that have.
//!
//! A connection that has shown no valid credential within [`CREDENTIAL_SPAN`] is closed, and the
//! oldest such connection makes room for a new one. So unknown peers cannot keep operators out.

use std::collections::{HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::sleep;

/// Limit on connections that have shown a credential; operators and probes are few.
pub(super) const SEATS_MAX: usize = 64;
/// Limit on connections that have not.
pub(super) const WAITING_MAX: usize = 32;
/// Time limit for a connection's first call with a credential. Clients make it at once.
pub(super) const CREDENTIAL_SPAN: Duration = Duration::from_secs(10);

/// All places of a port.
#[derive(Default)]
pub(super) struct Seats(Mutex<State>);

#[derive(Default)]
struct State {
    next: u64,
    /// Oldest first.
    waiting: VecDeque<Arc<Place>>,
    proven: HashSet<u64>,
}

struct Place {
    id: u64,
    evicted: Notify,
}

/// The place of one connection, which is free again when this is dropped.
pub(super) struct Seat {
    seats: Arc<Seats>,
    place: Arc<Place>,
}

impl Seats {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between statements.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place for a new connection; also returns whether another connection loses its place.
    pub fn take(seats: &Arc<Seats>) -> (Arc<Seat>, bool) {
        let mut state = seats.lock();
        let oldest = match state.waiting.len() >= WAITING_MAX {
            true => state.waiting.pop_front(),
            false => None,
        };
        if let Some(oldest) = &oldest {
            oldest.evicted.notify_one();
        }
        state.next += 1;
        let place = Arc::new(Place { id: state.next, evicted: Notify::new() });
        state.waiting.push_back(place.clone());
        drop(state);
        (Arc::new(Seat { seats: seats.clone(), place }), oldest.is_some())
    }
}

impl Seat {
    /// Records that the connection has shown a valid credential; false if all seats are taken.
    pub fn prove(&self) -> bool {
        let mut state = self.seats.lock();
        if state.proven.contains(&self.place.id) {
            return true;
        }
        if state.proven.len() >= SEATS_MAX {
            return false;
        }
        state.waiting.retain(|place| place.id != self.place.id);
        state.proven.insert(self.place.id)
    }

    fn is_proven(&self) -> bool {
        self.seats.lock().proven.contains(&self.place.id)
    }

    /// Returns when the connection has to be closed.
    pub async fn is_over(self: Arc<Seat>) {
        tokio::select! {
            () = sleep(CREDENTIAL_SPAN) => {}
            () = self.place.evicted.notified() => {}
        }
        if self.is_proven() {
            // A proven connection stays; this future must not keep its seat.
            drop(self);
            std::future::pending().await
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut state = self.seats.lock();
        state.waiting.retain(|place| place.id != self.place.id);
        state.proven.remove(&self.place.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strangers_take_no_seat_of_peers() {
        let seats = Arc::new(Seats::default());
        let take = || Seats::take(&seats);
        let mut proven: Vec<_> = (0..SEATS_MAX).map(|_| take().0).collect();
        assert!(proven.iter().all(|seat| seat.prove() && seat.prove()));
        let mut waiting: Vec<_> = (0..WAITING_MAX).map(|_| take()).collect();
        assert!(waiting.iter().all(|(_, evicts)| !evicts));
        waiting.push(take());
        assert!(waiting[WAITING_MAX].1, "the oldest stranger makes room");
        assert!(!waiting[WAITING_MAX].0.prove(), "all seats are taken");
        proven.pop();
        assert!(waiting[WAITING_MAX].0.prove());
        drop((waiting, proven));
        let state = seats.lock();
        assert_eq!((state.waiting.len(), state.proven.len()), (0, 0));
    }
}
