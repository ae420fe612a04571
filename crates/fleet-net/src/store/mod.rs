//! The key-value store of the rendezvous: small values, by which the processes of a job find and
//! await each other. It is no place for data.
//!
//! ```
//! use fleet_net::{Limits, MemoryStore, Store};
//! use std::time::Duration;
//! let store = MemoryStore::new();
//! let limits = Limits::within(Duration::from_millis(20));
//! store.set("rank/0", b"10.0.0.1:4711", &limits)?;
//! assert_eq!(store.get("rank/0", &limits)?.as_deref(), Some(&b"10.0.0.1:4711"[..]));
//! let error = store.wait(&["rank/0", "rank/1", "rank/2"], &limits).unwrap_err();
//! assert!(error.to_string().contains("2 of 3 keys are missing: rank/1, rank/2"), "{error}");
//! # Ok::<(), fleet_base::Error>(())
//! ```

mod client;
mod memory;
mod protocol;
mod server;
mod table;
mod waiters;

use crate::Limits;
use fleet_base::Result;

pub use client::StoreClient;
pub use memory::MemoryStore;
pub use server::{CONNECTIONS_MAX, StoreServer};
pub use table::{KEY_BYTES_MAX, KEYS_MAX, TOTAL_BYTES_MAX, VALUE_BYTES_MAX};

/// What every implementation of the store promises. All calls are atomic, and seen by everybody in
/// one order, which the revision counts.
pub trait Store: Send + Sync {
    fn set(&self, key: &str, value: &[u8], limits: &Limits) -> Result<()>;

    fn get(&self, key: &str, limits: &Limits) -> Result<Option<Vec<u8>>>;

    /// The values of all `keys`, once all are there. Past the deadline the error says which are
    /// not.
    fn wait(&self, keys: &[&str], limits: &Limits) -> Result<Vec<Vec<u8>>>;

    /// Adds to a counter, which starts at 0 and is kept as decimal text; gives the new value.
    fn add(&self, key: &str, delta: i64, limits: &Limits) -> Result<i64>;

    /// Sets the value where the present one is `expected` (`None`: no such key).
    fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        value: &[u8],
        limits: &Limits,
    ) -> Result<Swap>;

    /// True when the key was there.
    fn delete(&self, key: &str, limits: &Limits) -> Result<bool>;

    /// Keys that start with `prefix` and their values, in the order of keys.
    fn list(&self, prefix: &str, limits: &Limits) -> Result<Vec<(String, Vec<u8>)>>;

    /// What changed under `prefix` after `revision` (0: from the beginning), as soon as something
    /// did. Past the deadline: no changes, and no error.
    fn watch(&self, prefix: &str, revision: u64, limits: &Limits) -> Result<Changes>;
}

/// The answer of [`Store::compare_and_set`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    Done,
    /// Somebody was there first: the value that is there now.
    Lost(Option<Vec<u8>>),
}

/// The answer of [`Store::watch`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Changes {
    /// Where to watch from next.
    pub revision: u64,
    /// Older deletions have been forgotten: `changes` holds every key that is there, and what is
    /// not in it is gone.
    pub complete: bool,
    /// The last change of each key, in the order in which they came.
    pub changes: Vec<Change>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub key: String,
    /// `None`: deleted.
    pub value: Option<Vec<u8>>,
    pub revision: u64,
}
