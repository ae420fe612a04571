//! Lookups of rows by id. A table on parameter servers becomes a constant with its saved rows and a
//! hash table from ids to rows; ids without a row read as zeros.

use super::Translate;
use crate::context::Context;
use crate::export::{TableRows, too_many_rows};
use crate::graph::{Attribute, Value};
use fleet_base::{Error, Result};
use fleet_ir::VarId;
use fleet_tensor::{DType, Tensor};

pub(super) const RULES: &[(&str, Translate)] = &[
    ("distributed_lookup_table", distributed),
    ("fused_embedding_concat", |c| {
        let rows = lookup(c)?;
        let ids = c.shape("Ids")?;
        let rows = match super::shape::known_product(&ids, 1..ids.rank()) * width(c)? {
            wide if wide > 0 => c.reshape(rows, &[-1, wide])?,
            _ => c.with("Flatten", &[rows], vec![("axis", Attribute::Int(1))]),
        };
        let mut parts = vec![rows];
        parts.extend(c.all("Rest")?);
        let y = c.concat(&parts, 1);
        c.set("Out", y)
    }),
    ("lookup_table", |c| {
        let y = lookup(c)?;
        let last = c.shape("Ids")?.rank() as i64 - 1;
        let y = c.squeeze(y, &[last])?;
        c.set("Out", y)
    }),
    ("lookup_table_v2", |c| {
        let y = lookup(c)?;
        c.set("Out", y)
    }),
];

fn width(c: &Context<'_, '_>) -> Result<i64> {
    Ok(c.shape("W")?[1])
}

/// Returns the rows of W at the ids.
fn lookup(c: &mut Context<'_, '_>) -> Result<Value> {
    let table = c.var("W")?;
    let count = c.shape("W")?[0].max(0) as u64;
    let limit = c.table_rows_max();
    if count > limit {
        return Err(too_many_rows(&format!("'{}'", c.var_name(table)), count, limit));
    }
    let (w, ids) = (c.x("W")?, c.x("Ids")?);
    let rows = c.with("Gather", &[w, ids], vec![("axis", Attribute::Int(0))]);
    without_padding(c, rows, ids)
}

/// Sets the rows of the padding id to zero, if there is one.
fn without_padding(c: &mut Context<'_, '_>, rows: Value, ids: Value) -> Result<Value> {
    let padding = c.op.attr_int("padding_idx");
    if padding < 0 {
        return Ok(rows);
    }
    let padding = c.int(padding)?;
    let is_padding = c.node("Equal", &[ids, padding]);
    let is_padding = c.unsqueeze(is_padding, &[-1])?;
    let zero = c.scalar(DType::F32, 0.0)?;
    Ok(c.node("Where", &[is_padding, zero, rows]))
}

fn distributed(c: &mut Context<'_, '_>) -> Result<()> {
    let id = c.op.attr_int("table_id");
    let width = c.op.attr_int("width");
    let table = u32::try_from(id).map_err(|_| Error::invalid("invalid table").got(id))?;
    let name = format!("table_{table}");
    let (keys, rows) = constants(c, table, width)?;
    let rows = c.constant(rows);
    c.suggest_name(rows, &name);
    let is_old = c.op.attr_str("lookup_table_version") == "lookup_table";
    let count = keys.len() as i64;
    for (index, var) in c.op.input("Ids").to_vec().into_iter().enumerate() {
        let ids = c.read(var)?;
        let places = c.hash_table(ids, keys.clone(), (0..count).collect(), count);
        let mut found = c.with("Gather", &[rows, places], vec![("axis", Attribute::Int(0))]);
        if is_old {
            let last = last_axis(c, var);
            found = c.squeeze(found, &[last])?;
        }
        c.set_at("Outputs", index, found)?;
    }
    Ok(())
}

fn last_axis(c: &Context<'_, '_>, var: VarId) -> i64 {
    c.meta_of(var).shape.rank() as i64 - 1
}

/// Returns the ids of a table in ascending order, without the padding id, and their rows, followed
/// by a row of zeros for all other ids.
fn constants(c: &mut Context<'_, '_>, table: u32, width: i64) -> Result<(Vec<i64>, Tensor)> {
    let TableRows { ids, rows } = c.table(table)?;
    let limit = c.table_rows_max();
    if ids.len() as u64 > limit {
        return Err(too_many_rows(&table.to_string(), ids.len() as u64, limit));
    }
    if *rows.shape() != [ids.len() as i64, width].into() {
        return Err(Error::invalid(format!("the rows of table {table} do not fit the program"))
            .expected(format!("{} rows of width {width}", ids.len()))
            .got(rows.shape())
            .help("export the program and the tables of one save"));
    }
    let padding = Some(c.op.attr_int("padding_idx")).filter(|id| *id >= 0);
    let mut order: Vec<usize> = (0..ids.len()).filter(|at| Some(ids[*at]) != padding).collect();
    order.sort_unstable_by_key(|at| ids[*at]);
    let (width, values) = (width as usize, rows.as_slice::<f32>()?);
    let mut sorted = Tensor::zeros(DType::F32, [order.len() as i64 + 1, width as i64])?;
    for (to, at) in sorted.as_mut_slice::<f32>()?.chunks_exact_mut(width).zip(&order) {
        to.copy_from_slice(&values[at * width..][..width]);
    }
    Ok((order.iter().map(|at| ids[*at]).collect(), sorted))
}
