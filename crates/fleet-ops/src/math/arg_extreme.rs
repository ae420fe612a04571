//! `arg_max` and `arg_min`: index of the first extreme element along an axis, as i64.
//!
//! With `flatten` the tensor is one row and the result has shape [1]. f32 uses the vector kernel
//! (halves through f32); f64, i32 and i64 use plain loops. No gradient.

use crate::prelude::*;
use crate::rules::{axis_of, by_type, split_at_axis};
use crate::widen::any_float;
use fleet_ir::{AttrSpec, SlotSpec};
use fleet_kernels::reduce::{Extreme, arg_extreme};

const ATTRS: &[AttrSpec] =
    &[attr("axis", Int(-1)), attr("keepdims", Bool(false)), attr("flatten", Bool(false))];

const IN: &[SlotSpec] = &[one("X")];
const OUT: &[SlotSpec] = &[one("Out")];

pub static ARG_MAX: OpDef = def("arg_max");
pub static ARG_MIN: OpDef = def("arg_min");

const fn def(name: &'static str) -> OpDef {
    OpDef {
        spec: OpSpec { name, inputs: IN, outputs: OUT, attrs: ATTRS },
        infer,
        grad: Grad::None,
        cpu: |p| any_float(p, cpu),
        traits: OpTraits::plain(),
    }
}

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    let x = i.input("X")?;
    let mut dims = x.shape.to_vec();
    if i.op.attr_bool("flatten") {
        dims = if i.op.attr_bool("keepdims") { vec![1; dims.len()] } else { vec![1] };
    } else {
        let axis = axis_of(i.op, "axis", &x.shape)?;
        if i.op.attr_bool("keepdims") {
            dims[axis] = 1;
        } else {
            dims.remove(axis);
        }
    }
    if dims.is_empty() {
        dims.push(1);
    }
    i.set("Out", DType::I64, Shape::new(&dims)?);
    Ok(())
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let x = p.input("X");
    let (outer, len, inner) = match p.op.attr_bool("flatten") {
        true => (1, x.shape.len(), 1),
        false => split_at_axis(&x.shape, axis_of(p.op, "axis", &x.shape)?),
    };
    if len == 0 {
        return Err(Error::invalid(format!("{} over an empty dimension", p.op.name())).got(x.shape));
    }
    let extreme = if p.op.name() == "arg_max" { Extreme::Max } else { Extreme::Min };
    if x.dtype == DType::F32 {
        return Ok(Kernel::infallible(move |k| {
            arg_extreme(k.pool, extreme, k.input(0), outer, len, inner, k.output(0))
        }));
    }
    by_type!(x.dtype, Err(p.no_kernel(x.dtype)), [F64 => f64, I32 => i32, I64 => i64], T => {
        let better: fn(T, T) -> bool = match extreme {
            Extreme::Max => |a, b| a > b,
            Extreme::Min => |a, b| a < b,
        };
        Ok(Kernel::infallible(move |k| {
            let (x, out) = (k.input::<T>(0), k.output::<i64>(0));
            for (place, out) in out.iter_mut().enumerate() {
                let start = place / inner * len * inner + place % inner;
                let mut best = 0;
                for at in 1..len {
                    if better(x[start + at * inner], x[start + best * inner]) {
                        best = at;
                    }
                }
                *out = best as i64;
            }
        }))
    })
}
