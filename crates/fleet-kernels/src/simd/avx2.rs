//! AVX2 and FMA: 8 lanes.

use super::portable::{fold, scale2_in_steps};
use super::registers::{Simd, intrinsics};
use std::arch::x86_64::*;

/// 8 lanes; needs AVX2 and FMA.
#[derive(Clone, Copy)]
pub struct Avx2(());

impl Avx2 {
    /// # Safety
    /// The machine has AVX2 and FMA, and the caller is compiled for them. Without the latter,
    /// kernels are correct but slow.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Avx2(())
    }
}

/// Lane masks for parts of a register. The mask for the first `n` lanes starts at `8 - n`.
static PART_MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[target_feature(enable = "avx2")]
#[inline]
fn mask8(n: usize) -> __m256i {
    // SAFETY: 8 - n + 8 <= 16.
    unsafe { _mm256_loadu_si256(PART_MASKS.as_ptr().add(8 - n.min(8)).cast()) }
}

impl Simd for Avx2 {
    const LANES: usize = 8;
    type F = __m256;
    type I = __m256i;
    type M = __m256;

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m256 {
        // SAFETY: the contract of the method.
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: __m256) {
        // SAFETY: the contract of the method.
        unsafe { _mm256_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> __m256 {
        // SAFETY: masked-off lanes are not accessed.
        unsafe { _mm256_maskload_ps(p, mask8(n)) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, x: __m256, n: usize) {
        // SAFETY: masked-off lanes are not accessed.
        unsafe { _mm256_maskstore_ps(p, mask8(n), x) }
    }
    #[inline(always)]
    fn shl_i<const BITS: u32>(self, a: __m256i) -> __m256i {
        // SAFETY: the creator of the token guaranteed the features.
        unsafe { _mm256_sll_epi32(a, _mm_cvtsi32_si128(BITS as i32)) }
    }
    #[inline(always)]
    fn shr_u<const BITS: u32>(self, a: __m256i) -> __m256i {
        // SAFETY: the creator of the token guaranteed the features.
        unsafe { _mm256_srl_epi32(a, _mm_cvtsi32_si128(BITS as i32)) }
    }
    #[inline(always)]
    fn scale2(self, a: __m256, n: __m256) -> __m256 {
        scale2_in_steps(self, a, n)
    }
    intrinsics! {
        fn first(n: usize) -> __m256 = _mm256_castsi256_ps(mask8(n));
        fn splat(x: f32) -> __m256 = _mm256_set1_ps(x);
        fn splat_i(x: i32) -> __m256i = _mm256_set1_epi32(x);
        fn add(a: __m256, b: __m256) -> __m256 = _mm256_add_ps(a, b);
        fn sub(a: __m256, b: __m256) -> __m256 = _mm256_sub_ps(a, b);
        fn mul(a: __m256, b: __m256) -> __m256 = _mm256_mul_ps(a, b);
        fn div(a: __m256, b: __m256) -> __m256 = _mm256_div_ps(a, b);
        fn fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fmadd_ps(a, b, c);
        fn neg_fma(a: __m256, b: __m256, c: __m256) -> __m256 = _mm256_fnmadd_ps(a, b, c);
        fn min(a: __m256, b: __m256) -> __m256 = _mm256_min_ps(a, b);
        fn max(a: __m256, b: __m256) -> __m256 = _mm256_max_ps(a, b);
        fn sqrt(a: __m256) -> __m256 = _mm256_sqrt_ps(a);
        fn round(a: __m256) -> __m256 = _mm256_round_ps::<0x08>(a);
        fn floor(a: __m256) -> __m256 = _mm256_round_ps::<0x09>(a);
        fn ceil(a: __m256) -> __m256 = _mm256_round_ps::<0x0a>(a);
        fn lt(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(a, b);
        fn le(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_LE_OQ>(a, b);
        fn eq(a: __m256, b: __m256) -> __m256 = _mm256_cmp_ps::<_CMP_EQ_OQ>(a, b);
        fn and_m(a: __m256, b: __m256) -> __m256 = _mm256_and_ps(a, b);
        fn or_m(a: __m256, b: __m256) -> __m256 = _mm256_or_ps(a, b);
        fn not_m(a: __m256) -> __m256
            = _mm256_xor_ps(a, _mm256_castsi256_ps(_mm256_set1_epi32(-1)));
        fn bits(m: __m256) -> u32 = _mm256_movemask_ps(m) as u32;
        fn select(m: __m256, a: __m256, b: __m256) -> __m256 = _mm256_blendv_ps(b, a, m);
        fn select_i(m: __m256, a: __m256i, b: __m256i) -> __m256i
            = _mm256_blendv_epi8(b, a, _mm256_castps_si256(m));
        fn add_i(a: __m256i, b: __m256i) -> __m256i = _mm256_add_epi32(a, b);
        fn sub_i(a: __m256i, b: __m256i) -> __m256i = _mm256_sub_epi32(a, b);
        fn and_i(a: __m256i, b: __m256i) -> __m256i = _mm256_and_si256(a, b);
        fn or_i(a: __m256i, b: __m256i) -> __m256i = _mm256_or_si256(a, b);
        fn xor_i(a: __m256i, b: __m256i) -> __m256i = _mm256_xor_si256(a, b);
        fn eq_i(a: __m256i, b: __m256i) -> __m256 = _mm256_castsi256_ps(_mm256_cmpeq_epi32(a, b));
        fn gt_i(a: __m256i, b: __m256i) -> __m256 = _mm256_castsi256_ps(_mm256_cmpgt_epi32(a, b));
        fn bits_of(a: __m256) -> __m256i = _mm256_castps_si256(a);
        fn of_bits(a: __m256i) -> __m256 = _mm256_castsi256_ps(a);
        fn to_f(a: __m256i) -> __m256 = _mm256_cvtepi32_ps(a);
        fn to_i(a: __m256) -> __m256i = _mm256_cvtps_epi32(a);
        fn sum(a: __m256) -> f32 = fold(std::mem::transmute::<__m256, [f32; 8]>(a), |a, b| a + b);
        fn max_lane(a: __m256) -> f32
            = fold(std::mem::transmute::<__m256, [f32; 8]>(a), |a, b| if a > b { a } else { b });
        fn min_lane(a: __m256) -> f32
            = fold(std::mem::transmute::<__m256, [f32; 8]>(a), |a, b| if a < b { a } else { b });
    }
}
