//! One kernel body for AVX-512, AVX2 + FMA and any other machine, chosen at run time.
//!
//! A kernel is written once over a [`Simd`] token and stamped out by [`kernel!`](crate::kernel):
//! the macro compiles the body under `#[target_feature]` for every instruction set and dispatches
//! on [`level`]. Inside the body both styles are fast: the methods of the token (`s.fma(a, b, c)`
//! over `S::F`, a register of `S::LANES` floats), and plain loops over arrays of fixed size, which
//! the compiler vectorises with the features of the wrapper. Not for anything with 64-bit lanes
//! beyond what such plain loops give.
//!
//! ```
//! use fleet_kernels::{kernel, simd::Simd};
//! kernel! {
//!     /// y += a * x.
//!     pub fn axpy<S>(s: S, a: f32, x: &[f32], y: &mut [f32]) {
//!         let len = x.len().min(y.len());
//!         let a = s.splat(a);
//!         let mut i = 0;
//!         // SAFETY: `i + LANES <= len` for whole registers, the part is `len - i` floats long.
//!         unsafe {
//!             while i + S::LANES <= len {
//!                 let sum = s.fma(a, s.load(x.as_ptr().add(i)), s.load(y.as_ptr().add(i)));
//!                 s.store(y.as_mut_ptr().add(i), sum);
//!                 i += S::LANES;
//!             }
//!             let rest = len - i;
//!             let sum = s.fma(
//!                 a,
//!                 s.load_part(x.as_ptr().add(i), rest),
//!                 s.load_part(y.as_ptr().add(i), rest),
//!             );
//!             s.store_part(y.as_mut_ptr().add(i), sum, rest);
//!         }
//!     }
//! }
//! let mut y = [1.0; 19];
//! axpy(2.0, &[3.0; 19], &mut y);
//! assert_eq!(y, [7.0; 19]);
//! ```

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// The instruction sets that kernels are compiled for, poorest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Portable,
    Avx2,
    Avx512,
}

/// What this machine has (detected once by the standard library, then a few loads).
#[inline]
pub fn level() -> Level {
    #[cfg(test)]
    if let Some(forced) = FORCED.get() {
        return forced;
    }
    detect()
}

#[inline]
fn detect() -> Level {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("fma")
        {
            return Level::Avx512;
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return Level::Avx2;
        }
    }
    Level::Portable
}

#[cfg(test)]
thread_local! {
    static FORCED: std::cell::Cell<Option<Level>> = const { std::cell::Cell::new(None) };
}

/// Runs `test` once for every level this machine has; the choice holds on this thread only, so
/// tests use a pool of one thread.
#[cfg(test)]
pub(crate) fn at_every_level(mut test: impl FnMut(Level)) {
    for forced in [Level::Portable, Level::Avx2, Level::Avx512] {
        if forced <= detect() {
            FORCED.set(Some(forced));
            test(forced);
            FORCED.set(None);
        }
    }
}

/// Stamps out a function for every instruction set; see the [module](self) for an example.
///
/// The first parameter is the token, which the callers of the function do not pass. Generic
/// parameters after `S` take one bound each and must be inferable from the arguments. In the
/// `unsafe fn` form the whole body is an unsafe context. Code called from the body must be
/// `#[inline(always)]`, closures included, or it is compiled for the baseline and its instructions
/// become calls.
#[macro_export]
macro_rules! kernel {
    ($(#[$meta:meta])* $vis:vis fn $name:ident<$S:ident $(, $gen:ident: $bound:path)*>(
        $s:ident: $S2:ident $(, $arg:ident: $ty:ty)* $(,)?
    ) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[inline]
        $vis fn $name<$($gen: $bound),*>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body<$S: $crate::simd::Simd $(, $gen: $bound)*>($s: $S $(, $arg: $ty)*) $(-> $ret)? $body
            $crate::kernel_dispatch!(body [$($gen: $bound),*] [$($arg: $ty),*] [$(-> $ret)?])
        }
    };
    ($(#[$meta:meta])* $vis:vis unsafe fn $name:ident<$S:ident $(, $gen:ident: $bound:path)*>(
        $s:ident: $S2:ident $(, $arg:ident: $ty:ty)* $(,)?
    ) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        #[inline]
        $vis unsafe fn $name<$($gen: $bound),*>($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            #[allow(unused_unsafe, unsafe_op_in_unsafe_fn)]
            unsafe fn body<$S: $crate::simd::Simd $(, $gen: $bound)*>($s: $S $(, $arg: $ty)*) $(-> $ret)? $body
            $crate::kernel_dispatch!(body [$($gen: $bound),*] [$($arg: $ty),*] [$(-> $ret)?])
        }
    };
}

