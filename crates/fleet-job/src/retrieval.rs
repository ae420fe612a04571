//! The end of a retrieval's training: vectors of all users and items, and measures of where the
//! chosen items of other rows are among all items.

use crate::data::JobData;
use crate::features::{Applied, Choices, Features, INPUT_ITEM, SLOT_USER};
use crate::job::Side;
use crate::nearest::Index;
use crate::report::{Measured, Measures};
use crate::saved::SavedModel;
use crate::split::Part;
use crate::vectors::{self, Texts, Vectors, index_path, vectors_of};
use fleet_base::{Error, Result};
use fleet_data::Block;
use fleet_metrics::Retrieval;
use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

/// Users that are measured: each takes a product with every item.
const USERS_MAX: usize = 20_000;

/// Saves the vectors of all users and items of the training rows, and measures the model over the
/// rows of a part, if there is one.
pub fn finish(
    model: &mut SavedModel,
    data: &JobData,
    applied: &Arc<Applied>,
    folder: &Path,
    part: Option<Part>,
) -> Result<Option<Measured>> {
    let choices = choices_of(&model.features)?.clone();
    let users = data.distinct(applied, Part::Train, SLOT_USER)?;
    let items = data.distinct(applied, Part::Train, INPUT_ITEM)?;
    save(model, data, applied, (&users, &choices.user, SLOT_USER), Side::User, folder)?;
    let catalogue =
        save(model, data, applied, (&items, &choices.item, INPUT_ITEM), Side::Item, folder)?;
    save_index(&catalogue, folder, model.threads())?;
    vectors::finish(folder, model.version.version)?;
    let Some(part) = part else { return Ok(None) };
    let places: HashMap<i64, usize> =
        ids(&items, applied, INPUT_ITEM)?.into_iter().zip(0..).collect();
    let measured = measure(model, data, applied, part, &catalogue, &places, choices.at)?;
    let part = crate::data::name_of(part).to_string();
    Ok(Some(Measured { part, all: measured.by_key(), tables: Vec::new(), charts: Vec::new() }))
}

/// Items from which on a model has an index: with fewer, comparing all of them is fast.
const INDEXED_ITEMS_MIN: usize = 20_000;

/// Saves an index of many items, and removes that of an earlier model.
fn save_index(items: &Vectors, folder: &Path, threads: usize) -> Result<()> {
    let path = index_path(folder);
    if items.len() >= INDEXED_ITEMS_MIN {
        return Index::build(items, threads)?.save(&path);
    }
    match path.exists() {
        true => std::fs::remove_file(&path).map_err(|error| Error::io("remove", &path, &error)),
        false => Ok(()),
    }
}

fn choices_of(features: &Features) -> Result<&Choices> {
    features.choices.as_ref().ok_or_else(|| Error::internal("the model has no choices"))
}

/// Computes and saves the vectors of a side for one row of each user or item.
fn save(
    model: &mut SavedModel,
    data: &JobData,
    applied: &Applied,
    (rows, column, slot): (&Block, &str, &str),
    side: Side,
    folder: &Path,
) -> Result<Vectors> {
    let values = vectors_of(model, applied, rows, side)?;
    let texts: Result<Vec<String>> =
        ids(rows, applied, slot)?.iter().map(|id| data.text(column, *id as u64)).collect();
    let texts = Texts { column: column.to_string(), values: texts? };
    let dim = values.len() / rows.len().max(1);
    let vectors = Vectors { texts, dim: dim.max(1), values };
    vectors.save(folder, side)?;
    Ok(vectors)
}

/// Returns the id of each row.
fn ids(rows: &Block, applied: &Applied, slot: &str) -> Result<Vec<i64>> {
    let column = rows.column(applied.schema().index(slot)?);
    let id = |row| column.ids(row).and_then(|ids| ids.first()).copied().unwrap_or(0);
    Ok((0..rows.len()).map(id).collect())
}

/// Measures where the items that users chose in a part's rows are among all items that they did
/// not choose in the training rows.
fn measure(
    model: &mut SavedModel,
    data: &JobData,
    applied: &Arc<Applied>,
    part: Part,
    catalogue: &Vectors,
    places: &HashMap<i64, usize>,
    at: usize,
) -> Result<Measures> {
    let users = data.distinct(applied, part, SLOT_USER)?;
    let mut chosen = data.choices(applied, part)?;
    let seen = data.choices(applied, Part::Train)?;
    let vectors = vectors_of(model, applied, &users, Side::User)?;
    let mut retrieval = Retrieval::new(at);
    let none = HashSet::new();
    let names = ids(&users, applied, SLOT_USER)?;
    for (user, vector) in names.iter().zip(vectors.chunks_exact(catalogue.dim)).take(USERS_MAX) {
        let relevant = chosen.remove(user).unwrap_or_default();
        let seen: HashSet<usize> = seen
            .get(user)
            .unwrap_or(&none)
            .iter()
            .filter(|item| !relevant.contains(item))
            .filter_map(|item| places.get(item).copied())
            .collect();
        let mut found: Vec<usize> =
            relevant.iter().filter_map(|item| places.get(item).copied()).collect();
        found.sort_unstable();
        retrieval.add(&ranks(&catalogue.products(vector), &found, &seen), relevant.len());
    }
    let means = retrieval.means();
    let values = vec![
        ("users", means.rankings),
        ("items", catalogue.len() as f64),
        ("at", at as f64),
        ("recall", means.recall),
        ("ndcg", means.ndcg),
        ("mrr", means.mrr),
    ];
    let values = values.into_iter().map(|(key, value)| (key.into(), value)).collect();
    Ok(Measures { rows: means.rankings as usize, values })
}

/// Returns the places of some items in the order of the scores, from 1, without seen ones. Of
/// equal scores, those of other items are first.
fn ranks(scores: &[f32], items: &[usize], seen: &HashSet<usize>) -> Vec<usize> {
    let mut others: Vec<f32> = Vec::with_capacity(scores.len());
    let is_other = |at: &usize| !seen.contains(at);
    others.extend((0..scores.len()).filter(is_other).map(|at| scores[at]));
    others.sort_unstable_by(|a, b| b.total_cmp(a));
    // The last place of an equal score.
    items.iter().map(|at| others.partition_point(|other| *other >= scores[*at])).collect()
}

#[cfg(test)]
mod tests {
    use super::ranks;

    #[test]
    fn ranks_are_without_seen_items() {
        let scores = [0.5, 0.9, 0.1, 0.7, 0.7];
        assert_eq!(ranks(&scores, &[1, 0, 2], &[].into()), [1, 4, 5]);
        assert_eq!(ranks(&scores, &[0, 2], &[1, 3].into()), [2, 3]);
        assert_eq!(ranks(&scores, &[3], &[].into()), [3]);
    }
}
