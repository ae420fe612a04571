//! Gradients of [`binary`](super::binary), summed over the broadcast axes.

use super::*;
use crate::reduce::{Plain, Product, Quotient, Reduction, SumOp, reduce_source};

/// Returns the length of the scratch memory for both gradients of [`binary_grad`], in floats.
pub fn binary_grad_scratch_len(op: Binary, plan: &Broadcast) -> usize {
    let need = |sums: &Option<Reduction>, side| match sums {
        None => 0,
        Some(sums) if fused_sum(op, plan, side) => sums.scratch_len(),
        Some(sums) => plan.len + sums.scratch_len(),
    };
    need(&plan.a_sums, Side::A).max(need(&plan.b_sums, Side::B))
}

#[derive(Clone, Copy, PartialEq)]
enum Side {
    A,
    B,
}

/// Whether the sum over the broadcast axes can compute its terms directly from two whole tensors.
fn fused_sum(op: Binary, plan: &Broadcast, side: Side) -> bool {
    match op {
        Binary::Add | Binary::Sub => true,
        Binary::Mul if side == Side::A => plan.b_sums.is_none(),
        Binary::Div if side == Side::A => plan.b_sums.is_none(),
        Binary::Mul | Binary::Div => plan.a_sums.is_none(),
        _ => false,
    }
}

/// Computes the gradients `da` and `db` of `a op b` from `dz`, those that are requested. `scratch`
/// holds [`binary_grad_scratch_len`] floats. If both operands are equal, max and min give the
/// gradient to `b`.
pub fn binary_grad(
    pool: &Pool,
    op: Binary,
    plan: &Broadcast,
    a: &[f32],
    b: &[f32],
    dz: &[f32],
    da: Option<&mut [f32]>,
    db: Option<&mut [f32]>,
    scratch: &mut [f32],
) {
    check_lens(plan, a, b, dz);
    assert!(scratch.len() >= binary_grad_scratch_len(op, plan), "scratch is too short");
    let operands = Operands {
        a: SharedPtr::new(a.as_ptr()),
        b: SharedPtr::new(b.as_ptr()),
        dz: SharedPtr::new(dz.as_ptr()),
    };
    if let Some(da) = da {
        assert_eq!(da.len(), a.len(), "left gradient has the wrong length");
        side_grad(pool, op, plan, Side::A, operands, da, scratch);
    }
    if let Some(db) = db {
        assert_eq!(db.len(), b.len(), "right gradient has the wrong length");
        side_grad(pool, op, plan, Side::B, operands, db, scratch);
    }
}

#[derive(Clone, Copy)]
struct Operands {
    a: SharedPtr<f32>,
    b: SharedPtr<f32>,
    dz: SharedPtr<f32>,
}

fn side_grad(
    pool: &Pool,
    op: Binary,
    plan: &Broadcast,
    side: Side,
    operands: Operands,
    out: &mut [f32],
    scratch: &mut [f32],
) {
    let sums = if side == Side::A { &plan.a_sums } else { &plan.b_sums };
    let Some(sums) = sums else {
        local_grad(pool, op, plan, side, operands, SharedPtr::new_mut(out.as_mut_ptr()));
        return;
    };
    let Operands { a, b, dz } = operands;
    if !fused_sum(op, plan, side) {
        let (local, scratch) = scratch.split_at_mut(plan.len);
        let local = SharedPtr::new_mut(local.as_mut_ptr());
        local_grad(pool, op, plan, side, operands, local);
        reduce_source(pool, SumOp, sums, Plain(local), 1.0, out, scratch);
        return;
    }
    match (op, side) {
        (Binary::Add, _) | (Binary::Sub, Side::A) => {
            reduce_source(pool, SumOp, sums, Plain(dz), 1.0, out, scratch);
        }
        (Binary::Sub, _) => reduce_source(pool, SumOp, sums, Plain(dz), -1.0, out, scratch),
        (Binary::Mul, Side::A) => {
            reduce_source(pool, SumOp, sums, Product(dz, b), 1.0, out, scratch);
        }
        (Binary::Mul, _) => reduce_source(pool, SumOp, sums, Product(dz, a), 1.0, out, scratch),
        (_, Side::A) => reduce_source(pool, SumOp, sums, Quotient(dz, b), 1.0, out, scratch),
        (_, Side::B) => {
            // The divisor is constant over the terms of a sum, so it is applied afterwards.
            reduce_source(pool, SumOp, sums, Product(dz, a), -1.0, out, scratch);
            for (i, d) in out.iter_mut().enumerate() {
                // SAFETY: `out` has the length of `b`.
                let divisor = unsafe { *b.at(i) };
                *d /= divisor * divisor;
            }
        }
    }
}

