//! The key of the hash functions over ids.
//!
//! Ids come from data, so an attacker may choose them. Under a hash without a key, 200,000 chosen
//! ids can share one home slot, and every search walks over all of them. The key makes home slots
//! unpredictable. No result depends on it: rows are merged in the order of first sight, and a
//! snapshot visits the ids of a segment in ascending order.

use std::hash::{BuildHasher, RandomState};

/// A secret of this process that determines the slots of ids in its hash tables.
///
/// It has no influence on which server and which shard hold an id.
#[derive(Clone, Copy)]
pub struct HashKey {
    mask: u64,
    /// Always odd.
    multiplier: u64,
}

impl HashKey {
    /// Returns a random key from the system.
    pub fn random() -> HashKey {
        // `RandomState` takes its keys from the system, for the same purpose.
        HashKey::new(RandomState::new().hash_one(0u64), RandomState::new().hash_one(1u64))
    }

    /// Returns the key made of two numbers, for tests that need the same slots in every run.
    pub const fn new(mask: u64, multiplier: u64) -> HashKey {
        HashKey { mask, multiplier: multiplier | 1 }
    }

    /// Spreads an id over 64 bits: both halves of a 128-bit product, folded.
    #[inline(always)]
    pub(crate) fn hash(self, id: u64) -> u64 {
        let product = u128::from(id ^ self.mask) * u128::from(self.multiplier);
        product as u64 ^ (product >> 64) as u64
    }
}

impl std::fmt::Debug for HashKey {
    /// Keys stay out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HashKey")
    }
}
