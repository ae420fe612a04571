//! `micro_batch_slice`: the rows of one micro-batch, piece `index` of `count` equal pieces of X
//! along the first dimension. If `rows` is assigned, a piece must have that many. Any element type.
//! No gradient: fed variables have none.
//!
//! Pipelines feed a stage a whole batch and compute on its micro-batches.

use crate::prelude::*;
use crate::rules::{by_width, check_row_major};

/// The op `micro_batch_slice`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "micro_batch_slice",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[
            required("index", AttrKind::Int),
            required("count", AttrKind::Int),
            attr("rows", Int(-1)),
        ],
    },
    infer: |i| {
        let x = i.input("X")?;
        let (index, count) = (i.op.attr_int("index"), i.op.attr_int("count"));
        let Some(total) = x.shape.first().copied() else {
            return Err(i.error("X", "has no rows").expected("1 dimension or more"));
        };
        let rows = micro_rows(total, count)?;
        let wanted = i.op.attr_int("rows");
        if rows >= 0 && wanted >= 0 && rows != wanted {
            return Err(Error::invalid("micro-batches have the wrong number of rows")
                .expected(format!("{count} micro-batches of {wanted} rows"))
                .got(format!("a batch of {total} rows")));
        }
        if !(0..count).contains(&index) {
            return Err(Error::invalid("attribute 'index' of micro_batch_slice is out of range")
                .expected(format!("0 to {}", count - 1))
                .got(index));
        }
        let mut shape = x.shape;
        shape.dims_mut()[0] = rows;
        i.set("Out", x.dtype, shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        check_row_major(p)?;
        let (index, len) = (p.op.attr_usize("index"), p.output("Out").shape.len());
        by_width!(p.input("X").dtype, T => {
            Ok(Kernel::infallible(move |k| {
                let x = k.arg(0).bits::<T>();
                let piece = &x[index * len..][..len];
                k.pool.run_parts(k.out(0).into_bits::<T>(), GRAIN, |start, part| {
                    part.copy_from_slice(&piece[start..][..part.len()]);
                });
            }))
        })
    },
    traits: OpTraits::plain(),
};

/// Elements per task.
const GRAIN: usize = 32 * 1024;

/// Returns the rows of each of `count` micro-batches of `total` rows, or -1 if the total is not
/// known.
pub(crate) fn micro_rows(total: i64, count: i64) -> Result<i64> {
    if count < 1 {
        return Err(Error::invalid("number of micro-batches out of range")
            .expected("1 or more")
            .got(count));
    }
    match total {
        -1 => Ok(-1),
        total if total % count == 0 => Ok(total / count),
        total => Err(Error::invalid("micro-batches do not divide the rows of the batch")
            .expected(format!("a multiple of {count} rows, one for each micro-batch"))
            .got(format!("{total} rows"))
            .help("feed another batch size, or set pipeline_configs.accumulate_steps")),
    }
}
