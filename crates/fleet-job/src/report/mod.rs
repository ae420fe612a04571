//! The report on a finished model: `report.json`, its lines in the terminal, and `report.html`.
//!
//! A report consists of measures, tables and charts, each with a name of its own. The terminal and
//! the HTML page show all of them alike, so a task adds what suits it in a file of its own
//! (`binary.rs`, `classes.rs`, `regression.rs`, `labels.rs`).
//!
//! [`measure`] scores the rows of a part with a saved model, in one process and with the code of
//! `fleet predict`. The numbers of ranks and servers that trained the model do not change it.

mod binary;
mod charts;
mod classes;
mod command;
mod html;
mod importance;
mod labels;
mod measures;
mod regression;
mod training;

pub use command::{ReportArgs, run};
pub use measures::Measures;
pub use training::charts as training_charts;

use crate::data::JobData;
use crate::features::{Applied, Meaning};
use crate::rows::Share;
use crate::saved::{HTML_FILE, REPORT_FILE, SCORE_ROWS, SavedModel};
use crate::scoring::{Scored, score_labelled};
use crate::split::Part;
use fleet_base::file::write_file;
use fleet_base::{Error, Result, input, text};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// The report on a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of the format.
    pub version: u32,
    /// Kind of the network.
    pub model: String,
    /// Kind of the prediction.
    pub task: String,
    /// Column of the label.
    pub label: String,
    /// Steps of the training.
    pub steps: u64,
    /// Rows of the training, in all epochs.
    pub rows: u64,
    /// Duration of the training in seconds.
    pub seconds: f64,
    /// Step of the best validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best_step: Option<u64>,
    /// The measures; none if no rows are for a test or a validation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<Measured>,
}

/// Measures, tables and charts of some rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The part that was measured.
    pub part: String,
    /// Measures of all rows by their keys; `None` where a measure is not defined.
    pub all: BTreeMap<String, Option<f64>>,
    /// Tables, in the order in which they are shown.
    pub tables: Vec<Table>,
    /// Charts, in the order in which they are shown.
    pub charts: Vec<Chart>,
}

/// A table of the report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Name for programs.
    pub key: String,
    /// Title.
    pub title: String,
    /// Description; empty for none.
    pub about: String,
    /// Names of the columns.
    pub columns: Vec<String>,
    /// The rows, with a cell for each column.
    pub rows: Vec<Vec<Cell>>,
    /// Number of rows that the terminal shows.
    pub brief: usize,
    /// Column whose values the page also draws as bars.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bars: Option<usize>,
}

/// A value of a table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A number of rows.
    Count(u64),
    /// A number; `None` if it is not defined.
    Number(Option<f64>),
}

/// A chart of lines.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Chart {
    /// Name for programs.
    pub key: String,
    /// Title.
    pub title: String,
    /// Label of the horizontal axis.
    pub x: String,
    /// Label of the vertical axis.
    pub y: String,
    /// The lines.
    pub series: Vec<Series>,
}

/// A line of a chart.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of the line.
    pub name: String,
    /// Points from left to right.
    pub points: Vec<[f64; 2]>,
    /// Whether the line is for comparison only.
    #[serde(default)]
    pub is_reference: bool,
}

/// Version of the format of `report.json`.
pub const VERSION: u32 = 1;
/// A report is a few hundred kB; a larger file is something else.
const BYTES_MAX: u64 = 64 << 20;

impl Cell {
    fn text(text: impl Into<String>) -> Cell {
        Cell::Text(text.into())
    }

    fn count(count: usize) -> Cell {
        Cell::Count(count as u64)
    }

    /// JSON has no NaN: a number that is not defined is null.
    fn number(value: f64) -> Cell {
        Cell::Number(finite(value))
    }

    /// Returns the value as it is shown.
    fn shown(&self) -> String {
        match self {
            Cell::Text(text) => text.clone(),
            Cell::Count(count) => count.to_string(),
            Cell::Number(value) => shown(*value),
        }
    }
}

impl Report {
    /// Reads the report of a model folder.
    pub fn load(folder: &Path) -> Result<Report> {
        let path = folder.join(REPORT_FILE);
        if !path.is_file() {
            return Err(Error::invalid("no report")
                .expected(format!("a model folder with {REPORT_FILE}"))
                .got(folder.display())
                .help("name the folder that a job wrote (output.folder)"));
        }
        let bytes = input::read(&path, "a report", BYTES_MAX)?;
        let report: Report = serde_json::from_slice(&bytes).map_err(|error| {
            Error::invalid(format!("the report is not readable: {error}")).at(path.display())
        })?;
        if report.version > VERSION {
            return Err(Error::unsupported("the report has a newer version")
                .expected(VERSION)
                .got(report.version)
                .at(path.display())
                .help("use a newer build of Fleet"));
        }
        Ok(report)
    }

    /// Writes `report.json` and `report.html` into a model folder.
    pub fn save(&self, folder: &Path) -> Result<()> {
        let json = serde_json::to_string_pretty(self)
            .map_err(|error| Error::internal(format!("cannot write the report: {error}")))?;
        write_file(&folder.join(REPORT_FILE), format!("{json}\n").as_bytes())?;
        write_file(&folder.join(HTML_FILE), self.html().as_bytes())
    }

