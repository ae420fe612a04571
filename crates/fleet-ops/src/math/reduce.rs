//! Reductions over dimensions: `reduce_{sum,mean,max,min,prod}`, and `mean` over all elements.
//!
//! A result without dimensions gets shape [1]. f32 uses the vector kernels (halves through f32);
//! f64, i32 and i64 use plain loops. The gradient of a maximum or minimum goes to every element
//! equal to it. The gradient of a product divides by the element, so zeros give NaN.

use crate::prelude::*;
use crate::rules::{axes_of, by_type, sizes};
use crate::tensor::broadcast_view::BroadcastView;
use crate::widen::any_float;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::binary::Number;
use fleet_kernels::reduce::{Fold, Reduction, reduce};

const ATTRS: &[AttrSpec] =
    &[attr("dim", Ints(&[0])), attr("keep_dim", Bool(false)), attr("reduce_all", Bool(false))];

macro_rules! reductions {
    ($(
        $name:literal $DEF:ident $GRAD:ident [$($attrs:tt)*] $amp:ident, shape_only: $only:expr;
    )*) => {$(
        pub static $DEF: OpDef = OpDef {
            spec: OpSpec {
                name: $name,
                inputs: &[one("X")],
                outputs: &[one("Out")],
                attrs: $($attrs)*,
            },
            infer: |i| {
                let x = i.input("X")?;
                let shape = reduced_shape(i.op, &x.shape)?;
                i.set("Out", x.dtype, shape);
                Ok(())
            },
            grad: Grad::OpRule(&$GRAD, grad),
            cpu: |p| any_float(p, cpu),
            traits: OpTraits { cost, divide, ..OpTraits::amp(AmpClass::$amp) },
        };

        pub static $GRAD: OpDef = OpDef {
            spec: OpSpec {
                name: concat!($name, "_grad"),
                inputs: &[one("X"), optional("Out"), one("Out@GRAD")],
                outputs: &[one("X@GRAD")],
                attrs: $($attrs)*,
            },
            infer: |i| {
                let x = i.input("X")?;
                let reads_shapes_only: &[&str] = $only;
                if reads_shapes_only.is_empty() {
                    i.input("Out")?;
                }
                i.set("X@GRAD", x.dtype, x.shape);
                Ok(())
            },
            grad: Grad::None,
            cpu: |p| any_float(p, grad_cpu),
            traits: OpTraits { shape_only: $only, ..OpTraits::amp(AmpClass::$amp) },
        };
    )*};
}

reductions! {
    "reduce_sum" SUM SUM_GRAD [ATTRS] Black, shape_only: &["X"];
    "reduce_mean" MEAN MEAN_GRAD [ATTRS] Black, shape_only: &["X"];
    "reduce_max" MAX MAX_GRAD [ATTRS] Unlisted, shape_only: &[];
    "reduce_min" MIN MIN_GRAD [ATTRS] Unlisted, shape_only: &[];
    "reduce_prod" PROD PROD_GRAD [ATTRS] Black, shape_only: &[];
    "mean" MEAN_ALL MEAN_ALL_GRAD [&[]] Black, shape_only: &["X"];
}

/// Cost of one flop per input element.
fn cost(ctx: &CostCtx<'_>) -> Cost {
    let flops = ctx.inputs.iter().flatten().map(|meta| meta.numel() as f64).sum();
    Cost { flops, bytes: ctx.bytes() }
}

/// Returns the axes that an op reduces, in ascending order.
fn axes(op: &Op, x: &Shape) -> Result<Vec<usize>> {
    let all = || (0..x.rank()).collect();
    if op.spec.attr_index("dim").is_none() || op.attr_bool("reduce_all") {
        return Ok(all());
    }
    match op.attr_ints("dim") {
        [] => Ok(all()),
        dim => axes_of(dim, x).map_err(|error| error.at("attribute 'dim'")),
    }
}

/// A sum over the divided dimension is a sum over ranks. Other reductions must leave it.
fn divide(d: &mut Divide<'_>) -> Result<()> {
    let axes = axes(d.op, &d.shape("X")?)?;
    let Some(along) = d.along("X") else { return Err(d.unsupported("has no divided input")) };
    if axes.contains(&along.axis) {
        return match d.op.name() {
            "reduce_sum" => d.set("Out", Placement::Sum),
            _ => Err(d.unsupported("does not reduce the divided dimension")),
        };
    }
    let keep = d.op.spec.attr_index("dim").is_some() && d.op.attr_bool("keep_dim");
    let before = axes.iter().filter(|axis| !keep && **axis < along.axis).count();
    d.set_part("Out", along.at(along.axis - before))
}

