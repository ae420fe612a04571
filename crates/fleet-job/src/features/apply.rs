//! Turns raw columns into the slots that the model's inputs are filled from.

use super::ids::{Index, cross_hash};
use super::label::{BadLabel, BadRow, Meaning};
use super::{Choices, Features, Ids, TableSize};
use crate::raw::RawNames;
use fleet_base::{Error, Result};
use fleet_data::{BatchLayout, Block, Input, Schema, Slot};
use std::sync::Arc;

/// Input with the numbers of a row.
pub const INPUT_NUMBERS: &str = "numbers";
/// Input with the factor of each feature of several ids: 1 divided by their number, or 1.
pub const INPUT_SCALES: &str = "scales";
/// Input with the label, or with all of several labels.
pub const INPUT_LABEL: &str = "label";
/// Input with 1 for each further level of the label that the number is at or above, else 0.
pub const INPUT_LEVELS: &str = "levels";
/// Input with the hash of the group's value.
pub const INPUT_GROUP: &str = "group";
/// Input with the hash of the item's value.
pub const INPUT_ITEM: &str = "item";
/// Input with the logarithm of the item's share of the training rows.
pub const INPUT_LOG_FREQUENCY: &str = "log_frequency";
/// Slot with the hash of the user's value.
pub const SLOT_USER: &str = "user";
/// Input with the weight.
pub const INPUT_WEIGHT: &str = "weight";

/// Returns the input with the ids that are looked up in the table of a width.
pub fn input_of_ids(dim: i64) -> String {
    format!("ids_{dim}")
}

/// Returns the input with the ids of feature `index` of those with several ids.
pub fn input_of_several(index: usize) -> String {
    format!("several_{index}")
}

/// Returns the slot with the number of a slice's value.
pub fn slot_of_slice(index: usize) -> String {
    format!("slice_{index}")
}

/// Features that are ready to be applied to blocks with certain columns.
pub struct Applied {
    features: Arc<Features>,
    schema: Arc<Schema>,
    /// `None` if the data lacks the column, as that of the other side of a model.
    numbers: Vec<Option<usize>>,
    /// For each table: its slot, and its features.
    single: Vec<(usize, Vec<IdsAt>)>,
    several: Vec<(usize, IdsAt)>,
    /// Slot of the factors.
    scales: usize,
    target: Option<Target>,
}

struct IdsAt {
    columns: Vec<Option<usize>>,
    base: i64,
    index: Index,
    /// Whether the newest values are last.
    is_history: bool,
    values_max: usize,
    is_sum: bool,
}

/// Label, weight and slices.
struct Target {
    /// Places of the labels; none if the job has no label.
    labels: Vec<usize>,
    class_hashes: Vec<u64>,
    other_levels: Vec<f32>,
    group: Option<usize>,
    choice: Option<ChoiceAt>,
    weight: Option<usize>,
    slices: Vec<usize>,
    /// The slot of the label; those of the other fields follow in this order.
    slot: usize,
}

/// Reused memory of [`Applied::apply`].
#[derive(Default)]
pub struct Scratch {
    floats: Vec<f32>,
    ids: Vec<i64>,
    labels: Vec<f32>,
}

impl Applied {
    /// Prepares the features, with the label or without.
    pub fn new(features: &Arc<Features>, raw: &RawNames, has_label: bool) -> Result<Applied> {
        Applied::with(features, raw, has_label, &|name| raw.index(name).map(Some))
    }

    /// Prepares the features of a side of a model: values of columns that are not read are missing.
    pub fn of_side(features: &Arc<Features>, raw: &RawNames) -> Result<Applied> {
        Applied::with(features, raw, false, &|name| Ok(raw.index(name).ok()))
    }

