//! `Out = concat(flatten(W[Ids]), Rest...)` along columns. The rows looked up by a wide & deep
//! model are written directly to the input of its first layer. A fusion pass makes this op from
//! `lookup_table_v2`, a flatten and `concat`.
//!
//! W is a table f32 [rows, dim], Ids is i64 [batch, slots], and each of Rest is f32 [batch, any].
//! Ids equal to `padding_idx` give zeros. The gradient of W is read directly from Out@GRAD: dense,
//! or with `is_sparse` the rows in use, as in `lookup_table_v2_grad`.

use crate::nn::lookup_table_v2::{padding, sparse_grad};
use crate::prelude::*;
use crate::rules::{check_row_major, is_requested, same_dim, sizes};
use fleet_ir::AttrSpec;
use fleet_kernels::embedding::{self, Grid, Source};
use fleet_kernels::strided::{Strided, row_major};

const W: usize = 0;
const IDS: usize = 1;
const REST: usize = 2;
const DY: usize = 3;

const ATTRS: &[AttrSpec] = &[attr("padding_idx", Int(-1)), attr("is_sparse", Bool(false))];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_embedding_concat",
        inputs: &[one("W"), one("Ids"), many("Rest")],
        outputs: &[one("Out")],
        attrs: ATTRS,
    },
    infer: |i| {
        let shape = out_shape(i)?;
        i.set("Out", DType::F32, shape);
        Ok(())
    },
    grad: Grad::OpRule(&GRAD, rule),
    cpu,
    traits: OpTraits { cost, ..OpTraits::amp(AmpClass::Black) },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_embedding_concat_grad",
        inputs: &[one("W"), one("Ids"), many("Rest"), one("Out@GRAD")],
        outputs: &[optional("W@GRAD"), many("Rest@GRAD")],
        attrs: ATTRS,
    },
    infer: infer_grad,
    grad: Grad::None,
    cpu: cpu_grad,
    traits: OpTraits { shape_only: &["W", "Rest"], cost, ..OpTraits::amp(AmpClass::Black) },
};

/// Returns [batch, slots * dim + the widths of Rest].
fn out_shape(i: &InferCtx<'_>) -> Result<Shape> {
    i.check_dtype("W", &[DType::F32])?;
    i.check_dtype("Ids", &[DType::I64])?;
    let (w, ids) = (i.check_rank("W", 2)?, i.check_rank("Ids", 2)?);
    let mut batch = ids[0];
    let mut width = if ids[1] < 0 || w[1] < 0 { -1 } else { ids[1].saturating_mul(w[1]) };
    for rest in i.inputs("Rest") {
        let rows = rest.shape.first().copied().unwrap_or(0);
        let (true, DType::F32, Some(same)) =
            (rest.shape.rank() == 2, rest.dtype, same_dim(batch, rows))
        else {
            return Err(i
                .error("Rest", "holds a variable of the wrong type or shape")
                .expected(format!("f32[{batch}, any]"))
                .got(format!("{}{}", rest.dtype, rest.shape)));
        };
        batch = same;
        width = match (width, rest.shape[1]) {
            (-1, _) | (_, -1) => -1,
            (sum, more) => i64::saturating_add(sum, more),
        };
    }
    Shape::new(&[batch, width])
}

fn infer_grad(i: &mut InferCtx<'_>) -> Result<()> {
    let shape = out_shape(i)?;
    i.check_dtype("Out@GRAD", &[DType::F32])?;
    i.check_shape("Out@GRAD", shape)?;
    let (w, ids) = (i.input("W")?.shape, i.input("Ids")?.shape);
    if is_requested(i, "W@GRAD") {
        i.push(
            "W@GRAD",
            match i.op.attr_bool("is_sparse") {
                true => Meta::sparse(DType::F32, w, ids.numel().unwrap_or(0)),
                false => Meta::dense(DType::F32, w),
            },
        );
    }
    let wanted = i.op.output("Rest@GRAD").len();
    for rest in i.inputs("Rest").to_vec().into_iter().take(wanted) {
        i.push("Rest@GRAD", Meta::dense(DType::F32, rest.shape));
    }
    Ok(())
}