kernel! {
    unsafe fn grad_kernel<S, O: PairGrad>(
        s: S, op: O, plan: &Broadcast, left: bool, operands: Operands, out: SharedPtr<f32>,
        range: Range<usize>,
    ) {
        let _ = (s, op);
        let (step_a, step_b) = plan.steps();
        let (step_a, step_b) = (step_a.min(1), step_b.min(1));
        plan.walk(range, #[inline(always)] |i, x, y, n| {
            let (a, b) = (operands.a.at(x).cast_const(), operands.b.at(y).cast_const());
            let (dz, out) = (operands.dz.at(i).cast_const(), out.at(i));
            match (left, step_a, step_b) {
                (true, 1, 1) => grad_segment::<O, true, 1, 1>(a, b, dz, out, n),
                (true, 0, _) => grad_segment::<O, true, 0, 1>(a, b, dz, out, n),
                (true, _, _) => grad_segment::<O, true, 1, 0>(a, b, dz, out, n),
                (false, 1, 1) => grad_segment::<O, false, 1, 1>(a, b, dz, out, n),
                (false, 0, _) => grad_segment::<O, false, 0, 1>(a, b, dz, out, n),
                (false, _, _) => grad_segment::<O, false, 1, 0>(a, b, dz, out, n),
            }
        });
    }
}

#[inline(always)]
fn one_grad<O: PairGrad, const LEFT: bool>(a: f32, b: f32, dz: f32) -> f32 {
    if LEFT { O::da(a, b, dz) } else { O::db(a, b, dz) }
}

#[inline(always)]
unsafe fn grad_segment<O: PairGrad, const LEFT: bool, const STEP_A: usize, const STEP_B: usize>(
    a: *const f32,
    b: *const f32,
    dz: *const f32,
    out: *mut f32,
    n: usize,
) {
    // SAFETY: as for `segment`.
    unsafe {
        let mut i = 0;
        while i + CHUNK <= n {
            block_loop_vectorization();
            let xs: [f32; CHUNK] = std::array::from_fn(
                #[inline(always)]
                |k| *a.add((i + k) * STEP_A),
            );
            let ys: [f32; CHUNK] = std::array::from_fn(
                #[inline(always)]
                |k| *b.add((i + k) * STEP_B),
            );
            let gs = dz.add(i).cast::<[f32; CHUNK]>().read_unaligned();
            let results: [f32; CHUNK] = std::array::from_fn(
                #[inline(always)]
                |k| one_grad::<O, LEFT>(xs[k], ys[k], gs[k]),
            );
            out.add(i).cast::<[f32; CHUNK]>().write_unaligned(results);
            i += CHUNK;
        }
        while i < n {
            *out.add(i) = one_grad::<O, LEFT>(*a.add(i * STEP_A), *b.add(i * STEP_B), *dz.add(i));
            i += 1;
        }
    }
}

/// Computes the terms of a gradient before any sum, one for every element of the result.
fn local_grad(
    pool: &Pool,
    op: Binary,
    plan: &Broadcast,
    side: Side,
    operands: Operands,
    out: SharedPtr<f32>,
) {
    let left = side == Side::A;
    pool.run_ranges(plan.len, GRAIN, |range| {
        // SAFETY: ranges are disjoint, and `out` holds the elements of the result.
        with_binary!(op, o => unsafe { grad_kernel(o, plan, left, operands, out, range.clone()) });
    });
}
