//! Elementary functions on registers of f32, with an error of about two units in the last place.
//!
//! Every function takes the token of [`crate::simd`] and is inlined into the surrounding kernel.
//! Range reductions are exact. Polynomials are minimax fits made for this file, with a relative
//! error below 2^-25. Results for infinities, zeros, denormals and NaN match the C library. `sin`
//! and `cos` of arguments above 10^4 use the standard library, lane by lane.

use crate::simd::Simd;

const LOG2_E: f32 = std::f32::consts::LOG2_E;
/// ln 2 in two parts; the first has 9 trailing zero bits, so that n * LN2_HIGH is exact.
const LN2_HIGH: f32 = 0.693_359_4;
const LN2_LOW: f32 = -2.121_944_4e-4;

/// Computes c[0] + c[1] x + c[2] x^2 + ...
#[inline(always)]
fn poly<S: Simd, const N: usize>(s: S, x: S::F, c: [f32; N]) -> S::F {
    let mut sum = s.splat(c[N - 1]);
    for k in (0..N - 1).rev() {
        sum = s.fma(sum, x, s.splat(c[k]));
    }
    sum
}

/// Returns (n, e^r - 1) with x = n ln 2 + r and |r| <= ln 2 / 2.
#[inline(always)]
fn exp_parts<S: Simd>(s: S, x: S::F) -> (S::F, S::F) {
    let n = s.round(s.mul(x, s.splat(LOG2_E)));
    let r = s.neg_fma(n, s.splat(LN2_LOW), s.neg_fma(n, s.splat(LN2_HIGH), x));
    let q = poly(
        s,
        r,
        [0.5, 0.166_666_67, 4.166_634_4e-2, 8.333_27e-3, 1.394_204_6e-3, 1.991_562_3e-4],
    );
    (n, s.fma(s.mul(r, r), q, r))
}

/// Computes e^x.
#[inline(always)]
pub fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    // Beyond these bounds the result is 0 or infinite. A NaN passes through both.
    let x = s.max(s.splat(-104.0), s.min(s.splat(89.0), x));
    let (n, p) = exp_parts(s, x);
    s.scale2(s.add(p, s.splat(1.0)), n)
}

/// Computes e^x - 1 without cancellation, for x up to 88.
#[inline(always)]
pub fn expm1<S: Simd>(s: S, x: S::F) -> S::F {
    let x = s.max(s.splat(-104.0), s.min(s.splat(88.0), x));
    let (n, p) = exp_parts(s, x);
    let one = s.splat(1.0);
    s.add(s.scale2(p, n), s.sub(s.scale2(one, n), one))
}

/// Returns the difference of ln(1 + f) and f, for f in [sqrt(1/2) - 1, sqrt(2) - 1].
#[inline(always)]
fn log_rest<S: Simd>(s: S, f: S::F) -> S::F {
    let q = poly(
        s,
        f,
        [
            0.333_333_1,
            -0.249_999_87,
            0.200_022_27,
            -0.166_692_53,
            0.142_186_64,
            -0.123_843_35,
            0.118_729_26,
            -0.117_898_66,
            6.915_54e-2,
        ],
    );
    let square = s.mul(f, f);
    s.fma(s.mul(square, f), q, s.mul(square, s.splat(-0.5)))
}

/// Computes ln(x).
#[inline(always)]
pub fn log<S: Simd>(s: S, x: S::F) -> S::F {
    const SQRT_HALF_BITS: i32 = 0x3f35_04f3;
    let tiny = s.lt(x, s.splat(f32::MIN_POSITIVE));
    let scaled = s.select(tiny, s.mul(x, s.splat(8_388_608.0)), x);
    let shift = s.select(tiny, s.splat(-23.0), s.zero());
    // The exponent counts from sqrt(1/2), so that the mantissa is in [sqrt(1/2), sqrt(2)).
    let offset = s.sub_i(s.bits_of(scaled), s.splat_i(SQRT_HALF_BITS));
    let biased = s.shr_u::<23>(s.add_i(offset, s.splat_i(127 << 23)));
    let e = s.add(s.to_f(s.sub_i(biased, s.splat_i(127))), shift);
    let mantissa = s.add_i(s.and_i(offset, s.splat_i(0x007f_ffff)), s.splat_i(SQRT_HALF_BITS));
    let f = s.sub(s.of_bits(mantissa), s.splat(1.0));
    let rest = s.fma(e, s.splat(LN2_LOW), log_rest(s, f));
    let y = s.fma(e, s.splat(LN2_HIGH), s.add(f, rest));
    let y = s.select(s.lt(x, s.splat(f32::INFINITY)), y, x); // infinity and NaN map to themselves
    let y = s.select(s.eq(x, s.zero()), s.splat(f32::NEG_INFINITY), y);
    s.select(s.lt(x, s.zero()), s.splat(f32::NAN), y)
}

