//! Compares products with sums in f64, on every instruction set, for 1, 2 and 3 threads.

use super::*;
use fleet_base::rng::Sequence;

fn numbers(rng: &mut Sequence, len: usize) -> Vec<f32> {
    (0..len).map(|_| (rng.unit() * 2.0 - 1.0) as f32).collect()
}

/// Returns the expected C and the tolerance of each element.
fn expected(
    gemm: &Gemm,
    a: &[f32],
    b: &[f32],
    c: &[f32],
    epilogue: &Epilogue<'_>,
) -> Vec<(usize, f64, f64)> {
    let mut out = Vec::new();
    for item in 0..gemm.batch.len() {
        let [at_a, at_b, at_c] =
            [gemm.batch.a, gemm.batch.b, gemm.batch.c].map(|s| gemm.batch.offset(s, item));
        for i in 0..gemm.m {
            for j in 0..gemm.n {
                let (mut sum, mut size) = (0.0, 0.0);
                for l in 0..gemm.k {
                    let x = if gemm.trans_a { l * gemm.lda + i } else { i * gemm.lda + l };
                    let y = if gemm.trans_b { j * gemm.ldb + l } else { l * gemm.ldb + j };
                    let term = f64::from(a[at_a + x]) * f64::from(b[at_b + y]);
                    sum += term;
                    size += term.abs();
                }
                let at = at_c + i * gemm.ldc + j;
                let mut value = f64::from(gemm.alpha) * sum;
                if gemm.beta != 0.0 {
                    value += f64::from(gemm.beta) * f64::from(c[at]);
                }
                if let Some(bias) = epilogue.bias {
                    value += f64::from(bias[j]);
                }
                if epilogue.relu {
                    value = value.max(0.0);
                }
                if epilogue.mask.is_some_and(|mask| mask[at] <= 0.0) {
                    value = 0.0;
                }
                if epilogue.finish.is_some() {
                    value = value * 2.0 + j as f64;
                }
                out.push((at, value, 1e-6 * (size + gemm.n as f64 + 4.0)));
            }
        }
    }
    out
}

/// Compares on all instruction sets and thread counts.
fn check(gemm: Gemm, bias: bool, relu: bool, hook: bool, seed: u64) {
    let mut rng = Sequence::new(seed, 1);
    let [a_len, b_len, c_len] = gemm.lens();
    let (a, b, c) = (numbers(&mut rng, a_len), numbers(&mut rng, b_len), numbers(&mut rng, c_len));
    let bias_values = numbers(&mut rng, gemm.n);
    let double = |part: RowPart<'_>| {
        for (j, value) in part.values.iter_mut().enumerate() {
            *value = *value * 2.0 + (part.col + j) as f32;
        }
    };
    let mask_values = numbers(&mut rng, c_len);
    let epilogue = Epilogue {
        bias: bias.then_some(&bias_values),
        relu,
        mask: seed.is_multiple_of(2).then_some(&mask_values),
        finish: hook.then_some(&double),
    };
    let wanted = expected(&gemm, &a, &b, &c, &epilogue);
    let mut touched = vec![false; c_len];
    wanted.iter().for_each(|(at, _, _)| touched[*at] = true);
    for isa in Isa::available() {
        let gemm = Gemm { isa, ..gemm };
        let mut first: Option<Vec<f32>> = None;
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads);
            let mut out = c.clone();
            let mut scratch = vec![f32::NAN; gemm.scratch_len(threads)];
            gemm.run(&pool, &a, &b, &mut out, &mut scratch, &epilogue);
            for (at, value, slack) in &wanted {
                let got = f64::from(out[*at]);
                assert!(
                    (got - value).abs() <= *slack,
                    "{gemm:?} threads {threads}: at {at} expected {value}, got {got}"
                );
            }
            for at in (0..c_len).filter(|at| !touched[*at]) {
                assert_eq!(out[at], c[at], "{gemm:?}: wrote between the rows at {at}");
            }
            match &first {
                Some(first) => assert_eq!(first, &out, "{gemm:?}: depends on threads"),
                None => first = Some(out),
            }
        }
    }
}