    /// Returns the report as a page without any other files.
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// Returns the important parts as lines for the terminal.
    pub fn lines(&self) -> Vec<String> {
        self.report.as_ref().map(Measured::lines).unwrap_or_default()
    }
}

impl Measured {
    /// Returns a measure.
    pub fn measure(&self, key: &str) -> Option<f64> {
        self.all.get(key).copied().flatten()
    }

    /// Returns key, label and value of each measure, in the order in which they are shown. The
    /// number of rows is left out.
    fn measures(&self) -> Vec<(&str, &str, Option<f64>)> {
        let known = measures::LABELS.iter().filter_map(|(key, label)| {
            self.all.get_key_value(*key).map(|(_, value)| (*key, *label, *value))
        });
        let is_known = |key: &str| measures::LABELS.iter().any(|(known, _)| *known == key);
        let others = self.all.iter().filter(|(key, _)| *key != "rows" && !is_known(key));
        known.chain(others.map(|(key, value)| (key.as_str(), key.as_str(), *value))).collect()
    }

    fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let rows = text::count(self.measure("rows").unwrap_or_default());
        lines.push(format!("{:<12}{rows} rows", self.part));
        for (_, label, value) in self.measures() {
            lines.push(format!("{label:<12}{}", shown(value)));
        }
        for table in self.tables.iter().filter(|table| table.brief > 0 && !table.rows.is_empty()) {
            lines.push(String::new());
            lines.extend(table.lines());
        }
        lines
    }
}

/// Width of the first column, and of the others, in the terminal.
const WIDTHS: [usize; 2] = [24, 12];

impl Table {
    fn lines(&self) -> Vec<String> {
        let mut lines = vec![self.line(self.columns.iter().map(String::as_str))];
        for row in self.rows.iter().take(self.brief) {
            let cells: Vec<String> = row.iter().map(Cell::shown).collect();
            lines.push(self.line(cells.iter().map(String::as_str)));
        }
        if self.rows.len() > self.brief {
            lines.push(format!("and {} more", self.rows.len() - self.brief));
        }
        lines
    }

    fn line<'t>(&self, cells: impl Iterator<Item = &'t str>) -> String {
        let [first, other] = WIDTHS;
        let cell = |(index, text): (usize, &str)| match index {
            0 => format!("{:<first$}", shortened(text, first - 2)),
            _ => format!("{:>other$}", shortened(text, other - 1)),
        };
        let line: String = cells.enumerate().map(cell).collect();
        line.trim_end().to_string()
    }
}

fn shortened(value: &str, chars: usize) -> String {
    match value.char_indices().nth(chars) {
        Some(_) => value.chars().take(chars - 2).chain("..".chars()).collect(),
        None => value.to_string(),
    }
}

fn finite(value: f64) -> Option<f64> {
    value.is_finite().then_some(value)
}

/// Returns a number as it is shown.
fn shown(value: Option<f64>) -> String {
    match value {
        None => "-".to_string(),
        Some(value) if value != 0.0 && (value.abs() < 1e-3 || value.abs() >= 1e6) => {
            format!("{value:.3e}")
        }
        Some(value) => format!("{value:.4}"),
    }
}

/// Scores the labelled rows of a part with a saved model, and measures the scores.
pub fn measure(
    model: &mut SavedModel,
    data: &JobData,
    applied: &Arc<Applied>,
    part: Part,
    name: &str,
) -> Result<Measured> {
    let dataset = data.load(applied, part, Share::ALL, SCORE_ROWS, true)?;
    let scored = score_labelled(model, &dataset)?;
    drop(dataset);
    let mut measured = of_scores(name, &scored, model)?;
    if let Some(truth) = data.truth(part)?.filter(|truth| truth.len() == scored.scores.len()) {
        let best = measures::all(&Scored { scores: truth, ..scored.clone() }, &model.features);
        measured.all.insert("best_auc".to_string(), finite(best.get("auc")));
    }
    if scored.labels.is_empty() || !scored.is_finite() {
        return Ok(measured);
    }
    let rows = scored.rows(&model.features);
    let importance = importance::importance(model, data, applied, part, rows)?;
    measured.tables.insert(measured.tables.len().min(1), importance);
    Ok(measured)
}

/// Measures scores.
fn of_scores(name: &str, scored: &Scored, model: &SavedModel) -> Result<Measured> {
    let features = &model.features;
    let all = measures::all(scored, features);
    let (mut tables, charts) = match &features.label.meaning {
        _ if !scored.is_finite() || features.group.is_some() => (Vec::new(), Vec::new()),
        Meaning::Classes(classes) => classes::parts(scored, classes)?,
        Meaning::Number { .. } => regression::parts(scored),
        _ if features.has_labels() => labels::parts(scored, features)?,
        _ => binary::parts(scored)?,
    };
    for (slice, values) in features.slices.iter().zip(&scored.slices) {
        tables.push(measures::slice_table(slice, values, scored, features, &all));
    }
    Ok(Measured { part: name.to_string(), all: all.by_key(), tables, charts })
}