/// Computes ln(1 + u) for u in [0, 1].
#[inline(always)]
pub fn log1p_unit<S: Simd>(s: S, u: S::F) -> S::F {
    let small = s.le(u, s.splat(0.414));
    let f = s.select(small, u, s.mul(s.sub(u, s.splat(1.0)), s.splat(0.5)));
    let e = s.select(small, s.zero(), s.splat(1.0));
    let rest = s.fma(e, s.splat(LN2_LOW), log_rest(s, f));
    s.fma(e, s.splat(LN2_HIGH), s.add(f, rest))
}

/// Computes tanh(x).
#[inline(always)]
pub fn tanh<S: Simd>(s: S, x: S::F) -> S::F {
    let twice = s.max(s.splat(-20.0), s.min(s.splat(20.0), s.add(x, x)));
    let p = expm1(s, twice);
    s.div(p, s.add(p, s.splat(2.0)))
}

/// Computes 1 / (1 + e^-x).
#[inline(always)]
pub fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.neg(x))))
}

/// Computes ln(1 + e^x).
#[inline(always)]
pub fn softplus<S: Simd>(s: S, x: S::F) -> S::F {
    let tail = log1p_unit(s, exp(s, s.neg(s.abs(x))));
    s.add(s.max(s.zero(), x), tail)
}

/// Computes the error function of x.
#[inline(always)]
pub fn erf<S: Simd>(s: S, x: S::F) -> S::F {
    let size = s.abs(x);
    let square = s.mul(x, x);
    let small = poly(
        s,
        square,
        [
            0.128_379_17,
            -0.376_126_32,
            0.112_836_726,
            -2.685_810_4e-2,
            5.197_797_4e-3,
            -8.105_966e-4,
            8.215_427e-5,
        ],
    );
    let small = s.fma(x, small, x);
    // -ln erfc(t) = t + t q(t). Beyond 3.95 the result rounds to 1.
    let t = s.min(s.splat(3.95), size);
    let q = poly(
        s,
        t,
        [
            0.128_654_21,
            0.635_128_1,
            0.106_275_2,
            -2.379_501_4e-2,
            3.658_013_2e-3,
            -3.266_235e-4,
            1.161_238_9e-5,
        ],
    );
    let one = s.splat(1.0);
    let large = s.sub(one, exp(s, s.neg(s.fma(t, q, t))));
    s.select(s.lt(size, s.splat(0.94)), small, s.copysign(large, x))
}

/// Computes 1 / √x.
#[inline(always)]
pub fn rsqrt<S: Simd>(s: S, x: S::F) -> S::F {
    s.div(s.splat(1.0), s.sqrt(x))
}

/// Computes sin(x), with x in radians.
#[inline(always)]
pub fn sin<S: Simd>(s: S, x: S::F) -> S::F {
    sin_or_cos(s, x, 0, f64::sin)
}

/// Computes cos(x), with x in radians.
#[inline(always)]
pub fn cos<S: Simd>(s: S, x: S::F) -> S::F {
    sin_or_cos(s, x, 1, f64::cos)
}

