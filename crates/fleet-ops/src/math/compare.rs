//! Comparisons, logic and selection: Out is bool, or is selected by a bool.
//!
//! `equal` and similar ops compare broadcast X and Y (see `elementwise`) of f32, f64, i32, i64 and
//! bytes. `logical_*` take bool; `isfinite_v2` takes floats. `where` selects X if Condition holds,
//! else Y, for any type. All three are broadcast.

use crate::math::elementwise::{broadcast_shape, plan};
use crate::prelude::*;
use crate::rules::{by_type, by_width, grads_like, sizes};
use crate::tensor::broadcast_view::BroadcastView;
use crate::widen::any_float;
use fleet_kernels::binary::{Compare, Logical, compare, logical, logical_not};
use fleet_kernels::reduce::{Fold, Reduction, reduce};

/// Elements per task.
const GRAIN: usize = 16 * 1024;

macro_rules! pairs {
    ($infer:ident, $cpu:ident: $($name:literal $DEF:ident),*) => {$(
        #[doc = concat!("The op `", $name, "`.")]
        pub static $DEF: OpDef = OpDef {
            spec: OpSpec {
                name: $name,
                inputs: &[one("X"), one("Y")],
                outputs: &[one("Out")],
                attrs: &[attr("axis", Int(-1))],
            },
            infer: $infer,
            grad: Grad::None,
            cpu: |p| any_float(p, $cpu),
            traits: OpTraits::plain(),
        };
    )*};
}

pairs! {
    infer_compare, compare_cpu:
    "equal" EQUAL, "not_equal" NOT_EQUAL, "less_than" LESS_THAN, "less_equal" LESS_EQUAL,
    "greater_than" GREATER_THAN, "greater_equal" GREATER_EQUAL
}

pairs! {
    infer_logical, logical_cpu:
    "logical_and" LOGICAL_AND, "logical_or" LOGICAL_OR, "logical_xor" LOGICAL_XOR
}

fn infer_compare(i: &mut InferCtx<'_>) -> Result<()> {
    let dtype = i.input("X")?.dtype;
    i.check_dtype("Y", &[dtype])?;
    let shape = broadcast_shape(i)?;
    i.set("Out", DType::Bool, shape);
    Ok(())
}

fn infer_logical(i: &mut InferCtx<'_>) -> Result<()> {
    i.check_dtype("X", &[DType::Bool])?;
    infer_compare(i)
}

fn compare_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let op = match p.op.name() {
        "equal" => Compare::Eq,
        "not_equal" => Compare::Ne,
        "less_than" => Compare::Lt,
        "less_equal" => Compare::Le,
        "greater_than" => Compare::Gt,
        _ => Compare::Ge,
    };
    let (plan, dtype) = (plan(p)?, p.input("X").dtype);
    by_type!(dtype, bytes_cpu(p, op), [F32 => f32, F64 => f64, I32 => i32, I64 => i64], T => {
        Ok(Kernel::infallible(move |k| {
            compare(k.pool, op, &plan, k.input::<T>(0), k.input::<T>(1), k.output::<u8>(0));
        }))
    })
}

/// Comparison of bytes and bools, element by element.
fn bytes_cpu(p: &PrepareCtx<'_>, op: Compare) -> Result<Kernel> {
    if !matches!(p.input("X").dtype, DType::Bool | DType::U8) {
        return Err(p.no_kernel(p.input("X").dtype));
    }
    let holds: fn(u8, u8) -> bool = match op {
        Compare::Eq => |a, b| a == b,
        Compare::Ne => |a, b| a != b,
        Compare::Lt => |a, b| a < b,
        Compare::Le => |a, b| a <= b,
        Compare::Gt => |a, b| a > b,
        Compare::Ge => |a, b| a >= b,
    };
    let (x, y) = operands(p, 0, 1)?;
    Ok(Kernel::infallible(move |k| {
        let (a, b) = (k.input::<u8>(0), k.input::<u8>(1));
        k.pool.run_parts(k.output::<u8>(0), GRAIN, |start, out| {
            let (mut left, mut right) = (x.indices(start), y.indices(start));
            out.iter_mut().for_each(|it| *it = u8::from(holds(a[left.next()], b[right.next()])));
        });
    }))
}

/// Returns how the operands in two slots are broadcast to the output.
fn operands(p: &PrepareCtx<'_>, x: usize, y: usize) -> Result<(BroadcastView, BroadcastView)> {
    let (x, y) = (p.inputs[x][0].shape, p.inputs[y][0].shape);
    let (x, y) = crate::math::elementwise::align(&x, &y, p.op.attr_int("axis"))?;
    let out = p.output("Out").shape;
    Ok((BroadcastView::new(&x, &out)?, BroadcastView::new(&y, &out)?))
}

fn logical_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let op = match p.op.name() {
        "logical_and" => Logical::And,
        "logical_or" => Logical::Or,
        _ => Logical::Xor,
    };
    let plan = plan(p)?;
    Ok(Kernel::infallible(move |k| logical(k.pool, op, &plan, k.input(0), k.input(1), k.output(0))))
}

