//! The report on a finished model: measures over the test rows, as lines and as JSON.

use crate::features::{Features, Label, Meaning};
use fleet_base::text;
use fleet_metrics::{Ranking, RankingMeans};
use serde_json::{Map, Value, json};

/// Scores, labels and slices of the rows of a part.
#[derive(Default)]
pub struct Scored {
    /// Scores, row after row.
    pub scores: Vec<f32>,
    /// Labels: 0 or 1, the number of a class, or a number.
    pub labels: Vec<f32>,
    /// The group of each row, if rows are ranked in groups.
    pub groups: Vec<u64>,
    /// For each slice: the number of each row's value, or -1.
    pub slices: Vec<Vec<i64>>,
}

/// Measures of some rows, in the order in which they are shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Measures {
    /// Number of rows.
    pub rows: usize,
    /// Key, label and value.
    pub values: Vec<(&'static str, &'static str, f64)>,
}

/// The report.
pub struct Report {
    /// The part that was measured.
    pub part: &'static str,
    /// Measures of all rows.
    pub all: Measures,
    /// For each slice its column, and the measures of its values.
    pub slices: Vec<(String, Vec<(String, Measures)>)>,
}

impl Report {
    /// Measures scores.
    pub fn of(part: &'static str, scored: &Scored, features: &Features) -> Report {
        let width = features.label.scores();
        let at = features.group.as_ref().map(|group| group.at);
        let measured = |rows: &[usize]| match at {
            Some(at) => ranking_measures(scored, rows, at),
            None => measures(scored, rows, width, &features.label),
        };
        let all: Vec<usize> = (0..scored.labels.len()).collect();
        let slices = features.slices.iter().zip(&scored.slices).map(|(slice, values)| {
            let of_value = |(index, (_, text)): (usize, &(u64, String))| {
                let rows: Vec<usize> =
                    all.iter().copied().filter(|row| values[*row] == index as i64).collect();
                (text.clone(), measured(&rows))
            };
            (slice.column.clone(), slice.values.iter().enumerate().map(of_value).collect())
        });
        let slices = slices.collect();
        Report { part, all: measured(&all), slices }
    }

    /// Returns the lines of the report.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let rows = text::count(self.all.rows as f64);
        lines.push(format!("{:<12}{rows} rows", self.part));
        for (_, label, value) in &self.all.values {
            lines.push(format!("{label:<12}{}", number(*value)));
        }
        for (column, values) in &self.slices {
            lines.push(String::new());
            let labels = self.all.values.iter().map(|(_, label, _)| format!("{label:>12}"));
            let labels: String = labels.collect();
            lines.push(format!("{column:<24}{:>10}{labels}", "rows"));
            for (value, measures) in values {
                let numbers =
                    measures.values.iter().map(|(.., value)| format!("{:>12}", number(*value)));
                let numbers: String = numbers.collect();
                let value = shortened(value);
                lines.push(format!("{value:<24}{:>10}{numbers}", measures.rows));
            }
        }
        lines
    }

    /// Returns the report as JSON.
    pub fn json(&self) -> Value {
        let slices: Map<String, Value> = self
            .slices
            .iter()
            .map(|(column, values)| {
                let values: Map<String, Value> =
                    values.iter().map(|(value, it)| (value.clone(), json_of(it))).collect();
                (column.clone(), Value::Object(values))
            })
            .collect();
        json!({ "part": self.part, "all": json_of(&self.all), "slices": slices })
    }
}

/// Characters of a slice's value that are shown.
const VALUE_CHARS: usize = 22;

fn shortened(value: &str) -> String {
    match value.char_indices().nth(VALUE_CHARS) {
        Some((end, _)) => format!("{}..", &value[..end]),
        None => value.to_string(),
    }
}

fn json_of(measures: &Measures) -> Value {
    let mut object = Map::new();
    object.insert("rows".to_string(), json!(measures.rows));
    for (key, _, value) in &measures.values {
        // JSON has no NaN: a measure that is not defined is null.
        object.insert(key.to_string(), json!(value));
    }
    Value::Object(object)
}

fn number(value: f64) -> String {
    match value {
        value if value.is_nan() => "-".to_string(),
        value if value != 0.0 && (value.abs() < 1e-3 || value.abs() >= 1e6) => {
            format!("{value:.3e}")
        }
        value => format!("{value:.4}"),
    }
}

