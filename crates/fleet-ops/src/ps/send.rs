//! `send`: sends gradients to servers. With `is_sparse` 0, `X` are the gradients of all variables
//! of a dense table, in the table's order. With `is_sparse` 1, `X` are sparse rows of the worker's
//! own copy of a table, which the step will change. The difference is sent later (GEO).
//! `send_varnames` is the documented name of the table's gradient, or the names of its parts on the
//! servers in `epmap`.

use super::{TABLE_ID, TRAITS, check_skip, is_skipped, table_of};
use crate::prelude::*;
use crate::rules::check_row_major;

/// The op `send`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "send",
        inputs: &[many("X"), optional("SkipUpdate")],
        outputs: &[],
        attrs: &[
            TABLE_ID,
            attr("is_sparse", Int(0)),
            attr("send_varnames", Strs(&[])),
            attr("epmap", Strs(&[])),
        ],
    },
    infer,
    grad: Grad::None,
    cpu,
    traits: OpTraits { sparse: &["X"], ..TRAITS },
};

const X: usize = 0;
const SKIP: usize = 1;

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    table_of(i.op)?;
    check_skip(i)?;
    let all = |kind: VarKind| i.inputs("X").iter().all(|meta| meta.kind == kind);
    match i.op.attr_int("is_sparse") {
        0 if all(VarKind::Dense) => i.check_dtype("X", &[DType::F32]),
        0 => Err(i.error("X", "holds sparse rows").expected("dense tensors where is_sparse is 0")),
        1 if all(VarKind::SparseRows) => Ok(()),
        1 => Err(i.error("X", "is dense").expected("sparse rows where is_sparse is 1")),
        other => Err(Error::invalid("attribute 'is_sparse' of send is wrong")
            .expected("0 or 1")
            .got(other)),
    }
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (tables, table) = (p.services.tables_of(p.op)?, table_of(p.op)?);
    let is_sparse = p.op.attr_int("is_sparse") == 1;
    Ok(Kernel::new(move |k| {
        if is_skipped(k, SKIP) {
            return tables.skip(table);
        }
        if is_sparse {
            return k.inputs(X).try_for_each(|arg| tables.touch(table, arg.row_ids()));
        }
        let parts: Vec<&[f32]> = k.inputs(X).map(|arg| arg.slice()).collect();
        tables.send_dense(table, &parts)
    }))
}