/// Computes sin and cos of r in [-pi/4, pi/4].
#[inline(always)]
pub(crate) fn sin_cos_octant<S: Simd>(s: S, r: S::F) -> (S::F, S::F) {
    let square = s.mul(r, r);
    let q = poly(s, square, [-0.166_666_54, 8.332_131e-3, -1.951_084e-4]);
    let sine = s.fma(s.mul(square, r), q, r);
    let q = poly(s, square, [4.166_664_6e-2, -1.388_730_6e-3, 2.443_120_5e-5]);
    let cosine = s.fma(s.mul(square, square), q, s.fma(square, s.splat(-0.5), s.splat(1.0)));
    (sine, cosine)
}

/// Computes the sine of r + turn * pi/2.
#[inline(always)]
pub(crate) fn sin_quarter<S: Simd>(s: S, r: S::F, turn: S::I) -> S::F {
    let (sine, cosine) = sin_cos_octant(s, r);
    let odd = s.eq_i(s.and_i(turn, s.splat_i(1)), s.splat_i(1));
    let sign = s.shl_i::<30>(s.and_i(turn, s.splat_i(2)));
    s.of_bits(s.xor_i(s.bits_of(s.select(odd, cosine, sine)), sign))
}

#[inline(always)]
fn sin_or_cos<S: Simd>(s: S, x: S::F, turn: i32, scalar: fn(f64) -> f64) -> S::F {
    /// pi/2 as three parts of 11 bits and a remainder: products with n <= 2^13 are exact in f32.
    const PARTS: [f32; 4] = [1.570_312_5, 4.837_513e-4, 7.549_766e-8, 5.126_688_5e-12];
    const SIZE_MAX: f32 = 1e4;
    let n = s.round(s.mul(x, s.splat(std::f32::consts::FRAC_2_PI)));
    let mut r = x;
    for part in PARTS {
        r = s.neg_fma(n, s.splat(part), r);
    }
    let y = sin_quarter(s, r, s.add_i(s.to_i(n), s.splat_i(turn)));
    let large = s.not_m(s.le(s.abs(x), s.splat(SIZE_MAX)));
    if s.any(large) { lane_by_lane(s, x, scalar) } else { y }
}

#[inline(always)]
fn lane_by_lane<S: Simd>(s: S, x: S::F, scalar: fn(f64) -> f64) -> S::F {
    let mut lanes = [0f32; 16];
    // SAFETY: no register has more than 16 lanes.
    unsafe { s.store(lanes.as_mut_ptr(), x) };
    for lane in &mut lanes[..S::LANES] {
        *lane = scalar(f64::from(*lane)) as f32;
    }
    // SAFETY: as above.
    unsafe { s.load(lanes.as_ptr()) }
}

/// Computes the quantile of the standard normal distribution at (1 + t) / 2. The argument is
/// limited to |t| <= erf(sqrt 2), where results are in [-2, 2].
#[inline(always)]
pub(crate) fn normal_quantile<S: Simd>(s: S, t: S::F) -> S::F {
    let w = s.neg(log(s, s.neg_fma(t, t, s.splat(1.0))));
    let q = poly(
        s,
        w,
        [
            1.253_314_1,
            0.328_118_03,
            1.632_436e-2,
            -3.277_094e-3,
            -2.155_572_4e-4,
            9.067_466e-5,
            -6.360_853e-6,
        ],
    );
    s.mul(t, q)
}

/// Computes x^y lane by lane like `powf`, through f64. The compiler vectorizes the plain loop.
#[inline(always)]
pub fn pow<S: Simd>(s: S, x: S::F, y: S::F) -> S::F {
    let (mut xs, mut ys) = ([0f32; 16], [0f32; 16]);
    // SAFETY: no register has more than 16 lanes.
    unsafe {
        s.store(xs.as_mut_ptr(), x);
        s.store(ys.as_mut_ptr(), y);
    }
    let mut out = [0f32; 16];
    for k in 0..S::LANES {
        out[k] = pow_f32(xs[k], ys[k]);
    }
    // SAFETY: as above.
    unsafe { s.load(out.as_ptr()) }
}

