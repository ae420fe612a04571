//! A block of bf16 products by the dot products of AVX-512, which add pairs of terms to sums of
//! f32.
//!
//! Sketch: 12 rows x 32 columns of sums take 24 registers. A pair of terms takes two loads of B, 12
//! broadcasts of A and 24 products, one product a cycle. The broadcasts are memory operands of the
//! products.

use super::bf16::{BLOCK, Block, TERMS, TILE, TILE_LEN};
use std::arch::x86_64::*;

/// Number of rows of sums in registers at once.
const ROWS: usize = 12;

/// Whether this machine has the unit.
pub(crate) fn is_available() -> bool {
    is_x86_feature_detected!("avx512bf16") && is_x86_feature_detected!("avx512bw")
}

/// Sums one 32 x 32 block.
///
/// # Safety
/// [`is_available`] holds, and all addresses in `block` are valid as described at its fields.
#[target_feature(enable = "avx512f,avx512bf16")]
pub(crate) unsafe fn run(block: &Block) {
    // SAFETY: promised by the caller; three calls cover the rows of the block.
    unsafe {
        rows::<ROWS>(block, 0);
        rows::<ROWS>(block, ROWS);
        rows::<{ BLOCK - 2 * ROWS }>(block, 2 * ROWS);
    }
}

/// Computes `COUNT` rows of the block, from row `first` on.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn rows<const COUNT: usize>(block: &Block, first: usize) {
    // Address of each row's terms. The pairs of a row are consecutive in a line of its tile.
    let a: [*const i32; COUNT] = std::array::from_fn(|r| {
        let row = first + r;
        block.a[row / TILE].wrapping_add(row % TILE * TERMS).cast()
    });
    let sums = block.sums.wrapping_add(first * BLOCK);
    // SAFETY: promised by the caller.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); 2]; COUNT];
        if block.add {
            for (r, acc) in acc.iter_mut().enumerate() {
                acc[0] = _mm512_loadu_ps(sums.add(r * BLOCK));
                acc[1] = _mm512_loadu_ps(sums.add(r * BLOCK + TILE));
            }
        }
        for step in 0..block.steps {
            for pair in 0..TERMS / 2 {
                let line = step * TILE_LEN + pair * TERMS;
                let b = block.b.map(|b| to_bf16(_mm512_loadu_si512(b.add(line).cast())));
                for (acc, a) in acc.iter_mut().zip(a) {
                    let terms = a.add(step * TILE_LEN / 2 + pair);
                    let terms = to_bf16(_mm512_set1_epi32(terms.read_unaligned()));
                    acc[0] = _mm512_dpbf16_ps(acc[0], terms, b[0]);
                    acc[1] = _mm512_dpbf16_ps(acc[1], terms, b[1]);
                }
            }
        }
        for (r, acc) in acc.into_iter().enumerate() {
            _mm512_storeu_ps(sums.add(r * BLOCK), acc[0]);
            _mm512_storeu_ps(sums.add(r * BLOCK + TILE), acc[1]);
        }
    }
}

/// Converts the bits to the type that the products take.
#[inline]
#[target_feature(enable = "avx512f,avx512bf16")]
fn to_bf16(bits: __m512i) -> __m512bh {
    // SAFETY: both are 64 bytes without invalid values.
    unsafe { std::mem::transmute(bits) }
}
