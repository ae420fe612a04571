//! `check_finite_and_unscale`: `Out = X / Scale` for every gradient. `FoundInfinite` is true if any
//! element of any `X` is infinite or NaN. Half-precision gradients are divided in f32 and rounded
//! back. `Scale` is one f32.

use crate::prelude::*;
use crate::{Arg, elementwise_cost};
use fleet_tensor::{Element, bf16, f16};

/// Elements per task.
const GRAIN: usize = 16 * 1024;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "check_finite_and_unscale",
        inputs: &[many("X"), one("Scale")],
        outputs: &[many("Out"), one("FoundInfinite")],
        attrs: &[],
    },
    infer: |i| {
        i.check_dtype("X", &[DType::F32, DType::F16, DType::BF16])?;
        i.check_dtype("Scale", &[DType::F32])?;
        i.check_shape("Scale", [1])?;
        for meta in i.inputs("X").to_vec() {
            i.push("Out", meta);
        }
        i.set("FoundInfinite", DType::Bool, [1]);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let lens: Vec<usize> = p.inputs[0]
            .iter()
            .zip(&p.input_layouts[0])
            .map(|(meta, layout)| match meta.kind {
                VarKind::SparseRows => meta.numel(),
                _ => layout.physical_len(&meta.shape),
            })
            .collect();
        Ok(Kernel::new(move |k| {
            let inverse = 1.0 / k.input::<f32>(1)[0];
            let mut found = false;
            for ((from, to), len) in k.inputs[0].iter().zip(k.outputs[0]).zip(&lens) {
                found |= unscale(k.pool, from, to, *len, inverse);
            }
            k.output::<u8>(1)[0] = u8::from(found);
            Ok(())
        }))
    },
    traits: OpTraits {
        sparse: &["X"],
        elementwise: true,
        spread: Spread::Mean,
        cost: elementwise_cost,
        ..OpTraits::plain()
    },
};

/// Divides one gradient. Returns whether any of its elements is not finite.
fn unscale(pool: &Pool, from: &Arg, to: &Arg, len: usize, inverse: f32) -> bool {
    let mut used = len;
    if from.rows.is_some() {
        used = from.row_count() * from.row_len();
        if !from.shares_memory_with(to) {
            to.row_ids_mut()[..from.row_count()].copy_from_slice(from.row_ids());
            to.set_row_count(from.row_count());
        }
    }
    match from.dtype {
        DType::F16 => each::<f16>(pool, from, to, used, inverse, f16::to_f32, f16::from_f32),
        DType::BF16 => each::<bf16>(pool, from, to, used, inverse, bf16::to_f32, bf16::from_f32),
        _ => each::<f32>(pool, from, to, used, inverse, |x| x, |x| x),
    }
}

fn each<T: Element>(
    pool: &Pool,
    from: &Arg,
    to: &Arg,
    len: usize,
    inverse: f32,
    read: fn(T) -> f32,
    write: fn(f32) -> T,
) -> bool {
    let (x, y) = (from.as_ptr::<T>(len) as usize, to.as_ptr::<T>(len) as usize);
    let found = std::sync::atomic::AtomicBool::new(false);
    pool.run_ranges(len, GRAIN, |range| {
        let mut bad = false;
        for at in range {
            // SAFETY: both hold `len` elements and are equal or disjoint; ranges are disjoint.
            unsafe {
                let value = read(*(x as *const T).add(at));
                bad |= !value.is_finite();
                *(y as *mut T).add(at) = write(value * inverse);
            }
        }
        if bad {
            found.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    });
    found.into_inner()
}