/// Computes `x.powf(y)` without a branch or a call, to within one unit in the last place.
#[inline(always)]
pub fn pow_f32(x: f32, y: f32) -> f32 {
    let size = f64::from(x.abs());
    let log = if x == 0.0 { f64::NEG_INFINITY } else { log2_f64(size) };
    let log = if size == f64::INFINITY { f64::INFINITY } else { log };
    let power = exp2_f64(f64::from(y) * log) as f32;
    let half = y * 0.5;
    let whole = y.abs() >= 8_388_608.0 || floor_f32(y) == y;
    // Above 2^24 every float is even.
    let odd = whole && y.abs() < 16_777_216.0 && floor_f32(half) != half;
    let negative = x.is_sign_negative();
    let power = if negative && odd { -power } else { power };
    let power =
        if negative && !whole && x != 0.0 && size != f64::INFINITY { f32::NAN } else { power };
    let power = if x.is_nan() || y.is_nan() { f32::NAN } else { power };
    if y == 0.0 || x == 1.0 || (x == -1.0 && y.is_infinite()) { 1.0 } else { power }
}

/// Computes `floor` for |x| below 2^23 without a library call.
#[inline(always)]
fn floor_f32(x: f32) -> f32 {
    const LIMIT: f32 = 8_388_608.0;
    let near = ((x.abs() + LIMIT) - LIMIT).copysign(x);
    if near > x { near - 1.0 } else { near }
}

/// Computes log2 of a positive finite number, to 12 digits.
#[inline(always)]
fn log2_f64(x: f64) -> f64 {
    const SQRT_HALF_BITS: u64 = 0x3fe6_a09e_667f_3bcd;
    const MAGIC: f64 = 4_503_599_627_370_496.0; // 2^52: its low bits can hold an integer
    let offset = x.to_bits().wrapping_sub(SQRT_HALF_BITS).wrapping_add(1023 << 52);
    let e = f64::from_bits((offset >> 52) | MAGIC.to_bits()) - (MAGIC + 1023.0);
    let mantissa = f64::from_bits((offset & 0x000f_ffff_ffff_ffff) + SQRT_HALF_BITS);
    let f = (mantissa - 1.0) / (mantissa + 1.0);
    let square = f * f;
    // Written out, because an inner loop would keep the compiler from vectorizing the outer loop.
    let mut series = square * (1.0 / 17.0) + 1.0 / 15.0;
    series = series * square + 1.0 / 13.0;
    series = series * square + 1.0 / 11.0;
    series = series * square + 1.0 / 9.0;
    series = series * square + 1.0 / 7.0;
    series = series * square + 1.0 / 5.0;
    series = series * square + 1.0 / 3.0;
    series = series * square + 1.0;
    e + f * series * (2.0 * std::f64::consts::LOG2_E)
}

