//! Measures, tables and charts of several labels: those of a binary task for each of them.

use super::measures::{Measures, label_of, of_chances};
use super::{Cell, Chart, Table, binary};
use crate::features::Features;
use crate::scoring::Scored;
use fleet_base::Result;

/// Means over the labels, and the area of each label.
pub fn measures(scored: &Scored, rows: &[usize], features: &Features) -> Measures {
    let each = of_each(scored, rows, features);
    let mean = |key: &str| each.iter().map(|it| value(it, key)).sum::<f64>() / each.len() as f64;
    let mut values = vec![("auc".into(), mean("auc")), ("loss".into(), mean("loss"))];
    let areas = features.label_names().into_iter().zip(&each);
    values.extend(areas.map(|(name, it)| (format!("auc.{name}").into(), value(it, "auc"))));
    Measures { rows: rows.len(), values }
}

/// The measures of each label.
fn of_each(scored: &Scored, rows: &[usize], features: &Features) -> Vec<Vec<(&'static str, f64)>> {
    let all: Vec<usize> = (0..rows.len()).collect();
    let of = |label: usize| of_chances(&scored.of_label(label, features.scores(), rows), &all);
    (0..features.scores()).map(of).collect()
}

fn value(measures: &[(&'static str, f64)], key: &str) -> f64 {
    measures.iter().find(|(known, _)| *known == key).map_or(f64::NAN, |(_, value)| *value)
}

/// A table of the labels, and the tables and charts of each.
pub fn parts(scored: &Scored, features: &Features) -> Result<(Vec<Table>, Vec<Chart>)> {
    let rows: Vec<usize> = (0..scored.rows(features)).collect();
    let names = features.label_names();
    let each = of_each(scored, &rows, features);
    let keys = each.first().into_iter().flatten().map(|(key, _)| label_of(key).to_string());
    let row = |(name, values): (&String, &Vec<(&str, f64)>)| {
        let values = values.iter().map(|(_, value)| Cell::number(*value));
        [Cell::text(name)].into_iter().chain(values).collect()
    };
    let mut tables = vec![Table {
        key: "labels".to_string(),
        title: "Labels".to_string(),
        about: "The scores of each label alone. AUC and log-loss above are the means.".to_string(),
        columns: ["label".to_string()].into_iter().chain(keys).collect(),
        rows: names.iter().zip(&each).map(row).collect(),
        brief: names.len(),
        bars: Some(1),
    }];
    let mut charts = Vec::new();
    for (at, name) in names.iter().enumerate() {
        let (own, of) = binary::parts(&scored.of_label(at, names.len(), &rows))?;
        let title = |title: String| format!("{name}: {title}");
        tables.extend(own.into_iter().map(|it| Table {
            key: format!("{}.{name}", it.key),
            title: title(it.title),
            brief: 0,
            ..it
        }));
        charts.extend(of.into_iter().map(|it| Chart {
            key: format!("{}.{name}", it.key),
            title: title(it.title),
            ..it
        }));
    }
    Ok((tables, charts))
}