fn orientation(which: u64, m: usize, n: usize, k: usize) -> Gemm {
    [Gemm::nn, Gemm::nt, Gemm::tn, Gemm::tt][which as usize](m, n, k)
}

#[test]
fn odd_shapes_in_all_orientations() {
    let mut rng = Sequence::new(7, 0);
    for round in 0..160 {
        let [m, n, k] = [90, 150, 70].map(|most| 1 + rng.below(most) as usize);
        let mut gemm = orientation(round % 4, m, n, k);
        if round % 3 == 0 {
            gemm = gemm.leading(gemm.lda + 3, gemm.ldb + 5, gemm.ldc + 7);
        }
        if round % 5 == 0 {
            gemm = gemm.alpha(-0.5).beta([0.0, 1.0, 0.25][(round / 5 % 3) as usize]);
        }
        check(gemm, round % 2 == 0, round % 7 == 0, round % 11 == 0, round);
    }
}

#[test]
fn one_row_or_one_column() {
    let mut rng = Sequence::new(8, 0);
    for round in 0..48 {
        let long = 1 + rng.below(1500) as usize;
        let k = 1 + rng.below(700) as usize;
        let (m, n) = if round % 8 < 4 { (1, long) } else { (long, 1) };
        let mut gemm = orientation(round % 4, m, n, k).beta((round % 3) as f32);
        if round % 5 == 0 {
            gemm = gemm.leading(gemm.lda + 1, gemm.ldb + 2, gemm.ldc + 3);
        }
        check(gemm, round % 2 == 0, round % 3 == 0, round % 7 == 0, round);
    }
}

#[test]
fn long_sums_wide_outputs_and_empty_ones() {
    for (which, m, n, k) in [
        (0, 7, 70, 1100),
        (1, 40, 33, 1025),
        (2, 29, 65, 2049),
        (3, 13, 16, 1537),
        (0, 300, 700, 20),
        (2, 200, 130, 513),
        (1, 160, 900, 800),
        (2, 100, 800, 1550),
        (0, 5, 9, 0),
        (2, 0, 9, 4),
        (1, 9, 0, 4),
    ] {
        check(orientation(which, m, n, k).beta(1.0), true, m % 2 == 0, m == 29, 3);
    }
}

#[test]
fn tall_narrow_sides_are_read_in_place() {
    check(Gemm::tn(170, 80, 1100), false, false, false, 5);
    check(Gemm::tn(150, 208, 530).leading(173, 224, 211), true, true, true, 6);
    check(
        Gemm::tn(300, 64, 512).leading(301, 80, 64).alpha(-0.5).beta(0.25),
        true,
        false,
        false,
        7,
    );
    // Rows at an unfavorable distance, or not aligned to cache lines, use a packed B.
    check(Gemm::tn(150, 80, 530).leading(256, 128, 80), false, true, false, 8);
    check(Gemm::tn(150, 70, 530), false, false, true, 9);
}

#[test]
fn batches() {
    let mut rng = Sequence::new(9, 0);
    for round in 0..24u64 {
        let [m, n, k] = [30, 80, 40].map(|most| 1 + rng.below(most) as usize);
        let gemm = orientation(round % 4, m, n, k);
        let [a, b, c] = gemm.lens();
        let count = 1 + rng.below(12) as usize;
        let b_stride = if round % 3 == 0 { 0 } else { b };
        check(
            gemm.batched(count, a, b_stride, c + 3),
            round % 2 == 0,
            false,
            round % 5 == 0,
            round,
        );
    }
    // More columns and terms than one block has, and one B for all products.
    check(Gemm::nn(7, 450, 800).batched(9, 7 * 800, 0, 7 * 450), true, false, false, 5);
    // Interleaved heads in each row, as in attention: two levels, no copy.
    let (sequence, heads, width, images) = (5, 3, 4, 2);
    let pitch = heads * width;
    let gemm =
        Gemm::nt(sequence, sequence, width).leading(pitch, pitch, sequence).batched_2(Batch {
            count: [images, heads],
            a: [sequence * pitch, width],
            b: [sequence * pitch, width],
            c: [heads * sequence * sequence, sequence * sequence],
        });
    check(gemm, false, false, false, 4);
}

