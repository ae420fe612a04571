//! The hash of a category's text. Models and vocabularies on disk hold these hashes, so that they
//! never change.
//!
//! Eight bytes take one multiplication to 128 bits, whose halves are combined. Most categories of
//! tables have at most eight bytes, which the parsers have already loaded as one word.

/// Returns the 64-bit hash of a category's text, the same on every machine and in every version.
/// It is never 0.
///
/// ```
/// use fleet_data::category_hash;
/// assert_ne!(category_hash(b"Paris"), category_hash(b"Rome"));
/// assert_eq!(category_hash(b"7"), 0x9eb7_9721_855f_3ee7);
/// ```
pub fn category_hash(text: &[u8]) -> u64 {
    let mut state = start(text.len());
    let mut rest = text;
    while let Some((word, behind)) = rest.split_first_chunk::<WORD>()
        && !behind.is_empty()
    {
        state = mix(state ^ u64::from_le_bytes(*word));
        rest = behind;
    }
    let mut last = [0; WORD];
    last[..rest.len()].copy_from_slice(rest);
    finish(state, u64::from_le_bytes(last))
}

/// Returns the hash of a text of at most eight bytes, which are the lower bytes of a word. The
/// other bytes of the word are 0.
#[inline(always)]
pub(crate) fn hash_of_word(word: u64, length: usize) -> u64 {
    finish(start(length), word)
}

/// Returns the hash of a text of nine to 16 bytes: the first eight, and a word whose lower bytes
/// are the others. Its other bytes are 0.
#[inline(always)]
pub(crate) fn hash_of_words(first: u64, last: u64, length: usize) -> u64 {
    finish(mix(start(length) ^ first), last)
}

#[inline(always)]
fn start(length: usize) -> u64 {
    SEED ^ (length as u64).wrapping_mul(FACTOR)
}

#[inline(always)]
fn finish(state: u64, last: u64) -> u64 {
    mix(mix(state ^ last) ^ END).max(1)
}

/// Multiplies, and combines both halves of the product.
#[inline(always)]
fn mix(word: u64) -> u64 {
    let product = u128::from(word) * u128::from(FACTOR);
    product as u64 ^ (product >> 64) as u64
}

/// Bytes of a word.
pub(crate) const WORD: usize = 8;
/// The constants of wyhash: odd numbers with as many ones as zeros.
const SEED: u64 = 0xa076_1d64_78bd_642f;
const FACTOR: u64 = 0xe703_7ed1_a0b4_28db;
const END: u64 = 0x8ebc_6af0_9c88_c6e3;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn words_have_the_hash_of_their_text() {
        let text = b"abcdefghijklmnop";
        let word = |bytes: &[u8]| {
            let mut word = [0; WORD];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_le_bytes(word)
        };
        for length in 0..=WORD {
            let hash = hash_of_word(word(&text[..length]), length);
            assert_eq!(hash, category_hash(&text[..length]));
        }
        for length in WORD + 1..=2 * WORD {
            let hash = hash_of_words(word(&text[..WORD]), word(&text[WORD..length]), length);
            assert_eq!(hash, category_hash(&text[..length]));
        }
    }

    /// Numbers, padded numbers and words with a common start: texts that differ in few bits.
    #[test]
    fn similar_texts_do_not_collide() {
        let mut seen = HashSet::new();
        let mut buckets = [[0u32; 256]; 2];
        for number in 0..200_000u64 {
            let texts = [
                number.to_string(),
                format!("{number:016}"),
                format!("{:016x}{:08}", number * 4096, number % 7),
                format!("user_{number}"),
                format!("https://example.org/items/{number}/index.html"),
                format!("{number}\0"),
            ];
            for text in texts {
                let hash = category_hash(text.as_bytes());
                assert!(seen.insert(hash), "{text}");
                buckets[0][(hash & 255) as usize] += 1;
                buckets[1][(hash >> 56) as usize] += 1;
            }
        }
        // 4,688 a bucket, with a deviation of 68.
        let even = |count: &u32| (4300..5100).contains(count);
        assert!(buckets.iter().flatten().all(even), "{buckets:?}");
    }

    /// A changed bit of the text changes half of the bits of the hash.
    #[test]
    fn every_bit_counts() {
        let text = *b"0123456789abcdef0123";
        let (mut changed, mut count) = (0, 0);
        for bit in 0..8 * text.len() {
            let mut other = text;
            other[bit / 8] ^= 1 << (bit % 8);
            let bits = (category_hash(&text) ^ category_hash(&other)).count_ones();
            assert!((12..=52).contains(&bits), "bit {bit} changes {bits}");
            (changed, count) = (changed + bits, count + 1);
        }
        assert!((30..=34).contains(&(changed / count)));
    }
}
