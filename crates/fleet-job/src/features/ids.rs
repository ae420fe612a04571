//! Ids: categories and crosses, by a vocabulary or by hash buckets.

use crate::job::CategoryPart;
use fleet_data::Block;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A fitted feature of ids. Its rows in the table of its width begin at `base`: missing, unknown
/// (with a vocabulary), then the known values, the buckets, or the integers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ids {
    /// Name of the feature.
    pub name: String,
    /// The column, or the columns of a cross.
    pub columns: Vec<String>,
    /// Width of the embedding.
    pub dim: i64,
    /// First row in the table.
    pub base: i64,
    /// How hashes become rows.
    pub lookup: Lookup,
    /// Number of values that are used of a column with several.
    pub values_max: Option<usize>,
    /// Whether the rows of several values are added up; otherwise their mean is taken.
    pub is_sum: bool,
    /// The feature whose values and rows this one uses: its own lookup is empty.
    #[serde(default)]
    pub history_of: Option<String>,
}

/// How hashes become rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Lookup {
    /// The known hashes, most frequent first.
    Vocabulary(Vec<u64>),
    /// Number of hash buckets.
    Buckets(u64),
    /// Number of integers, which are rows themselves: a hash is an integer plus 1.
    Rows(u64),
}

impl Ids {
    /// Returns the end of the feature's rows in its table.
    pub fn end(&self) -> i64 {
        self.base
            + match &self.lookup {
                Lookup::Vocabulary(known) => known.len() as i64 + 2,
                Lookup::Buckets(count) | Lookup::Rows(count) => *count as i64 + 1,
            }
    }

    /// Returns whether a row has any number of ids.
    pub fn is_several(&self) -> bool {
        self.values_max.is_some()
    }
}

/// Hash of a cross: of the hashes of its columns, in their order. 0 if one is missing.
/// A column that the data lacks is missing.
pub fn cross_hash(block: &Block, columns: &[Option<usize>], row: usize) -> u64 {
    let mut hash = CROSS_START;
    for column in columns {
        let ids = column.and_then(|column| block.column(column).ids(row));
        let one = ids.and_then(|ids| ids.first());
        let Some(one) = one else { return 0 };
        hash = mixed(hash.rotate_left(23) ^ *one as u64);
    }
    hash.max(1)
}

/// Hash of a cross of no columns.
pub(super) const CROSS_START: u64 = 0x9e37_79b9_7f4a_7c15;
/// Factors of [`mixed`].
pub(super) const MIX_FIRST: u64 = 0xff51_afd7_ed55_8ccd;
pub(super) const MIX_SECOND: u64 = 0xc4ce_b9fe_1a85_ec53;

/// Mixes the bits of a word (the finalizer of MurmurHash3).
pub fn mixed(mut word: u64) -> u64 {
    word = (word ^ (word >> 33)).wrapping_mul(MIX_FIRST);
    word = (word ^ (word >> 33)).wrapping_mul(MIX_SECOND);
    word ^ (word >> 33)
}

/// A map whose keys are hashes already.
pub type ByHash<V> = HashMap<u64, V, BuildHasherDefault<Same>>;

/// Uses a hash as it is.
#[derive(Default)]
pub struct Same(u64);

impl Hasher for Same {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = mixed(self.0 ^ u64::from(*byte));
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// A lookup that is ready to be applied.
pub enum Index {
    Vocabulary(ByHash<i64>),
    Buckets(u64),
    /// The readers of files and requests have checked that there are so many rows.
    Rows,
}

impl Index {
    pub fn of(lookup: &Lookup) -> Index {
        match lookup {
            Lookup::Vocabulary(known) => {
                Index::Vocabulary(known.iter().zip(2..).map(|(hash, row)| (*hash, row)).collect())
            }
            Lookup::Buckets(count) => Index::Buckets(*count),
            Lookup::Rows(_) => Index::Rows,
        }
    }

    /// Returns the row of a hash, from the first row of the feature. Hash 0 means missing.
    #[inline]
    pub fn row(&self, hash: u64) -> i64 {
        match self {
            _ if hash == 0 => 0,
            Index::Vocabulary(known) => known.get(&hash).copied().unwrap_or(1),
            // The high bits of the product are a number below the count.
            Index::Buckets(count) => {
                1 + ((u128::from(mixed(hash)) * u128::from(*count)) >> 64) as i64
            }
            Index::Rows => hash as i64,
        }
    }
}

/// Counts the values of a feature.
pub struct IdsFit {
    part: CategoryPart,
    counts: ByHash<u64>,
    missing: u64,
    /// Whether there were more values than are counted.
    is_full: bool,
}

/// Limit of the counted values of a feature: 2^26 with 16 bytes each, and the table's spare space,
/// are about 2 GiB.
const COUNTED_MAX: usize = 1 << 26;

impl IdsFit {
    pub fn new(part: CategoryPart) -> IdsFit {
        IdsFit { part, counts: ByHash::default(), missing: 0, is_full: false }
    }