#[test]
fn bad_strides_and_lengths_are_told() {
    let gemm = Gemm::nn(4, 5, 6);
    assert!(gemm.check(24, 30, 20).is_ok());
    assert!(gemm.check(23, 30, 20).is_err());
    assert!(gemm.check(24, 29, 20).is_err());
    assert!(gemm.check(24, 30, 19).is_err());
    let error = gemm.leading(5, 5, 5).check(100, 100, 100).expect_err("lda is too small");
    assert_eq!(error.kind(), fleet_base::ErrorKind::Invalid);
}

#[test]
fn a_nan_survives_relu() {
    for isa in Isa::available() {
        let gemm = Gemm { isa, ..Gemm::nn(2, 3, 2) };
        let mut scratch = vec![0.0; gemm.scratch_len(1)];
        let (a, mut c) = ([f32::NAN, 1.0, 1.0, 1.0], [0.0; 6]);
        let epilogue = Epilogue { relu: true, ..Epilogue::NONE };
        gemm.run(&Pool::new(1), &a, &[1.0; 6], &mut c, &mut scratch, &epilogue);
        assert!(c[..3].iter().all(|value| value.is_nan()) && c[3..] == [2.0; 3], "{isa:?}: {c:?}");
    }
}

/// Compares the machine's bf16 units, if any, with sums in f64.
#[cfg(target_arch = "x86_64")]
#[test]
fn bf16_products_by_the_unit_are_right() {
    let mut rng = Sequence::new(7, 7);
    let shapes = [
        (32, 32, 32),
        (33, 47, 65),
        (17, 300, 40),
        (150, 20, 513),
        (128, 256, 512),
        (160, 290, 1030),
        (2, 600, 77),
    ];
    for (m, n, k) in shapes {
        for which in 0..4 {
            let gemm = orientation(which, m, n, k);
            for (unit, (alpha, beta)) in crate::micro::unit::Unit::available()
                .flat_map(|unit| [(1.0, 0.0), (0.5, 1.0)].map(|by| (unit, by)))
            {
                check_bf16(unit, gemm.alpha(alpha).beta(beta), &mut rng);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn check_bf16(unit: crate::micro::unit::Unit, gemm: Gemm, rng: &mut Sequence) {
    use half::bf16;
    let narrow = |x: Vec<f32>| -> Vec<bf16> { x.into_iter().map(bf16::from_f32).collect() };
    let wide = |x: &[bf16]| -> Vec<f32> { x.iter().map(|x| x.to_f32()).collect() };
    let [a_len, b_len, c_len] = gemm.lens();
    let (a, b) = (narrow(numbers(rng, a_len)), narrow(numbers(rng, b_len)));
    let c = numbers(rng, c_len);
    let bias = numbers(rng, gemm.n);
    for relu in [false, true] {
        let epilogue = Epilogue { bias: Some(&bias), relu, ..Epilogue::NONE };
        let wanted = expected(&gemm, &wide(&a), &wide(&b), &c, &epilogue);
        let mut first: Option<Vec<f32>> = None;
        for threads in [1, 2, 3] {
            let pool = Pool::new(threads);
            let mut scratch = vec![f32::NAN; gemm.scratch_len_bf16(threads)];
            let mut out = c.clone();
            tiles::run(unit, &gemm, &pool, &a, &b, &mut out, &mut scratch, &epilogue);
            for (at, value, slack) in &wanted {
                let got = f64::from(out[*at]);
                assert!(
                    (got - value).abs() <= *slack,
                    "{unit:?}, {gemm:?}: at {at} {value}, got {got}"
                );
            }
            let first = first.get_or_insert_with(|| out.clone());
            assert_eq!(*first, out, "{unit:?}, {gemm:?}: depends on threads");
        }
        if gemm.beta == 0.0 {
            let pool = Pool::new(2);
            let mut scratch = vec![f32::NAN; gemm.scratch_len_bf16(2)];
            let mut out = vec![bf16::NAN; c_len];
            tiles::run(unit, &gemm, &pool, &a, &b, &mut out, &mut scratch, &epilogue);
            let rounded: Vec<bf16> = narrow(first.expect("there were threads"));
            assert_eq!(out, rounded, "{unit:?}, {gemm:?}: rounded once");
        }
    }
}
