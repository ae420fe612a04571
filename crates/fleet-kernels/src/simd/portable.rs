//! Any machine: arrays that the compiler maps to baseline registers.

use super::registers::Simd;

/// Any machine: 8 lanes in arrays, which the compiler maps to baseline registers.
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

/// Combines the lower half with the upper half repeatedly, in the order of a tree.
#[inline(always)]
pub(super) fn fold(a: [f32; 8], f: impl Fn(f32, f32) -> f32) -> f32 {
    let four = [f(a[0], a[4]), f(a[1], a[5]), f(a[2], a[6]), f(a[3], a[7])];
    f(f(four[0], four[2]), f(four[1], four[3]))
}

/// Multiplies by 2^n in three steps, with factors built from exponent bits, so that infinite and
/// denormal results are correct.
#[inline(always)]
pub(super) fn scale2_in_steps<S: Simd>(s: S, a: S::F, n: S::F) -> S::F {
    let third = s.round(s.mul(n, s.splat(1.0 / 3.0)));
    let factor = pow2(s, third);
    s.mul(s.mul(s.mul(a, pow2(s, s.sub(n, s.add(third, third)))), factor), factor)
}

/// Builds 2^n from its exponent bits, for |n| <= 126.
#[inline(always)]
fn pow2<S: Simd>(s: S, n: S::F) -> S::F {
    s.of_bits(s.shl_i::<23>(s.add_i(s.to_i(n), s.splat_i(127))))
}

/// Rounds to the nearest integer. Adding 2^23 leaves no bits for a fraction, and larger numbers
/// have none.
#[inline(always)]
fn round_one(x: f32) -> f32 {
    const LIMIT: f32 = 8_388_608.0;
    let size = x.abs();
    if size < LIMIT { ((size + LIMIT) - LIMIT).copysign(x) } else { x }
}

#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    // Without the instruction, `mul_add` would call a library function for every lane.
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