    fn with(
        features: &Arc<Features>,
        raw: &RawNames,
        has_label: bool,
        place: &dyn Fn(&str) -> Result<Option<usize>>,
    ) -> Result<Applied> {
        let mut slots = Vec::new();
        let numbers: Result<Vec<Option<usize>>> =
            features.numbers.iter().map(|number| place(&number.column)).collect();
        if features.number_width() > 0 {
            slots.push(Slot::dense_floats(INPUT_NUMBERS, [features.number_width()]));
        }
        let mut single = Vec::new();
        for TableSize { dim, .. } in features.tables() {
            let ids: Result<Vec<IdsAt>> =
                features.single(dim).map(|ids| IdsAt::of(features, ids, place)).collect();
            let ids = ids?;
            if !ids.is_empty() {
                single.push((slots.len(), ids));
                let width = single.last().map_or(0, |(_, ids)| ids.len());
                slots.push(Slot::dense_ids(input_of_ids(dim), [width]));
            }
        }
        let mut several = Vec::new();
        for (index, ids) in features.several().enumerate() {
            several.push((slots.len(), IdsAt::of(features, ids, place)?));
            slots.push(Slot::ragged_ids(input_of_several(index)));
        }
        let scales = slots.len();
        if !several.is_empty() {
            slots.push(Slot::dense_floats(INPUT_SCALES, [several.len()]));
        }
        let target = match has_label {
            true => Some(Target::of(features, raw, &mut slots)?),
            false => None,
        };
        let (features, schema) = (Arc::clone(features), Schema::new(slots)?);
        Ok(Applied { features, schema, numbers: numbers?, single, several, scales, target })
    }

    /// Returns the slots.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Returns the inputs of a batch: those of the model, and the values of slices for a report.
    pub fn layout(&self, has_slices: bool) -> Result<Arc<BatchLayout>> {
        let input = |slot: &Slot| {
            let input = Input::new(&slot.name, [&slot.name]);
            if slot.width().is_none() { input.padded_to_longest(0.0) } else { input }
        };
        let slices = self.target.as_ref().map_or(0, |target| target.slices.len());
        let slots = self.schema.slots();
        let count = slots.len() - if has_slices { 0 } else { slices };
        // The label of a retrieval only decides which rows are used, and users are only compared.
        let is_unused = |slot: &&Slot| {
            self.features.choices.is_some()
                && [INPUT_LABEL, SLOT_USER].contains(&slot.name.as_str())
        };
        let used = slots[..count].iter().filter(|slot| !is_unused(slot));
        BatchLayout::new(&self.schema, used.map(input))
    }

    /// Returns the hash of the group of a row, if rows are ranked in groups.
    pub fn group(&self, raw: &Block, row: usize) -> Option<i64> {
        let at = self.target.as_ref()?.group?;
        raw.column(at).ids(row)?.first().copied()
    }

    /// Returns the names of several labels.
    pub fn label_names(&self) -> Vec<String> {
        self.features.label_names()
    }