fn reduced_shape(op: &Op, x: &Shape) -> Result<Shape> {
    let axes = axes(op, x)?;
    let keep = op.spec.attr_index("dim").is_some() && op.attr_bool("keep_dim");
    let mut dims = Vec::new();
    for (axis, dim) in x.iter().enumerate() {
        match (axes.contains(&axis), keep) {
            (false, _) => dims.push(*dim),
            (true, true) => dims.push(1),
            (true, false) => {}
        }
    }
    if dims.is_empty() {
        dims.push(1);
    }
    Shape::new(&dims)
}

fn fold_of(op: &Op) -> Fold {
    match op.name().trim_end_matches("_grad") {
        "reduce_sum" => Fold::Sum,
        "reduce_max" => Fold::Max,
        "reduce_min" => Fold::Min,
        "reduce_prod" => Fold::Prod,
        _ => Fold::Mean,
    }
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let x = p.input("X");
    let (fold, axes) = (fold_of(p.op), axes(p.op, &x.shape)?);
    if x.dtype == DType::F32 {
        let plan = Reduction::new(&sizes(&x.shape), &axes);
        let scratch = plan.scratch_len();
        return Ok(Kernel::infallible(move |k| {
            reduce(k.pool, fold, &plan, k.input(0), k.output(0), k.scratch())
        })
        .scratch::<f32>(scratch));
    }
    let kept = BroadcastView::new(&kept_shape(&x.shape, &axes), &x.shape)?;
    let count = axes.iter().map(|axis| x.shape.at(*axis)).product::<usize>();
    by_type!(x.dtype, Err(p.no_kernel(x.dtype)), [F64 => f64, I32 => i32, I64 => i64], T => {
        let (first, join): (T, fn(T, T) -> T) = match fold {
            Fold::Sum | Fold::Mean => (0 as T, Number::add),
            Fold::Prod => (1 as T, Number::mul),
            Fold::Max => (T::MIN, |a, b| if a > b { a } else { b }),
            Fold::Min => (T::MAX, |a, b| if a < b { a } else { b }),
        };
        Ok(Kernel::infallible(move |k| {
            let (x, out) = (k.input::<T>(0), k.output::<T>(0));
            out.fill(first);
            let mut at = kept.indices(0);
            for value in x {
                let at = at.next();
                out[at] = join(out[at], *value);
            }
            if fold == Fold::Mean {
                out.iter_mut().for_each(|it| *it /= count.max(1) as T);
            }
        }))
    })
}

/// Returns the shape of the result with reduced dimensions kept as 1.
fn kept_shape(x: &Shape, axes: &[usize]) -> Shape {
    let mut kept = *x;
    for axis in axes {
        kept.dims_mut()[*axis] = 1;
    }
    kept
}

fn grad(g: &mut GradCtx<'_, '_>, def: &'static OpDef) -> Result<()> {
    let reads_out = matches!(fold_of(&g.op), Fold::Max | Fold::Min | Fold::Prod);
    g.by_name(def, if reads_out { &[] } else { &["Out"] }, VarKind::Dense)
}

/// Elements written per task.
const GRAIN: usize = 16 * 1024;

fn grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    const DOUT: usize = 2;
    let x = p.input("X");
    if x.dtype != DType::F32 {
        return Err(p.no_kernel(x.dtype));
    }
    let (fold, axes) = (fold_of(p.op), axes(p.op, &x.shape)?);
    let kept = BroadcastView::new(&kept_shape(&x.shape, &axes), &x.shape)?;
    let count = axes.iter().map(|axis| x.shape.at(*axis)).product::<usize>();
    let scale = if fold == Fold::Mean { 1.0 / count.max(1) as f32 } else { 1.0 };
    if matches!(fold, Fold::Sum | Fold::Mean) {
        return Ok(Kernel::infallible(move |k| {
            let (dout, dx) = (k.input::<f32>(DOUT), k.output::<f32>(0));
            kept.copy(k.pool, dout, dx, |dy| dy * scale);
        }));
    }
    let slope: fn(f32, f32, f32) -> f32 = match fold {
        Fold::Prod => |x, y, dy| dy * y / x,
        _ => |x, y, dy| if x == y { dy } else { 0.0 },
    };
    Ok(Kernel::infallible(move |k| {
        let (x, out, dout) = (k.input::<f32>(0), k.input::<f32>(1), k.input::<f32>(DOUT));
        k.pool.run_parts(k.output::<f32>(0), GRAIN, |start, dx| {
            let mut at = kept.indices(start);
            for (dx, x) in dx.iter_mut().zip(&x[start..]) {
                let at = at.next();
                *dx = slope(*x, out[at], dout[at]);
            }
        });
    }))
}
