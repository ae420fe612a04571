//! Tables of a task with several classes: recall and precision of each, and the confusion matrix.

use super::{Cell, Chart, Table};
use crate::scoring::Scored;
use fleet_base::Result;
use fleet_metrics::Confusion;

/// Larger matrices are not readable.
const MATRIX_MAX: usize = 50;
/// Note at tables of numbers of rows, if rows have weights.
const UNWEIGHTED: &str = " Rows are counted without their weights.";
/// Classes that the terminal shows.
const BRIEF: usize = 20;

pub fn parts(scored: &Scored, classes: &[String]) -> Result<(Vec<Table>, Vec<Chart>)> {
    let mut confusion = Confusion::new(classes.len())?;
    let labels: Vec<i64> = scored.labels.iter().map(|label| *label as i64).collect();
    confusion.add_scores(&scored.scores, &labels)?;
    let mut tables = vec![per_class(&confusion, classes)];
    if classes.len() <= MATRIX_MAX {
        tables.push(matrix(&confusion, classes));
    }
    if !scored.weights.is_empty() {
        tables.iter_mut().for_each(|table| table.about.push_str(UNWEIGHTED));
    }
    Ok((tables, Vec::new()))
}

fn per_class(confusion: &Confusion, classes: &[String]) -> Table {
    let count = classes.len();
    let row = |(class, name): (usize, &String)| {
        let rows: f64 = (0..count).map(|other| confusion.count(class, other)).sum();
        let predicted: f64 = (0..count).map(|other| confusion.count(other, class)).sum();
        let defined = |value: f64, of: f64| Cell::number(if of > 0.0 { value } else { f64::NAN });
        vec![
            Cell::text(name),
            Cell::count(rows as usize),
            Cell::count(predicted as usize),
            defined(confusion.recall(class), rows),
            defined(confusion.precision(class), predicted),
        ]
    };
    Table {
        key: "classes".to_string(),
        title: "Classes".to_string(),
        about: "Recall: share of the class's rows that are predicted as such. Precision: share of \
                its predictions that are right."
            .to_string(),
        columns: ["class", "rows", "predicted", "recall", "precision"].map(str::to_string).to_vec(),
        rows: classes.iter().enumerate().map(row).collect(),
        brief: BRIEF,
        bars: Some(3),
    }
}

fn matrix(confusion: &Confusion, classes: &[String]) -> Table {
    let row = |(class, name): (usize, &String)| {
        let counts = (0..classes.len()).map(|to| Cell::count(confusion.count(class, to) as usize));
        [Cell::text(name)].into_iter().chain(counts).collect()
    };
    Table {
        key: "confusion".to_string(),
        title: "Confusion matrix".to_string(),
        about: "Rows are the true classes, columns the predicted ones.".to_string(),
        columns: ["class".to_string()].into_iter().chain(classes.iter().cloned()).collect(),
        rows: classes.iter().enumerate().map(row).collect(),
        brief: 0,
        bars: None,
    }
}
