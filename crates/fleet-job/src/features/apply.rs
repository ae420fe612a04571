//! Turns raw columns into the slots that the model's inputs are filled from.

use super::ids::{Index, cross_hash};
use super::label::BadLabel;
use super::{Features, Ids, TableSize};
use crate::raw::RawNames;
use fleet_base::Result;
use fleet_data::{BatchLayout, Block, Input, Schema, Slot};
use std::sync::Arc;

/// Input with the numbers of a row.
pub const INPUT_NUMBERS: &str = "numbers";
/// Input with the factor of each feature of several ids: 1 divided by their number, or 1.
pub const INPUT_SCALES: &str = "scales";
/// Input with the label.
pub const INPUT_LABEL: &str = "label";
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
    numbers: Vec<usize>,
    /// For each table: its slot, and its features.
    single: Vec<(usize, Vec<IdsAt>)>,
    several: Vec<(usize, IdsAt)>,
    /// Slot of the factors.
    scales: usize,
    target: Option<Target>,
}

struct IdsAt {
    columns: Vec<usize>,
    base: i64,
    index: Index,
    values_max: usize,
    is_sum: bool,
}

/// Label, weight and slices.
struct Target {
    label: usize,
    class_hashes: Vec<u64>,
    weight: Option<usize>,
    slices: Vec<usize>,
    /// The slot of the label; those of the weight and the slices follow.
    slot: usize,
}

/// Reused memory of [`Applied::apply`].
#[derive(Default)]
pub struct Scratch {
    floats: Vec<f32>,
    ids: Vec<i64>,
}

impl Applied {
    /// Prepares the features, with the label or without.
    pub fn new(features: &Arc<Features>, raw: &RawNames, has_label: bool) -> Result<Applied> {
        let mut slots = Vec::new();
        let numbers: Result<Vec<usize>> =
            features.numbers.iter().map(|number| raw.index(&number.column)).collect();
        if features.number_width() > 0 {
            slots.push(Slot::dense_floats(INPUT_NUMBERS, [features.number_width()]));
        }
        let mut single = Vec::new();
        for TableSize { dim, .. } in features.tables() {
            let ids: Result<Vec<IdsAt>> =
                features.single(dim).map(|ids| IdsAt::of(ids, raw)).collect();
            let ids = ids?;
            if !ids.is_empty() {
                single.push((slots.len(), ids));
                let width = single.last().map_or(0, |(_, ids)| ids.len());
                slots.push(Slot::dense_ids(input_of_ids(dim), [width]));
            }
        }
        let mut several = Vec::new();
        for (index, ids) in features.several().enumerate() {
            several.push((slots.len(), IdsAt::of(ids, raw)?));
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
        BatchLayout::new(&self.schema, slots[..count].iter().map(input))
    }

    /// Appends a row. Fails if its label cannot be used; the row is then left out.
    pub fn apply(
        &self,
        raw: &Block,
        row: usize,
        scratch: &mut Scratch,
        out: &mut Block,
    ) -> Result<Result<(), BadLabel>> {
        if let Some(target) = &self.target {
            let column = raw.column(target.label);
            match self.features.label.value(&target.class_hashes, column, row) {
                Ok(label) => self.push_target(target, label, raw, row, out)?,
                Err(bad) => return Ok(Err(bad)),
            }
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
        let value = |at: usize| raw.column(at).floats(row).and_then(|all| all.first()).copied();
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
            let hashes = raw.column(ids.columns[0]).ids(row).unwrap_or_default();
            let rows = hashes.iter().take(ids.values_max);
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
        label: f32,
        raw: &Block,
        row: usize,
        out: &mut Block,
    ) -> Result<()> {
        let mut slot = target.slot;
        match target.class_hashes.is_empty() {
            true => out.push_floats(slot, &[label])?,
            false => out.push_ids(slot, &[label as i64])?,
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
    fn of(ids: &Ids, raw: &RawNames) -> Result<IdsAt> {
        let columns: Result<Vec<usize>> = ids.columns.iter().map(|name| raw.index(name)).collect();
        Ok(IdsAt {
            columns: columns?,
            base: ids.base,
            index: Index::of(&ids.lookup),
            values_max: ids.values_max.unwrap_or(1),
            is_sum: ids.is_sum,
        })
    }

    fn hash(&self, raw: &Block, row: usize) -> u64 {
        match &self.columns[..] {
            [at] => raw.column(*at).ids(row).and_then(|ids| ids.first()).map_or(0, |id| *id as u64),
            several => cross_hash(raw, several, row),
        }
    }
}

impl Target {
    fn of(features: &Features, raw: &RawNames, slots: &mut Vec<Slot>) -> Result<Target> {
        let slot = slots.len();
        let class_hashes = features.label.class_hashes();
        slots.push(match class_hashes.is_empty() {
            true => Slot::dense_floats(INPUT_LABEL, [1]),
            false => Slot::dense_ids(INPUT_LABEL, [1]),
        });
        let weight = features.weight.as_ref().map(|name| raw.index(name)).transpose()?;
        if weight.is_some() {
            slots.push(Slot::dense_floats(INPUT_WEIGHT, [1]));
        }
        let mut slices = Vec::new();
        for (index, slice) in features.slices.iter().enumerate() {
            slices.push(raw.index(&slice.column)?);
            slots.push(Slot::dense_ids(slot_of_slice(index), [1]));
        }
        let label = raw.index(&features.label.column)?;
        Ok(Target { label, class_hashes, weight, slices, slot })
    }
}
