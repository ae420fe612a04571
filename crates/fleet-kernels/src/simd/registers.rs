//! Operations on registers, which every instruction set implements.

/// Registers of `LANES` f32 (`F`), i32 (`I`) and booleans (`M`), and operations on them.
///
/// Comparisons with NaN are false. `min(a, b)` is `a < b ? a : b` and `max(a, b)` is
/// `a > b ? a : b`, so that a NaN in `b` survives and one in `a` does not.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Number of floats in a register.
    const LANES: usize;
    /// A register of floats.
    type F: Copy;
    /// A register of signed integers of 32 bits.
    type I: Copy;
    /// A mask: a boolean for each lane.
    type M: Copy;

    /// `x` in all lanes.
    fn splat(self, x: f32) -> Self::F;
    /// Like [`Simd::splat`], for integers.
    fn splat_i(self, x: i32) -> Self::I;
    /// # Safety
    /// `LANES` floats are readable at `p`.
    unsafe fn load(self, p: *const f32) -> Self::F;
    /// # Safety
    /// `LANES` floats are writable at `p`.
    unsafe fn store(self, p: *mut f32, x: Self::F);
    /// Loads the first `n <= LANES` floats at `p`, followed by zeros.
    ///
    /// # Safety
    /// `n` floats are readable at `p`.
    unsafe fn load_part(self, p: *const f32, n: usize) -> Self::F;
    /// Writes the first `n <= LANES` lanes.
    ///
    /// # Safety
    /// `n` floats are writable at `p`.
    unsafe fn store_part(self, p: *mut f32, x: Self::F, n: usize);

    /// a + b.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// a - b.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// a * b.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// a / b.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c, with a single rounding where the machine supports it.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// c - a * b.
    fn neg_fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The smaller, or `b` if either is NaN.
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    /// The larger, or `b` if either is NaN.
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// The exact square root.
    fn sqrt(self, a: Self::F) -> Self::F;
    /// Rounds to the nearest integer, ties to even.
    fn round(self, a: Self::F) -> Self::F;
    /// Rounds down.
    fn floor(self, a: Self::F) -> Self::F;
    /// Rounds up.
    fn ceil(self, a: Self::F) -> Self::F;
    /// a * 2^n for an integral `n` in [-300, 300], with correct overflow and underflow.
    fn scale2(self, a: Self::F, n: Self::F) -> Self::F;

    /// A mask that is true in the first `n` lanes.
    fn first(self, n: usize) -> Self::M;
    /// a < b.
    fn lt(self, a: Self::F, b: Self::F) -> Self::M;
    /// a <= b.
    fn le(self, a: Self::F, b: Self::F) -> Self::M;
    /// a == b.
    fn eq(self, a: Self::F, b: Self::F) -> Self::M;
    /// Lanes in which both are true.
    fn and_m(self, a: Self::M, b: Self::M) -> Self::M;
    /// Lanes in which at least one is true.
    fn or_m(self, a: Self::M, b: Self::M) -> Self::M;
    /// Lanes in which `a` is false.
    fn not_m(self, a: Self::M) -> Self::M;
    /// The mask as bits, with lane k in bit k.
    fn bits(self, m: Self::M) -> u32;
    /// `m ? a : b` in each lane.
    fn select(self, m: Self::M, a: Self::F, b: Self::F) -> Self::F;
    /// Like [`Simd::select`], for integers.
    fn select_i(self, m: Self::M, a: Self::I, b: Self::I) -> Self::I;

    /// a + b, which wraps.
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// a - b, which wraps.
    fn sub_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bits that are set in both.
    fn and_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bits that are set in at least one.
    fn or_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bits that are set in exactly one.
    fn xor_i(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shifts left by `BITS`.
    fn shl_i<const BITS: u32>(self, a: Self::I) -> Self::I;
    /// Shifts in zeros.
    fn shr_u<const BITS: u32>(self, a: Self::I) -> Self::I;
    /// a == b.
    fn eq_i(self, a: Self::I, b: Self::I) -> Self::M;
    /// Signed a > b.
    fn gt_i(self, a: Self::I, b: Self::I) -> Self::M;
    /// A square root accurate to two units in the last place, for machines on which the exact one
    /// is slow.
    #[inline(always)]
    fn sqrt_fast(self, a: Self::F) -> Self::F {
        self.sqrt(a)
    }
    /// Reinterprets floats as integers.
    fn bits_of(self, a: Self::F) -> Self::I;
    /// Reinterprets integers as floats.
    fn of_bits(self, a: Self::I) -> Self::F;
    /// Converts signed integers to the nearest floats.
    fn to_f(self, a: Self::I) -> Self::F;
    /// Converts floats in the range of i32 to the nearest integers.
    fn to_i(self, a: Self::F) -> Self::I;

    /// The sum of all lanes, added in halves.
    fn sum(self, a: Self::F) -> f32;
    /// The largest lane. NaN lanes may or may not be ignored.
    fn max_lane(self, a: Self::F) -> f32;
    /// The smallest lane. NaN lanes may or may not be ignored.
    fn min_lane(self, a: Self::F) -> f32;

    /// Loads `n` of `LANES` lanes: [`Simd::load`] for a whole register, else [`Simd::load_part`].
    ///
    /// # Safety
    /// `n` floats are readable at `p`.
    #[inline(always)]
    unsafe fn load_n(self, p: *const f32, n: usize) -> Self::F {
        // SAFETY: the contract is the same.
        unsafe { if n == Self::LANES { self.load(p) } else { self.load_part(p, n) } }
    }
    /// Like [`Simd::load_n`], for writing.
    ///
    /// # Safety
    /// `n` floats are writable at `p`.
    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, x: Self::F, n: usize) {
        // SAFETY: the contract is the same.
        unsafe { if n == Self::LANES { self.store(p, x) } else { self.store_part(p, x, n) } }
    }
    /// `x` with zeros in the lanes from `n` on.
    #[inline(always)]
    fn keep_first(self, x: Self::F, n: usize) -> Self::F {
        if n == Self::LANES { x } else { self.select(self.first(n), x, self.zero()) }
    }
    /// 0 in all lanes.
    #[inline(always)]
    fn zero(self) -> Self::F {
        self.splat(0.0)
    }
    /// a > b.
    #[inline(always)]
    fn gt(self, a: Self::F, b: Self::F) -> Self::M {
        self.lt(b, a)
    }
    /// a >= b.
    #[inline(always)]
    fn ge(self, a: Self::F, b: Self::F) -> Self::M {
        self.le(b, a)
    }
    /// Whether any lane is true.
    #[inline(always)]
    fn any(self, m: Self::M) -> bool {
        self.bits(m) != 0
    }
    ///
    /// a
    /// .
    #[inline(always)]
    fn abs(self, a: Self::F) -> Self::F {
        self.of_bits(self.and_i(self.bits_of(a), self.splat_i(i32::MAX)))
    }
    /// -a.
    #[inline(always)]
    fn neg(self, a: Self::F) -> Self::F {
        self.of_bits(self.xor_i(self.bits_of(a), self.splat_i(i32::MIN)))
    }
    /// The magnitude of `a` with the sign of `b`.
    #[inline(always)]
    fn copysign(self, a: Self::F, b: Self::F) -> Self::F {
        let sign = self.and_i(self.bits_of(b), self.splat_i(i32::MIN));
        self.of_bits(self.or_i(self.bits_of(self.abs(a)), sign))
    }
}

/// Bodies of trait methods. Each is one or a few intrinsics, whose features the token proves.
#[cfg(target_arch = "x86_64")]
macro_rules! intrinsics {
    ($(fn $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty = $body:expr;)*) => {$(
        #[inline(always)]
        #[allow(unused_unsafe)] // `transmute` needs it, most intrinsics do not
        fn $name(self $(, $arg: $ty)*) -> $ret {
            // SAFETY: the creator of the token guaranteed the features.
            unsafe { $body }
        }
    )*};
}
#[cfg(target_arch = "x86_64")]
pub(super) use intrinsics;
