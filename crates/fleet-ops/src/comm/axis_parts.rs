//! Parts of a tensor along any axis, one for each rank of a ring.
//!
//! * `c_gather_parts`: Out is the whole tensor, from the parts of all ranks. Its gradient is this
//!   rank's part; with `sum_gradient`, of the sum over ranks.
//! * `c_scatter_sum`: Out is this rank's part of the sum of X over ranks.
//! * `c_take_part`: Out is this rank's part of X, which is whole on every rank. Its gradient is
//!   gathered.

use super::{LABEL, NRANKS, RING_ID, TRAITS, USE_CALC_STREAM, label, nranks};
use crate::prelude::*;
use crate::rules::check_row_major;
use crate::{Lane, ReduceOp};
use fleet_ir::{AttrSpec, Op};

const AXIS: AttrSpec = attr("axis", Int(0));
const ATTRS: &[AttrSpec] = &[RING_ID, NRANKS, USE_CALC_STREAM, LABEL, AXIS];

/// The op `c_gather_parts`.
pub static GATHER: OpDef = OpDef {
    spec: OpSpec {
        name: "c_gather_parts",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[RING_ID, NRANKS, USE_CALC_STREAM, LABEL, AXIS, attr("sum_gradient", Bool(false))],
    },
    infer: |i| {
        let (x, ranks) = (i.input("X")?, nranks(i)?);
        let (axis, mut shape) = (axis(i.op, &x.shape)?, x.shape);
        let dim = &mut shape.dims_mut()[axis];
        *dim = if *dim < 0 { -1 } else { dim.saturating_mul(ranks) };
        i.set("Out", x.dtype, Shape::new(shape.dims())?);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let sums = g.op.attr_bool("sum_gradient");
        emit_gradient(g, if sums { &SCATTER_SUM } else { &TAKE })
    }),
    cpu: |p| {
        check_row_major(p)?;
        let ring = p.services.ring_of(p.op)?;
        let (label, x) = (label(p.op), p.input("X"));
        let (outer, row) = blocks(p.op, &x)?;
        let ranks = ring.size();
        Ok(Kernel::new(move |k| {
            let gathered = k.scratch::<u8>();
            k.communicate(|| ring.all_gather(&label, k.arg(0).bytes(), gathered))?;
            let out = k.out(0).into_bytes();
            for (index, to) in out.chunks_exact_mut(row.max(1)).enumerate() {
                let from = (index % ranks * outer + index / ranks) * row;
                to.copy_from_slice(&gathered[from..from + row]);
            }
            Ok(())
        })
        .scratch::<u8>(x.bytes() * ranks))
    },
    traits: OpTraits {
        traffic: |c| Some(Traffic::copies(c.input_bytes("X"), c.ranks())),
        amp: AmpClass::Gray,
        ..TRAITS
    },
};

/// The op `c_scatter_sum`.
pub static SCATTER_SUM: OpDef = OpDef {
    spec: OpSpec {
        name: "c_scatter_sum",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: ATTRS,
    },
    infer: infer_part,
    grad: Grad::Rule(|g| emit_gradient(g, &GATHER)),
    cpu: |p| {
        check_row_major(p)?;
        let ring = p.services.ring_of(p.op)?;
        let (label, out) = (label(p.op), p.output("Out"));
        let (outer, row) = blocks(p.op, &out)?;
        let (ranks, dtype) = (ring.size(), out.dtype);
        Ok(Kernel::new(move |k| {
            let pieces = k.scratch::<u8>();
            for (index, from) in k.arg(0).bytes().chunks_exact(row.max(1)).enumerate() {
                let to = (index % ranks * outer + index / ranks) * row;
                pieces[to..to + row].copy_from_slice(from);
            }
            let mine = k.out(0).into_bytes();
            k.communicate(|| ring.reduce_scatter(&label, dtype, pieces, mine, ReduceOp::Sum))
        })
        .scratch::<u8>(out.bytes() * ranks))
    },
    traits: OpTraits {
        traffic: |c| Some(Traffic::shares(c.input_bytes("X"), c.ranks())),
        amp: AmpClass::Gray,
        ..TRAITS
    },
};

/// The op `c_take_part`.
pub static TAKE: OpDef = OpDef {
    spec: OpSpec { name: "c_take_part", inputs: &[one("X")], outputs: &[one("Out")], attrs: ATTRS },
    infer: infer_part,
    grad: Grad::Rule(|g| emit_gradient(g, &GATHER)),
    cpu: |p| {
        check_row_major(p)?;
        let ring = p.services.ring_of(p.op)?;
        let (_, row) = blocks(p.op, &p.output("Out"))?;
        let (rank, ranks) = (ring.rank(), ring.size());
        Ok(Kernel::infallible(move |k| {
            let rows = k.arg(0).bytes().chunks_exact(row.max(1)).skip(rank).step_by(ranks);
            let out = k.out(0).into_bytes().chunks_exact_mut(row.max(1));
            out.zip(rows).for_each(|(to, from)| to.copy_from_slice(from));
        }))
    },
    traits: OpTraits { effect: false, lane: Lane::Compute, amp: AmpClass::Gray, ..TRAITS },
};

fn axis(op: &Op, shape: &Shape) -> Result<usize> {
    shape.axis(op.attr_int("axis")).map_err(|error| error.at("attribute 'axis'"))
}

/// Gives Out the shape of one of the parts of X.
fn infer_part(i: &mut InferCtx<'_>) -> Result<()> {
    let (x, ranks) = (i.input("X")?, nranks(i)?);
    let (axis, mut shape) = (axis(i.op, &x.shape)?, x.shape);
    let dim = &mut shape.dims_mut()[axis];
    if *dim >= 0 && *dim % ranks != 0 {
        return Err(i
            .error("X", "cannot be split evenly")
            .expected(format!("a multiple of {ranks} in dimension {axis}"))
            .got(x.shape));
    }
    *dim = if *dim < 0 { -1 } else { *dim / ranks };
    i.set("Out", x.dtype, shape);
    Ok(())
}

/// Returns the number of consecutive stretches of a part, and their size in bytes.
fn blocks(op: &Op, part: &Meta) -> Result<(usize, usize)> {
    let axis = axis(op, &part.shape)?;
    let row = part.shape.product(axis..part.shape.rank()) * part.dtype.size();
    Ok((part.shape.product(0..axis), row))
}

/// Emits the gradient of X by another op of this file.
fn emit_gradient(g: &mut GradCtx<'_, '_>, def: &'static OpDef) -> Result<()> {
    let dy = g.dy("Out")?;
    let (ring, ranks, axis) =
        (g.op.attr_int("ring_id"), g.op.attr_int("nranks"), g.op.attr_int("axis"));
    let (in_compute, label) = (g.op.attr_bool("use_calc_stream"), g.op.attr_str("label"));
    let label = label.to_string();
    if let Some(dx) = g.dx("X")? {
        let call = g.op(def).input("X", dy).output("Out", dx).attr("ring_id", ring);
        let call = call.attr("nranks", ranks).attr("axis", axis).attr("label", label);
        call.attr("use_calc_stream", in_compute).done()?;
    }
    Ok(())
}
