//! Charts of the training: loss and validations, from the scalars of the model folder.

use super::charts::{POINTS, line};
use super::{Chart, Series};
use std::collections::BTreeMap;
use std::path::Path;

/// Larger files are not read: a long training has a row for each hundred steps.
const BYTES_MAX: u64 = 256 << 20;

/// Returns a chart for each value that was watched: its mean while training, and its validations.
/// A folder without scalars has none.
pub fn charts(folder: &Path) -> Vec<Chart> {
    let read = fleet_base::input::read(&folder.join("scalars.csv"), "scalars", BYTES_MAX);
    let Ok(text) = read.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()) else {
        return Vec::new();
    };
    let mut lines = text.lines();
    let columns: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let mut points: Vec<Vec<[f64; 2]>> = vec![Vec::new(); columns.len()];
    for line in lines {
        let values: Vec<Option<f64>> = line.split(',').map(|text| text.parse().ok()).collect();
        let Some(Some(step)) = values.first() else { continue };
        for (points, value) in points.iter_mut().zip(&values) {
            points.extend(value.filter(|value| value.is_finite()).map(|value| [*step, value]));
        }
    }
    let mut by_name: BTreeMap<&str, Vec<Series>> = BTreeMap::new();
    for (column, points) in columns.iter().zip(points) {
        let Some((part, name)) = column.split_once('/') else { continue };
        let part = if part == "train" { "training" } else { "validation" };
        if !points.is_empty() {
            by_name.entry(name).or_default().push(line(part, thinned(points)));
        }
    }
    let chart = |(name, series): (&str, Vec<Series>)| Chart {
        key: format!("training.{name}"),
        title: format!("Training: {name}"),
        x: "step".to_string(),
        y: name.to_string(),
        series,
    };
    by_name.into_iter().map(chart).collect()
}

fn thinned(points: Vec<[f64; 2]>) -> Vec<[f64; 2]> {
    let every = points.len().div_ceil(POINTS).max(1);
    let last = points.len() - 1;
    let kept = |(index, _): &(usize, [f64; 2])| index % every == 0 || *index == last;
    points.into_iter().enumerate().filter(kept).map(|(_, point)| point).collect()
}
