//! `top_k_v2`: the k largest (or smallest) elements along an axis, in order, and their indices.
//!
//! f32 (halves through f32), f64, i32, i64. Equal elements are ordered by index. A NaN is larger
//! than any number. The gradient goes to the selected elements.

use crate::prelude::*;
use crate::rules::{axis_of, by_type, check_like, split_at_axis};
use crate::widen::{has_half, through_f32};
use fleet_ir::AttrSpec;
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
    cpu,
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
    cpu: grad_cpu,
    traits: OpTraits { shape_only: &["X"], ..OpTraits::plain() },
};

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    if has_half(p) {
        return through_f32(p, cpu);
    }
    let x = p.input("X");
    let (outer, len, inner) = split_at_axis(&x.shape, axis_of(p.op, "axis", &x.shape)?);
    let (count, largest) = (p.op.attr_usize("k"), p.op.attr_bool("largest"));
    if x.dtype == DType::F32 && inner == 1 {
        let rank = if largest { Rank::Largest } else { Rank::Smallest };
        return Ok(Kernel::new(move |k| {
            top_k(k.pool, rank, k.input(0), len, count, k.output(0), k.output(1));
            Ok(())
        }));
    }
    let lines_per_task = (GRAIN / len.max(1)).max(1);
    by_type!(x.dtype, Err(p.no_kernel(x.dtype)),
        [F32 => f32, F64 => f64, I32 => i32, I64 => i64], T => {
        // Returns whether `a` comes before `b`.
        #[allow(clippy::eq_op)]
        let before: fn(T, T) -> bool = match largest {
            true => |a, b| a > b || (a != a && b == b),
            false => |a, b| a < b || (b != b && a == a),
        };
        Ok(Kernel::new(move |k| {
            let x = k.input::<T>(0);
            let kept = outer * count * inner;
            let values = Shareable::new(&mut k.output::<T>(0)[..kept]);
            let places = Shareable::new(&mut k.output::<i64>(1)[..kept]);
            k.pool.run_ranges(outer * inner, lines_per_task, |lines| {
                for line in lines {
                    let start = line / inner * len * inner + line % inner;
                    let out = line / inner * count * inner + line % inner;
                    // SAFETY: lines are disjoint; `out + j * inner` with j < count is below `kept`.
                    unsafe {
                        select(len, count, inner, before, |at| x[start + at * inner],
                            values.ptr().add(out), places.ptr().add(out));
                    }
                }
            });
            Ok(())
        }))
    })
}

/// Keeps the best `count` elements so far in order. This is fast because `count` is small and most
/// elements fail the first comparison.
///
/// # Safety
/// `values` and `places` hold `count` elements, `step` apart.
unsafe fn select<T: Copy>(
    len: usize,
    count: usize,
    step: usize,
    before: fn(T, T) -> bool,
    element: impl Fn(usize) -> T,
    values: *mut T,
    places: *mut i64,
) {
    for at in 0..len {
        let value = element(at);
        let kept = at.min(count);
        // SAFETY: every index used is below `count`.
        unsafe {
            if kept == count && !before(value, *values.add((count - 1) * step)) {
                continue;
            }
            let mut to = kept.min(count - 1);
            while to > 0 && before(value, *values.add((to - 1) * step)) {
                *values.add(to * step) = *values.add((to - 1) * step);
                *places.add(to * step) = *places.add((to - 1) * step);
                to -= 1;
            }
            *values.add(to * step) = value;
            *places.add(to * step) = at as i64;
        }
    }
}

fn grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    if has_half(p) {
        return through_f32(p, grad_cpu);
    }
    let (x, dout) = (p.input("X"), p.input("Out@GRAD"));
    if x.dtype != DType::F32 {
        return Err(p.no_kernel(x.dtype));
    }
    let axis = axis_of(p.op, "axis", &x.shape)?;
    let (outer, len, inner) = split_at_axis(&x.shape, axis);
    let count = dout.shape.at(axis);
    Ok(Kernel::new(move |k| {
        let (places, dout) = (k.input::<i64>(1), k.input::<f32>(2));
        if let Some(place) = places.iter().find(|place| !(0..len as i64).contains(*place)) {
            return Err(Error::invalid("Indices of top_k_v2_grad are out of range")
                .expected(format!("0 to {}", len as i64 - 1))
                .got(place));
        }
        let dx = Shareable::new(k.output::<f32>(0));
        k.pool.run_ranges(outer, (GRAIN / (len * inner).max(1)).max(1), |blocks| {
            for block in blocks {
                // SAFETY: blocks are disjoint and inside the output.
                let dx = unsafe { dx.slice(block * len * inner, len * inner) };
                dx.fill(0.0);
                for j in 0..count * inner {
                    let from = block * count * inner + j;
                    dx[places[from] as usize * inner + j % inner] = dout[from];
                }
            }
        });
        Ok(())
    }))
}
