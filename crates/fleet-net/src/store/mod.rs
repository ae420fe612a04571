//! The key-value store of the rendezvous. It holds small values, by which the processes of a job
//! find each other and synchronise. It is not for bulk data.
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

/// A key-value store. All calls are atomic, and all clients see them in one order, which the
/// revision counts.
pub trait Store: Send + Sync {
    /// Sets the value of a key.
    fn set(&self, key: &str, value: &[u8], limits: &Limits) -> Result<()>;

    /// Returns the value of a key, if it exists.
    fn get(&self, key: &str, limits: &Limits) -> Result<Option<Vec<u8>>>;

    /// Waits until all `keys` exist and returns their values. The error after the deadline names
    /// the missing keys.
    fn wait(&self, keys: &[&str], limits: &Limits) -> Result<Vec<Vec<u8>>>;

    /// Adds to a counter, which starts at 0 and is stored as decimal text. Returns the new value.
    fn add(&self, key: &str, delta: i64, limits: &Limits) -> Result<i64>;

    /// Sets the value if the current one is `expected` (`None`: the key must not exist).
    fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        value: &[u8],
        limits: &Limits,
    ) -> Result<Swap>;

    /// Deletes a key. True if it existed.
    fn delete(&self, key: &str, limits: &Limits) -> Result<bool>;

    /// Returns the keys that start with `prefix` and their values, in the order of keys.
    fn list(&self, prefix: &str, limits: &Limits) -> Result<Vec<(String, Vec<u8>)>>;

    /// Waits for changes under `prefix` after `revision` (0: from the beginning) and returns them.
    /// After the deadline it returns no changes, and no error.
    fn watch(&self, prefix: &str, revision: u64, limits: &Limits) -> Result<Changes>;
}

impl dyn Store + '_ {
    /// Sets the value of a rank under the key `prefix` + rank, waits for those of all `ranks`, and
    /// returns their values.
    ///
    /// ```
    /// use fleet_net::{Limits, MemoryStore, Store};
    /// let store: &dyn Store = &MemoryStore::new();
    /// let limits = Limits::within(std::time::Duration::from_millis(20));
    /// store.set("port/1", b"7000", &limits)?;
    /// assert_eq!(store.exchange("port/", (0, b"6000"), 0..2, &limits)?, [b"6000", b"7000"]);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn exchange(
        &self,
        prefix: &str,
        (rank, value): (usize, &[u8]),
        ranks: impl IntoIterator<Item = usize>,
        limits: &Limits,
    ) -> Result<Vec<Vec<u8>>> {
        self.set(&format!("{prefix}{rank}"), value, limits)?;
        let keys: Vec<String> = ranks.into_iter().map(|rank| format!("{prefix}{rank}")).collect();
        self.wait(&keys.iter().map(String::as_str).collect::<Vec<_>>(), limits)
    }
}

/// The answer of [`Store::compare_and_set`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Swap {
    /// The value was set.
    Done,
    /// Another value was set before; holds the current value.
    Lost(Option<Vec<u8>>),
}

/// The answer of [`Store::watch`].
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Changes {
    /// Revision to pass to the next [`Store::watch`].
    pub revision: u64,
    /// Whether `changes` holds every existing key, because older deletions are forgotten. Any other
    /// key was deleted.
    pub complete: bool,
    /// The last change of each key, in the order of the changes.
    pub changes: Vec<Change>,
}

/// A change of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The key.
    pub key: String,
    /// The new value; `None` if the key was deleted.
    pub value: Option<Vec<u8>>,
    /// The revision at which it changed.
    pub revision: u64,
}
