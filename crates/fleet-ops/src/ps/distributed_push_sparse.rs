//! Pushes gradients of rows from `distributed_lookup_table`: `Ids[i]` were looked up, and
//! `Outputs@GRAD[i]` is the gradient of their rows.
//!
//! * `Shows` and `Clicks` are for tables that count them, with one number per id or per sample.
//! * `use_cvm_op` multiplies gradients by the number of samples, for tables that need sums; a mean
//!   loss gives means.
//! * `counter_columns` is the number of leading columns to drop from each row's gradient. These
//!   columns are counters and are not trained.
//! * `padding_idx` has, for each of `Ids`, the id to exclude (-1 for none). An empty list excludes
//!   none.
//! * `slots` has the feature slot of each of `Ids`, for tables that store it. It is empty if
//!   unknown.
//!
//! The documented op has the gradients in its output slot. Here they are an input, because the op
//! reads them.

use super::{TABLE_ID, TRAITS, check_skip, is_skipped, table_of};
use crate::PushRows;
use crate::prelude::*;
use crate::rules::check_row_major;

/// The op `distributed_push_sparse`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "distributed_push_sparse",
        inputs: &[
            many("Ids"),
            many("Outputs@GRAD"),
            optional("Shows"),
            optional("Clicks"),
            optional("SkipUpdate"),
        ],
        outputs: &[],
        attrs: &[
            TABLE_ID,
            required("size", AttrKind::Int),
            attr("padding_idx", Ints(&[])),
            attr("slots", Ints(&[])),
            attr("use_cvm_op", Bool(false)),
            attr("counter_columns", Int(0)),
        ],
    },
    infer,
    grad: Grad::None,
    cpu,
    traits: TRAITS,
};

const IDS: usize = 0;
const GRADS: usize = 1;
const SHOWS: usize = 2;
const CLICKS: usize = 3;
const SKIP: usize = 4;

/// Number of distinct feature slots that a row can store.
const SLOT_COUNT: i64 = 1 << 31;

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    i.check_dtype("Ids", &[DType::I64])?;
    i.check_dtype("Outputs@GRAD", &[DType::F32])?;
    i.check_dtype("Shows", &[DType::F32])?;
    i.check_dtype("Clicks", &[DType::F32])?;
    check_skip(i)?;
    table_of(i.op)?;
    let (ids, grads) = (i.inputs("Ids"), i.inputs("Outputs@GRAD"));
    if ids.len() != grads.len() {
        return Err(i
            .error("Outputs@GRAD", "has a different number of variables than 'Ids'")
            .expected(ids.len())
            .got(grads.len()));
    }
    for name in ["padding_idx", "slots"] {
        let count = i.op.attr_ints(name).len();
        if count != 0 && count != ids.len() {
            return Err(Error::invalid(format!(
                "attribute '{name}' of distributed_push_sparse is wrong"
            ))
            .expected(format!("one number for each of {} variables of 'Ids'", ids.len()))
            .got(count));
        }
    }
    if let Some(slot) = i.op.attr_ints("slots").iter().find(|slot| !(0..SLOT_COUNT).contains(*slot))
    {
        return Err(Error::invalid("attribute 'slots' of distributed_push_sparse is out of range")
            .expected(format!("0 to {}", SLOT_COUNT - 1))
            .got(slot));
    }
    let width = i.op.attr_int("size");
    let counters = i.op.attr_int("counter_columns");
    if !(0..width.max(1)).contains(&counters) {
        return Err(Error::invalid(
            "attribute 'counter_columns' of distributed_push_sparse is out of range",
        )
        .expected(format!("0 to {}", width - 1))
        .got(counters));
    }
    for (ids, grad) in ids.iter().zip(grads) {
        let fits = match (ids.shape.numel(), grad.shape.numel()) {
            (Some(ids), Some(grad)) => (ids as i64).saturating_mul(width) == grad as i64,
            _ => true,
        };
        if !fits || width < 1 {
            return Err(i
                .error("Outputs@GRAD", "does not fit 'Ids'")
                .expected(format!(
                    "{width} numbers (attribute 'size') for each id of {}",
                    ids.shape
                ))
                .got(grad.shape));
        }
    }
    ["Shows", "Clicks"].iter().try_for_each(|slot| check_counts(i, slot))
}

/// Checks counts with one number per sample. The ids of a sample are adjacent.
fn check_counts(i: &InferCtx<'_>, slot: &str) -> Result<()> {
    let Some(counts) = i.optional(slot) else { return Ok(()) };
    let samples = counts.shape.numel();
    for ids in i.inputs("Ids") {
        let (Some(ids_len), Some(samples)) = (ids.shape.numel(), samples) else { continue };
        if ids_len > 0 && (samples == 0 || ids_len % samples != 0) {
            return Err(i
                .error(slot, "does not fit 'Ids'")
                .expected(format!("one number for each sample of {}", ids.shape))
                .got(counts.shape));
        }
    }
    Ok(())
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (tables, table) = (p.services.tables_of(p.op)?, table_of(p.op)?);
    let (size, paddings) = (p.op.attr_usize("size"), p.op.attr_ints("padding_idx").to_vec());
    let slots: Vec<u32> = p.op.attr_ints("slots").iter().map(|slot| *slot as u32).collect();
    let (sums, counters) = (p.op.attr_bool("use_cvm_op"), p.op.attr_usize("counter_columns"));
    Ok(Kernel::new(move |k| {
        if is_skipped(k, SKIP) {
            return tables.skip(table);
        }
        let mut changed: Vec<Vec<f32>> = Vec::new();
        if sums || counters > 0 {
            for (ids, grads) in k.inputs(IDS).zip(k.inputs(GRADS)) {
                let samples = ids.shape.dims().first().copied().unwrap_or(1) as f32;
                let factor = if sums { samples } else { 1.0 };
                let rows = grads.slice::<f32>().chunks_exact(size);
                changed.push(rows.flat_map(|row| &row[counters..]).map(|g| g * factor).collect());
            }
        }
        let (shows, clicks) = (k.optional::<f32>(SHOWS), k.optional::<f32>(CLICKS));
        let pushes: Vec<PushRows<'_>> = k
            .inputs(IDS)
            .zip(k.inputs(GRADS))
            .enumerate()
            .map(|(at, (ids, grads))| PushRows {
                ids: ids.slice(),
                grads: changed.get(at).map_or_else(|| grads.slice(), Vec::as_slice),
                shows,
                clicks,
                slot: slots.get(at).copied(),
                padding: paddings.get(at).copied().filter(|id| *id >= 0),
            })
            .collect();
        tables.push_sparse(table, &pushes, size - counters)
    }))
}
