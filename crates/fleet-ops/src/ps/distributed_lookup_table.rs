//! Rows of a table on parameter servers: `Outputs[i][..., :] = table[Ids[i][..., :]]`, and zeros if
//! the id is `padding_idx`. All lookups of a table are one op, so they take one request. Any 64-bit
//! value is a valid id. With `lookup_table` as `lookup_table_version`, ids end in a dimension of
//! size 1.
//!
//! The documented op has the table as an input, `W`. Here the row width is an attribute instead,
//! because a table too large for a worker is not a variable of the program.

use super::{TABLE_ID, TRAITS, padding, table_of};
use crate::prelude::*;
use crate::rules::check_row_major;
use crate::{LookUp, Lookup};

/// The op `distributed_lookup_table`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "distributed_lookup_table",
        inputs: &[many("Ids")],
        outputs: &[many("Outputs")],
        attrs: &[
            TABLE_ID,
            required("width", AttrKind::Int),
            attr("padding_idx", Int(-1)),
            attr("lookup_table_version", Str("lookup_table_v2")),
            attr("is_distributed", Bool(true)),
            attr("is_test", Bool(false)),
        ],
    },
    infer,
    grad: Grad::None,
    cpu,
    traits: OpTraits { amp: AmpClass::Black, ..TRAITS },
};

/// Maximum numbers per row; the limit of tables.
const WIDTH_MAX: i64 = 1 << 16;

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    i.check_dtype("Ids", &[DType::I64])?;
    table_of(i.op)?;
    let width = i.op.attr_int("width");
    if !(1..=WIDTH_MAX).contains(&width) {
        return Err(Error::invalid(
            "attribute 'width' of distributed_lookup_table is out of range",
        )
        .expected(format!("1 to {WIDTH_MAX}"))
        .got(width));
    }
    let old = match i.op.attr_str("lookup_table_version") {
        "lookup_table" => true,
        "lookup_table_v2" => false,
        other => {
            return Err(Error::invalid("attribute 'lookup_table_version' is unknown")
                .expected("lookup_table or lookup_table_v2")
                .got(format!("'{other}'")));
        }
    };
    for ids in i.inputs("Ids").to_vec() {
        let mut out = ids.shape;
        if old {
            if out.last().is_none_or(|last| *last != 1 && *last >= 0) {
                return Err(i
                    .error("Ids", "does not end in a dimension of 1")
                    .expected("[..., 1]")
                    .got(out));
            }
            let last = out.rank() - 1;
            out.dims_mut()[last] = width;
        } else {
            out.push(width)?;
        }
        i.push("Outputs", Meta::dense(DType::F32, out));
    }
    Ok(())
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (tables, table) = (p.services.tables_of(p.op)?, table_of(p.op)?);
    let how = LookUp {
        width: p.op.attr_usize("width"),
        padding: padding(p.op),
        is_training: !p.op.attr_bool("is_test"),
    };
    Ok(Kernel::new(move |k| {
        let ids = k.inputs(0).map(|arg| arg.slice::<i64>());
        let rows = k.outs(0).map(Out::into_slice::<f32>);
        let mut lookups: Vec<Lookup<'_>> =
            ids.zip(rows).map(|(ids, rows)| Lookup { ids, rows }).collect();
        tables.lookup(table, &mut lookups, how)
    }))
}
