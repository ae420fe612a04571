//! A part of a store: keys under a prefix. Groups of one job have parts of their own, since each
//! names its ranks and its members' addresses from 0.

use fleet_base::Result;
use fleet_net::{Changes, Limits, Store, Swap};
use std::sync::Arc;

/// The keys of a store that start with a prefix, without it.
pub(crate) struct StorePart {
    store: Arc<dyn Store>,
    prefix: String,
}

impl StorePart {
    pub(crate) fn new(store: Arc<dyn Store>, prefix: String) -> StorePart {
        StorePart { store, prefix }
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    fn own(&self, key: String) -> String {
        key.strip_prefix(&self.prefix).map(str::to_string).unwrap_or(key)
    }
}

impl Store for StorePart {
    fn set(&self, key: &str, value: &[u8], limits: &Limits) -> Result<()> {
        self.store.set(&self.key(key), value, limits)
    }

    fn get(&self, key: &str, limits: &Limits) -> Result<Option<Vec<u8>>> {
        self.store.get(&self.key(key), limits)
    }

    fn wait(&self, keys: &[&str], limits: &Limits) -> Result<Vec<Vec<u8>>> {
        let keys: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
        self.store.wait(&keys.iter().map(String::as_str).collect::<Vec<_>>(), limits)
    }

    fn add(&self, key: &str, delta: i64, limits: &Limits) -> Result<i64> {
        self.store.add(&self.key(key), delta, limits)
    }

    fn compare_and_set(
        &self,
        key: &str,
        expected: Option<&[u8]>,
        value: &[u8],
        limits: &Limits,
    ) -> Result<Swap> {
        self.store.compare_and_set(&self.key(key), expected, value, limits)
    }

    fn delete(&self, key: &str, limits: &Limits) -> Result<bool> {
        self.store.delete(&self.key(key), limits)
    }

    fn list(&self, prefix: &str, limits: &Limits) -> Result<Vec<(String, Vec<u8>)>> {
        let found = self.store.list(&self.key(prefix), limits)?;
        Ok(found.into_iter().map(|(key, value)| (self.own(key), value)).collect())
    }

    fn watch(&self, prefix: &str, revision: u64, limits: &Limits) -> Result<Changes> {
        let mut changes = self.store.watch(&self.key(prefix), revision, limits)?;
        for change in &mut changes.changes {
            change.key = self.own(std::mem::take(&mut change.key));
        }
        Ok(changes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_net::MemoryStore;
    use std::time::Duration;

    #[test]
    fn parts_do_not_see_each_other() {
        let whole = Arc::new(MemoryStore::new());
        let limits = Limits::within(Duration::from_millis(20));
        let part = |prefix: &str| StorePart::new(whole.clone(), prefix.to_string());
        let (a, b) = (part("a/"), part("b/"));
        a.set("rank/0", b"one", &limits).unwrap();
        b.set("rank/0", b"two", &limits).unwrap();
        assert_eq!(a.get("rank/0", &limits).unwrap().unwrap(), b"one");
        assert_eq!(b.list("rank/", &limits).unwrap(), [("rank/0".into(), b"two".to_vec())]);
        assert_eq!(a.wait(&["rank/0"], &limits).unwrap(), [b"one"]);
        let taken = a.compare_and_set("rank/0", None, b"x", &limits).unwrap();
        assert_eq!(taken, Swap::Lost(Some(b"one".to_vec())));
        assert_eq!(a.watch("", 0, &limits).unwrap().changes[0].key, "rank/0");
        assert_eq!((a.add("n", 2, &limits).unwrap(), b.add("n", 3, &limits).unwrap()), (2, 3));
        assert!(a.delete("n", &limits).unwrap() && !a.delete("n", &limits).unwrap());
        assert_eq!(whole.get("a/rank/0", &limits).unwrap().unwrap(), b"one");
    }
}
