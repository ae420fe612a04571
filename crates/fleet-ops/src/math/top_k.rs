//! `top_k_v2`: the k largest (or smallest) elements along an axis, in order, and their indices.
//!
//! f32 (halves through f32), f64, i32, i64. Equal elements are ordered by index. A NaN is larger
//! than any number. The gradient goes to the selected elements.

use crate::prelude::*;
use crate::rules::{axis_of, by_type, check_like, split_at_axis};
use crate::widen::any_float;
use fleet_ir::AttrSpec;
use fleet_kernels::map::AxisRows;
use fleet_kernels::scatter::{Rank, top_k};

/// Minimum number of elements that a task reads.
const GRAIN: usize = 16 * 1024;

const ATTRS: &[AttrSpec] = &[attr("k", Int(1)), attr("axis", Int(-1)), attr("largest", Bool(true))];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "top_k_v2",
        inputs: &[one("X")],
        outputs: &[one("Out"), one("Indices")],
        attrs: ATTRS,
    },
    infer: |i| {
        let x = i.input("X")?;
        let axis = axis_of(i.op, "axis", &x.shape)?;
        let count = i.op.attr_int("k");
        if count < 1 || (x.shape[axis] >= 0 && count > x.shape[axis]) {
            return Err(Error::invalid("attribute 'k' of top_k_v2 is out of range")
                .expected(format!("1 to dimension {axis} of X {}", x.shape))
                .got(count));
        }
        let mut shape = x.shape;
        shape.dims_mut()[axis] = count;
        i.set("Out", x.dtype, shape);
        i.set("Indices", DType::I64, shape);
        Ok(())
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits::amp(AmpClass::Unlisted),
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "top_k_v2_grad",
        inputs: &[one("X"), one("Indices"), one("Out@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: &[attr("axis", Int(-1))],
    },
    infer: |i| {
        let x = i.input("X")?;
        let mut picked = x.shape;
        picked.dims_mut()[axis_of(i.op, "axis", &x.shape)?] = -1;
        i.check_dtype("Out@GRAD", &[x.dtype])?;
        i.check_shape("Out@GRAD", picked)?;
        check_like(i, "Indices", Meta::dense(DType::I64, i.input("Out@GRAD")?.shape))?;
        i.set("X@GRAD", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| any_float(p, grad_cpu),
    traits: OpTraits { shape_only: &["X"], ..OpTraits::plain() },
};

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let x = p.input("X");
    let (outer, len, inner) = split_at_axis(&x.shape, axis_of(p.op, "axis", &x.shape)?);
    let (count, largest) = (p.op.attr_usize("k"), p.op.attr_bool("largest"));
    if x.dtype == DType::F32 && inner == 1 {
        let rank = if largest { Rank::Largest } else { Rank::Smallest };
        return Ok(Kernel::infallible(move |k| {
            top_k(k.pool, rank, k.input(0), len, count, k.output(0), k.output(1))
        }));
    }
    let rows = AxisRows { outer, classes: len, inner };
    by_type!(x.dtype, Err(p.no_kernel(x.dtype)),
        [F32 => f32, F64 => f64, I32 => i32, I64 => i64], T => {
        // Returns whether `a` comes before `b`.
        #[allow(clippy::eq_op)]
        let before: fn(T, T) -> bool = match largest {
            true => |a, b| a > b || (a != a && b == b),
            false => |a, b| a < b || (b != b && a == a),
        };
        Ok(Kernel::infallible(move |k| {
            let (x, values, places) = (k.input::<T>(0), k.output::<T>(0), k.output::<i64>(1));
            rows.top_k(k.pool, before, x, count, values, places);
        }))
    })
}

fn grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (x, dout) = (p.input("X"), p.input("Out@GRAD"));
    if x.dtype != DType::F32 {
        return Err(p.no_kernel(x.dtype));
    }
    let axis = axis_of(p.op, "axis", &x.shape)?;
    let (_, len, inner) = split_at_axis(&x.shape, axis);
    let count = dout.shape.at(axis);
    Ok(Kernel::new(move |k| {
        let (places, dout) = (k.input::<i64>(1), k.input::<f32>(2));
        if let Some(place) = places.iter().find(|place| !(0..len as i64).contains(*place)) {
            return Err(Error::invalid("Indices of top_k_v2_grad are out of range")
                .expected(format!("0 to {}", len as i64 - 1))
                .got(place));
        }
        let block = (len * inner).max(1);
        k.pool.run_parts(k.output::<f32>(0), (GRAIN / block).max(1) * block, |start, part| {
            part.fill(0.0);
            for (at, dx) in part.chunks_exact_mut(block).enumerate() {
                for j in 0..count * inner {
                    let from = (start / block + at) * count * inner + j;
                    dx[places[from] as usize * inner + j % inner] = dout[from];
                }
            }
        });
        Ok(())
    }))
}