/// The second half of [`kernel!`](crate::kernel); not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! kernel_dispatch {
    ($body:ident [$($gen:ident: $bound:path),*] [$($arg:ident: $ty:ty),*] [$($ret:tt)*]) => {{
        #[cfg(target_arch = "x86_64")]
        {
            #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,bmi2")]
            #[allow(unused_unsafe)]
            unsafe fn avx512<$($gen: $bound),*>($($arg: $ty),*) $($ret)* {
                // SAFETY: the features are those of this function.
                unsafe { $body($crate::simd::Avx512::new() $(, $arg)*) }
            }
            #[target_feature(enable = "avx2,fma")]
            #[allow(unused_unsafe)]
            unsafe fn avx2<$($gen: $bound),*>($($arg: $ty),*) $($ret)* {
                // SAFETY: the features are those of this function.
                unsafe { $body($crate::simd::Avx2::new() $(, $arg)*) }
            }
            match $crate::simd::level() {
                // SAFETY: `level` saw the features on this machine.
                $crate::simd::Level::Avx512 => return unsafe { avx512($($arg),*) },
                // SAFETY: as above.
                $crate::simd::Level::Avx2 => return unsafe { avx2($($arg),*) },
                $crate::simd::Level::Portable => {}
            }
        }
        #[allow(unused_unsafe)]
        // SAFETY: the contract of the body is that of the function around.
        unsafe { $body($crate::simd::Portable $(, $arg)*) }
    }};
}

