//! The texts of categories, which columns store by their hashes only.

use fleet_base::sync::lock;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Mutex;

/// Sees the text of every category that is read. Threads that read files call it for each value.
pub trait TextObserver: Send + Sync {
    /// Gets a category of a column, by the column's place among the specs.
    fn observe(&self, column: usize, hash: u64, text: &[u8]);
}

/// The texts of the categories of some columns, up to a limit of memory.
///
/// ```
/// use fleet_data::{Block, ColumnFiles, ColumnSpec, DataFormat, RecordFormat, TextDictionary};
/// use std::sync::Arc;
/// let path = std::env::temp_dir().join(format!("texts-{}.csv", std::process::id()));
/// std::fs::write(&path, "city\nParis\nRome\n").unwrap();
/// let texts = Arc::new(TextDictionary::new(1, 1 << 20));
/// let files = ColumnFiles::new(DataFormat::csv(), [ColumnSpec::category("city")])?;
/// let files = files.observe_texts(texts.clone());
/// let mut block = Block::new(files.schema());
/// files.open(&path)?.read(10, &mut block)?;
/// let hash = block.column(0).ids(1).unwrap()[0] as u64;
/// assert_eq!(texts.text(0, hash).as_deref(), Some("Rome"));
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Debug)]
pub struct TextDictionary {
    columns: Vec<Mutex<Texts>>,
    /// Limit of each column.
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Texts {
    by_hash: HashMap<u64, Box<str>>,
    bytes: usize,
    is_full: bool,
}

impl TextDictionary {
    /// Returns an empty dictionary for this number of columns, which share `bytes_max` equally.
    /// Texts beyond the limit are not kept.
    pub fn new(columns: usize, bytes_max: usize) -> TextDictionary {
        let bytes_max = bytes_max / columns.max(1);
        TextDictionary { columns: (0..columns).map(|_| Mutex::default()).collect(), bytes_max }
    }

    /// Returns the text with this hash, if a file had it in this column.
    pub fn text(&self, column: usize, hash: u64) -> Option<String> {
        let texts = lock(self.columns.get(column)?);
        texts.by_hash.get(&hash).map(|text| text.to_string())
    }

    /// Returns all texts of a column, with their hashes, sorted by text.
    pub fn texts(&self, column: usize) -> Vec<(u64, String)> {
        let Some(texts) = self.columns.get(column) else { return Vec::new() };
        let texts = lock(texts);
        let mut all: Vec<(u64, String)> =
            texts.by_hash.iter().map(|(hash, text)| (*hash, text.to_string())).collect();
        all.sort_unstable_by(|a, b| a.1.cmp(&b.1));
        all
    }

    /// Returns whether texts of a column were left out because of the limit.
    pub fn is_full(&self, column: usize) -> bool {
        self.columns.get(column).is_some_and(|texts| lock(texts).is_full)
    }
}

impl TextObserver for TextDictionary {
    fn observe(&self, column: usize, hash: u64, text: &[u8]) {
        let Some(texts) = self.columns.get(column) else { return };
        let texts = &mut *lock(texts);
        let Entry::Vacant(vacant) = texts.by_hash.entry(hash) else { return };
        let bytes = text.len() + ENTRY_BYTES;
        if texts.bytes + bytes > self.bytes_max {
            texts.is_full = true;
            return;
        }
        texts.bytes += bytes;
        vacant.insert(String::from_utf8_lossy(text).into());
    }
}

/// Memory of an entry besides its text: key, pointer, spare capacity of the table, allocation.
const ENTRY_BYTES: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_limited() {
        let texts = TextDictionary::new(2, 2 * 140);
        for (hash, text) in [(3, "b"), (2, "a"), (3, "b"), (4, "c")] {
            texts.observe(1, hash, text.as_bytes());
        }
        assert_eq!(texts.texts(1), [(2, "a".to_string()), (3, "b".to_string())]);
        assert!(texts.is_full(1) && !texts.is_full(0) && !texts.is_full(2));
        assert_eq!((texts.text(1, 4), texts.text(0, 3), texts.text(2, 3)), (None, None, None));
    }
}
