//! Measures of scores: single numbers over all rows, or over those of a slice.

use super::{Cell, Table, finite};
use crate::features::{Features, Label, Meaning, Slice};
use crate::scoring::Scored;
use fleet_metrics::{Ranking, RankingMeans};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Labels of the measures, in the order in which they are shown.
pub const LABELS: [(&str, &str); 18] = [
    ("rankings", "rankings"),
    ("users", "users"),
    ("items", "items"),
    ("at", "places"),
    ("ndcg", "NDCG"),
    ("recall", "recall"),
    ("mrr", "MRR"),
    ("auc", "AUC"),
    ("best_auc", "best AUC"),
    ("accuracy", "accuracy"),
    ("r2", "R2"),
    ("rmse", "RMSE"),
    ("mae", "MAE"),
    ("bias", "bias"),
    ("loss", "log-loss"),
    ("average_precision", "avg prec"),
    ("rate", "positives"),
    ("calibration", "calibration"),
];

/// Measures of some rows.
#[derive(Clone, Debug, PartialEq)]
pub struct Measures {
    /// Number of rows.
    pub rows: usize,
    /// Keys and values.
    pub values: Vec<(Cow<'static, str>, f64)>,
}

impl Measures {
    /// Returns the value of a measure; NaN if there is none.
    pub fn get(&self, key: &str) -> f64 {
        self.values.iter().find(|(known, _)| *known == key).map_or(f64::NAN, |(_, value)| *value)
    }

