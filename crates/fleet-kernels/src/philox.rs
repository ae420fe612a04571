//! Philox words in groups of sixteen blocks: the numbers of [`fleet_base::rng::Philox`], computed
//! in registers where the machine supports it.
//!
//! For dropout and random fills inside kernels. For a single number, use the generator itself.

use crate::simd::Simd;

/// Number of words that [`words`] computes: sixteen blocks of four.
pub const WORDS: usize = 64;

const BLOCKS: usize = WORDS / 4;
const MULTIPLIER: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Returns the words of blocks `counter..counter + 16`, in order of position.
#[inline(always)]
pub fn words<S: Simd>(_: S, seed: u64, stream: u64, counter: u64) -> [u32; WORDS] {
    #[cfg(target_arch = "x86_64")]
    // The AVX-512 form does not carry into the upper half of the counter.
    if S::LANES == 16 && (counter as u32) <= u32::MAX - BLOCKS as u32 {
        // SAFETY: only AVX-512 has 16 lanes, and its token proves the features.
        return unsafe { words_avx512(seed, stream, counter) };
    }
    words_plain(seed, stream, counter)
}

/// Computes the words with plain arrays.
#[inline(always)]
fn words_plain(seed: u64, stream: u64, counter: u64) -> [u32; WORDS] {
    let mut x = [[0u32; BLOCKS]; 4];
    for lane in 0..BLOCKS {
        let counter = counter.wrapping_add(lane as u64);
        x[0][lane] = counter as u32;
        x[1][lane] = (counter >> 32) as u32;
        x[2][lane] = stream as u32;
        x[3][lane] = (stream >> 32) as u32;
    }
    let mut key = [seed as u32, (seed >> 32) as u32];
    for _ in 0..ROUNDS {
        for lane in 0..BLOCKS {
            let low = u64::from(x[0][lane]) * MULTIPLIER[0];
            let high = u64::from(x[2][lane]) * MULTIPLIER[1];
            x[0][lane] = (high >> 32) as u32 ^ x[1][lane] ^ key[0];
            x[2][lane] = (low >> 32) as u32 ^ x[3][lane] ^ key[1];
            x[1][lane] = high as u32;
            x[3][lane] = low as u32;
        }
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    std::array::from_fn(|word| x[word % 4][word / 4])
}

/// # Safety
/// The machine has AVX-512 F, the caller is compiled for it, and the lower half of the counter does
/// not overflow.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn words_avx512(seed: u64, stream: u64, counter: u64) -> [u32; WORDS] {
    use std::arch::x86_64::*;
    // SAFETY: the features are promised by the caller.
    unsafe {
        // Computes the low and high halves of the products of all lanes.
        let multiply = |x: __m512i, factor: u64| {
            let factor = _mm512_set1_epi64(factor as i64);
            let even = _mm512_mul_epu32(x, factor);
            let odd = _mm512_mul_epu32(_mm512_srli_epi64::<32>(x), factor);
            let low = _mm512_mask_blend_epi32(0xaaaa, even, _mm512_slli_epi64::<32>(odd));
            let high = _mm512_mask_blend_epi32(0xaaaa, _mm512_srli_epi64::<32>(even), odd);
            (low, high)
        };
        // Lane 4q + k holds block 4k + q, so that the transposition below moves no data between
        // 128-bit quarters.
        let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        let mut x0 = _mm512_add_epi32(_mm512_set1_epi32(counter as i32), order);
        let mut x1 = _mm512_set1_epi32((counter >> 32) as i32);
        let mut x2 = _mm512_set1_epi32(stream as i32);
        let mut x3 = _mm512_set1_epi32((stream >> 32) as i32);
        let mut key = [seed as u32, (seed >> 32) as u32];
        for _ in 0..ROUNDS {
            let (low_0, low_1) = multiply(x0, MULTIPLIER[0]);
            let (high_0, high_1) = multiply(x2, MULTIPLIER[1]);
            let of_key = [_mm512_set1_epi32(key[0] as i32), _mm512_set1_epi32(key[1] as i32)];
            x0 = _mm512_ternarylogic_epi32::<0x96>(high_1, x1, of_key[0]);
            x2 = _mm512_ternarylogic_epi32::<0x96>(low_1, x3, of_key[1]);
            x1 = high_0;
            x3 = low_0;
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let pairs = [
            _mm512_unpacklo_epi32(x0, x1),
            _mm512_unpackhi_epi32(x0, x1),
            _mm512_unpacklo_epi32(x2, x3),
            _mm512_unpackhi_epi32(x2, x3),
        ];
        let blocks = [
            _mm512_unpacklo_epi64(pairs[0], pairs[2]),
            _mm512_unpackhi_epi64(pairs[0], pairs[2]),
            _mm512_unpacklo_epi64(pairs[1], pairs[3]),
            _mm512_unpackhi_epi64(pairs[1], pairs[3]),
        ];
        let mut out = [0u32; WORDS];
        for (part, block) in blocks.into_iter().enumerate() {
            _mm512_storeu_si512(out.as_mut_ptr().add(part * 16).cast(), block);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Philox;

    crate::kernel! {
        fn words_at<S>(s: S, seed: u64, stream: u64, counter: u64) -> [u32; WORDS] {
            words(s, seed, stream, counter)
        }
    }

    #[test]
    fn words_are_those_of_the_generator() {
        crate::simd::for_every_isa(|_| {
            for (seed, stream, counter) in [
                (0, 0, 0),
                (0x1234_5678_9abc_def0, 0xfeed_0000_0001, 77),
                (1, 2, u64::from(u32::MAX) - 7),
                (u64::MAX, u64::MAX, 1 << 40),
            ] {
                let rng = Philox::new(seed, stream);
                let expected: Vec<u32> = (0..16).flat_map(|i| rng.block(counter + i)).collect();
                assert_eq!(words_at(seed, stream, counter)[..], expected);
            }
        });
    }
}
