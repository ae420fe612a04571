//! `c_allgather`, `c_reducescatter`, `c_concat`, `c_split`: tensors concatenated from pieces of the
//! ranks, or split into them. The axis is the first dimension, or for `c_concat` and `c_split` the
//! last.
//!
//! `c_allgather_rows` is `c_allgather` for sparse rows. `Out` holds the rows of all ranks in the
//! order of ranks, so it represents the sum of their matrices. Every rank has the same capacity in
//! rows and may use fewer.

use super::{ATTRS, TRAITS, label, nranks};
use crate::prelude::*;
use crate::rules::{check_row_major, split_at_axis};
use crate::{ReduceOp, Ring};

/// Traits of ops that give all ranks the pieces of every rank.
const GATHERED: OpTraits = OpTraits {
    traffic: |c| Some(Traffic::copies(c.input_bytes("X"), c.ranks())),
    common: &["Out"],
    ..TRAITS
};

/// The op `c_allgather`.
pub static ALL_GATHER: OpDef = OpDef {
    spec: OpSpec { name: "c_allgather", inputs: &[one("X")], outputs: &[one("Out")], attrs: ATTRS },
    infer: |i| infer_gathered(i, false),
    grad: Grad::None,
    cpu: |p| {
        check_row_major(p)?;
        let ring = p.services.ring_of(p.op)?;
        let label = label(p.op);
        Ok(Kernel::new(move |k| ring.all_gather(&label, k.arg(0).bytes(), k.out(0).into_bytes())))
    },
    traits: GATHERED,
};

/// The op `c_reducescatter`.
pub static REDUCE_SCATTER: OpDef = OpDef {
    spec: OpSpec {
        name: "c_reducescatter",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: ATTRS,
    },
    infer: |i| {
        let (x, ranks) = (i.input("X")?, nranks(i)?);
        check_divides(i, &x.shape, ranks)?;
        i.set("Out", x.dtype, divide_dim(x.shape, 0, ranks));
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        check_row_major(p)?;
        let ring = p.services.ring_of(p.op)?;
        let (label, dtype) = (label(p.op), p.input("X").dtype);
        Ok(Kernel::new(move |k| {
            let (all, mine) = (k.arg(0).bytes(), k.out(0).into_bytes());
            ring.reduce_scatter(&label, dtype, all, mine, ReduceOp::Sum)
        }))
    },
    traits: OpTraits {
        traffic: |c| Some(Traffic::shares(c.input_bytes("X"), c.ranks())),
        ..TRAITS
    },
};

/// The op `c_concat`.
pub static CONCAT: OpDef = OpDef {
    spec: OpSpec { name: "c_concat", inputs: &[one("X")], outputs: &[one("Out")], attrs: ATTRS },
    infer: |i| infer_gathered(i, true),
    grad: Grad::Rule(|g| inverse(g, &SPLIT)),
    cpu: |p| {
        check_row_major(p)?;
        let ring = p.services.ring_of(p.op)?;
        let label = label(p.op);
        let x = p.input("X");
        let (rows, width, _) = split_at_axis(&x.shape, x.shape.rank() - 1);
        let (width, ranks) = (width * x.dtype.size(), ring.size());
        Ok(Kernel::new(move |k| {
            let gathered = k.scratch::<u8>();
            ring.all_gather(&label, k.arg(0).bytes(), gathered)?;
            let out = k.out(0).into_bytes();
            for (row, to) in out.chunks_exact_mut((width * ranks).max(1)).enumerate() {
                for (rank, to) in to.chunks_exact_mut(width.max(1)).enumerate() {
                    let from = (rank * rows + row) * width;
                    to.copy_from_slice(&gathered[from..from + width]);
                }
            }
            Ok(())
        })
        .scratch::<u8>(x.bytes() * ranks))
    },
    traits: OpTraits { amp: AmpClass::Gray, ..GATHERED },
};

/// `c_split`: takes this rank's columns, without communication.
pub static SPLIT: OpDef = OpDef {
    spec: OpSpec { name: "c_split", inputs: &[one("X")], outputs: &[one("Out")], attrs: ATTRS },
    infer: |i| {
        let (x, ranks) = (i.input("X")?, nranks(i)?);
        let axis = axis_of(i, &x.shape, true)?;
        check_dim(i, &x.shape, axis, ranks)?;
        i.set("Out", x.dtype, divide_dim(x.shape, axis, ranks));
        Ok(())
    },
    grad: Grad::Rule(|g| inverse(g, &CONCAT)),
    cpu: |p| {
        check_row_major(p)?;
        let ring = p.services.ring_of(p.op)?;
        let out = p.output("Out");
        let width = out.shape.at(out.shape.rank() - 1) * out.dtype.size();
        let (rank, ranks) = (ring.rank(), ring.size());
        Ok(Kernel::infallible(move |k| {
            let rows = k.arg(0).bytes().chunks_exact((width * ranks).max(1));
            let out = k.out(0).into_bytes().chunks_exact_mut(width.max(1));
            for (from, to) in rows.zip(out) {
                to.copy_from_slice(&from[rank * width..(rank + 1) * width]);
            }
        }))
    },
    traits: OpTraits { effect: false, ..TRAITS },
};

/// The op `c_allgather_rows`.
pub static ALL_GATHER_ROWS: OpDef = OpDef {
    spec: OpSpec {
        name: "c_allgather_rows",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: ATTRS,
    },
    infer: |i| {
        let (x, ranks) = (i.input("X")?, nranks(i)?);
        if x.kind != VarKind::SparseRows {
            return Err(i.error("X", "is dense").expected("sparse rows"));
        }
        i.push("Out", Meta { rows: x.rows.saturating_mul(ranks as usize), ..x });
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let ring = p.services.ring_of(p.op)?;
        let (label, x) = (label(p.op), p.input("X"));
        // Data per rank: the number of rows, the row numbers, then the values.
        let bytes = (1 + x.rows) * size_of::<i64>() + x.bytes();
        let padded = bytes.next_multiple_of(8);
        let ranks = ring.size();
        Ok(Kernel::new(move |k| gather_rows(k, &*ring, &label, padded))
            .scratch::<u8>(padded * (ranks + 1)))
    },
    traits: OpTraits { sparse: &["X"], ..GATHERED },
};

