//! Table and chart of a regression: predictions beside labels, in deciles of the predictions.

use super::charts::line;
use super::{Cell, Chart, Series, Table};
use crate::scoring::Scored;

/// Groups of rows with neighbouring predictions.
const GROUPS: usize = 10;

/// Means over a group.
struct Group {
    rows: usize,
    prediction: f64,
    label: f64,
    error: f64,
}

pub fn parts(scored: &Scored) -> (Vec<Table>, Vec<Chart>) {
    let groups = groups(scored);
    if groups.is_empty() {
        return (Vec::new(), Vec::new());
    }
    let row = |(index, group): (usize, &Group)| {
        vec![
            Cell::text((index + 1).to_string()),
            Cell::count(group.rows),
            Cell::number(group.prediction),
            Cell::number(group.label),
            Cell::number(group.error),
        ]
    };
    let table = Table {
        key: "deciles".to_string(),
        title: "Deciles of the predictions".to_string(),
        about: "Rows in ten groups, the highest predictions first.".to_string(),
        columns: ["decile", "rows", "prediction", "label", "MAE"].map(str::to_string).to_vec(),
        rows: groups.iter().enumerate().map(row).collect(),
        brief: GROUPS,
        bars: Some(4),
    };
    let points: Vec<[f64; 2]> =
        groups.iter().rev().map(|group| [group.prediction, group.label]).collect();
    let (first, last) = (points[0][0], points[points.len() - 1][0]);
    let equal = Series {
        name: "equal".to_string(),
        points: vec![[first, first], [last, last]],
        is_reference: true,
    };
    let chart = Chart {
        key: "calibration".to_string(),
        title: "Predictions and labels".to_string(),
        x: "mean prediction of a decile".to_string(),
        y: "mean label".to_string(),
        series: vec![line("model", points), equal],
    };
    (vec![table], vec![chart])
}

fn groups(scored: &Scored) -> Vec<Group> {
    let row = |row: usize| (scored.scores[row], scored.labels[row], scored.weight(row));
    let mut rows: Vec<(f32, f32, f64)> = (0..scored.labels.len()).map(row).collect();
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    let count = GROUPS.min(rows.len());
    let at = |group: usize| group * rows.len() / count.max(1);
    let group = |group: usize| {
        let rows = &rows[at(group)..at(group + 1)];
        let mean = |value: &dyn Fn(f64, f64) -> f64| {
            let weight: f64 = rows.iter().map(|(.., weight)| weight).sum();
            let values =
                rows.iter().map(|(a, b, weight)| weight * value(f64::from(*a), f64::from(*b)));
            values.sum::<f64>() / weight
        };
        Group {
            rows: rows.len(),
            prediction: mean(&|prediction, _| prediction),
            label: mean(&|_, label| label),
            error: mean(&|prediction, label| (prediction - label).abs()),
        }
    };
    (0..count).map(group).collect()
}
