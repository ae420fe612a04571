//! Fits features to the training rows, in one pass.

use super::apply::first_id;
use super::ids::{ByHash, Ids, IdsFit, Lookup, cross_hash};
use super::label::{BadLabel, BadRow, Label, Meaning};
use super::label_fit::LabelFit;
use super::number::{Number, NumberFit};
use super::{Choices, Features, Group, Slice};
use crate::job::{
    CategoryPart, ColumnKind, ColumnPart, Embed, Job, Role, Side, TaskKind, Transform,
};
use crate::raw::RawNames;
use fleet_base::{Error, Result};
use fleet_data::{Block, TextDictionary};
use fleet_metrics::Auc;

/// Counts and moments of the training rows.
pub struct Fit {
    labels: Vec<LabelFit>,
    /// Values of the labels of a row.
    values: Vec<f32>,
    weight: Option<String>,
    group: Option<(usize, Group)>,
    choice: Option<ChoiceFit>,
    numbers: Vec<(usize, String, NumberFit)>,
    ids: Vec<IdsColumn>,
    slices: Vec<(usize, String, IdsFit)>,
    dim: i64,
    rows: u64,
    /// The first rows, for findings that need pairs of values.
    first: Block,
}

struct IdsColumn {
    name: String,
    columns: Vec<String>,
    at: Vec<Option<usize>>,
    is_several: bool,
    history_of: Option<String>,
    fit: IdsFit,
}

impl IdsColumn {
    fn finish(self, dim: i64) -> Ids {
        let ids = self.fit.finish(&self.name, self.columns, dim, self.is_several);
        match self.history_of {
            None => ids,
            // The values are those of the other feature.
            history_of => Ids { history_of, lookup: Lookup::Vocabulary(Vec::new()), ..ids },
        }
    }
}

/// User and item of a retrieval.
struct ChoiceFit {
    /// Their places in a block.
    places: [usize; 2],
    /// Their columns.
    names: [String; 2],
    /// Places of a ranking that count.
    at: usize,
}

/// Something about the data that the user should know before a training.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The field of the job file that it concerns.
    pub path: String,
    /// Description.
    pub message: String,
    /// Suggested fix.
    pub help: String,
    /// Whether the job cannot be trained.
    pub is_error: bool,
}

/// Training rows that are kept for findings.
const FIRST_ROWS: usize = 50_000;
/// Area under the curve of a single feature above which it must have the label in it.
const LEAK_AUC: f64 = 0.99;
/// Values of a slice that the report shows.
const SLICE_VALUES: usize = 20;

impl Fit {
    /// Creates a fit of a job's features over blocks with these columns.
    pub fn new(job: &Job, raw: &RawNames, empty: Block) -> Result<Fit> {
        let no_label = || Error::internal("the job has no label");
        let label = |column: &ColumnPart| {
            Ok(LabelFit::new(Label::of(column, job.task), Some(raw.index(&column.name)?)))
        };
        let mut labels: Vec<LabelFit> = job.labels().map(label).collect::<Result<_>>()?;
        match job.task {
            _ if !labels.is_empty() => {}
            TaskKind::Retrieval => labels.push(LabelFit::new(Label::always(), None)),
            _ => return Err(no_label()),
        }
        let features = |kinds: &[ColumnKind]| -> Vec<&ColumnPart> {
            let is = |it: &&ColumnPart| it.role == Role::Feature && kinds.contains(&it.kind);
            job.columns.iter().filter(is).collect()
        };
        let mut numbers = Vec::new();
        for (index, column) in features(&[ColumnKind::Number]).into_iter().enumerate() {
            let fit = NumberFit::new(column.number, job.train.seed, index);
            numbers.push((raw.index(&column.name)?, column.name.clone(), fit));
        }
        let mut ids = Vec::new();
        for column in features(&[ColumnKind::Category, ColumnKind::Categories]) {
            ids.push(IdsColumn {
                name: column.name.clone(),
                columns: vec![column.name.clone()],
                at: vec![Some(raw.index(&column.name)?)],
                is_several: column.kind == ColumnKind::Categories,
                history_of: column.history_of.clone(),
                fit: IdsFit::new(column.category.clone()),
            });
        }
        for cross in &job.crosses {
            let at: Result<Vec<Option<usize>>> =
                cross.columns.iter().map(|name| raw.index(name).map(Some)).collect();
            ids.push(IdsColumn {
                name: cross.name.clone(),
                columns: cross.columns.clone(),
                at: at?,
                is_several: false,
                history_of: None,
                fit: IdsFit::new(cross.category.clone()),
            });
        }
        let mut slices = Vec::new();
        for name in &job.evaluation.slices {
            let part = job.column(name).map(|column| column.category.clone());
            let fit = IdsFit::new(part.ok_or_else(no_label)?.counted());
            slices.push((raw.index(name)?, name.clone(), fit));
        }
        let weight = job.columns.iter().find(|column| column.role == Role::Weight);
        Ok(Fit {
            labels,
            values: Vec::new(),
            weight: weight.map(|column| column.name.clone()),
            group: match (&job.ranking.group, job.task) {
                (Some(column), TaskKind::Ranking) => {
                    let group = Group { column: column.clone(), at: job.ranking.at };
                    Some((raw.index(column)?, group))
                }
                _ => None,
            },
            choice: choice_of(job, raw)?,
            numbers,
            ids,
            slices,
            dim: job.model.dim,
            rows: 0,
            first: empty,
        })
    }