fn rule(g: &mut GradCtx<'_, '_>, def: &'static OpDef) -> Result<()> {
    let (w, ids, dy) = (g.x("W")?, g.x("Ids")?, g.dy("Out")?);
    let sparse = g.op.attr_bool("is_sparse");
    let padding = g.op.attr_int("padding_idx");
    let kind = if sparse { VarKind::SparseRows } else { VarKind::Dense };
    let dw = if g.wants("W") { Some(g.dx_of(w, kind)?) } else { None };
    let rest = g.op.input("Rest").to_vec();
    let grads: Vec<VarId> =
        rest.iter().map(|var| g.dx_of(*var, VarKind::Dense)).collect::<Result<_>>()?;
    g.op(def)
        .input("W", w)
        .input("Ids", ids)
        .inputs("Rest", &rest)
        .input("Out@GRAD", dy)
        .attr("padding_idx", padding)
        .attr("is_sparse", sparse)
        .maybe_output("W@GRAD", dw)
        .outputs("Rest@GRAD", &grads)
        .done()?;
    Ok(())
}

/// Returns the positions of the looked-up rows in Out, and the copies of Rest into Out or out of
/// it.
fn places(p: &PrepareCtx<'_>, out: &Shape, into_out: bool) -> (Grid, Vec<Strided>) {
    let (ids, dim) = (p.input("Ids").shape, p.input("W").shape.at(1));
    let (slots, width) = (ids.at(1), out.at(1));
    // With one slot, a grid uses the group stride only.
    let grid = Grid { start: 0, group: slots.max(1), group_stride: width, stride: dim };
    let whole = row_major(&sizes(out));
    let mut column = slots * dim;
    let mut copies = Vec::new();
    for rest in &p.inputs[REST] {
        let lens = sizes(&rest.shape);
        let (own, place) = (row_major(&lens), (column, whole.as_slice()));
        column += rest.shape.at(1);
        copies.push(match into_out {
            true => Strided::new(&lens, (0, &own), place),
            false => Strided::new(&lens, place, (0, &own)),
        });
    }
    (grid, copies)
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (grid, copies) = places(p, &p.output("Out").shape, true);
    let (dim, padding) = (p.input("W").shape.at(1), padding(p));
    Ok(Kernel::new(move |k| {
        let (w, ids) = (k.input::<f32>(W), k.input::<i64>(IDS));
        let out = k.output::<f32>(0);
        embedding::lookup(k.pool, w, dim, ids, padding, grid, out)?;
        for (copy, rest) in copies.iter().zip(k.inputs(REST)) {
            copy.run(k.pool, rest.slice(), out);
        }
        Ok(())
    }))
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (grid, copies) = places(p, &p.input("Out@GRAD").shape, false);
    let [height, dim] = [p.input("W").shape.at(0), p.input("W").shape.at(1)];
    let (padding, count) = (padding(p), p.input("Ids").numel());
    let table = p.optional_output("W@GRAD").map(|dw| dw.kind);
    let grouping = match table {
        Some(VarKind::Dense) => embedding::group_scratch_len(count),
        _ => 0,
    };
    Ok(Kernel::new(move |k| {
        match table {
            None => {}
            Some(VarKind::SparseRows) => {
                sparse_grad(k, k.input(IDS), DY, height, dim, padding, grid)?
            }
            Some(_) => {
                let (ids, dy) = (k.input::<i64>(IDS), k.input::<f32>(DY));
                let scratch = k.scratch();
                let groups = embedding::group(k.pool, ids, Some(height), padding, scratch)?;
                let source = Source { data: dy, grid };
                embedding::dense_gradient(k.pool, &groups, &source, dim, k.output(0))?;
            }
        }
        for (copy, rest) in copies.iter().zip(k.outs(1)) {
            copy.run::<f32>(k.pool, k.input(DY), rest.into_slice());
        }
        Ok(())
    })
    .scratch::<u64>(grouping))
}

/// Cost of the rows in use only.
fn cost(c: &CostCtx<'_>) -> Cost {
    let out = c.output("Out").or(c.input("Out@GRAD")).map_or(0, Meta::bytes) as f64;
    let ids = c.input("Ids").map_or(0, Meta::bytes) as f64;
    Cost { flops: 0.0, bytes: 2.0 * out + ids }
}