    /// Returns the values by their keys, with the number of rows.
    pub fn by_key(&self) -> BTreeMap<String, Option<f64>> {
        let rows = ("rows".to_string(), Some(self.rows as f64));
        let values = self.values.iter().map(|(key, value)| (key.to_string(), finite(*value)));
        values.chain([rows]).collect()
    }
}

/// Measures all rows.
pub fn all(scored: &Scored, features: &Features) -> Measures {
    let rows: Vec<usize> = (0..scored.rows(features)).collect();
    measures(scored, &rows, features)
}

/// Measures the rows of each value of a slice.
pub fn slice_table(
    slice: &Slice,
    values: &[i64],
    scored: &Scored,
    features: &Features,
    all: &Measures,
) -> Table {
    let names = all.values.iter().map(|(key, _)| label_of(key).to_string());
    let mut by_value = vec![Vec::new(); slice.values.len()];
    for (row, value) in values.iter().enumerate() {
        if let Some(rows) = usize::try_from(*value).ok().and_then(|at| by_value.get_mut(at)) {
            rows.push(row);
        }
    }
    let row_of = |((_, text), rows): (&(u64, String), &Vec<usize>)| {
        let measures = measures(scored, rows, features);
        let values = measures.values.iter().map(|(_, value)| Cell::number(*value));
        [Cell::text(text), Cell::count(rows.len())].into_iter().chain(values).collect()
    };
    Table {
        key: format!("slices.{}", slice.column),
        title: format!("By {}", slice.column),
        about: "The rows of each value alone.".to_string(),
        columns: [slice.column.clone(), "rows".to_string()].into_iter().chain(names).collect(),
        rows: slice.values.iter().zip(&by_value).map(row_of).collect(),
        brief: slice.values.len(),
        bars: None,
    }
}

/// Returns the label of a measure.
pub fn label_of(key: &str) -> &str {
    LABELS.iter().find(|(known, _)| *known == key).map_or(key, |(_, label)| label)
}

fn measures(scored: &Scored, rows: &[usize], features: &Features) -> Measures {
    if features.has_labels() {
        return of_labels(scored, rows, features);
    }
    let label = &features.label;
    let values = match (&features.group, &label.meaning) {
        (Some(group), _) => of_rankings(scored, rows, group.at),
        (None, Meaning::Classes(_)) => of_classes(scored, rows, label.scores()),
        (None, Meaning::Number { .. }) => of_numbers(scored, rows, label),
        (None, _) => of_chances(scored, rows),
    };
    let values = values.into_iter().map(|(key, value)| (key.into(), value)).collect();
    Measures { rows: rows.len(), values }
}

/// Means over the labels, and the area of each label.
fn of_labels(scored: &Scored, rows: &[usize], features: &Features) -> Measures {
    let each = of_each_label(scored, rows, features);
    let mean = |key: &str| each.iter().map(|it| value(it, key)).sum::<f64>() / each.len() as f64;
    let mut values = vec![("auc".into(), mean("auc")), ("loss".into(), mean("loss"))];
    let areas = features.label_names().into_iter().zip(&each);
    values.extend(areas.map(|(name, it)| (format!("auc.{name}").into(), value(it, "auc"))));
    Measures { rows: rows.len(), values }
}

/// The measures of each label.
pub fn of_each_label(
    scored: &Scored,
    rows: &[usize],
    features: &Features,
) -> Vec<Vec<(&'static str, f64)>> {
    let all: Vec<usize> = (0..rows.len()).collect();
    let of = |label: usize| of_chances(&scored.of_label(label, features.scores(), rows), &all);
    (0..features.scores()).map(of).collect()
}

fn value(measures: &[(&'static str, f64)], key: &str) -> f64 {
    measures.iter().find(|(known, _)| *known == key).map_or(f64::NAN, |(_, value)| *value)
}

/// Returns a mean over rows, which count by their weights.
fn mean(scored: &Scored, rows: &[usize], value: impl Fn(usize) -> f64) -> f64 {
    let weight: f64 = rows.iter().map(|row| scored.weight(*row)).sum();
    rows.iter().map(|row| scored.weight(*row) * value(*row)).sum::<f64>() / weight
}

fn of_classes(scored: &Scored, rows: &[usize], width: usize) -> Vec<(&'static str, f64)> {
    let of = |row: usize| &scored.scores[row * width..][..width];
    let class = |row: usize| scored.labels[row] as usize;
    let loss = mean(scored, rows, |row| -f64::from(of(row)[class(row)]).max(TINY).ln());
    let accuracy = mean(scored, rows, |row| {
        let scores = of(row);
        let best = (1..width).fold(0, |best, at| if scores[at] > scores[best] { at } else { best });
        f64::from(u8::from(best == class(row)))
    });
    vec![("accuracy", accuracy), ("loss", loss)]
}

/// Measures of the first places of the groups' rankings.
fn of_rankings(scored: &Scored, rows: &[usize], at: usize) -> Vec<(&'static str, f64)> {
    let groups: Vec<u64> = rows.iter().map(|row| scored.groups[*row]).collect();
    let mut ranking = Ranking::default();
    let added = ranking.add(&groups, &picked(&scored.scores, rows), &picked(&scored.labels, rows));
    // Only a score that is not a number is refused, of which there is no ranking.
    let means = match added {
        Ok(()) => ranking.means(at),
        Err(_) => RankingMeans { ndcg: f64::NAN, recall: f64::NAN, mrr: f64::NAN, rankings: 0.0 },
    };
    vec![
        ("rankings", means.rankings),
        ("at", at as f64),
        ("ndcg", means.ndcg),
        ("recall", means.recall),
        ("mrr", means.mrr),
    ]
}

fn picked(values: &[f32], rows: &[usize]) -> Vec<f32> {
    rows.iter().map(|row| values[*row]).collect()
}

fn of_numbers(scored: &Scored, rows: &[usize], of: &Label) -> Vec<(&'static str, f64)> {
    let label = |row: usize| f64::from(scored.labels[row]);
    let score = |row: usize| f64::from(scored.scores[row]);
    let squares = mean(scored, rows, |row| (score(row) - label(row)).powi(2));
    let absolute = mean(scored, rows, |row| (score(row) - label(row)).abs());
    let average = mean(scored, rows, label);
    let variance = mean(scored, rows, |row| (label(row) - average).powi(2));
    let r2 = if variance > 0.0 { 1.0 - squares / variance } else { f64::NAN };
    let bias = mean(scored, rows, score) - average;
    let mut values = vec![("r2", r2), ("rmse", squares.sqrt()), ("mae", absolute), ("bias", bias)];
    values.extend(of.at_least.map(|least| {
        let reached: Vec<f32> =
            rows.iter().map(|row| f32::from(u8::from(scored.labels[*row] >= least))).collect();
        let ranked = scored.ranked(rows, &reached);
        ("auc", ranked.map_or(f64::NAN, |ranked| ranked.auc()))
    }));
    values
}

fn of_chances(scored: &Scored, rows: &[usize]) -> Vec<(&'static str, f64)> {
    let label = |row: usize| f64::from(scored.labels[row]);
    let score = |row: usize| f64::from(scored.scores[row]);
    let chance = |row: usize| if label(row) > 0.5 { score(row) } else { 1.0 - score(row) };
    let loss = mean(scored, rows, |row| -chance(row).max(TINY).ln());
    let (actual, predicted) = (mean(scored, rows, label), mean(scored, rows, score));
    let calibration = if actual > 0.0 { predicted / actual } else { f64::NAN };
    let ranked = scored.ranked(rows, &picked(&scored.labels, rows));
    let areas = ranked.map(|ranked| (ranked.auc(), ranked.average_precision()));
    // Scores that are not numbers have no order.
    let (auc, average_precision) = areas.unwrap_or((f64::NAN, f64::NAN));
    vec![
        ("auc", auc),
        ("loss", loss),
        ("average_precision", average_precision),
        ("rate", actual),
        ("calibration", calibration),
    ]
}

/// Smallest probability in a logarithm, so that one wrong score does not make a mean infinite.
const TINY: f64 = 1e-7;