    /// Adds a training row. Fails if its label cannot be used; the row then has no effect.
    pub fn add(&mut self, block: &Block, row: usize) -> Result<(), BadRow> {
        if let Some((at, _)) = &self.group
            && block.column(*at).ids(row).is_none_or(<[i64]>::is_empty)
        {
            return Err(BadLabel::NoGroup.into());
        }
        self.values.clear();
        for (label, fit) in self.labels.iter().enumerate() {
            let value = fit.value(block, row).map_err(|fault| BadRow { fault, label })?;
            self.values.push(value);
        }
        if let Some(choice) = &self.choice {
            if self.values.contains(&0.0) {
                return Err(BadLabel::NotChosen.into());
            }
            if choice.places.iter().any(|at| first_id(block, *at, row) == 0) {
                return Err(BadLabel::NoChoice.into());
            }
        }
        self.rows += 1;
        for (fit, value) in self.labels.iter_mut().zip(&self.values) {
            fit.add(*value);
        }
        for (at, _, fit) in &mut self.numbers {
            let value = block.column(*at).floats(row).and_then(|values| values.first());
            fit.add(value.copied().unwrap_or(f32::NAN));
        }
        for ids in &mut self.ids {
            match &ids.at[..] {
                [Some(at)] => add_ids(&mut ids.fit, block, *at, row),
                several => ids.fit.add(cross_hash(block, several, row)),
            }
        }
        for (at, _, fit) in &mut self.slices {
            add_ids(fit, block, *at, row);
        }
        if self.first.len() < FIRST_ROWS && self.first.append(block, row..row + 1).is_ok() {
            for (fit, value) in self.labels.iter_mut().zip(&self.values) {
                fit.first.push(*value);
            }
        }
        Ok(())
    }

    /// Returns what the training rows show about the job.
    pub fn findings(&self) -> Vec<Finding> {
        let mut found = Vec::new();
        self.label_findings(&mut found);
        for (at, name, fit) in &self.numbers {
            let path = format!("columns.{name}");
            if self.rows > 0 && fit.count() == 0 {
                found.push(all_missing(path));
            } else if fit.is_constant() && self.rows > 1 {
                found.push(warning(path, "all values are the same", "remove the column"));
            } else {
                let leaks = self.labels.iter().filter_map(|label| self.leak_of_number(label, *at));
                found.extend(leaks.map(|it| leak(&path, it)));
            }
        }
        for ids in self.ids.iter().filter(|ids| ids.at.len() == 1) {
            let path = format!("columns.{}", ids.name);
            if self.rows > 0 && ids.fit.is_missing() {
                found.push(all_missing(path));
            } else if let Some(at) = ids.at[0] {
                let leaks = self.labels.iter().filter_map(|label| self.leak_of_category(label, at));
                found.extend(leaks.map(|it| leak(&path, it)));
            }
        }
        for ids in self.ids.iter().filter(|ids| ids.fit.is_full()) {
            let table = if ids.at.len() > 1 { "crosses" } else { "columns" };
            let help = "set buckets, the number of hash buckets, instead of a vocabulary";
            let path = format!("{table}.{}", ids.name);
            found.push(Finding {
                is_error: true,
                ..warning(path, "too many different values", help)
            });
        }
        found
    }

