//! `c_embedding`: rows of an embedding table whose rows are divided among ranks. W has the rows
//! from `start_index` on, of `vocab_size` in all. Out has zeros for ids of other ranks, so that the
//! sum over ranks is the result of `lookup_table_v2`. f32 rows, i64 ids. Ranks have parts of equal
//! sizes, so the last parts may have rows beyond the table. These are not used, and their gradient
//! is zero.
//!
//! The gradient of W is dense, or with `is_sparse` the rows in use, of the ids that this rank has.
//! WSum, if it is given, is added to a dense gradient.

use super::lookup_table_v2::{ADDED, dense_grad, sparse_grad};
use crate::prelude::*;
use crate::rules::check_added;
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::embedding::{self, Grid, Source};

const W: usize = 0;
const IDS: usize = 1;
const DY: usize = 2;

const ATTRS: &[AttrSpec] = &[
    attr("start_index", Int(0)),
    attr("vocab_size", Int(0)),
    attr("padding_idx", Int(-1)),
    attr("is_sparse", Bool(false)),
];

/// The op `c_embedding`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "c_embedding",
        inputs: &[one("W"), one("Ids")],
        outputs: &[one("Out")],
        attrs: ATTRS,
    },
    infer: |i| {
        let w = check(i)?;
        let mut out = i.input("Ids")?.shape;
        out.push(w[1])?;
        i.set("Out", DType::F32, out);
        Ok(())
    },
    grad: Grad::OpRule(&GRAD, |g, grad| {
        let sparse = g.op.attr_bool("is_sparse");
        g.by_name(grad, &[], if sparse { VarKind::SparseRows } else { VarKind::Dense })
    }),
    cpu: |p| {
        let dim = p.input("W").shape.at(1);
        let own = OwnIds::of(p);
        Ok(Kernel::new(move |k| {
            let ids = own.ids(k.input(IDS), k.scratch())?;
            let grid = Grid::packed(dim);
            embedding::lookup(k.pool, k.input(W), dim, ids, Some(OTHER), grid, k.output(0))?;
            Ok(())
        })
        .scratch::<i64>(p.input("Ids").numel()))
    },
    traits: OpTraits { cost, ..OpTraits::amp(AmpClass::Black) },
};

/// The op `c_embedding_grad`.
pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "c_embedding_grad",
        inputs: &[one("W"), one("Ids"), one("Out@GRAD"), optional("WSum")],
        outputs: &[one("W@GRAD")],
        attrs: ATTRS,
    },
    infer: |i| {
        let shape = check(i)?;
        let ids = i.input("Ids")?.shape;
        let meta = match i.op.attr_bool("is_sparse") {
            true => Meta::sparse(DType::F32, shape, ids.numel().unwrap_or(0)),
            false => Meta::dense(DType::F32, shape),
        };
        i.push("W@GRAD", meta);
        check_added(i, ADDED)
    },
    grad: Grad::None,
    cpu: cpu_grad,
    traits: OpTraits {
        inplace: &[ADDED],
        inplace_rows: &[("W@GRAD", "Out@GRAD")],
        shape_only: &["W"],
        cost,
        ..OpTraits::amp(AmpClass::Black)
    },
};

fn check(i: &InferCtx<'_>) -> Result<Shape> {
    i.check_dtype("W", &[DType::F32])?;
    i.check_dtype("Ids", &[DType::I64])?;
    let w = i.check_rank("W", 2)?;
    let (first, all) = (i.op.attr_int("start_index"), i.op.attr_int("vocab_size"));
    let rows = w[0].max(0);
    let is_within = |end: i64| end <= all || rows > 0 && first % rows == 0;
    if first < 0 || !first.checked_add(rows).is_some_and(is_within) {
        return Err(i
            .error("W", "is not among the rows of the whole table")
            .expected(format!("rows below {all}, or a part of equal size with padding"))
            .got(format!("{} rows from {first} on", w[0])));
    }
    Ok(w)
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let [height, dim] = [p.input("W").shape.at(0), p.input("W").shape.at(1)];
    let (own, count) = (OwnIds::of(p), p.input("Ids").numel());
    if p.output("W@GRAD").kind == VarKind::SparseRows {
        let grid = Grid::packed(dim);
        return Ok(Kernel::new(move |k| {
            let ids = own.ids(k.input(IDS), k.scratch())?;
            sparse_grad(k, ids, DY, height, dim, Some(OTHER), grid)
        })
        .scratch::<i64>(count));
    }
    Ok(Kernel::new(move |k| {
        let (ids, scratch) = k.scratch::<u64>().split_at_mut(count);
        let ids = own.ids(k.input(IDS), view_as_mut(ids))?;
        let groups = embedding::group(k.pool, ids, Some(height), Some(OTHER), scratch)?;
        let source = Source { data: k.input(DY), grid: Grid::packed(dim) };
        dense_grad(k, &groups, &source, dim)
    })
    .scratch::<u64>(count + embedding::group_scratch_len(count)))
}

/// The number that stands for ids of other ranks and of the padding.
const OTHER: i64 = -1;

/// The ids whose rows this rank has.
#[derive(Clone, Copy)]
struct OwnIds {
    first: i64,
    count: i64,
    all: i64,
    padding: Option<i64>,
}

impl OwnIds {
    fn of(p: &PrepareCtx<'_>) -> OwnIds {
        let int = |op: &Op, name: &str| op.attr_int(name);
        OwnIds {
            first: int(p.op, "start_index"),
            count: p.input("W").shape.at(0) as i64,
            all: int(p.op, "vocab_size"),
            padding: Some(int(p.op, "padding_idx")).filter(|row| *row >= 0),
        }
    }

    /// Writes the rows of ids, and [`OTHER`] for those of other ranks and of the padding.
    fn ids<'a>(&self, ids: &[i64], rows: &'a mut [i64]) -> Result<&'a [i64]> {
        let rows = &mut rows[..ids.len()];
        for (position, (id, row)) in ids.iter().zip(&mut *rows).enumerate() {
            if !(0..self.all).contains(id) {
                let rows = usize::try_from(self.all).unwrap_or_default();
                return Err(embedding::BadId { position, id: *id, rows }.into());
            }
            let own = id - self.first;
            let is_own = (0..self.count).contains(&own) && self.padding != Some(*id);
            *row = if is_own { own } else { OTHER };
        }
        Ok(rows)
    }
}

/// Cost of the rows in use only.
fn cost(c: &CostCtx<'_>) -> Cost {
    let bytes = c.input("Ids").into_iter().chain(c.input("Out@GRAD")).chain(c.output("Out"));
    Cost { flops: 0.0, bytes: bytes.map(|meta| meta.bytes() as f64).sum() }
}
