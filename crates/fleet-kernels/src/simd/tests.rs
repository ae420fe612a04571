use super::*;

/// The results of every method that is not a plain arithmetic instruction, in sequence.
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
                // SAFETY: 16 floats hold every register.
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
    for_every_isa(|_| {
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
