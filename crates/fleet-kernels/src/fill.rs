//! Fills tensors with a constant or with random numbers.
//!
//! Element i of a random fill is a function of only (seed, stream, offset + i), with the generator
//! of [`fleet_base::rng`]. The values therefore do not depend on the number of threads, or on how a
//! tensor is split over ranks. Uniform numbers equal those of `Philox::unit` bit for bit, before
//! scaling. Normal numbers equal those of `Philox::normal` up to rounding. Integers come from
//! `Philox::word64`.
//!
//! ```
//! use fleet_kernels::{fill::{Draw, uniform}, pool::Pool};
//! let draw = Draw { seed: 1, stream: 2, offset: 0 };
//! let (mut whole, mut tail) = ([0.0; 100], [0.0; 63]);
//! uniform(&Pool::new(2), draw, -1.0, 1.0, &mut whole);
//! uniform(&Pool::new(1), Draw { offset: 37, ..draw }, -1.0, 1.0, &mut tail);
//! assert_eq!(whole[37..], tail);
//! ```

use std::ops::Range;

use fleet_base::rng::Philox;

use crate::elementwise::GRAIN;
use crate::kernel;
use crate::philox::{WORDS, words};
use crate::pool::Pool;
use crate::simd::{SharedPtr, Simd};
use crate::vmath;

/// The start of a fill in the sequence of random numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Draw {
    /// Seed of the program or of the fill.
    pub seed: u64,
    /// Stream of the fill. Two streams of a seed are independent.
    pub stream: u64,
    /// Position of the first element.
    pub offset: u64,
}

/// Sets every element to `value`.
pub fn constant<T: Copy + Send + Sync>(pool: &Pool, value: T, out: &mut [T]) {
    pool.run_parts(out, 4 * GRAIN, |_, part| part.fill(value));
}

/// A function that maps a group of random words to elements.
trait WordMap: Copy + Send + Sync {
    type Out: Copy + Default + Send + Sync;
    /// Number of words per element.
    const WORDS_EACH: usize;
    /// Fills the first `WORDS / WORDS_EACH` elements.
    fn map<S: Simd>(self, s: S, words: &[u32; WORDS], out: &mut [Self::Out; WORDS]);
}

/// Returns the upper 24 bits of each word, converted to floats.
#[inline(always)]
unsafe fn upper_bits<S: Simd>(s: S, words: *const u32) -> S::F {
    // SAFETY: the caller guarantees a readable register of words. Loads accept any bit pattern.
    unsafe { s.to_f(s.shr_u::<8>(s.bits_of(s.load(words.cast())))) }
}

const UNIT: f32 = 1.0 / (1u32 << 24) as f32;

#[derive(Clone, Copy)]
struct Uniform {
    low: f32,
    range: f32,
}

impl WordMap for Uniform {
    type Out = f32;
    const WORDS_EACH: usize = 1;
    #[inline(always)]
    fn map<S: Simd>(self, s: S, words: &[u32; WORDS], out: &mut [f32; WORDS]) {
        for i in (0..WORDS).step_by(S::LANES) {
            // SAFETY: the array lengths are multiples of the register length.
            unsafe {
                let unit = s.mul(upper_bits(s, words.as_ptr().add(i)), s.splat(UNIT));
                let value = s.fma(unit, s.splat(self.range), s.splat(self.low));
                s.store(out.as_mut_ptr().add(i), value);
            }
        }
    }
}

#[derive(Clone, Copy)]
struct TruncatedNormal {
    mean: f32,
    std: f32,
}

impl WordMap for TruncatedNormal {
    type Out = f32;
    const WORDS_EACH: usize = 1;
    #[inline(always)]
    fn map<S: Simd>(self, s: S, words: &[u32; WORDS], out: &mut [f32; WORDS]) {
        /// The probability that a normal number is within two standard deviations of the mean.
        const WITHIN: f32 = 0.954_499_7;
        for i in (0..WORDS).step_by(S::LANES) {
            // SAFETY: the array lengths are multiples of the register length.
            unsafe {
                // Use the middle of each word's interval, so that the distribution is symmetric.
                let middle =
                    s.add(upper_bits(s, words.as_ptr().add(i)), s.splat(0.5 - 8_388_608.0));
                let t = s.mul(middle, s.splat(WITHIN / 8_388_608.0));
                let z = vmath::normal_quantile(s, t);
                let z = s.min(s.splat(2.0), s.max(s.splat(-2.0), z));
                s.store(out.as_mut_ptr().add(i), s.fma(z, s.splat(self.std), s.splat(self.mean)));
            }
        }
    }
}