    /// Returns the slot of the groups.
    pub fn group_slot(&self) -> Option<&'static str> {
        self.target.as_ref()?.group.map(|_| INPUT_GROUP)
    }

    /// Appends a row. Fails if its label cannot be used; the row is then left out.
    pub fn apply(
        &self,
        raw: &Block,
        row: usize,
        scratch: &mut Scratch,
        out: &mut Block,
    ) -> Result<Result<(), BadRow>> {
        if let Some(target) = &self.target {
            if target.group.is_some() && self.group(raw, row).is_none() {
                return Ok(Err(BadLabel::NoGroup.into()));
            }
            if let Err(bad) = target.read_labels(&self.features, raw, row, &mut scratch.labels) {
                return Ok(Err(bad));
            }
            if let Some(choice) = &target.choice
                && let Err(bad) = choice.check(&scratch.labels, raw, row)
            {
                return Ok(Err(bad.into()));
            }
            self.push_target(target, &scratch.labels, raw, row, out)?;
        }
        self.push_numbers(raw, row, scratch, out)?;
        for (slot, features) in &self.single {
            scratch.ids.clear();
            for ids in features {
                scratch.ids.push(ids.base + ids.index.row(ids.hash(raw, row)));
            }
            out.push_ids(*slot, &scratch.ids)?;
        }
        self.push_several(raw, row, scratch, out)?;
        out.end_record()?;
        Ok(Ok(()))
    }

    fn push_numbers(
        &self,
        raw: &Block,
        row: usize,
        scratch: &mut Scratch,
        out: &mut Block,
    ) -> Result<()> {
        if self.numbers.is_empty() {
            return Ok(());
        }
        let value =
            |at: Option<usize>| raw.column(at?).floats(row).and_then(|all| all.first()).copied();
        let floats = &mut scratch.floats;
        floats.clear();
        let numbers = || self.features.numbers.iter().zip(&self.numbers);
        for (number, at) in numbers() {
            floats.push(number.apply(value(*at).unwrap_or(f32::NAN)));
        }
        for (_, at) in numbers().filter(|(number, _)| number.may_be_missing) {
            let is_missing = value(*at).is_none_or(f32::is_nan);
            floats.push(f32::from(u8::from(is_missing)));
        }
        out.push_floats(0, floats)
    }

    fn push_several(
        &self,
        raw: &Block,
        row: usize,
        scratch: &mut Scratch,
        out: &mut Block,
    ) -> Result<()> {
        if self.several.is_empty() {
            return Ok(());
        }
        scratch.floats.clear();
        for (slot, ids) in &self.several {
            scratch.ids.clear();
            let hashes = ids.columns[0].and_then(|at| raw.column(at).ids(row)).unwrap_or_default();
            let skipped = match ids.is_history {
                true => hashes.len().saturating_sub(ids.values_max),
                false => 0,
            };
            let rows = hashes[skipped..].iter().take(ids.values_max);
            scratch.ids.extend(rows.map(|hash| ids.base + ids.index.row(*hash as u64)));
            if scratch.ids.is_empty() {
                scratch.ids.push(ids.base);
            }
            let scale = if ids.is_sum { 1.0 } else { 1.0 / scratch.ids.len() as f32 };
            scratch.floats.push(scale);
            out.push_ids(*slot, &scratch.ids)?;
        }
        out.push_floats(self.scales, &scratch.floats)
    }

    fn push_target(
        &self,
        target: &Target,
        labels: &[f32],
        raw: &Block,
        row: usize,
        out: &mut Block,
    ) -> Result<()> {
        let mut slot = target.slot;
        match target.class_hashes.is_empty() {
            true => out.push_floats(slot, labels)?,
            false => out.push_ids(slot, &[labels.first().map_or(0, |label| *label as i64)])?,
        }
        if !target.other_levels.is_empty() {
            slot += 1;
            let values = target.labels.first().and_then(|at| raw.column(*at).floats(row));
            let values = values.unwrap_or_default();
            let value = values.first().copied().unwrap_or(f32::NAN);
            let reached = target.other_levels.iter().map(|level| value >= *level);
            let reached: Vec<f32> = reached.map(|it| f32::from(u8::from(it))).collect();
            out.push_floats(slot, &reached)?;
        }
        if target.group.is_some() {
            slot += 1;
            out.push_ids(slot, &[self.group(raw, row).unwrap_or(0)])?;
        }
        if let Some(choice) = &target.choice {
            let (user, item) = (choice.user_of(raw, row), choice.item_of(raw, row));
            out.push_ids(slot + 1, &[user])?;
            out.push_ids(slot + 2, &[item])?;
            out.push_floats(slot + 3, &[choice.log_frequency(item)])?;
            slot += 3;
        }
        if let Some(at) = target.weight {
            slot += 1;
            let weight = raw.column(at).floats(row).and_then(|all| all.first()).copied();
            out.push_floats(slot, &[weight.filter(|weight| *weight >= 0.0).unwrap_or(0.0)])?;
        }
        for (slice, at) in self.features.slices.iter().zip(&target.slices) {
            slot += 1;
            let hash = raw.column(*at).ids(row).and_then(|ids| ids.first()).copied();
            let place = hash
                .and_then(|hash| slice.values.iter().position(|(known, _)| *known == hash as u64));
            out.push_ids(slot, &[place.map_or(-1, |place| place as i64)])?;
        }
        Ok(())
    }
}

impl IdsAt {
    fn of(
        features: &Features,
        ids: &Ids,
        place: &dyn Fn(&str) -> Result<Option<usize>>,
    ) -> Result<IdsAt> {
        let columns: Result<Vec<Option<usize>>> =
            ids.columns.iter().map(|name| place(name)).collect();
        Ok(IdsAt {
            columns: columns?,
            base: ids.base,
            index: Index::of(&features.source_of(ids).lookup),
            is_history: ids.history_of.is_some(),
            values_max: ids.values_max.unwrap_or(1),
            is_sum: ids.is_sum,
        })
    }

    fn hash(&self, raw: &Block, row: usize) -> u64 {
        match &self.columns[..] {
            [at] => at.map_or(0, |at| first_id(raw, at, row) as u64),
            several => cross_hash(raw, several, row),
        }
    }
}

/// User and item of a row.
struct ChoiceAt {
    user: usize,
    item: usize,
    index: Index,
    /// Logarithm of the share of each item of the vocabulary, and of an unknown one.
    log_frequencies: Vec<f32>,
    log_unknown: f32,
}

