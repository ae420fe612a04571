//! Rows of an embedding table by id: `Out[..., :] = W[Ids[...], :]`, and zeros if the id is
//! `padding_idx`; f32 rows, i64 ids. `lookup_table` is the older form, whose ids end in a dimension
//! of size 1.
//!
//! The gradient of W is dense, or with `is_sparse` the rows in use. Row numbers are then the ids in
//! order, and values are the rows of the output's gradient. Duplicates are included, and the
//! optimizer merges them. The values usually share the memory of the output's gradient, so nothing
//! is copied. WSum, if it is given, is added to a dense gradient; a fusion pass makes this form.
//!
//! The rewrite that moves the table to parameter servers uses `is_distributed`, `entry`,
//! `table_class`, `slot` (-1: none), `is_test` and `any_id` (also negative ids).

use crate::prelude::*;
use crate::rules::{begin_sum, check_added};
use fleet_ir::AttrSpec;
use fleet_kernels::embedding::{self, Grid, Groups, Source};

const W: usize = 0;
const IDS: usize = 1;
const DY: usize = 2;
const SUM: usize = 3;

/// The dense gradient that the gradient ops can add to another tensor, and that tensor.
pub(crate) const ADDED: (&str, &str) = ("W@GRAD", "WSum");

const ATTRS: &[AttrSpec] = &[
    attr("padding_idx", Int(-1)),
    attr("is_sparse", Bool(false)),
    attr("is_distributed", Bool(false)),
    attr("entry", Str("")),
    attr("table_class", Str("")),
    attr("slot", Int(-1)),
    attr("is_test", Bool(false)),
    attr("any_id", Bool(false)),
];

/// The op `lookup_table_v2`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "lookup_table_v2",
        inputs: &[one("W"), one("Ids")],
        outputs: &[one("Out")],
        attrs: ATTRS,
    },
    infer: |i| infer(i, false),
    grad: Grad::OpRule(&GRAD, rule),
    cpu,
    traits: OpTraits { cost, divide: |d| divide(d, false), ..OpTraits::amp(AmpClass::Black) },
};

/// Ranks look up the ids whose rows they have, and add the results; or each has some columns.
fn divide(d: &mut Divide<'_>, is_v1: bool) -> Result<()> {
    if d.along("Ids").is_some() {
        return Err(d.unsupported("does not divide the ids"));
    }
    let (w, out) = (d.shape("W")?, d.output_shape("Out")?);
    match d.along("W") {
        Some(along @ Along { axis: 0, groups: 1, .. }) if !is_v1 && !d.op.attr_bool("any_id") => {
            d.check_divides(&w, along)?;
            d.become_op("c_embedding");
            d.set_attr("vocab_size", w[0]);
            let rows = (w[0] + along.padding as i64) / d.parts as i64;
            d.set_attr("start_index", rows * d.part as i64);
            // No id is that of a padding row.
            d.keep_padding();
            d.set("Out", Placement::Sum)
        }
        Some(along @ Along { axis: 1, .. }) => d.set_part("Out", along.at(out.rank() - 1)),
        _ => Err(d.unsupported("does not divide the rows of this table")),
    }
}

/// The op `lookup_table_v2_grad`.
pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "lookup_table_v2_grad",
        inputs: &[one("W"), one("Ids"), one("Out@GRAD"), optional("WSum")],
        outputs: &[one("W@GRAD")],
        attrs: ATTRS,
    },
    infer: infer_grad,
    grad: Grad::None,
    cpu: cpu_grad,
    traits: OpTraits {
        inplace: &[ADDED],
        inplace_rows: &[("W@GRAD", "Out@GRAD")],
        shape_only: &["W"],
        cost: cost_grad,
        ..OpTraits::amp(AmpClass::Black)
    },
};

/// The older form, whose ids end in a dimension of size 1.
pub static V1: OpDef = OpDef {
    spec: OpSpec { name: "lookup_table", ..DEF.spec },
    infer: |i| infer(i, true),
    grad: Grad::OpRule(&V1_GRAD, rule),
    traits: OpTraits { divide: |d| divide(d, true), ..DEF.traits },
    ..DEF
};

/// The op `lookup_table_grad`.
pub static V1_GRAD: OpDef =
    OpDef { spec: OpSpec { name: "lookup_table_grad", ..GRAD.spec }, ..GRAD };

fn infer(i: &mut InferCtx<'_>, is_v1: bool) -> Result<()> {
    let w = check(i)?;
    let ids = i.input("Ids")?.shape;
    let mut out = ids;
    if is_v1 {
        if ids.last().is_none_or(|last| *last != 1 && *last >= 0) {
            return Err(i
                .error("Ids", "does not end in a dimension of 1")
                .expected("[..., 1]")
                .got(ids)
                .help("use lookup_table_v2, which supports ids of any shape"));
        }
        let last = ids.rank() - 1;
        out.dims_mut()[last] = w[1];
    } else {
        out.push(w[1])?;
    }
    i.set("Out", DType::F32, out);
    Ok(())
}

fn check(i: &InferCtx<'_>) -> Result<Shape> {
    i.check_dtype("W", &[DType::F32])?;
    i.check_dtype("Ids", &[DType::I64])?;
    i.check_rank("W", 2)
}

fn rule(g: &mut GradCtx<'_, '_>, grad: &'static OpDef) -> Result<()> {
    let sparse = g.op.attr_bool("is_sparse");
    g.by_name(grad, &[], if sparse { VarKind::SparseRows } else { VarKind::Dense })
}