/// Computes 2^x to 12 digits. Results outside the range of f32 become 0 or infinite after
/// conversion.
#[inline(always)]
fn exp2_f64(x: f64) -> f64 {
    const MAGIC: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    let clamped = if x > 200.0 { 200.0 } else { x };
    let clamped = if clamped < -200.0 { -200.0 } else { clamped };
    let shifted = clamped + MAGIC;
    let r = (clamped - (shifted - MAGIC)) * std::f64::consts::LN_2;
    let mut sum = r * (1.0 / 39_916_800.0) + 1.0 / 3_628_800.0;
    sum = sum * r + 1.0 / 362_880.0;
    sum = sum * r + 1.0 / 40_320.0;
    sum = sum * r + 1.0 / 5_040.0;
    sum = sum * r + 1.0 / 720.0;
    sum = sum * r + 1.0 / 120.0;
    sum = sum * r + 1.0 / 24.0;
    sum = sum * r + 1.0 / 6.0;
    sum = sum * r + 0.5;
    sum = sum * r + 1.0;
    sum = sum * r + 1.0;
    let exponent = shifted.to_bits().wrapping_add(1023) << 52;
    sum * f64::from_bits(exponent)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::simd::for_every_isa;
    use fleet_base::rng::Sequence;

    crate::kernel! {
        fn apply<S>(s: S, name: &str, x: &mut [f32; 16], y: &[f32; 16]) {
            for part in (0..16).step_by(S::LANES) {
                // SAFETY: the arrays hold 16 floats.
                let load = |from: &[f32; 16]| unsafe { s.load(from.as_ptr().add(part)) };
                let (a, b) = (load(x), load(y));
                let r = match name {
                    "exp" => exp(s, a),
                    "expm1" => expm1(s, a),
                    "log" => log(s, a),
                    "log1p_unit" => log1p_unit(s, a),
                    "tanh" => tanh(s, a),
                    "sigmoid" => sigmoid(s, a),
                    "softplus" => softplus(s, a),
                    "erf" => erf(s, a),
                    "rsqrt" => rsqrt(s, a),
                    "sqrt_fast" => s.sqrt_fast(a),
                    "sin" => sin(s, a),
                    "cos" => cos(s, a),
                    "quantile" => erf(s, s.mul(normal_quantile(s, a), s.splat(0.5f32.sqrt()))),
                    _ => pow(s, a, b),
                };
                // SAFETY: as above.
                unsafe { s.store(x.as_mut_ptr().add(part), r) };
            }
        }
    }

    /// Returns the distance from `expected` in units in the last place, including for denormals.
    pub(crate) fn ulps(got: f32, expected: f64) -> f64 {
        let near = expected as f32;
        if got.to_bits() == near.to_bits() || got == near || (got.is_nan() && near.is_nan()) {
            return 0.0;
        }
        let size = near.abs().clamp(f32::MIN_POSITIVE, f32::MAX);
        let unit = f64::from(f32::from_bits(size.to_bits() + 1)) - f64::from(size);
        let unit = if unit.is_finite() { unit } else { 2f64.powi(104) };
        (f64::from(got) - expected).abs() / unit
    }

    /// Computes the error function by its series and its continued fraction.
    pub(crate) fn erf_f64(x: f64) -> f64 {
        let size = x.abs();
        if size > 6.0 {
            return x.signum();
        }
        if size < 3.0 {
            let (mut term, mut sum) = (x, x);
            for k in 1..200 {
                term *= -x * x / f64::from(k);
                sum += term / f64::from(2 * k + 1);
            }
            return sum * 2.0 / std::f64::consts::PI.sqrt();
        }
        let mut fraction = size;
        for k in (1..100).rev() {
            fraction = size + f64::from(k) / 2.0 / fraction;
        }
        (1.0 - (-x * x).exp() / (fraction * std::f64::consts::PI.sqrt())) * x.signum()
    }

    fn check(name: &str, low: f64, high: f64, ulps_max: f64, reference: impl Fn(f64, f64) -> f64) {
        for_every_isa(|level| {
            let mut random = Sequence::new(7, 11);
            let mut worst = (0.0, 0.0, 0.0);
            for _ in 0..4000 {
                let xs: [f32; 16] =
                    std::array::from_fn(|_| (low + (high - low) * random.unit()) as f32);
                let ys: [f32; 16] = std::array::from_fn(|_| (random.unit() * 20.0 - 10.0) as f32);
                let mut out = xs;
                apply(name, &mut out, &ys);
                for k in 0..16 {
                    let expected = reference(f64::from(xs[k]), f64::from(ys[k]));
                    let distance = ulps(out[k], expected);
                    if distance > worst.0 || distance.is_nan() {
                        worst = (distance, xs[k], ys[k]);
                    }
                }
            }
            let (distance, x, y) = worst;
            println!("{name} on [{low}, {high}], {level:?}: {distance:.2} ulps at {x}");
            assert!(distance <= ulps_max, "{name}({x:e}, {y:e}) at {level:?}: {distance} ulps");
        });
    }

    #[test]
    fn functions_agree_with_f64() {
        check("exp", -90.0, 89.0, 1.5, |x, _| x.exp());
        check("exp", -0.5, 0.5, 1.5, |x, _| x.exp());
        check("expm1", -3.0, 3.0, 3.0, |x, _| x.exp_m1());
        check("log", 1e-3, 3.0, 1.5, |x, _| x.ln());
        check("log", 0.9, 1.1, 2.0, |x, _| x.ln());
        check("log", 1.0, 1e30, 1.5, |x, _| x.ln());
        check("log1p_unit", 0.0, 1.0, 2.0, |x, _| x.ln_1p());
        check("tanh", -12.0, 12.0, 3.0, |x, _| x.tanh());
        check("tanh", -0.1, 0.1, 3.0, |x, _| x.tanh());
        check("sigmoid", -80.0, 30.0, 2.5, |x, _| 1.0 / (1.0 + (-x).exp()));
        check("softplus", -80.0, 30.0, 2.5, |x, _| x.exp().ln_1p());
        check("erf", -5.0, 5.0, 2.0, |x, _| erf_f64(x));
        check("erf", -0.5, 0.5, 2.0, |x, _| erf_f64(x));
        check("rsqrt", 1e-3, 1e6, 1.5, |x, _| 1.0 / x.sqrt());
        check("sqrt_fast", 0.0, 1e-6, 2.0, |x, _| x.sqrt());
        check("sqrt_fast", 0.0, 1e30, 2.0, |x, _| x.sqrt());
        check("sin", -1.6, 1.6, 2.0, |x, _| x.sin());
        check("cos", -1.5, 1.5, 2.0, |x, _| x.cos());
        check("sin", 1e6, 1e9, 1.0, |x, _| x.sin());
        check("pow", 0.0, 50.0, 1.0, |x, y| x.powf(y));
        check("quantile", -0.954, 0.954, 6.0, |t, _| t);
    }

    #[test]
    fn large_arguments_of_sine_keep_absolute_accuracy() {
        for_every_isa(|_| {
            for step in 0..2000 {
                let xs: [f32; 16] = std::array::from_fn(|k| (step * 16 + k) as f32 * 0.31 - 4900.0);
                for name in ["sin", "cos"] {
                    let mut out = xs;
                    apply(name, &mut out, &xs);
                    for k in 0..16 {
                        let x = f64::from(xs[k]);
                        let expected = if name == "sin" { x.sin() } else { x.cos() };
                        assert!((f64::from(out[k]) - expected).abs() < 1.5e-7, "{name}({x})");
                    }
                }
            }
        });
    }

    #[test]
    fn special_values() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        let x = [
            0.0,
            -0.0,
            inf,
            -inf,
            nan,
            1e-40,
            -1e-40,
            f32::MAX,
            f32::MIN,
            1.0,
            -1.0,
            88.7,
            88.8,
            -87.5,
            -103.0,
            -110.0,
        ];
        for_every_isa(|level| {
            let check = |name: &str, ulps_max: f64, reference: &dyn Fn(f64) -> f64| {
                let mut out = x;
                apply(name, &mut out, &x);
                for k in 0..16 {
                    let expected = reference(f64::from(x[k]));
                    let distance = ulps(out[k], expected);
                    assert!(
                        distance <= ulps_max,
                        "{name}({}) at {level:?}: {} for {expected}",
                        x[k],
                        out[k]
                    );
                }
            };
            check("exp", 1.5, &|x| x.exp());
            check("log", 1.0, &|x| x.ln());
            check("tanh", 2.0, &|x| x.tanh());
            check("erf", 2.0, &erf_f64_or_nan);
            check("softplus", 2.0, &|x| if x > 30.0 { x } else { x.exp().ln_1p() });
            check("sin", 1.0, &|x| x.sin());
            check("sqrt_fast", 2.0, &|x| x.sqrt());
        });
    }

    fn erf_f64_or_nan(x: f64) -> f64 {
        if x.is_nan() { x } else { erf_f64(x) }
    }

    #[test]
    fn powers_of_special_values() {
        let inf = f32::INFINITY;
        let bases = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            2.0,
            -2.0,
            0.5,
            -0.5,
            inf,
            -inf,
            f32::NAN,
            1e-40,
            1e30,
            -3.0,
            7.0,
            -7.5,
        ];
        let exponents = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            2.0,
            3.0,
            -3.0,
            0.5,
            -0.5,
            2.5,
            inf,
            -inf,
            f32::NAN,
            1e9,
            16777217.0,
            -149.0,
        ];
        for x in bases {
            for y in exponents {
                let (got, expected) = (pow_f32(x, y), x.powf(y));
                let distance = ulps(got, f64::from(expected));
                assert!(distance <= 1.0, "{x}^{y}: {got} for {expected}");
            }
        }
    }
}