impl ChoiceAt {
    fn of(choices: &Choices, features: &Features, raw: &RawNames) -> Result<ChoiceAt> {
        let item = features.ids.iter().find(|ids| ids.name == choices.item);
        let item = item.ok_or_else(|| Error::internal("the item is not a feature"))?;
        let rows = features.rows.max(1) as f64;
        let log = |count: u64| (count.max(1) as f64 / rows).ln() as f32;
        Ok(ChoiceAt {
            user: raw.index(&choices.user)?,
            item: raw.index(&choices.item)?,
            index: Index::of(&item.lookup),
            log_frequencies: choices.counts.iter().map(|count| log(*count)).collect(),
            log_unknown: log(1),
        })
    }

    fn user_of(&self, raw: &Block, row: usize) -> i64 {
        first_id(raw, self.user, row)
    }

    fn item_of(&self, raw: &Block, row: usize) -> i64 {
        first_id(raw, self.item, row)
    }

    fn check(&self, labels: &[f32], raw: &Block, row: usize) -> Result<(), BadLabel> {
        if labels.contains(&0.0) {
            return Err(BadLabel::NotChosen);
        }
        match self.user_of(raw, row) == 0 || self.item_of(raw, row) == 0 {
            true => Err(BadLabel::NoChoice),
            false => Ok(()),
        }
    }

    fn log_frequency(&self, item: i64) -> f32 {
        // The first rows of a feature are missing and unknown values.
        let known = usize::try_from(self.index.row(item as u64) - 2).ok();
        let found = known.and_then(|at| self.log_frequencies.get(at));
        found.copied().unwrap_or(self.log_unknown)
    }
}

/// Returns the first id of a row, 0 without one.
pub fn first_id(raw: &Block, at: usize, row: usize) -> i64 {
    raw.column(at).ids(row).and_then(|ids| ids.first()).copied().unwrap_or(0)
}

impl Target {
    fn of(features: &Features, raw: &RawNames, slots: &mut Vec<Slot>) -> Result<Target> {
        let slot = slots.len();
        let class_hashes = features.label.class_hashes();
        slots.push(match class_hashes.is_empty() {
            true => Slot::dense_floats(INPUT_LABEL, [1 + features.other_labels.len()]),
            false => Slot::dense_ids(INPUT_LABEL, [1]),
        });
        let other_levels = features.label.other_levels();
        if !other_levels.is_empty() {
            slots.push(Slot::dense_floats(INPUT_LEVELS, [other_levels.len()]));
        }
        let group = features.group.as_ref().map(|it| raw.index(&it.column)).transpose()?;
        if group.is_some() {
            slots.push(Slot::dense_ids(INPUT_GROUP, [1]));
        }
        let choice = match &features.choices {
            Some(choices) => Some(ChoiceAt::of(choices, features, raw)?),
            None => None,
        };
        if choice.is_some() {
            slots.push(Slot::dense_ids(SLOT_USER, [1]));
            slots.push(Slot::dense_ids(INPUT_ITEM, [1]));
            slots.push(Slot::dense_floats(INPUT_LOG_FREQUENCY, [1]));
        }
        let weight = features.weight.as_ref().map(|name| raw.index(name)).transpose()?;
        if weight.is_some() {
            slots.push(Slot::dense_floats(INPUT_WEIGHT, [1]));
        }
        let mut slices = Vec::new();
        for (index, slice) in features.slices.iter().enumerate() {
            slices.push(raw.index(&slice.column)?);
            slots.push(Slot::dense_ids(slot_of_slice(index), [1]));
        }
        let read = features.labels().filter(|label| label.meaning != Meaning::Always);
        let labels: Result<Vec<usize>> = read.map(|label| raw.index(&label.column)).collect();
        let labels = labels?;
        Ok(Target { labels, class_hashes, other_levels, group, choice, weight, slices, slot })
    }
    /// Reads the labels of a row: 1 if the job has none.
    fn read_labels(
        &self,
        features: &Features,
        raw: &Block,
        row: usize,
        values: &mut Vec<f32>,
    ) -> Result<(), BadRow> {
        values.clear();
        for (number, (label, at)) in features.labels().zip(&self.labels).enumerate() {
            let value = label.value(&self.class_hashes, raw.column(*at), row);
            values.push(value.map_err(|fault| BadRow { fault, label: number })?);
        }
        if values.is_empty() {
            values.push(1.0);
        }
        Ok(())
    }
}
