//! Counter-based random numbers (Philox4x32-10, Salmon et al., SC'11).
//!
//! A number depends on (key, stream, counter) only. A tensor therefore holds the same values
//! whether one thread or eight fill it, on any rank, in the interpreter or the executor. `key` is
//! the seed, `stream` the op or the row, `counter` the position of a block of four 32-bit words.
//!
//! ```
//! use fleet_base::rng::Philox;
//! let rng = Philox::new(42, 7);
//! let mut words = Vec::new();
//! for block in 0..4 {
//!     words.extend(rng.block(block));
//! }
//! assert_eq!(rng.word(9), words[9]);
//! assert_ne!(rng.block(0), Philox::new(42, 8).block(0));
//! ```

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// A generator: a seed and a stream, without mutable state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Philox {
    key: [u32; 2],
    stream: [u32; 2],
}

impl Philox {
    /// Returns the generator of a seed and a stream. Two streams of a seed are independent.
    pub fn new(seed: u64, stream: u64) -> Self {
        Philox {
            key: [seed as u32, (seed >> 32) as u32],
            stream: [stream as u32, (stream >> 32) as u32],
        }
    }

    /// The four words at block `counter`.
    #[inline]
    pub fn block(&self, counter: u64) -> [u32; 4] {
        let mut state = [counter as u32, (counter >> 32) as u32, self.stream[0], self.stream[1]];
        let mut key = self.key;
        for _ in 0..ROUNDS {
            let low = u64::from(state[0]) * u64::from(MULTIPLIER[0]);
            let high = u64::from(state[2]) * u64::from(MULTIPLIER[1]);
            state = [
                (high >> 32) as u32 ^ state[1] ^ key[0],
                high as u32,
                (low >> 32) as u32 ^ state[3] ^ key[1],
                low as u32,
            ];
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        state
    }

    /// The 32-bit word at `position`.
    #[inline]
    pub fn word(&self, position: u64) -> u32 {
        self.block(position / 4)[(position % 4) as usize]
    }

    /// A number in [0, 1) with 24 random bits.
    #[inline]
    pub fn unit(&self, position: u64) -> f32 {
        unit_f32(self.word(position))
    }

    /// The 64-bit word at `position` (positions count 64-bit words).
    #[inline]
    pub fn word64(&self, position: u64) -> u64 {
        let block = self.block(position / 2);
        let half = (position % 2) as usize * 2;
        u64::from(block[half]) | u64::from(block[half + 1]) << 32
    }

    /// A standard normal number (Box-Muller over two words; positions are independent).
    #[inline]
    pub fn normal(&self, position: u64) -> f32 {
        let block = self.block(position / 2);
        let half = (position % 2) as usize * 2;
        normal_f32(block[half], block[half + 1])
    }
}

/// Maps a word to [0, 1) in steps of 2^-24.
#[inline]
pub fn unit_f32(word: u32) -> f32 {
    (word >> 8) as f32 * (1.0 / (1u32 << 24) as f32)
}

/// Maps two words to a standard normal number.
#[inline]
pub fn normal_f32(first: u32, second: u32) -> f32 {
    // 1 - u lies in (0, 1], so the logarithm is finite.
    let radius = (-2.0 * (1.0 - f64::from(unit_f32(first))).ln()).sqrt();
    (radius * (std::f64::consts::TAU * f64::from(unit_f32(second))).cos()) as f32
}

/// A sequential generator for tests, shuffles and data generators, over the same function.
#[derive(Clone, Debug)]
pub struct Sequence {
    rng: Philox,
    position: u64,
}

impl Sequence {
    /// Returns the sequence of a seed and a stream, at position 0.
    pub fn new(seed: u64, stream: u64) -> Self {
        Sequence { rng: Philox::new(seed, stream), position: 0 }
    }

    /// Returns the next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.position += 1;
        self.rng.word64(self.position - 1)
    }

    /// A number in [0, 1) with 53 random bits.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// An integer in [0, bound); `bound` must not be 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a standard normal number (mean 0, variance 1).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Current position in the sequence; [`Sequence::seek`] returns to it.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Moves to a position that [`Sequence::position`] returned.
    pub fn seek(&mut self, position: u64) {
        self.position = position;
    }

    /// Puts the items into a random order; each order has the same probability.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the algorithm (Random123, philox4x32-10).
    #[test]
    fn philox_matches_published_vectors() {
        let zero = Philox { key: [0, 0], stream: [0, 0] };
        assert_eq!(zero.block(0), [0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8]);
        let ones = Philox { key: [u32::MAX; 2], stream: [u32::MAX; 2] };
        assert_eq!(ones.block(u64::MAX), [0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd]);
    }

    #[test]
    fn normal_has_unit_variance() {
        let rng = Philox::new(1, 2);
        let values: Vec<f64> = (0..200_000).map(|i| f64::from(rng.normal(i))).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let var = values.iter().map(|v| v * v).sum::<f64>() / values.len() as f64;
        assert!(mean.abs() < 0.01 && (var - 1.0).abs() < 0.02, "mean {mean}, variance {var}");
    }
}