#[derive(Clone, Copy)]
struct Normal {
    mean: f32,
    std: f32,
}

impl WordMap for Normal {
    type Out = f32;
    const WORDS_EACH: usize = 2;
    #[inline(always)]
    fn map<S: Simd>(self, s: S, words: &[u32; WORDS], out: &mut [f32; WORDS]) {
        let mut firsts = [0u32; WORDS / 2];
        let mut seconds = [0u32; WORDS / 2];
        for k in 0..WORDS / 2 {
            firsts[k] = words[2 * k];
            seconds[k] = words[2 * k + 1];
        }
        for i in (0..WORDS / 2).step_by(S::LANES) {
            // SAFETY: the array lengths are multiples of the register length.
            unsafe {
                // Box-Muller: 1 - u lies in (0, 1], so that the logarithm is finite.
                let u = s.mul(upper_bits(s, firsts.as_ptr().add(i)), s.splat(UNIT));
                let log = vmath::log(s, s.sub(s.splat(1.0), u));
                let radius = s.sqrt(s.mul(log, s.splat(-2.0)));
                // The angle in quarter turns is exact, and so is its distance from the nearest
                // integer.
                let quarters = s.mul(upper_bits(s, seconds.as_ptr().add(i)), s.splat(4.0 * UNIT));
                let n = s.round(quarters);
                let r = s.mul(s.sub(quarters, n), s.splat(std::f32::consts::FRAC_PI_2));
                let turn = s.add_i(s.to_i(n), s.splat_i(1));
                let z = s.mul(radius, vmath::sin_quarter(s, r, turn));
                s.store(out.as_mut_ptr().add(i), s.fma(z, s.splat(self.std), s.splat(self.mean)));
            }
        }
    }
}

/// Returns the number of 24-bit values below `probability`: `unit < probability` exactly if the
/// upper bits are below the returned limit.
pub(crate) fn limit_of(probability: f32) -> u32 {
    (f64::from(probability) * f64::from(1u32 << 24)).ceil() as u32
}

kernel! {
    unsafe fn fill_range<S, M: WordMap>(
        s: S, map: M, draw: Draw, range: Range<usize>, out: SharedPtr<M::Out>,
    ) {
        let per_group = (WORDS / M::WORDS_EACH) as u64;
        let mut i = range.start;
        while i < range.end {
            let position = draw.offset.wrapping_add(i as u64);
            let (group, skip) = (position / per_group, (position % per_group) as usize);
            let counter = group.wrapping_mul(WORDS as u64 / 4);
            let group_words = words(s, draw.seed, draw.stream, counter);
            let mut values = [M::Out::default(); WORDS];
            map.map(s, &group_words, &mut values);
            let n = (per_group as usize - skip).min(range.end - i);
            std::ptr::copy_nonoverlapping(values.as_ptr().add(skip), out.at(i), n);
            i += n;
        }
    }
}

fn fill_with<M: WordMap>(pool: &Pool, map: M, draw: Draw, out: &mut [M::Out]) {
    let target = SharedPtr::new_mut(out.as_mut_ptr());
    pool.run_ranges(out.len(), GRAIN, |range| {
        // SAFETY: ranges are disjoint and inside `out`.
        unsafe { fill_range(map, draw, range, target) };
    });
}

/// Fills `out` with uniform numbers in [`low`, `high`). Rounding may also give `high`.
pub fn uniform(pool: &Pool, draw: Draw, low: f32, high: f32, out: &mut [f32]) {
    fill_with(pool, Uniform { low, range: high - low }, draw, out);
}

/// Fills `out` with normal numbers.
pub fn normal(pool: &Pool, draw: Draw, mean: f32, std: f32, out: &mut [f32]) {
    fill_with(pool, Normal { mean, std }, draw, out);
}

/// Fills `out` with normal numbers within two standard deviations of the mean. It inverts the
/// distribution function, so that every element takes one random word.
pub fn truncated_normal(pool: &Pool, draw: Draw, mean: f32, std: f32, out: &mut [f32]) {
    fill_with(pool, TruncatedNormal { mean, std }, draw, out);
}