    pub fn add(&mut self, hash: u64) {
        if hash == 0 {
            self.missing += 1;
        } else if self.part.rows.is_some() && !self.counts.is_empty() {
            // Rows need no counts: one value shows that not all are missing.
        } else if let Some(count) = self.counts.get_mut(&hash) {
            *count += 1;
        } else if self.part.buckets.is_some() && self.counts.len() >= 2 {
            // Buckets need no counts: two values show that the column is not constant.
        } else if self.counts.len() < COUNTED_MAX {
            self.counts.insert(hash, 1);
        } else {
            self.is_full = true;
        }
    }

    /// Returns whether no row had a value.
    pub fn is_missing(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns whether there were too many values for a vocabulary.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Returns the counts of the known values, in their order.
    pub fn known_counts(&self) -> Vec<u64> {
        let count = |hash: u64| self.counts.get(&hash).copied().unwrap_or(0);
        self.known().into_iter().map(count).collect()
    }

    /// Returns the most frequent values.
    pub fn most_frequent(&self, count: usize) -> Vec<u64> {
        let mut all = self.sorted();
        all.truncate(count);
        all
    }

    fn sorted(&self) -> Vec<u64> {
        let kept = self.counts.iter().filter(|(_, count)| **count >= self.part.min_count);
        let mut all: Vec<(u64, u64)> = kept.map(|(hash, count)| (*hash, *count)).collect();
        all.sort_unstable_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        all.into_iter().map(|(hash, _)| hash).collect()
    }

    /// Returns the values of a vocabulary.
    fn known(&self) -> Vec<u64> {
        let mut known = self.sorted();
        known.truncate(self.part.size_max.map_or(usize::MAX, |size| size as usize));
        known
    }

    pub fn finish(self, name: &str, columns: Vec<String>, dim: i64, is_several: bool) -> Ids {
        let lookup = match (self.part.buckets, self.part.rows) {
            (Some(buckets), _) => Lookup::Buckets(buckets),
            (None, Some(rows)) => Lookup::Rows(rows),
            (None, None) => Lookup::Vocabulary(self.known()),
        };
        Ids {
            name: name.to_string(),
            columns,
            dim: self.part.dim.unwrap_or(dim),
            base: 0,
            lookup,
            values_max: is_several.then_some(self.part.values_max),
            is_sum: self.part.is_sum,
            history_of: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part() -> CategoryPart {
        CategoryPart {
            min_count: 2,
            size_max: None,
            buckets: None,
            rows: None,
            dim: None,
            values_max: 8,
            is_sum: false,
        }
    }

    #[test]
    fn rare_values_are_unknown() {
        let mut fit = IdsFit::new(part());
        [7, 7, 9, 9, 9, 5, 0].into_iter().for_each(|hash| fit.add(hash));
        let ids = fit.finish("x", vec!["x".into()], 16, false);
        assert_eq!(ids.lookup, Lookup::Vocabulary(vec![9, 7]));
        let index = Index::of(&ids.lookup);
        assert_eq!([0, 5, 9, 7, 1234].map(|hash| index.row(hash)), [0, 1, 2, 3, 1]);
        assert_eq!(ids.end(), 4);
    }

    #[test]
    fn integers_are_rows() {
        let mut fit = IdsFit::new(CategoryPart { rows: Some(7), ..part() });
        [1, 7, 0].into_iter().for_each(|hash| fit.add(hash));
        assert!(!fit.is_missing());
        let ids = fit.finish("x", vec!["x".into()], 16, false);
        assert_eq!((&ids.lookup, ids.end()), (&Lookup::Rows(7), 8));
        let index = Index::of(&ids.lookup);
        assert_eq!([0, 1, 7].map(|hash| index.row(hash)), [0, 1, 7]);
    }

    #[test]
    fn buckets_are_even() {
        let index = Index::of(&Lookup::Buckets(10));
        let mut counts = [0; 11];
        (1..=10_000).for_each(|hash| counts[index.row(hash) as usize] += 1);
        assert!(
            counts[0] == 0 && counts[1..].iter().all(|count| (880..1120).contains(count)),
            "{counts:?}"
        );
    }
}