    fn label_findings(&self, found: &mut Vec<Finding>) {
        if self.rows == 0 {
            let message = "no training row is left";
            let help = "check data.train, and the shares of validation and test";
            found.push(Finding { is_error: true, ..warning("data.train".into(), message, help) });
            return;
        }
        if self.choice.is_some() {
            return;
        }
        for fit in self.labels.iter().filter(|fit| fit.is_constant()) {
            let path = format!("columns.{}", fit.label.column);
            let help = match fit.label.meaning {
                Meaning::Category { .. } | Meaning::Equal(_) => {
                    "check `positive`, the value that means 1, and the files of data.train"
                }
                _ => "check the column, and the files of data.train",
            };
            let message = "the label is the same in all training rows";
            found.push(Finding { is_error: true, ..warning(path, message, help) });
        }
    }

    /// Returns the area under the curve of a number, if it nearly equals the label.
    fn leak_of_number(&self, label: &LabelFit, at: usize) -> Option<Leak> {
        let column = self.first.column(at);
        let value = |row: usize| column.floats(row).and_then(|values| values.first()).copied();
        let mut order: Vec<(f32, f32)> = (0..label.first.len())
            .filter_map(|row| Some((value(row)?, label.first[row])))
            .filter(|(value, _)| !value.is_nan())
            .collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Ranks as scores; equal values have the same one.
        let mut scores = Vec::with_capacity(order.len());
        let mut first = 0;
        for index in 0..order.len() {
            if order[index].0 != order[first].0 {
                first = index;
            }
            scores.push(first as f32 / order.len() as f32);
        }
        let values: Vec<f32> = order.iter().map(|(_, label)| *label).collect();
        self.leak_of(label, &scores, &values)
    }

    /// Returns the area under the curve of a category's mean label, if it nearly equals the label.
    /// Categories with few rows each tell nothing: each would have its own label.
    fn leak_of_category(&self, label: &LabelFit, at: usize) -> Option<Leak> {
        let rows = label.first.len();
        let column = self.first.column(at);
        let hash =
            |row: usize| column.ids(row).and_then(|ids| ids.first()).map_or(0, |id| *id as u64);
        let mut means: ByHash<(f32, f32)> = ByHash::default();
        for row in 0..rows {
            let mean = means.entry(hash(row)).or_default();
            *mean = (mean.0 + label.first[row], mean.1 + 1.0);
        }
        if means.len() * 50 > rows {
            return None;
        }
        let score = |row| means.get(&hash(row)).map_or(0.0, |(sum, count)| sum / count);
        let scores: Vec<f32> = (0..rows).map(score).collect();
        self.leak_of(label, &scores, &label.first)
    }

    fn leak_of(&self, label: &LabelFit, scores: &[f32], values: &[f32]) -> Option<Leak> {
        let is_binary = !matches!(
            label.label.meaning,
            Meaning::Classes(_) | Meaning::Number { .. } | Meaning::Grade | Meaning::Always
        ) && self.choice.is_none();
        if !is_binary || scores.len() < LEAK_ROWS {
            return None;
        }
        let mut auc = Auc::new(LEAK_BUCKETS).ok()?;
        auc.add(scores, values).ok()?;
        let value = auc.value();
        let either = value.max(1.0 - value);
        let name = (self.labels.len() > 1).then(|| label.label.column.clone());
        (either > LEAK_AUC).then_some(Leak { auc: either, label: name })
    }

