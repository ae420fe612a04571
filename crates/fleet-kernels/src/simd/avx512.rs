//! AVX-512 F, BW, DQ and VL: 16 lanes.

use super::registers::{Simd, intrinsics};
use std::arch::x86_64::*;

/// 16 lanes; needs F, BW, DQ and VL.
#[derive(Clone, Copy)]
pub struct Avx512(());

impl Avx512 {
    /// # Safety
    /// The machine has AVX-512 F, BW, DQ and VL, and the caller is compiled for them. Without the
    /// latter, kernels are correct but slow.
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Avx512(())
    }
}

#[inline(always)]
fn mask16(n: usize) -> __mmask16 {
    ((1u32 << n.min(16)) - 1) as __mmask16
}

impl Simd for Avx512 {
    const LANES: usize = 16;
    type F = __m512;
    type I = __m512i;
    type M = __mmask16;

    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> __m512 {
        // SAFETY: the contract of the method.
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: __m512) {
        // SAFETY: the contract of the method.
        unsafe { _mm512_storeu_ps(p, x) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> __m512 {
        // SAFETY: masked-off lanes are not accessed.
        unsafe { _mm512_maskz_loadu_ps(mask16(n), p) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, x: __m512, n: usize) {
        // SAFETY: masked-off lanes are not accessed.
        unsafe { _mm512_mask_storeu_ps(p, mask16(n), x) }
    }
    #[inline(always)]
    fn sqrt_fast(self, a: __m512) -> __m512 {
        // SAFETY: the creator of the token guaranteed the features.
        unsafe {
            // One Newton step improves the 14 bits of 1/sqrt. The step fails for 0 and infinity,
            // which are their own square roots.
            let inverse = _mm512_rsqrt14_ps(a);
            let root = _mm512_mul_ps(a, inverse);
            let half = _mm512_mul_ps(inverse, _mm512_set1_ps(0.5));
            let error = _mm512_fnmadd_ps(root, half, _mm512_set1_ps(0.5));
            let root = _mm512_fmadd_ps(root, error, root);
            let apart = _mm512_fpclass_ps_mask::<{ 0x02 | 0x04 | 0x08 }>(a);
            _mm512_mask_mov_ps(root, apart, a)
        }
    }
    #[inline(always)]
    fn shl_i<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: the creator of the token guaranteed the features.
        unsafe { _mm512_slli_epi32::<BITS>(a) }
    }
    #[inline(always)]
    fn shr_u<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: the creator of the token guaranteed the features.
        unsafe { _mm512_srli_epi32::<BITS>(a) }
    }
    intrinsics! {
        fn first(n: usize) -> __mmask16 = mask16(n);
        fn splat(x: f32) -> __m512 = _mm512_set1_ps(x);
        fn splat_i(x: i32) -> __m512i = _mm512_set1_epi32(x);
        fn add(a: __m512, b: __m512) -> __m512 = _mm512_add_ps(a, b);
        fn sub(a: __m512, b: __m512) -> __m512 = _mm512_sub_ps(a, b);
        fn mul(a: __m512, b: __m512) -> __m512 = _mm512_mul_ps(a, b);
        fn div(a: __m512, b: __m512) -> __m512 = _mm512_div_ps(a, b);
        fn fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fmadd_ps(a, b, c);
        fn neg_fma(a: __m512, b: __m512, c: __m512) -> __m512 = _mm512_fnmadd_ps(a, b, c);
        fn min(a: __m512, b: __m512) -> __m512 = _mm512_min_ps(a, b);
        fn max(a: __m512, b: __m512) -> __m512 = _mm512_max_ps(a, b);
        fn sqrt(a: __m512) -> __m512 = _mm512_sqrt_ps(a);
        fn round(a: __m512) -> __m512 = _mm512_roundscale_ps::<0x08>(a);
        fn floor(a: __m512) -> __m512 = _mm512_roundscale_ps::<0x09>(a);
        fn ceil(a: __m512) -> __m512 = _mm512_roundscale_ps::<0x0a>(a);
        fn scale2(a: __m512, n: __m512) -> __m512 = _mm512_scalef_ps(a, n);
        fn lt(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b);
        fn le(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LE_OQ>(a, b);
        fn eq(a: __m512, b: __m512) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(a, b);
        fn and_m(a: __mmask16, b: __mmask16) -> __mmask16 = a & b;
        fn or_m(a: __mmask16, b: __mmask16) -> __mmask16 = a | b;
        fn not_m(a: __mmask16) -> __mmask16 = !a;
        fn bits(m: __mmask16) -> u32 = u32::from(m);
        fn select(m: __mmask16, a: __m512, b: __m512) -> __m512 = _mm512_mask_blend_ps(m, b, a);
        fn select_i(m: __mmask16, a: __m512i, b: __m512i) -> __m512i
            = _mm512_mask_blend_epi32(m, b, a);
        fn add_i(a: __m512i, b: __m512i) -> __m512i = _mm512_add_epi32(a, b);
        fn sub_i(a: __m512i, b: __m512i) -> __m512i = _mm512_sub_epi32(a, b);
        fn and_i(a: __m512i, b: __m512i) -> __m512i = _mm512_and_si512(a, b);
        fn or_i(a: __m512i, b: __m512i) -> __m512i = _mm512_or_si512(a, b);
        fn xor_i(a: __m512i, b: __m512i) -> __m512i = _mm512_xor_si512(a, b);
        fn eq_i(a: __m512i, b: __m512i) -> __mmask16 = _mm512_cmpeq_epi32_mask(a, b);
        fn gt_i(a: __m512i, b: __m512i) -> __mmask16 = _mm512_cmpgt_epi32_mask(a, b);
        fn bits_of(a: __m512) -> __m512i = _mm512_castps_si512(a);
        fn of_bits(a: __m512i) -> __m512 = _mm512_castsi512_ps(a);
        fn to_f(a: __m512i) -> __m512 = _mm512_cvtepi32_ps(a);
        fn to_i(a: __m512) -> __m512i = _mm512_cvtps_epi32(a);
        fn sum(a: __m512) -> f32 = _mm512_reduce_add_ps(a);
        fn max_lane(a: __m512) -> f32 = _mm512_reduce_max_ps(a);
        fn min_lane(a: __m512) -> f32 = _mm512_reduce_min_ps(a);
    }
}
