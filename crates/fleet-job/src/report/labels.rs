//! Measures, tables and charts of several labels: those of a binary task for each of them.

use super::measures::{label_of, of_each_label};
use super::{Cell, Chart, Table, binary};
use crate::features::Features;
use crate::scoring::Scored;
use fleet_base::Result;

/// A table of the labels, and the tables and charts of each.
pub fn parts(scored: &Scored, features: &Features) -> Result<(Vec<Table>, Vec<Chart>)> {
    let rows: Vec<usize> = (0..scored.rows(features)).collect();
    let names = features.label_names();
    let each = of_each_label(scored, &rows, features);
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
