//! The table of keys and values with its limits; no waiting, no sockets.

use super::{Change, Changes, Swap};
use fleet_base::{Error, ErrorCode, Result};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// Size limit of a key. Keys are paths, not texts.
pub const KEY_BYTES_MAX: usize = 512;
/// Size limit of a value: an address, a description of a node, a small table. Values are read
/// whole, by many processes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
/// Maximum number of keys: 100,000 ranks with ten keys each.
pub const KEYS_MAX: usize = 1 << 20;
/// Size limit of all keys and values. The store runs inside a launcher or a rank, which need memory
/// for other work.
pub const TOTAL_BYTES_MAX: usize = 256 << 20;
/// Maximum number of deletions kept. A watcher that has missed more must read everything again.
const DELETIONS_MAX: usize = 4096;

#[derive(Default)]
pub(crate) struct Table {
    entries: BTreeMap<String, Entry>,
    revision: u64,
    bytes: usize,
    deletions: VecDeque<(u64, String)>,
    /// Deletions up to this revision have been dropped.
    forgotten: u64,
}

struct Entry {
    value: Vec<u8>,
    revision: u64,
}

impl Table {
    pub(crate) fn get(&self, key: &str) -> Option<&[u8]> {
        self.entries.get(key).map(|entry| entry.value.as_slice())
    }

    pub(crate) fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        check_entry(key, value)?;
        let (old, overhead) = match self.entries.get(key) {
            Some(entry) => (entry.value.len(), 0),
            None => (0, key.len()),
        };
        if overhead > 0 && self.entries.len() >= KEYS_MAX {
            return Err(
                Error::exhausted("the store is full").expected(format!("up to {KEYS_MAX} keys"))
            );
        }
        let bytes = self.bytes - old + value.len() + overhead;
        if bytes > TOTAL_BYTES_MAX {
            return Err(Error::exhausted("the store is full")
                .expected(format!("up to {TOTAL_BYTES_MAX} bytes"))
                .got(bytes));
        }
        self.bytes = bytes;
        self.revision += 1;
        let entry = Entry { value: value.to_vec(), revision: self.revision };
        self.entries.insert(key.to_string(), entry);
        Ok(())
    }

    pub(crate) fn add(&mut self, key: &str, delta: i64) -> Result<i64> {
        let old = match self.get(key) {
            None => 0,
            Some(value) => std::str::from_utf8(value)
                .ok()
                .and_then(|text| text.parse::<i64>().ok())
                .ok_or_else(|| {
                    Error::invalid(format!("the value of '{key}' is not a counter"))
                        .expected("a decimal number")
                        .got(format!("{} bytes", value.len()))
                })?,
        };
        let new = old.checked_add(delta).ok_or_else(|| {
            Error::invalid(format!("counter '{key}' overflows")).got(format!("{old} + {delta}"))
        })?;
        self.set(key, new.to_string().as_bytes())?;
        Ok(new)
    }

    pub(crate) fn compare_and_set(
        &mut self,
        key: &str,
        expected: Option<&[u8]>,
        value: &[u8],
    ) -> Result<Swap> {
        if self.get(key) != expected {
            return Ok(Swap::Lost(self.get(key).map(<[u8]>::to_vec)));
        }
        self.set(key, value)?;
        Ok(Swap::Done)
    }

    pub(crate) fn delete(&mut self, key: &str) -> bool {
        let Some(entry) = self.entries.remove(key) else { return false };
        self.bytes -= entry.value.len() + key.len();
        self.revision += 1;
        self.deletions.push_back((self.revision, key.to_string()));
        if self.deletions.len() > DELETIONS_MAX {
            self.forgotten = self.deletions.pop_front().map_or(0, |(revision, _)| revision);
        }
        true
    }

    pub(crate) fn list(&self, prefix: &str) -> Vec<(String, Vec<u8>)> {
        self.under(prefix).map(|(key, entry)| (key.clone(), entry.value.clone())).collect()
    }

    /// Changes under `prefix` after `revision`; `None` if there are none.
    pub(crate) fn changes(&self, prefix: &str, revision: u64) -> Option<Changes> {
        if revision >= self.revision {
            return None;
        }
        // Before revision `forgotten` the watcher may have missed deletions, so list every key.
        let complete = revision < self.forgotten;
        let mut changes: Vec<Change> = self
            .under(prefix)
            .filter(|(_, entry)| complete || entry.revision > revision)
            .map(|(key, entry)| Change {
                key: key.clone(),
                value: Some(entry.value.clone()),
                revision: entry.revision,
            })
            .collect();
        if !complete && revision > 0 {
            let gone = self.deletions.iter().filter(|(at, key)| {
                *at > revision && key.starts_with(prefix) && !self.entries.contains_key(key)
            });
            changes.extend(gone.map(|(at, key)| Change {
                key: key.clone(),
                value: None,
                revision: *at,
            }));
        }
        changes.sort_by_key(|change| change.revision);
        // Keep only the last change of each key.
        let mut seen = std::collections::HashSet::new();
        let mut last: Vec<Change> =
            changes.into_iter().rev().filter(|change| seen.insert(change.key.clone())).collect();
        last.reverse();
        if last.is_empty() && !complete {
            return None;
        }
        Some(Changes { revision: self.revision, complete, changes: last })
    }

    pub(crate) fn missing<'k>(&self, keys: impl Iterator<Item = &'k str>) -> Vec<&'k str> {
        keys.filter(|key| !self.entries.contains_key(*key)).collect()
    }

    fn under<'t>(&'t self, prefix: &'t str) -> impl Iterator<Item = (&'t String, &'t Entry)> {
        self.entries
            .range::<str, _>((Bound::Included(prefix), Bound::Unbounded))
            .take_while(move |(key, _)| key.starts_with(prefix))
    }
}

pub(crate) fn check_entry(key: &str, value: &[u8]) -> Result<()> {
    check_key(key)?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(Error::exhausted(format!("the value of '{key}' is too long for the store"))
            .expected(format!("up to {VALUE_BYTES_MAX} bytes"))
            .got(value.len())
            .help("send bulk data between ranks; the store is for addresses and small values"));
    }
    Ok(())
}

pub(crate) fn check_key(key: &str) -> Result<()> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::invalid("invalid length of a store key")
            .expected(format!("1 to {KEY_BYTES_MAX} bytes"))
            .got(key.len()));
    }
    Ok(())
}

/// The error of a wait that missed its deadline.
pub(crate) fn missing_error(missing: &[&str], count: usize) -> Error {
    const SHOWN_MAX: usize = 16;
    let shown = missing.iter().take(SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
    let more = match missing.len().saturating_sub(SHOWN_MAX) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Error::unavailable(format!(
        "the deadline passed while waiting in the store: {} of {count} keys are missing: \
         {shown}{more}",
        missing.len()
    ))
    .with_code(ErrorCode::KeysMissing)
}