/// Registers of `LANES` f32 (`F`), i32 (`I`) and booleans (`M`), and what is done with them.
///
/// Comparisons with NaN are false. `min(a, b)` is `a < b ? a : b` and `max(a, b)` is
/// `a > b ? a : b`, so that a NaN in `b` survives and one in `a` does not.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Floats in a register.
    const LANES: usize;
    type F: Copy;
    type I: Copy;
    type M: Copy;

    fn splat(self, x: f32) -> Self::F;
    fn splat_i(self, x: i32) -> Self::I;
    /// # Safety
    /// `LANES` floats are readable at `p`.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// # Safety
    /// `LANES` floats are writable at `p`.
    unsafe fn store(self, p: *mut f32, x: Self::F);
    /// The first `n <= LANES` floats at `p`, then zeros.
    ///
    /// # Safety
    /// `n` floats are readable at `p`.
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::F;
    /// Writes the first `n <= LANES` lanes.
    ///
    /// # Safety
    /// `n` floats are writable at `p`.
    unsafe fn store_part(self, p: *mut f32, x: Self::F, n: usize);

    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c, in one rounding where the machine has it.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// c - a * b.
    fn neg_fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    fn sqrt(self, a: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    fn floor(self, a: Self::F) -> Self::F;
    fn ceil(self, a: Self::F) -> Self::F;
    /// a * 2^n for an integral `n` in [-300, 300]; overflows and underflows as it should.
    fn scale2(self, a: Self::F, n: Self::F) -> Self::F;

    /// True in the first `n` lanes.
    fn first(self, n: usize) -> Self::M;
    fn lt(self, a: Self::F, b: Self::F) -> Self::M;
    fn le(self, a: Self::F, b: Self::F) -> Self::M;
    fn eq(self, a: Self::F, b: Self::F) -> Self::M;
    fn and_m(self, a: Self::M, b: Self::M) -> Self::M;
    fn or_m(self, a: Self::M, b: Self::M) -> Self::M;
    fn not_m(self, a: Self::M) -> Self::M;
    /// Lane k in bit k.
    fn bits(self, m: Self::M) -> u32;
    /// Lane by lane `m ? a : b`.
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F;
    fn select_i(self, m: Self::M, a: Self::I, b: Self::I) -> Self::I;

    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn and_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn or_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn xor_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn shl_i<const BITS: u32>(self, a: Self::I) -> Self::I;
    /// Shifts in zeros.
    fn shr_u<const BITS: u32>(self, a: Self::I) -> Self::I;
    fn eq_i(self, a: Self::I, b: Self::I) -> Self::M;
    /// Signed a > b.
    fn gt_i(self, a: Self::I, b: Self::I) -> Self::M;
    /// A square root good to two units in the last place, where the exact one is slow.
    #[inline(always)]
    fn sqrt_fast(self, a: Self::F) -> Self::F {
        self.sqrt(a)
    }
    /// The bits of floats.
    fn bits_of(self, a: Self::F) -> Self::I;
    /// Floats of the bits.
    fn of_bits(self, a: Self::I) -> Self::F;
    /// Nearest float of a signed integer.
    fn to_f(self, a: Self::I) -> Self::F;
    /// Nearest integer of a float inside the range of i32.
    fn to_i(self, a: Self::F) -> Self::I;

    /// The sum of all lanes, halves first.
    fn sum(self, a: Self::F) -> f32;
    /// The largest lane (NaN lanes may or may not count).
    fn max_lane(self, a: Self::F) -> f32;
    /// The smallest lane (NaN lanes may or may not count).
    fn min_lane(self, a: Self::F) -> f32;

    /// `n` lanes of `LANES`: [`Simd::load`] for a whole register, else [`Simd::load_part`].
    ///
    /// # Safety
    /// `n` floats are readable at `p`.
    #[inline(always)]
    unsafe fn load_n(self, p: *const f32, n: usize) -> Self::F {
        // SAFETY: the contract is the same.
        unsafe { if n == Self::LANES { self.load(p) } else { self.load_part(p, n) } }
    }
    /// As [`Simd::load_n`], for writing.
    ///
    /// # Safety
    /// `n` floats are writable at `p`.
    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, x: Self::F, n: usize) {
        // SAFETY: the contract is the same.
        unsafe { if n == Self::LANES { self.store(p, x) } else { self.store_part(p, x, n) } }
    }
    /// `x`, with zero in the lanes from `n` on.
    #[inline(always)]
    fn keep_first(self, x: Self::F, n: usize) -> Self::F {
        if n == Self::LANES { x } else { self.select(self.first(n), x, self.zero()) }
    }
    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }
    #[inline(always)]
    fn gt(self, a: Self::F, b: Self::F) -> Self::M {
        self.lt(b, a)
    }
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> Self::M {
        self.le(b, a)
    }
    #[inline(always)]
    fn any(self, m: Self::M) -> bool {
        self.bits(m) != 0
    }
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        self.of_bits(self.and_i(self.bits_of(a), self.splat_i(i32::MAX)))
    }
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.of_bits(self.xor_i(self.bits_of(a), self.splat_i(i32::MIN)))
    }
    /// The size of `a` with the sign of `b`.
    #[inline(always)]
    fn copysign(self, a: Self::F, b: Self::F) -> Self::F {
        let sign = self.and_i(self.bits_of(b), self.splat_i(i32::MIN));
        self.of_bits(self.or_i(self.bits_of(self.abs(a)), sign))
    }
}

