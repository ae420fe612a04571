//! Permutation importance: how much worse the scores are when a column's values are exchanged
//! between rows. Raw columns are exchanged, so a cross changes with each of its columns.

use super::measures::{self, Measures};
use super::{Cell, Table};
use crate::data::JobData;
use crate::features::{Applied, Features, Meaning, Scratch};
use crate::job::{Job, Role};
use crate::saved::{SCORE_ROWS, SavedModel};
use crate::scoring::{Scored, score_batch};
use crate::split::Part;
use fleet_base::rng::Sequence;
use fleet_base::{Error, Result};
use fleet_data::{Batch, Block, RowRef, Values};
use std::sync::Arc;

/// Largest number of rows that are exchanged.
const ROWS_MAX: usize = 10_000;
/// Rows to score for all columns together: limits the time for jobs with many columns.
const SCORES_MAX: usize = 400_000;
/// Fewer rows say nothing.
const ROWS_MIN: usize = 500;
/// Columns that the terminal shows.
const BRIEF: usize = 10;

/// Measures each column of the features, the most important one first. The rows are spread evenly
/// over the part.
pub fn importance(
    model: &mut SavedModel,
    data: &JobData,
    applied: &Arc<Applied>,
    part: Part,
    rows_all: usize,
) -> Result<Table> {
    let columns = columns(&model.job);
    let rows_max = ROWS_MAX.min((SCORES_MAX / (columns.len() + 1)).max(ROWS_MIN));
    let rows = data.sample(applied, part, rows_all.div_ceil(rows_max.max(1)))?;
    let seed = model.job.train.seed;
    let mut order: Vec<u32> = (0..rows.len() as u32).collect();
    let measure = measure_of(&model.features);
    let base = scored(model, applied, &rows)?.get(measure.key);
    let mut found = Vec::new();
    for (index, name) in columns.iter().enumerate() {
        Sequence::new(seed, index as u64).shuffle(&mut order);
        let exchanged = exchanged(&rows, data.column(name)?, &order)?;
        let value = scored(model, applied, &exchanged)?.get(measure.key);
        let loss = if measure.is_highest_best { base - value } else { value - base };
        found.push((name.clone(), value, loss));
    }
    found.sort_by(|a, b| b.2.total_cmp(&a.2));
    let row = |(name, value, loss): &(String, f64, f64)| {
        vec![Cell::text(name), Cell::number(*loss), Cell::number(*value)]
    };
    let count = rows.len();
    let label = measure.label;
    Ok(Table {
        key: "importance".to_string(),
        title: "Importance of the columns".to_string(),
        about: format!(
            "How much worse {label} is if the column's values are exchanged at random between rows \
             (seed {seed}). Measured on {count} of {rows_all} rows, where {label} is {base:.4}."
        ),
        columns: vec!["column".to_string(), "importance".to_string(), format!("{label} left")],
        rows: found.iter().map(row).collect(),
        brief: BRIEF,
        bars: Some(1),
    })
}

struct Measure {
    key: &'static str,
    label: &'static str,
    is_highest_best: bool,
}

fn measure_of(features: &Features) -> Measure {
    match &features.label.meaning {
        _ if features.group.is_some() => {
            Measure { key: "ndcg", label: "NDCG", is_highest_best: true }
        }
        Meaning::Classes(_) => Measure { key: "loss", label: "log-loss", is_highest_best: false },
        Meaning::Number { .. } => Measure { key: "rmse", label: "RMSE", is_highest_best: false },
        _ => Measure { key: "auc", label: "AUC", is_highest_best: true },
    }
}

/// Returns the columns that features are made of.
fn columns(job: &Job) -> Vec<String> {
    let crossed = |name: &String| job.crosses.iter().any(|cross| cross.columns.contains(name));
    let is_used = |role: Role, name: &String| role == Role::Feature || crossed(name);
    let columns = job.columns.iter().filter(|column| is_used(column.role, &column.name));
    columns.map(|column| column.name.clone()).collect()
}

/// Returns rows whose values of one column are those of other rows.
fn exchanged(rows: &Block, column: usize, order: &[u32]) -> Result<Block> {
    let mut out = Block::new(rows.schema());
    for (row, other) in order.iter().enumerate() {
        for at in 0..rows.schema().slots().len() {
            let from = if at == column { *other as usize } else { row };
            let values = rows.column(at);
            match values.values() {
                Values::Ids(_) => out.push_ids(at, values.ids(from).unwrap_or_default())?,
                Values::Floats(_) => {
                    out.push_floats(at, values.floats(from).unwrap_or_default())?
                }
            }
        }
        out.end_record()?;
    }
    Ok(out)
}

/// Applies the features to raw rows, and measures their scores.
fn scored(model: &mut SavedModel, applied: &Arc<Applied>, raw: &Block) -> Result<Measures> {
    let mut block = Block::new(applied.schema());
    let mut scratch = Scratch::default();
    for row in 0..raw.len() {
        if let Err(bad) = applied.apply(raw, row, &mut scratch, &mut block)? {
            return Err(Error::internal(bad.fault.text()));
        }
    }
    let mut batch = Batch::new(&applied.layout(false)?);
    let mut scored = Scored::default();
    let rows: Vec<RowRef> = (0..block.len() as u32).map(|row| RowRef { block: 0, row }).collect();
    for rows in rows.chunks(SCORE_ROWS) {
        batch.fill(&[&block], rows)?;
        score_batch(model, &batch, &mut scored)?;
    }
    Ok(measures::all(&scored, &model.features))
}