    /// Returns the fitted features.
    pub fn finish(self, texts: Option<&TextDictionary>) -> Features {
        let mut labels = self.labels.into_iter().map(LabelFit::finish);
        let label = labels.next().unwrap_or_else(Label::always);
        let dim = self.dim;
        let choices = self.choice.map(|ChoiceFit { names: [user, item], at, .. }| {
            let fit = self.ids.iter().find(|ids| ids.name == item).map(|ids| &ids.fit);
            let counts = fit.map_or_else(Vec::new, IdsFit::known_counts);
            Choices { user, item, counts, at }
        });
        // Numbers with the same kind of encoding are beside each other (`model/inputs.rs`).
        let mut numbers: Vec<Number> =
            self.numbers.into_iter().map(|(_, name, fit)| fit.finish(&name)).collect();
        numbers.sort_by_key(|number| number.encoding.order());
        let ids = self.ids.into_iter();
        let slices = self.slices.into_iter().map(|(at, column, fit)| {
            let text = |hash: u64| texts.and_then(|texts| texts.text(at, hash));
            let values = fit.most_frequent(SLICE_VALUES).into_iter();
            let values =
                values.map(|hash| (hash, text(hash).unwrap_or_else(|| format!("{hash:016x}"))));
            Slice { values: values.collect(), column }
        });
        let mut features = Features {
            numbers,
            ids: ids.map(|it| it.finish(dim)).collect(),
            label,
            other_labels: labels.collect(),
            weight: self.weight,
            group: self.group.map(|(_, group)| group),
            choices,
            slices: slices.collect(),
            rows: self.rows,
        };
        features.place();
        features
    }
}

/// Returns whether features are the same for all training rows without missing numbers: nothing of
/// them is counted or measured.
pub fn is_fixed(job: &Job) -> bool {
    let is_number_fixed = |column: &ColumnPart| {
        column.number.transform == Transform::None
            && !matches!(column.number.embed, Embed::Piecewise(_))
    };
    let is_category_fixed = |part: &CategoryPart| part.buckets.or(part.rows).is_some();
    let is_column_fixed = |column: &ColumnPart| match (column.role, column.kind) {
        (Role::Feature, ColumnKind::Number) => is_number_fixed(column),
        (Role::Feature, _) => is_category_fixed(&column.category),
        _ => true,
    };
    let is_label_fixed = matches!(job.task, TaskKind::Binary | TaskKind::MultiClass);
    is_label_fixed
        && job.evaluation.slices.is_empty()
        && job.columns.iter().all(is_column_fixed)
        && job.crosses.iter().all(|cross| is_category_fixed(&cross.category))
}

/// Returns user and item of a retrieval.
fn choice_of(job: &Job, raw: &RawNames) -> Result<Option<ChoiceFit>> {
    if job.task != TaskKind::Retrieval {
        return Ok(None);
    }
    let (Some(user), Some(item)) = (job.id_of(Side::User), job.id_of(Side::Item)) else {
        return Err(Error::internal("a retrieval without user or item"));
    };
    let names = [user.name.clone(), item.name.clone()];
    let places = [raw.index(&names[0])?, raw.index(&names[1])?];
    Ok(Some(ChoiceFit { places, names, at: job.ranking.at }))
}

/// Rows below which a feature may separate the labels by chance.
const LEAK_ROWS: usize = 200;
const LEAK_BUCKETS: usize = 4095;

fn add_ids(fit: &mut IdsFit, block: &Block, at: usize, row: usize) {
    match block.column(at).ids(row) {
        Some([]) | None => fit.add(0),
        Some(ids) => ids.iter().for_each(|id| fit.add(*id as u64)),
    }
}

fn warning(path: String, message: &str, help: &str) -> Finding {
    Finding { path, message: message.to_string(), help: help.to_string(), is_error: false }
}

fn all_missing(path: String) -> Finding {
    let help = "check the column's name and the texts of data.missing, or remove the column";
    Finding { is_error: true, ..warning(path, "all values are missing", help) }
}

/// A feature that nearly equals a label.
struct Leak {
    auc: f64,
    /// The label, if there are several.
    label: Option<String>,
}

fn leak(path: &str, found: Leak) -> Finding {
    let label = found.label.map_or("the label".to_string(), |name| format!("the label '{name}'"));
    let message = format!("the feature alone predicts {label} (AUC {:.4})", found.auc);
    let help = "remove it if it is known only after the label; otherwise ignore this warning";
    warning(path.to_string(), &message, help)
}