/// The op `logical_not`.
pub static LOGICAL_NOT: OpDef = OpDef {
    spec: OpSpec { name: "logical_not", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] },
    infer: |i| {
        i.check_dtype("X", &[DType::Bool])?;
        let shape = i.input("X")?.shape;
        i.set("Out", DType::Bool, shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |_| Ok(Kernel::infallible(|k| logical_not(k.pool, k.input(0), k.output(0)))),
    traits: OpTraits::plain(),
};

/// The op `isfinite_v2`.
pub static ISFINITE: OpDef = OpDef {
    spec: OpSpec { name: "isfinite_v2", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] },
    infer: |i| {
        let x = i.input("X")?;
        i.set("Out", DType::Bool, x.shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| any_float(p, isfinite_cpu),
    traits: OpTraits::plain(),
};

fn isfinite_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let dtype = p.input("X").dtype;
    by_type!(dtype, Ok(Kernel::infallible(|k| k.output::<u8>(0).fill(1))),
        [F32 => f32, F64 => f64], T => {
        Ok(Kernel::infallible(move |k| {
            let x = k.input::<T>(0);
            k.pool.run_parts(k.output::<u8>(0), GRAIN, |start, out| {
                out.iter_mut().zip(&x[start..]).for_each(|(y, x)| *y = u8::from(x.is_finite()));
            });
        }))
    })
}

/// The op `where`.
pub static WHERE: OpDef = OpDef {
    spec: OpSpec {
        name: "where",
        inputs: &[one("Condition"), one("X"), one("Y")],
        outputs: &[one("Out")],
        attrs: &[],
    },
    infer: |i| {
        i.check_dtype("Condition", &[DType::Bool])?;
        let (condition, x) = (i.input("Condition")?.shape, i.input("X")?);
        i.check_dtype("Y", &[x.dtype])?;
        let y = i.input("Y")?.shape;
        let shape = x.shape.broadcast(&y).and_then(|both| both.broadcast(&condition));
        let shape = shape.map_err(|_| {
            i.error("Y", "does not broadcast with X and Condition")
                .got(format!("X {}, Y {y}, Condition {condition}", x.shape))
        })?;
        i.set("Out", x.dtype, shape);
        Ok(())
    },
    grad: Grad::Op(&WHERE_GRAD),
    cpu: where_cpu,
    traits: OpTraits::plain(),
};

fn where_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let out = p.output("Out").shape;
    let view = |slot: usize| BroadcastView::new(&p.inputs[slot][0].shape, &out);
    let (condition, x, y) = (view(0)?, view(1)?, view(2)?);
    by_width!(p.output("Out").dtype, T => {
        Ok(Kernel::infallible(move |k| {
            let (holds, a, b) = (k.input::<u8>(0), k.arg(1).bits::<T>(), k.arg(2).bits::<T>());
            k.pool.run_parts(k.out(0).into_bits::<T>(), GRAIN, |start, out| {
                let mut at = condition.indices(start);
                let (mut left, mut right) = (x.indices(start), y.indices(start));
                for out in out {
                    let (left, right) = (left.next(), right.next());
                    *out = if holds[at.next()] != 0 { a[left] } else { b[right] };
                }
            });
        }))
    })
}

/// The op `where_grad`.
pub static WHERE_GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "where_grad",
        inputs: &[one("Condition"), one("X"), one("Y"), one("Out@GRAD")],
        outputs: &[optional("X@GRAD"), optional("Y@GRAD")],
        attrs: &[],
    },
    infer: |i| grads_like(i, &["X", "Y"]),
    grad: Grad::None,
    cpu: |p| any_float(p, where_grad_cpu),
    traits: OpTraits { shape_only: &["X", "Y"], ..OpTraits::plain() },
};

fn where_grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let dout = p.input("Out@GRAD");
    if dout.dtype != DType::F32 {
        return Err(p.no_kernel(dout.dtype));
    }
    let condition = BroadcastView::new(&p.input("Condition").shape, &dout.shape)?;
    // Per side: the gradient where the condition selects it, summed over repeated dimensions.
    let side = |slot: usize| -> Result<(bool, Reduction)> {
        let shape = p.inputs[slot][0].shape;
        let repeated = BroadcastView::new(&shape, &dout.shape)?.repeated_axes();
        Ok((!repeated.is_empty(), Reduction::new(&sizes(&dout.shape), &repeated)))
    };
    let sides = [side(1)?, side(2)?];
    let len = dout.shape.len();
    let scratch = len + sides.iter().map(|side| side.1.scratch_len()).max().unwrap_or(0);
    Ok(Kernel::infallible(move |k| {
        let (holds, dout) = (k.input::<u8>(0), k.input::<f32>(3));
        let (masked, scratch) = k.scratch::<f32>().split_at_mut(len);
        for (slot, (repeated, sums)) in sides.iter().enumerate() {
            let Some(out) = k.optional_output::<f32>(slot) else { continue };
            let target = if *repeated { &mut *masked } else { &mut *out };
            k.pool.run_parts(target, GRAIN, |start, target| {
                let mut at = condition.indices(start);
                for (to, from) in target.iter_mut().zip(&dout[start..]) {
                    let picked = (holds[at.next()] != 0) == (slot == 0);
                    *to = if picked { *from } else { 0.0 };
                }
            });
            if *repeated {
                reduce(k.pool, Fold::Sum, sums, masked, out, scratch);
            }
        }
    })
    .scratch::<f32>(scratch))
}