fn infer_grad(i: &mut InferCtx<'_>) -> Result<()> {
    let shape = check(i)?;
    let ids = i.input("Ids")?.shape;
    let meta = match i.op.attr_bool("is_sparse") {
        true => Meta::sparse(DType::F32, shape, ids.numel().unwrap_or(0)),
        false => Meta::dense(DType::F32, shape),
    };
    i.push("W@GRAD", meta);
    check_added(i, ADDED)
}

/// Returns the padding row. A negative attribute means none.
pub(crate) fn padding(p: &PrepareCtx<'_>) -> Option<i64> {
    Some(p.op.attr_int("padding_idx")).filter(|row| *row >= 0)
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let dim = p.input("W").shape.at(1);
    let padding = padding(p);
    Ok(Kernel::new(move |k| {
        let (w, ids) = (k.input::<f32>(W), k.input::<i64>(IDS));
        embedding::lookup(k.pool, w, dim, ids, padding, Grid::packed(dim), k.output(0))?;
        Ok(())
    }))
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let [height, dim] = [p.input("W").shape.at(0), p.input("W").shape.at(1)];
    let padding = padding(p);
    let count = p.input("Ids").numel();
    if p.output("W@GRAD").kind == VarKind::SparseRows {
        let grid = Grid::packed(dim);
        return Ok(Kernel::new(move |k| {
            sparse_grad(k, k.input(IDS), DY, height, dim, padding, grid)
        }));
    }
    Ok(Kernel::new(move |k| {
        let (ids, dy) = (k.input::<i64>(IDS), k.input::<f32>(DY));
        let groups = embedding::group(k.pool, ids, Some(height), padding, k.scratch())?;
        let source = Source { data: dy, grid: Grid::packed(dim) };
        dense_grad(k, &groups, &source, dim)
    })
    .scratch::<u64>(embedding::group_scratch_len(count)))
}

/// Writes the dense gradient of a table, or adds it to WSum.
pub(crate) fn dense_grad(
    k: &KernelCtx<'_>,
    groups: &Groups<'_>,
    source: &Source<'_>,
    dim: usize,
) -> Result<()> {
    let out = k.output(0);
    match begin_sum(k, (0, SUM), out) {
        true => embedding::add_dense_gradient(k.pool, groups, source, dim, out)?,
        false => embedding::dense_gradient(k.pool, groups, source, dim, out)?,
    }
    Ok(())
}

/// Writes row numbers and values without padding rows. `dy` is the slot of the gradient, whose rows
/// are at the positions of `grid`. The values may already be in place.
pub(crate) fn sparse_grad(
    k: &KernelCtx<'_>,
    ids: &[i64],
    dy: usize,
    height: usize,
    dim: usize,
    padding: Option<i64>,
    grid: Grid,
) -> Result<()> {
    let is_row = |id: &i64| (0..height as i64).contains(id) || padding == Some(*id);
    if let Some(position) = ids.iter().position(|id| !is_row(id)) {
        return Err(embedding::BadId { position, id: ids[position], rows: height }.into());
    }
    let mut out = k.out(0);
    let dy = k.slice_unless::<f32>(k.arg(dy), 0);
    let keeps_all = padding.is_none_or(|row| !ids.contains(&row));
    if keeps_all {
        out.row_ids_mut()[..ids.len()].copy_from_slice(ids);
        out.set_row_count(ids.len());
        if let Some(dy) = dy {
            copy(k.pool, dy, grid, dim, &mut out.slice_mut()[..ids.len() * dim]);
        }
        return Ok(());
    }
    let mut count = 0;
    for (position, id) in ids.iter().enumerate() {
        if Some(*id) == padding {
            continue;
        }
        out.row_ids_mut()[count] = *id;
        let from = place(&grid, position);
        let values = out.slice_mut::<f32>();
        match dy {
            Some(dy) => values[count * dim..][..dim].copy_from_slice(&dy[from..][..dim]),
            // Rows only move towards the front, so each row is read before it is overwritten.
            None => values.copy_within(from..from + dim, count * dim),
        }
        count += 1;
    }
    out.set_row_count(count);
    Ok(())
}

/// Returns the offset of the row at a position of a grid.
fn place(grid: &Grid, position: usize) -> usize {
    grid.start + position / grid.group * grid.group_stride + position % grid.group * grid.stride
}

/// Floats copied per task.
const COPY_GRAIN: usize = 1 << 15;

/// Copies the rows of a grid to contiguous rows.
fn copy(pool: &Pool, from_rows: &[f32], grid: Grid, dim: usize, to: &mut [f32]) {
    // Number of floats without a gap.
    let run = match (grid == Grid::packed(dim), grid.stride == dim) {
        (true, _) => COPY_GRAIN,
        (_, true) => grid.group * dim,
        _ => dim,
    };
    let run = run.max(1);
    pool.run_parts(to, (COPY_GRAIN / run).max(1) * run, |start, part| {
        for (index, to) in part.chunks_mut(run).enumerate() {
            let from = place(&grid, (start + index * run) / dim);
            to.copy_from_slice(&from_rows[from..][..to.len()]);
        }
    });
}

/// Cost of the rows in use only.
fn cost(c: &CostCtx<'_>) -> Cost {
    let out = c.output("Out").map_or(0, Meta::bytes) as f64;
    let ids = c.input("Ids").map_or(0, Meta::bytes) as f64;
    Cost { flops: 0.0, bytes: 2.0 * out + ids }
}

fn cost_grad(c: &CostCtx<'_>) -> Cost {
    let (dy, dw) = (c.input("Out@GRAD"), c.output("W@GRAD"));
    let bytes = [dy, dw].map(|it| it.map_or(0, Meta::bytes) as f64).iter().sum();
    Cost { flops: dy.map_or(0, Meta::numel) as f64, bytes }
}
