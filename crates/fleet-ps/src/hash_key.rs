//! The key of the hashes over ids.
//!
//! Ids come from data, so an attacker may choose them. Under a hash that anybody can compute,
//! 200,000 chosen ids share one home, and every search walks over all of them. The key makes homes
//! unpredictable. No result depends on it: rows are merged in the order of first sight, and a
//! snapshot visits the ids of a segment in ascending order.

use std::hash::{BuildHasher, RandomState};

/// A secret of this process that decides where in its hash tables an id stands.
///
/// Which server and which shard hold an id does not depend on it.
#[derive(Clone, Copy)]
pub struct HashKey {
    mask: u64,
    /// Odd.
    multiplier: u64,
}

impl HashKey {
    /// A random key from the system.
    pub fn random() -> HashKey {
        // The standard library's hash tables have the same need; its keys come from the system.
        HashKey::new(RandomState::new().hash_one(0u64), RandomState::new().hash_one(1u64))
    }

    /// The key made of two numbers, for tests that need the same places again.
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
