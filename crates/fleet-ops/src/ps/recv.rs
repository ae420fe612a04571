//! `recv`: receives parameters from servers. `Out` are all variables of a dense table, in the
//! table's order. Each gets the newest value that the worker has received. With `is_geo`, they are
//! the worker's own copies, which are also the inputs `X`. The op then passes on the worker's
//! changes and adds the changes of other workers. `is_sparse` tells whether the copies are rows by
//! id.
//!
//! `epmap` names the servers of the table's blocks, if it is split into blocks.
//!
//! GEO exchanges changes in an op, because only ops may write variables while a program runs.

use super::{TABLE_ID, TRAITS, table_of};
use crate::prelude::*;
use crate::rules::check_row_major;

/// The op `recv`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "recv",
        inputs: &[many("X")],
        outputs: &[many("Out")],
        attrs: &[
            TABLE_ID,
            attr("is_sparse", Int(0)),
            attr("is_geo", Bool(false)),
            attr("recv_varnames", Strs(&[])),
            attr("epmap", Strs(&[])),
        ],
    },
    infer,
    grad: Grad::None,
    cpu,
    traits: OpTraits { inplace: &[("Out", "X")], ..TRAITS },
};

/// Gives each output the type and shape of its input.
fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    table_of(i.op)?;
    i.check_dtype("X", &[DType::F32])?;
    for meta in i.inputs("X").to_vec() {
        i.push("Out", meta);
    }
    Ok(())
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (tables, table) = (p.services.tables_of(p.op)?, table_of(p.op)?);
    let geo = p.op.attr_bool("is_geo");
    let width = match p.op.attr_int("is_sparse") {
        1 => Some(p.input("X").shape.product(1..p.input("X").shape.rank())),
        _ => None,
    };
    Ok(Kernel::new(move |k| {
        let parts = k.inputs(0).zip(k.outs(0)).map(|(from, mut to)| {
            to.copy_from(from);
            to.into_slice()
        });
        let mut parts: Vec<&mut [f32]> = parts.collect();
        match geo {
            true => tables.exchange(table, &mut parts, width),
            false => tables.recv_dense(table, &mut parts),
        }
    }))
}
