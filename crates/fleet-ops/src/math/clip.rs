//! `Out = X`, limited to `min` and `max`. Sparse rows are clipped as the matrix that they
//! represent.
//!
//! f32 (halves through f32), i32 and i64. Sparse rows are f32. Rows with equal ids are summed into
//! one before clipping, because small parts may add up to a large sum. Absent rows are zero and
//! stay so; for this, zero must be within the limits.

use super::unary;
use crate::prelude::*;
use crate::widen::any_float;
use fleet_ir::AttrSpec;
use fleet_kernels::elementwise;
use fleet_kernels::embedding::{self, Grid, Source};

const ATTRS: &[AttrSpec] = &[attr("min", Float(f64::MIN)), attr("max", Float(f64::MAX))];

/// The op `clip`.
pub static CLIP: OpDef = OpDef {
    spec: OpSpec { name: "clip", inputs: &[one("X")], outputs: &[one("Out")], attrs: ATTRS },
    infer,
    grad: Grad::OpRule(&CLIP_GRAD, unary::grad),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits { inplace: &[("Out", "X")], sparse: &["X"], ..OpTraits::plain() },
};

/// The op `clip_grad`.
pub static CLIP_GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "clip_grad",
        inputs: &[optional("X"), optional("Out"), one("Out@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: ATTRS,
    },
    infer: unary::infer_grad,
    grad: Grad::None,
    cpu: |p| any_float(p, unary::grad_cpu),
    traits: OpTraits { inplace: unary::INPLACE_GRAD, ..OpTraits::plain() },
};

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    let x = i.input("X")?;
    if x.kind != VarKind::SparseRows {
        return unary::infer(i);
    }
    i.check_dtype("X", &[DType::F32, DType::F16, DType::BF16])?;
    let (min, max) = (i.op.attr_float("min"), i.op.attr_float("max"));
    if !(min <= 0.0 && 0.0 <= max) {
        return Err(i
            .error("X", "holds sparse rows: absent rows are zero and would be clipped")
            .expected("min at most 0, and max at least 0")
            .got(format!("min {min}, max {max}")));
    }
    i.push("Out", x);
    Ok(())
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let x = p.input("X");
    if x.kind != VarKind::SparseRows {
        return unary::cpu(p);
    }
    let (op, height, dim) =
        (unary::unary_of(p.op)?, x.shape.at(0), x.shape.product(1..x.shape.rank()));
    let group_words = embedding::group_scratch_len(x.rows);
    Ok(Kernel::new(move |k| {
        let mut out = k.out(0);
        let (words, sums) = k.scratch::<u64>().split_at_mut(group_words);
        let sums: &mut [f32] = view_as_mut(sums);
        let (data, ids) = out.elements_of(k.arg(0));
        let groups = embedding::group(k.pool, ids, Some(height), None, words)?;
        let source = Source { data, grid: Grid::packed(dim) };
        embedding::merge_rows(k.pool, &groups, &source, dim, sums);
        let ids = groups.ids();
        let used = ids.len() * dim;
        elementwise::unary(k.pool, op, &sums[..used], &mut out.slice_mut()[..used]);
        out.row_ids_mut()[..ids.len()].copy_from_slice(ids);
        out.set_row_count(ids.len());
        Ok(())
    })
    .scratch::<u64>(group_words + (x.rows * dim).div_ceil(2)))
}