/// Fills `out` with integers in [`low`, `high`), or with `low` if that range is empty.
pub fn randint(pool: &Pool, draw: Draw, low: i64, high: i64, out: &mut [i64]) {
    let bound = if high > low { high.wrapping_sub(low) as u64 } else { 1 };
    let rng = Philox::new(draw.seed, draw.stream);
    pool.run_parts(out, GRAIN / 4, |start, part| {
        for (i, out) in part.iter_mut().enumerate() {
            let word = rng.word64(draw.offset.wrapping_add((start + i) as u64));
            let value = ((u128::from(word) * u128::from(bound)) >> 64) as i64;
            *out = low.wrapping_add(value);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::for_every_isa;
    use crate::vmath::tests::erf_f64;

    const DRAW: Draw = Draw { seed: 77, stream: 0xabcd_0000_0001, offset: 0 };

    #[test]
    fn values_are_those_of_the_generator() {
        for_every_isa(|_| {
            let pool = Pool::new(1);
            let rng = Philox::new(DRAW.seed, DRAW.stream);
            for offset in [0u64, 1, 63, 64, 1000, (1 << 34) - 5] {
                let draw = Draw { offset, ..DRAW };
                let at = |i: usize| offset + i as u64;
                let mut out = [0.0; 301];
                uniform(&pool, draw, 0.0, 1.0, &mut out);
                for (i, value) in out.iter().enumerate() {
                    assert_eq!(*value, rng.unit(at(i)));
                }
                normal(&pool, draw, 0.0, 1.0, &mut out);
                for (i, value) in out.iter().enumerate() {
                    let expected = rng.normal(at(i));
                    assert!((value - expected).abs() < 2e-6, "{value} for {expected}");
                }
                let mut integers = [0; 301];
                randint(&pool, draw, -3, 4, &mut integers);
                assert!(integers.iter().all(|v| (-3..4).contains(v)));
            }
        });
    }

    #[test]
    fn distributions_have_their_moments() {
        let pool = Pool::new(2);
        let mut out = vec![0.0f32; 400_000];
        let moments = |out: &[f32]| {
            let n = out.len() as f64;
            let mean = out.iter().map(|v| f64::from(*v)).sum::<f64>() / n;
            let variance = out.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / n;
            (mean, variance.sqrt())
        };
        normal(&pool, DRAW, 1.0, 2.0, &mut out);
        let (mean, std) = moments(&out);
        assert!((mean - 1.0).abs() < 0.02 && (std - 2.0).abs() < 0.02, "{mean} {std}");
        uniform(&pool, DRAW, -1.0, 3.0, &mut out);
        let (mean, std) = moments(&out);
        assert!((mean - 1.0).abs() < 0.01 && (std - 4.0 / 12f64.sqrt()).abs() < 0.01);
        truncated_normal(&pool, DRAW, 1.0, 0.5, &mut out);
        assert!(out.iter().all(|v| (0.0..=2.0).contains(v)));
        let (mean, std) = moments(&out);
        // The standard deviation of a standard normal number truncated at 2 is 0.87963.
        assert!((mean - 1.0).abs() < 0.005 && (std / 0.5 - 0.87963).abs() < 0.005, "{mean} {std}");
        let below = out.iter().filter(|v| **v < 1.5).count() as f64 / out.len() as f64;
        let phi = |z: f64| 0.5 * (1.0 + erf_f64(z / 2f64.sqrt()));
        let expected = (phi(1.0) - phi(-2.0)) / (phi(2.0) - phi(-2.0));
        assert!((below - expected).abs() < 0.005, "{below} for {expected}");
    }

    #[test]
    fn threads_and_cuts_change_nothing() {
        let run = |threads| {
            let mut out = vec![0.0; 100_001];
            normal(&Pool::new(threads), Draw { offset: 5, ..DRAW }, 0.0, 1.0, &mut out);
            out
        };
        let one = run(1);
        assert!(one == run(3));
        let mut tail = vec![0.0; 1000];
        normal(&Pool::new(1), Draw { offset: 5 + 777, ..DRAW }, 0.0, 1.0, &mut tail);
        assert_eq!(one[777..1777], tail);
        let mut same = vec![0u8; 70_000];
        constant(&Pool::new(2), 7, &mut same);
        assert!(same.iter().all(|v| *v == 7));
    }

    #[test]
    fn integers_without_a_range() {
        let mut out = [0; 3];
        randint(&Pool::new(1), DRAW, 5, 5, &mut out);
        assert_eq!(out, [5; 3]);
        randint(&Pool::new(1), DRAW, i64::MIN, i64::MAX, &mut out);
        assert_ne!(out[0], out[1]);
    }
}
