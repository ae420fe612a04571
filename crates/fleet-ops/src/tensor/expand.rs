//! Repetition: `expand_v2` repeats dimensions of size 1 (and adds leading ones) to reach a shape;
//! `tile` repeats whole dimensions. Any element type. The gradients sum over the repetitions (f32,
//! halves through f32).

use crate::prelude::*;
use crate::rules::{by_width, check_row_major, same_dim, sizes};
use crate::tensor::broadcast_view::BroadcastView;
use crate::widen::any_float;
use fleet_ir::{AttrSpec, Op, SlotSpec};
use fleet_kernels::reduce::{Fold, Reduction, reduce};

const SHAPE: &[AttrSpec] = &[required("shape", AttrKind::Ints)];
const TIMES: &[AttrSpec] = &[required("repeat_times", AttrKind::Ints)];

const IN: &[SlotSpec] = &[one("X")];
const OUT: &[SlotSpec] = &[one("Out")];
const GRAD_IN: &[SlotSpec] = &[one("X"), one("Out@GRAD")];
const GRAD_OUT: &[SlotSpec] = &[one("X@GRAD")];

pub static EXPAND: OpDef = def("expand_v2", SHAPE, &EXPAND_GRAD);
pub static EXPAND_GRAD: OpDef = grad_def("expand_v2_grad", SHAPE);
pub static TILE: OpDef = def("tile", TIMES, &TILE_GRAD);
pub static TILE_GRAD: OpDef = grad_def("tile_grad", TIMES);

const fn def(name: &'static str, attrs: &'static [AttrSpec], grad: &'static OpDef) -> OpDef {
    OpDef {
        spec: OpSpec { name, inputs: IN, outputs: OUT, attrs },
        infer: |i| {
            let x = i.input("X")?;
            let shape = match i.op.attr("shape") {
                Some(_) => expanded(i.op, &x.shape)?,
                None => tiled(i.op, &x.shape)?,
            };
            i.set("Out", x.dtype, shape);
            Ok(())
        },
        grad: Grad::Op(grad),
        cpu,
        traits: OpTraits::plain(),
    }
}

const fn grad_def(name: &'static str, attrs: &'static [AttrSpec]) -> OpDef {
    OpDef {
        spec: OpSpec { name, inputs: GRAD_IN, outputs: GRAD_OUT, attrs },
        infer: |i| {
            let x = i.input("X")?;
            i.set("X@GRAD", x.dtype, x.shape);
            Ok(())
        },
        grad: Grad::None,
        cpu: |p| any_float(p, grad_cpu),
        traits: OpTraits { shape_only: &["X"], ..OpTraits::plain() },
    }
}

fn expanded(op: &Op, x: &Shape) -> Result<Shape> {
    let requested = op.attr_ints("shape");
    let wrong = || {
        Error::invalid("attribute 'shape' of expand_v2 does not fit X")
            .expected(format!("dimensions of X {x} or -1, and any size where X has 1"))
            .got(format!("{requested:?}"))
    };
    let extra = requested.len().checked_sub(x.rank()).ok_or_else(wrong)?;
    let mut dims = Vec::new();
    for (axis, dim) in requested.iter().enumerate() {
        let own = if axis < extra { 1 } else { x[axis - extra] };
        dims.push(match (own, *dim) {
            (own, -1) if axis >= extra => own,
            (_, dim) if dim < 0 => return Err(wrong()),
            (1, dim) => dim,
            (own, dim) => same_dim(own, dim).ok_or_else(wrong)?,
        });
    }
    Shape::new(&dims)
}

/// Returns, for each dimension of Out, its number of repetitions and the size of X there.
fn times(op: &Op, x: &Shape) -> Vec<(i64, i64)> {
    let requested = op.attr_ints("repeat_times");
    let rank = requested.len().max(x.rank());
    let at = |list: &[i64], axis: usize| {
        (axis + list.len()).checked_sub(rank).map_or(1, |axis| list[axis])
    };
    (0..rank).map(|axis| (at(requested, axis), at(x, axis))).collect()
}

fn tiled(op: &Op, x: &Shape) -> Result<Shape> {
    let times = times(op, x);
    if times.iter().any(|(count, _)| *count < 1) {
        return Err(Error::invalid("attribute 'repeat_times' of tile is out of range")
            .expected("numbers above 0")
            .got(format!("{:?}", op.attr_ints("repeat_times"))));
    }
    let dim = |(count, own): &(i64, i64)| if *own < 0 { -1 } else { count.saturating_mul(*own) };
    Shape::new(&times.iter().map(dim).collect::<Vec<_>>())
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (x, out) = (p.input("X"), p.output("Out"));
    let view = match p.op.attr("shape") {
        Some(_) => BroadcastView::new(&x.shape, &out.shape)?,
        None => {
            let counts: Vec<usize> =
                times(p.op, &x.shape).iter().map(|(count, _)| *count as usize).collect();
            BroadcastView::tiled(&x.shape, &counts)
        }
    };
    by_width!(x.dtype, T => {
        Ok(Kernel::infallible(move |k| {
            let (x, out) = (k.arg(0).bits::<T>(), k.out(0).into_bits());
            view.copy(k.pool, x, out, |value| value);
        }))
    })
}

fn grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (x, dout) = (p.input("X"), p.input("Out@GRAD"));
    if x.dtype != DType::F32 {
        return Err(p.no_kernel(x.dtype));
    }
    let plan = match p.op.attr("shape") {
        Some(_) => {
            let repeated = BroadcastView::new(&x.shape, &dout.shape)?.repeated_axes();
            Reduction::new(&sizes(&dout.shape), &repeated)
        }
        None => {
            // With the shape viewed as [times, dim] pairs, the sum is over the first of each pair.
            let times = times(p.op, &x.shape);
            let pairs: Vec<usize> =
                times.iter().flat_map(|(count, own)| [*count as usize, *own as usize]).collect();
            let repeated: Vec<usize> = (0..times.len()).map(|axis| 2 * axis).collect();
            Reduction::new(&pairs, &repeated)
        }
    };
    let scratch = plan.scratch_len();
    Ok(Kernel::infallible(move |k| {
        reduce(k.pool, Fold::Sum, &plan, k.input(1), k.output(0), k.scratch())
    })
    .scratch::<f32>(scratch))
}
