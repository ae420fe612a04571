//! The store inside one process, shared by its threads.

use super::table::{Table, missing_error};
use super::{Changes, Store, Swap};
use crate::{Limits, Time};
use fleet_base::Result;
use fleet_base::sync::{lock, wait_for};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// A store in memory. A clone is the same store.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Shared>);

#[derive(Default)]
struct Shared {
    table: Mutex<Table>,
    changed: Condvar,
}

impl MemoryStore {
    /// Returns an empty store.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // The table is consistent between calls, even if a thread panicked.
        lock(&self.0.table)
    }

    fn change<T>(&self, limits: &Limits, change: impl FnOnce(&mut Table) -> T) -> Result<T> {
        limits.abort.check()?;
        let answer = change(&mut self.lock());
        self.0.changed.notify_all();
        Ok(answer)
    }

    /// Waits until `look` returns a value; `None` after the deadline.
    fn wait_for<T>(
        &self,
        limits: &Limits,
        mut look: impl FnMut(&Table) -> Option<T>,
    ) -> Result<Option<T>> {
        /// Longest sleep of a waiter before it checks again. Correctness does not depend on it.
        const WAIT_MAX: Duration = Duration::from_secs(1);
        let shared = self.0.clone();
        let _hook = limits.abort.on_fire(move |_| {
            let _table = shared.table.lock();
            shared.changed.notify_all();
        });
        let mut table = self.lock();
        loop {
            limits.abort.check()?;
            if let Some(found) = look(&table) {
                return Ok(Some(found));
            }
            let left = limits.deadline.remaining(Time::now()).unwrap_or(WAIT_MAX);
            if left.is_zero() {
                return Ok(None);
            }
            table = wait_for(&self.0.changed, table, left.min(WAIT_MAX)).0;
        }
    }
}

impl Store for MemoryStore {
    fn set(&self, key: &str, value: &[u8], limits: &Limits) -> Result<()> {
        self.change(limits, |table| table.set(key, value))?
    }

    fn get(&self, key: &str, limits: &Limits) -> Result<Option<Vec<u8>>> {
        limits.abort.check()?;
        Ok(self.lock().get(key).map(<[u8]>::to_vec))
    }

    fn wait(&self, keys: &[&str], limits: &Limits) -> Result<Vec<Vec<u8>>> {
        let found = self.wait_for(limits, |table| {
            keys.iter().map(|key| table.get(key).map(<[u8]>::to_vec)).collect()
        })?;
        found.ok_or_else(|| missing_error(&self.lock().missing(keys.iter().copied()), keys.len()))
    }

    fn add(&self, key: &str, delta: i64, limits: &Limits) -> Result<i64> {
        self.change(limits, |table| table.add(key, delta))?
    }

    fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        value: &[u8],
        limits: &Limits,
    ) -> Result<Swap> {
        self.change(limits, |table| table.compare_and_set(key, expected, value))?
    }

    fn delete(&self, key: &str, limits: &Limits) -> Result<bool> {
        self.change(limits, |table| table.delete(key))
    }

    fn list(&self, prefix: &str, limits: &Limits) -> Result<Vec<(String, Vec<u8>)>> {
        limits.abort.check()?;
        Ok(self.lock().list(prefix))
    }

    fn watch(&self, prefix: &str, revision: u64, limits: &Limits) -> Result<Changes> {
        let found = self.wait_for(limits, |table| table.changes(prefix, revision))?;
        Ok(found.unwrap_or_else(|| Changes { revision, ..Changes::default() }))
    }
}