/// Measures of the first places of the groups' rankings.
fn ranking_measures(scored: &Scored, rows: &[usize], at: usize) -> Measures {
    let of = |values: &[f32]| -> Vec<f32> { rows.iter().map(|row| values[*row]).collect() };
    let groups: Vec<u64> = rows.iter().map(|row| scored.groups[*row]).collect();
    let mut ranking = Ranking::default();
    // Only a score that is not a number is refused, of which there is no ranking.
    let means = match ranking.add(&groups, &of(&scored.scores), &of(&scored.labels)) {
        Ok(()) => ranking.means(at),
        Err(_) => RankingMeans { ndcg: f64::NAN, recall: f64::NAN, mrr: f64::NAN, rankings: 0.0 },
    };
    let values = vec![
        ("rankings", "rankings", means.rankings),
        ("at", "places", at as f64),
        ("ndcg", "NDCG", means.ndcg),
        ("recall", "recall", means.recall),
        ("mrr", "MRR", means.mrr),
    ];
    Measures { rows: rows.len(), values }
}

fn measures(scored: &Scored, rows: &[usize], width: usize, label_of: &Label) -> Measures {
    let label = |row: &usize| f64::from(scored.labels[*row]);
    let score = |row: &usize| f64::from(scored.scores[*row * width]);
    let count = rows.len() as f64;
    let mean = |value: &dyn Fn(&usize) -> f64| rows.iter().map(value).sum::<f64>() / count;
    let values = match &label_of.meaning {
        Meaning::Classes(_) => {
            let of = |row: &usize| &scored.scores[row * width..][..width];
            let loss =
                mean(&|row| -f64::from(of(row)[scored.labels[*row] as usize]).max(TINY).ln());
            let accuracy = mean(&|row| {
                let best = of(row).iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
                f64::from(u8::from(best.is_some_and(|(at, _)| at == scored.labels[*row] as usize)))
            });
            vec![("accuracy", "accuracy", accuracy), ("loss", "log-loss", loss)]
        }
        Meaning::Number { .. } => {
            let squares = mean(&|row| (score(row) - label(row)).powi(2));
            let absolute = mean(&|row| (score(row) - label(row)).abs());
            let average = mean(&label);
            let variance = mean(&|row| (label(row) - average).powi(2));
            let r2 = if variance > 0.0 { 1.0 - squares / variance } else { f64::NAN };
            let bias = mean(&score) - average;
            let mut values = vec![
                ("r2", "R2", r2),
                ("rmse", "RMSE", squares.sqrt()),
                ("mae", "MAE", absolute),
                ("bias", "bias", bias),
            ];
            values.extend(label_of.at_least.map(|least| {
                let reached = |row: &usize| f32::from(u8::from(scored.labels[*row] >= least));
                let pairs = rows.iter().map(|row| (scored.scores[*row * width], reached(row)));
                ("auc", "AUC", auc(pairs.collect()))
            }));
            values
        }
        _ => {
            let chance = |row: &usize| if label(row) > 0.5 { score(row) } else { 1.0 - score(row) };
            let loss = mean(&|row| -chance(row).max(TINY).ln());
            let (actual, predicted) = (mean(&label), mean(&score));
            let calibration = if actual > 0.0 { predicted / actual } else { f64::NAN };
            let pairs = rows.iter().map(|row| (scored.scores[*row * width], scored.labels[*row]));
            vec![
                ("auc", "AUC", auc(pairs.collect())),
                ("loss", "log-loss", loss),
                ("rate", "positives", actual),
                ("calibration", "calibration", calibration),
            ]
        }
    };
    Measures { rows: rows.len(), values }
}

/// Smallest probability in a logarithm, so that one wrong score does not make a mean infinite.
const TINY: f64 = 1e-7;

/// Returns the exact area under the ROC curve of scores and labels; NaN if all labels are the same.
pub fn auc(mut pairs: Vec<(f32, f32)>) -> f64 {
    pairs.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut positives, mut negatives, mut wins) = (0.0, 0.0, 0.0);
    for ties in pairs.chunk_by(|a, b| a.0 == b.0) {
        let positive = ties.iter().filter(|(_, label)| *label > 0.5).count() as f64;
        let negative = ties.len() as f64 - positive;
        wins += positive * (negatives + negative / 2.0);
        positives += positive;
        negatives += negative;
    }
    if positives * negatives == 0.0 { f64::NAN } else { wins / (positives * negatives) }
}

#[cfg(test)]
mod tests {
    use super::auc;

    #[test]
    fn areas_are_exact() {
        assert_eq!(auc(vec![(0.1, 0.0), (0.4, 0.0), (0.35, 1.0), (0.8, 1.0)]), 0.75);
        assert_eq!(auc(vec![(0.5, 0.0), (0.5, 1.0)]), 0.5);
        assert!(auc(vec![(0.5, 1.0)]).is_nan());
    }
}