/// Emits the gradient of `c_concat` or `c_split`, which is the other op.
fn inverse(g: &mut GradCtx<'_, '_>, op: &'static OpDef) -> Result<()> {
    let dy = g.dy("Out")?;
    let (ring, ranks) = (g.op.attr_int("ring_id"), g.op.attr_int("nranks"));
    let (in_compute, label) = (g.op.attr_bool("use_calc_stream"), g.op.attr_str("label"));
    let label = label.to_string();
    if let Some(dx) = g.dx("X")? {
        let call = g.op(op).attr("ring_id", ring).attr("nranks", ranks);
        let call = call.attr("use_calc_stream", in_compute).attr("label", label);
        call.input("X", dy).output("Out", dx).done()?;
    }
    Ok(())
}

fn gather_rows(k: &KernelCtx<'_>, ring: &dyn Ring, label: &str, record: usize) -> Result<()> {
    let (from, mut to) = (k.arg(0), k.out(0));
    let (mine, all) = k.scratch::<u8>().split_at_mut(record);
    let row_bytes = from.row_len() * from.dtype.size();
    pack_rows(from, row_bytes, mine);
    ring.all_gather(label, mine, all)?;
    let mut count = 0;
    for record in all.chunks_exact(record) {
        count += unpack_rows(record, from, &mut to, row_bytes, count)?;
    }
    to.set_row_count(count);
    Ok(())
}

const WORD: usize = size_of::<i64>();

fn pack_rows(from: View<'_>, row_bytes: usize, into: &mut [u8]) {
    let ids = from.row_ids();
    into[..WORD].copy_from_slice(&(ids.len() as u64).to_ne_bytes());
    let capacity = from.rows.map_or(0, |rows| rows.capacity());
    let (numbers, values) = into[WORD..].split_at_mut(capacity * WORD);
    for (to, id) in numbers.chunks_exact_mut(WORD).zip(ids) {
        to.copy_from_slice(&id.to_ne_bytes());
    }
    let used = ids.len() * row_bytes;
    values[..used].copy_from_slice(&from.bytes()[..used]);
}

/// Appends a rank's rows after the first `count` rows, and returns their number.
fn unpack_rows(
    record: &[u8],
    like: View<'_>,
    to: &mut Out<'_>,
    row_bytes: usize,
    count: usize,
) -> Result<usize> {
    let capacity = like.rows.map_or(0, |rows| rows.capacity());
    let word = |at: usize| -> [u8; WORD] {
        let mut bytes = [0; WORD];
        bytes.copy_from_slice(&record[at * WORD..(at + 1) * WORD]);
        bytes
    };
    let rows = u64::from_ne_bytes(word(0)) as usize;
    if rows > capacity {
        return Err(Error::internal("received more rows than the capacity")
            .expected(format!("at most {capacity}"))
            .got(rows));
    }
    let height = like.shape.dims().first().copied().unwrap_or(0);
    for row in 0..rows {
        let id = i64::from_ne_bytes(word(1 + row));
        if !(0..height).contains(&id) {
            return Err(Error::invalid("received row number out of range")
                .expected(format!("0 to {}", height - 1))
                .got(id));
        }
        to.row_ids_mut()[count + row] = id;
    }
    let values = &record[(1 + capacity) * WORD..][..rows * row_bytes];
    to.bytes_mut()[count * row_bytes..][..rows * row_bytes].copy_from_slice(values);
    Ok(rows)
}

/// Returns the first or the last axis of X. Fails if X has no dimension.
fn axis_of(i: &InferCtx<'_>, shape: &Shape, last: bool) -> Result<usize> {
    match shape.rank() {
        0 => Err(i.error("X", "has no dimension").got(shape)),
        rank => Ok(if last { rank - 1 } else { 0 }),
    }
}

/// Gives Out the pieces of all ranks along the first or the last axis.
fn infer_gathered(i: &mut InferCtx<'_>, last: bool) -> Result<()> {
    let (x, ranks) = (i.input("X")?, nranks(i)?);
    let (axis, mut shape) = (axis_of(i, &x.shape, last)?, x.shape);
    let dim = &mut shape.dims_mut()[axis];
    *dim = if *dim < 0 { -1 } else { dim.saturating_mul(ranks) };
    i.set("Out", x.dtype, Shape::new(shape.dims())?);
    Ok(())
}

fn divide_dim(mut shape: Shape, axis: usize, ranks: i64) -> Shape {
    let dim = &mut shape.dims_mut()[axis];
    *dim = if *dim < 0 { -1 } else { *dim / ranks };
    shape
}

/// Rejects a first dimension that is not a multiple of `ranks`.
pub(super) fn check_divides(i: &InferCtx<'_>, shape: &Shape, ranks: i64) -> Result<()> {
    let axis = axis_of(i, shape, false)?;
    check_dim(i, shape, axis, ranks)
}

fn check_dim(i: &InferCtx<'_>, shape: &Shape, axis: usize, ranks: i64) -> Result<()> {
    let dim = shape.dims()[axis];
    if dim < 0 || dim % ranks == 0 {
        return Ok(());
    }
    Err(i
        .error("X", "cannot be split evenly")
        .expected(format!("a multiple of {ranks} in dimension {axis}"))
        .got(shape))
}
