//! `check_finite_and_unscale`: `Out = X / Scale` for every gradient. `FoundInfinite` is true if any
//! element of any `X` is infinite or NaN. Half-precision gradients are divided in f32 and rounded
//! back. `Scale` is one f32.

use crate::elementwise_cost;
use crate::prelude::*;
use fleet_kernels::map::map_and_check;
use fleet_tensor::{Element, bf16, f16};

/// The op `check_finite_and_unscale`.
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
    cpu: |_| {
        Ok(Kernel::infallible(move |k| {
            // The scale may be the variable of an output too.
            let inverse = 1.0 / k.read_first(k.arg(1), |scale: &[f32]| scale[0]);
            let mut found = false;
            for (index, to) in k.outs(0).enumerate() {
                found |= unscale(k, index, to, inverse);
            }
            k.output::<u8>(1)[0] = u8::from(found);
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
fn unscale(k: &KernelCtx<'_>, index: usize, mut to: Out<'_>, inverse: f32) -> bool {
    let from = k.arg_at(0, index);
    to.copy_row_ids(from);
    match from.dtype {
        DType::F16 => each(k.pool, from, to, inverse, f16::to_f32, f16::from_f32),
        DType::BF16 => each(k.pool, from, to, inverse, bf16::to_f32, bf16::from_f32),
        _ => each::<f32>(k.pool, from, to, inverse, |x| x, |x| x),
    }
}

fn each<T: Element>(
    pool: &Pool,
    from: View<'_>,
    mut to: Out<'_>,
    inverse: f32,
    read: fn(T) -> f32,
    write: fn(f32) -> T,
) -> bool {
    let used = to.bytes_in_use() / size_of::<T>();
    let x = match from.shares_memory_with(&to) {
        true => Input::Output,
        false => Input::Separate(&from.slice()[..used]),
    };
    map_and_check(pool, x, &mut to.slice_mut()[..used], |x, is_bad| {
        let value = read(x);
        *is_bad |= !value.is_finite();
        write(value * inverse)
    })
}