/// `for_registers!(S, len, |i, n| { .. })` runs the body for every register of `0..len`, with the `n`
/// lanes of it that count: all but the last are whole. A macro, because a closure that the compiler
/// does not inline would run without the features of the kernel around it, a hundred times slower.
#[macro_export]
macro_rules! for_registers {
    ($S:ident, $len:expr, |$i:ident, $n:ident| $body:block) => {{
        let len: usize = $len;
        let mut at = 0usize;
        while at + <$S as $crate::simd::Simd>::LANES <= len {
            let ($i, $n) = (at, <$S as $crate::simd::Simd>::LANES);
            $body
            at += <$S as $crate::simd::Simd>::LANES;
        }
        if at < len {
            let ($i, $n) = (at, len - at);
            $body
        }
    }};
}

/// 16 lanes; needs F, BW, DQ and VL.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Avx512(());

#[cfg(target_arch = "x86_64")]
impl Avx512 {
    /// # Safety
    /// The machine has AVX-512 F, BW, DQ and VL, and the caller is compiled for them (otherwise it
    /// is right but slow).
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Avx512(())
    }
}

/// The bodies of trait methods: each is one or a few intrinsics, whose features the token proves.
#[cfg(target_arch = "x86_64")]
macro_rules! intrinsics {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $body:expr;)*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe)] // `transmute` asks for it, most intrinsics do not.
        fn $name(self $(, $arg: $ty)*) -> $ret {
            // SAFETY: whoever made the token promised the features.
            unsafe { $body }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn mask16(n: usize) -> __mmask16 {
    ((1u32 << n.min(16)) - 1) as __mmask16
}

#[cfg(target_arch = "x86_64")]
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
        // SAFETY: masked-off lanes are not touched.
        unsafe { _mm512_maskz_loadu_ps(mask16(n), p) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, x: __m512, n: usize) {
        // SAFETY: masked-off lanes are not touched.
        unsafe { _mm512_mask_storeu_ps(p, mask16(n), x) }
    }
    #[inline(always)]
    fn sqrt_fast(self, a: __m512) -> __m512 {
        // SAFETY: whoever made the token promised the features.
        unsafe {
            // One step of Newton's for the 14 digits of 1/sqrt; 0 and infinity have no such step.
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
        // SAFETY: whoever made the token promised the features.
        unsafe { _mm512_slli_epi32::<BITS>(a) }
    }
    #[inline(always)]
    fn shr_u<const BITS: u32>(self, a: __m512i) -> __m512i {
        // SAFETY: whoever made the token promised the features.
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

/// 8 lanes; needs AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy)]
pub struct Avx2(());

#[cfg(target_arch = "x86_64")]
impl Avx2 {
    /// # Safety
    /// The machine has AVX2 and FMA, and the caller is compiled for them (otherwise it is right but
    /// slow).
    #[inline(always)]
    pub unsafe fn new() -> Self {
        Avx2(())
    }
}

/// Lane masks for parts of a register: start at `8 - n` for the first `n` lanes.
#[cfg(target_arch = "x86_64")]
static PART_MASKS: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
fn mask8(n: usize) -> __m256i {
    // SAFETY: 8 - n + 8 <= 16.
    unsafe { _mm256_loadu_si256(PART_MASKS.as_ptr().add(8 - n.min(8)).cast()) }
}

#[cfg(target_arch = "x86_64")]
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
        // SAFETY: masked-off lanes are not touched.
        unsafe { _mm256_maskload_ps(p, mask8(n)) }
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, x: __m256, n: usize) {
        // SAFETY: masked-off lanes are not touched.
        unsafe { _mm256_maskstore_ps(p, mask8(n), x) }
    }
    #[inline(always)]
    fn shl_i<const BITS: u32>(self, a: __m256i) -> __m256i {
        // SAFETY: whoever made the token promised the features.
        unsafe { _mm256_sll_epi32(a, _mm_cvtsi32_si128(BITS as i32)) }
    }
    #[inline(always)]
    fn shr_u<const BITS: u32>(self, a: __m256i) -> __m256i {
        // SAFETY: whoever made the token promised the features.
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

/// Any machine: 8 lanes in arrays, which the compiler maps to the baseline's registers.
#[derive(Clone, Copy)]
pub struct Portable;

#[inline(always)]
fn map<A: Copy, B: Copy, R: Copy + Default>(a: [A; 8], b: [B; 8], f: impl Fn(A, B) -> R) -> [R; 8] {
    let mut out = [R::default(); 8];
    for k in 0..8 {
        out[k] = f(a[k], b[k]);
    }
    out
}

/// Halves onto halves, so that the order is that of a tree.
#[inline(always)]
fn fold(a: [f32; 8], f: impl Fn(f32, f32) -> f32) -> f32 {
    let four = [f(a[0], a[4]), f(a[1], a[5]), f(a[2], a[6]), f(a[3], a[7])];
    f(f(four[0], four[2]), f(four[1], four[3]))
}

/// 2^n is built from exponent bits in two factors, so that results that are infinite or denormal
/// come out right.
#[inline(always)]
fn scale2_in_steps<S: Simd>(s: S, a: S::F, n: S::F) -> S::F {
    let third = s.round(s.mul(n, s.splat(1.0 / 3.0)));
    let factor = pow2(s, third);
    s.mul(s.mul(s.mul(a, pow2(s, s.sub(n, s.add(third, third)))), factor), factor)
}

/// 2^n by its exponent bits, for |n| <= 126.
#[inline(always)]
fn pow2<S: Simd>(s: S, n: S::F) -> S::F {
    s.of_bits(s.shl_i::<23>(s.add_i(s.to_i(n), s.splat_i(127))))
}

/// Adding 2^23 leaves no room for a fraction; larger numbers have none.
#[inline(always)]
fn round_one(x: f32) -> f32 {
    const LIMIT: f32 = 8_388_608.0;
    let size = x.abs();
    if size < LIMIT { ((size + LIMIT) - LIMIT).copysign(x) } else { x }
}

#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction `mul_add` would call a library function for every lane.
    if cfg!(any(target_arch = "aarch64", target_feature = "fma")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

impl Simd for Portable {
    const LANES: usize = 8;
    type F = [f32; 8];
    type I = [i32; 8];
    type M = [i32; 8];

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 8] {
        [x; 8]
    }
    #[inline(always)]
    fn splat_i(self, x: i32) -> [i32; 8] {
        [x; 8]
    }
    #[inline(always)]
    unsafe fn load(self, p: *const f32) -> [f32; 8] {
        // SAFETY: the contract of the method.
        unsafe { p.cast::<[f32; 8]>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32, x: [f32; 8]) {
        // SAFETY: the contract of the method.
        unsafe { p.cast::<[f32; 8]>().write_unaligned(x) }
    }
    #[inline(always)]
    unsafe fn load_part(self, p: *const f32, n: usize) -> [f32; 8] {
        let mut out = [0.0; 8];
        for k in 0..n.min(8) {
            // SAFETY: k < n.
            out[k] = unsafe { *p.add(k) };
        }
        out
    }
    #[inline(always)]
    unsafe fn store_part(self, p: *mut f32, x: [f32; 8], n: usize) {
        for k in 0..n.min(8) {
            // SAFETY: k < n.
            unsafe { *p.add(k) = x[k] };
        }
    }
    #[inline(always)]
    fn add(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| a + b,
        )
    }
    #[inline(always)]
    fn sub(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| a - b,
        )
    }
    #[inline(always)]
    fn mul(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| a * b,
        )
    }
    #[inline(always)]
    fn div(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| a / b,
        )
    }
    #[inline(always)]
    fn fma(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        let mut out = c;
        for k in 0..8 {
            out[k] = multiply_add(a[k], b[k], c[k]);
        }
        out
    }
    #[inline(always)]
    fn neg_fma(self, a: [f32; 8], b: [f32; 8], c: [f32; 8]) -> [f32; 8] {
        let mut out = c;
        for k in 0..8 {
            out[k] = multiply_add(-a[k], b[k], c[k]);
        }
        out
    }
    #[inline(always)]
    fn min(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| if a < b { a } else { b },
        )
    }
    #[inline(always)]
    fn max(self, a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| if a > b { a } else { b },
        )
    }
    #[inline(always)]
    fn sqrt(self, a: [f32; 8]) -> [f32; 8] {
        map(
            a,
            a,
            #[inline(always)]
            |a, _| a.sqrt(),
        )
    }
    #[inline(always)]
    fn round(self, a: [f32; 8]) -> [f32; 8] {
        map(
            a,
            a,
            #[inline(always)]
            |a, _| round_one(a),
        )
    }
    #[inline(always)]
    fn floor(self, a: [f32; 8]) -> [f32; 8] {
        map(
            a,
            a,
            #[inline(always)]
            |a, _| {
                let near = round_one(a);
                (if near > a { near - 1.0 } else { near }).copysign(a)
            },
        )
    }
    #[inline(always)]
    fn ceil(self, a: [f32; 8]) -> [f32; 8] {
        map(
            a,
            a,
            #[inline(always)]
            |a, _| {
                let near = round_one(a);
                (if near < a { near + 1.0 } else { near }).copysign(a)
            },
        )
    }
    #[inline(always)]
    fn scale2(self, a: [f32; 8], n: [f32; 8]) -> [f32; 8] {
        scale2_in_steps(self, a, n)
    }
    #[inline(always)]
    fn first(self, n: usize) -> [i32; 8] {
        std::array::from_fn(
            #[inline(always)]
            |k| -i32::from(k < n),
        )
    }
    #[inline(always)]
    fn lt(self, a: [f32; 8], b: [f32; 8]) -> [i32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| -i32::from(a < b),
        )
    }
    #[inline(always)]
    fn le(self, a: [f32; 8], b: [f32; 8]) -> [i32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| -i32::from(a <= b),
        )
    }
    #[inline(always)]
    fn eq(self, a: [f32; 8], b: [f32; 8]) -> [i32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| -i32::from(a == b),
        )
    }
    #[inline(always)]
    fn and_m(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        self.and_i(a, b)
    }
    #[inline(always)]
    fn or_m(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        self.or_i(a, b)
    }
    #[inline(always)]
    fn not_m(self, a: [i32; 8]) -> [i32; 8] {
        map(
            a,
            a,
            #[inline(always)]
            |a, _| !a,
        )
    }
    #[inline(always)]
    fn bits(self, m: [i32; 8]) -> u32 {
        let mut out = 0;
        for k in 0..8 {
            out |= (m[k] as u32 & 1) << k;
        }
        out
    }
    #[inline(always)]
    fn select(self, m: [i32; 8], a: [f32; 8], b: [f32; 8]) -> [f32; 8] {
        let mut out = b;
        for k in 0..8 {
            out[k] =
                f32::from_bits((a[k].to_bits() & m[k] as u32) | (b[k].to_bits() & !(m[k] as u32)));
        }
        out
    }
    #[inline(always)]
    fn select_i(self, m: [i32; 8], a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        let mut out = b;
        for k in 0..8 {
            out[k] = (a[k] & m[k]) | (b[k] & !m[k]);
        }
        out
    }
    #[inline(always)]
    fn add_i(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        map(a, b, i32::wrapping_add)
    }
    #[inline(always)]
    fn sub_i(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        map(a, b, i32::wrapping_sub)
    }
    #[inline(always)]
    fn and_i(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| a & b,
        )
    }
    #[inline(always)]
    fn or_i(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| a | b,
        )
    }
    #[inline(always)]
    fn xor_i(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| a ^ b,
        )
    }
    #[inline(always)]
    fn shl_i<const BITS: u32>(self, a: [i32; 8]) -> [i32; 8] {
        map(
            a,
            a,
            #[inline(always)]
            |a, _| a << BITS,
        )
    }
    #[inline(always)]
    fn shr_u<const BITS: u32>(self, a: [i32; 8]) -> [i32; 8] {
        map(
            a,
            a,
            #[inline(always)]
            |a, _| (a as u32 >> BITS) as i32,
        )
    }
    #[inline(always)]
    fn eq_i(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| -i32::from(a == b),
        )
    }
    #[inline(always)]
    fn gt_i(self, a: [i32; 8], b: [i32; 8]) -> [i32; 8] {
        map(
            a,
            b,
            #[inline(always)]
            |a, b| -i32::from(a > b),
        )
    }
    #[inline(always)]
    fn bits_of(self, a: [f32; 8]) -> [i32; 8] {
        map(
            a,
            a,
            #[inline(always)]
            |a, _| a.to_bits() as i32,
        )
    }
    #[inline(always)]
    fn of_bits(self, a: [i32; 8]) -> [f32; 8] {
        map(
            a,
            a,
            #[inline(always)]
            |a, _| f32::from_bits(a as u32),
        )
    }
    #[inline(always)]
    fn to_f(self, a: [i32; 8]) -> [f32; 8] {
        map(
            a,
            a,
            #[inline(always)]
            |a, _| a as f32,
        )
    }
    #[inline(always)]
    fn to_i(self, a: [f32; 8]) -> [i32; 8] {
        map(
            a,
            a,
            #[inline(always)]
            |a, _| round_one(a) as i32,
        )
    }
    #[inline(always)]
    fn sum(self, a: [f32; 8]) -> f32 {
        fold(a, |a, b| a + b)
    }
    #[inline(always)]
    fn max_lane(self, a: [f32; 8]) -> f32 {
        fold(a, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min_lane(self, a: [f32; 8]) -> f32 {
        fold(a, |a, b| if a < b { a } else { b })
    }
}

/// Keeps the compiler from vectorising the loop around, whose body handles a whole array already:
/// seeing pointers that do not overlap, it would gather one element of every array into a register.
#[inline(always)]
pub(crate) fn keep_arrays_whole() {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    // SAFETY: there is no instruction.
    unsafe {
        std::arch::asm!("", options(nomem, nostack, preserves_flags));
    }
}

/// A pointer that tasks may share; the kernel that makes one sees to it that no two tasks write the
/// same place.
#[derive(Debug)]
pub(crate) struct Raw<T>(*mut T);

impl<T> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Raw<T> {}

// SAFETY: the promise above is made by every kernel that makes one.
unsafe impl<T: Send> Send for Raw<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Raw<T> {}

impl<T> Raw<T> {
    /// For reading only.
    #[inline(always)]
    pub(crate) fn new(p: *const T) -> Self {
        Raw(p.cast_mut())
    }
    /// For writing, too.
    #[inline(always)]
    pub(crate) fn new_mut(p: *mut T) -> Self {
        Raw(p)
    }
    /// The pointer `i` elements on.
    ///
    /// # Safety
    /// That is inside the allocation or one past its end.
    #[inline(always)]
    pub(crate) unsafe fn at(self, i: usize) -> *mut T {
        // SAFETY: promised by the caller.
        unsafe { self.0.add(i) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every method that is not a plain arithmetic instruction, one result after the other.
    #[derive(Debug, PartialEq)]
    struct Report(Vec<f32>, Vec<u32>);

    crate::kernel! {
        fn exercise<S>(s: S, a: &[f32; 16], b: &[f32; 16]) -> Report {
            let mut lanes = vec![Vec::new(); 20];
            let mut bits = Vec::new();
            let mut scalars = Vec::new();
            for part in (0..16).step_by(S::LANES) {
                // SAFETY: both arrays hold 16 floats.
                let (x, y) = unsafe { (s.load(a.as_ptr().add(part)), s.load(b.as_ptr().add(part))) };
                let small = s.max(s.min(y, s.splat(140.0)), s.splat(-150.0));
                let of_mask = |m| s.to_f(s.select_i(m, s.splat_i(1), s.splat_i(-2)));
                let results = [
                    s.min(x, y), s.max(x, y), s.round(x), s.floor(x), s.ceil(x),
                    s.scale2(x, s.round(small)), s.select(s.lt(x, y), x, y), s.abs(x), s.neg(x),
                    s.copysign(x, y), of_mask(s.le(x, y)), of_mask(s.not_m(s.eq(x, x))),
                    of_mask(s.gt_i(s.bits_of(x), s.bits_of(y))), s.sqrt(s.abs(x)),
                    s.of_bits(s.shr_u::<1>(s.bits_of(y))), s.of_bits(s.shl_i::<1>(s.bits_of(y))),
                    of_mask(s.or_m(s.gt(x, y), s.ge(y, s.splat(2.0)))),
                    of_mask(s.and_m(s.gt(x, y), s.ge(y, s.splat(2.0)))),
                    s.to_f(s.sub_i(s.add_i(s.to_i(small), s.splat_i(7)), s.splat_i(2))),
                    of_mask(s.eq_i(s.bits_of(x), s.bits_of(y))),
                ];
                for (lane, result) in lanes.iter_mut().zip(results) {
                    let mut out = [0.0; 16];
                    // SAFETY: 16 floats are enough for every register.
                    unsafe { s.store(out.as_mut_ptr(), result) };
                    lane.extend_from_slice(&out[..S::LANES]);
                }
                for shift in 0..S::LANES {
                    bits.push(s.bits(s.lt(x, y)) >> shift & 1);
                }
            }
            for n in [0, 1, 3, 7, 8] {
                let mut out = [-1.0; 16];
                // SAFETY: n <= LANES, and the arrays hold 16 floats.
                unsafe { s.store_part(out.as_mut_ptr(), s.load_part(a.as_ptr(), n), n) };
                scalars.extend_from_slice(&out);
            }
            Report(lanes.into_iter().flatten().chain(scalars).collect(), bits)
        }
    }

    crate::kernel! {
        fn horizontal<S>(s: S, a: &[f32; 16]) -> [f32; 3] {
            let mut out = [0.0, f32::MIN, f32::MAX];
            for part in (0..16).step_by(S::LANES) {
                // SAFETY: the array holds 16 floats.
                let x = unsafe { s.load(a.as_ptr().add(part)) };
                out = [out[0] + s.sum(x), out[1].max(s.max_lane(x)), out[2].min(s.min_lane(x))];
            }
            out
        }
    }

    #[test]
    fn levels_agree_with_each_other() {
        let a = [
            0.5,
            -0.5,
            1.5,
            2.5,
            -0.3,
            0.0,
            -0.0,
            f32::NAN,
            1e30,
            -3.7,
            7.0,
            f32::INFINITY,
            1e-40,
            -8388609.0,
            3.3,
            1.0,
        ];
        let b = [
            1.0,
            -2.0,
            f32::NAN,
            140.0,
            -150.0,
            3.0,
            5.0,
            1.0,
            -40.0,
            2.0,
            -7.0,
            4.0,
            -30.0,
            9.0,
            130.0,
            -149.0,
        ];
        let mut reports = Vec::new();
        at_every_level(|_| {
            let Report(floats, bits) = exercise(&a, &b);
            reports.push((floats.into_iter().map(f32::to_bits).collect::<Vec<_>>(), bits));
            let whole: [f32; 16] = std::array::from_fn(|i| (i * i) as f32 - 20.0);
            assert_eq!(horizontal(&whole), [1240.0 - 320.0, 205.0, -20.0]);
        });
        for other in &reports[1..] {
            for (i, (x, y)) in reports[0].0.iter().zip(&other.0).enumerate() {
                let (x, y) = (f32::from_bits(*x), f32::from_bits(*y));
                assert!(x == y || (x.is_nan() && y.is_nan()), "result {i}: {x:e} against {y:e}");
            }
            assert_eq!(reports[0].1, other.1);
        }
    }
}
