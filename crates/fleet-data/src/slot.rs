//! The fields of records: named slots of ids or floats, each dense (a fixed shape) or ragged.
//!
//! A slot corresponds to an input of a program. Integer inputs take slots of ids, and float inputs
//! take slots of floats. An input without nesting takes a dense slot with the input's shape without
//! the batch dimension; an input of ragged rows takes a ragged slot.

use fleet_base::{Error, Result, text};
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

/// Type of the values of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlotKind {
    /// 64-bit ids, stored by their bits: an id of 2^63 or more reads as a negative `i64`.
    Ids,
    /// 32-bit floats.
    Floats,
}

impl fmt::Display for SlotKind {
    /// Writes the documented names of the two types.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SlotKind::Ids => "uint64",
            SlotKind::Floats => "float",
        })
    }
}

/// Number of values that a record has in a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum SlotForm {
    /// Always the product of the shape, which has no batch dimension.
    Dense(Vec<usize>),
    /// Any number.
    Ragged,
}

/// A named slot of a record.
///
/// ```
/// use fleet_data::Slot;
/// assert_eq!(Slot::dense_floats("dense_input", [13]).width(), Some(13));
/// assert_eq!(Slot::ragged_ids("C1").width(), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Slot {
    /// Name of the slot.
    pub name: String,
    /// Type of the values.
    pub kind: SlotKind,
    /// Number of values in a record.
    pub form: SlotForm,
}

impl Slot {
    /// Returns a slot.
    pub fn new(name: impl Into<String>, kind: SlotKind, form: SlotForm) -> Slot {
        Slot { name: name.into(), kind, form }
    }

    /// Returns a slot with the same number of ids in each record.
    pub fn dense_ids(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Slot {
        Slot::new(name, SlotKind::Ids, SlotForm::Dense(shape.into()))
    }

    /// Returns a slot with the same number of floats in each record.
    pub fn dense_floats(name: impl Into<String>, shape: impl Into<Vec<usize>>) -> Slot {
        Slot::new(name, SlotKind::Floats, SlotForm::Dense(shape.into()))
    }

    /// Returns a slot with any number of ids in a record.
    pub fn ragged_ids(name: impl Into<String>) -> Slot {
        Slot::new(name, SlotKind::Ids, SlotForm::Ragged)
    }

    /// Returns a slot with any number of floats in a record.
    pub fn ragged_floats(name: impl Into<String>) -> Slot {
        Slot::new(name, SlotKind::Floats, SlotForm::Ragged)
    }

    /// Returns the number of values of a record in a dense slot; `None` for a ragged slot.
    pub fn width(&self) -> Option<usize> {
        match &self.form {
            SlotForm::Dense(shape) => Some(shape.iter().product()),
            SlotForm::Ragged => None,
        }
    }
}

/// The slots of a record, in the order of the text.
///
/// ```
/// use fleet_data::{Schema, Slot};
/// let schema = Schema::new([Slot::ragged_ids("words"), Slot::dense_floats("label", [1])])?;
/// assert_eq!(schema.index("label")?, 1);
/// let error = schema.index("word").unwrap_err();
/// assert!(error.to_string().starts_with("unknown slot 'word'; did you mean 'words'?"));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schema {
    slots: Vec<Slot>,
    record_ids: bool,
}

impl Schema {
    /// Creates a schema; checks that names are given and unique, and that shapes are valid.
    pub fn new(slots: impl IntoIterator<Item = Slot>) -> Result<Arc<Schema>> {
        Self::build(slots, false)
    }

    /// Like [`Schema::new`], for records with an id of their own. In the text, the id precedes the
    /// first slot (`1 ID`). A global shuffle sends records with equal ids to the same worker.
    pub fn with_record_ids(slots: impl IntoIterator<Item = Slot>) -> Result<Arc<Schema>> {
        Self::build(slots, true)
    }

    fn build(slots: impl IntoIterator<Item = Slot>, record_ids: bool) -> Result<Arc<Schema>> {
        let slots: Vec<Slot> = slots.into_iter().collect();
        if slots.is_empty() || slots.len() > SLOTS_MAX {
            return Err(Error::invalid("number of slots is out of range")
                .expected(format!("1 to {SLOTS_MAX}"))
                .got(slots.len()));
        }
        let mut names = HashSet::new();
        for (index, slot) in slots.iter().enumerate() {
            if slot.name.is_empty() || !names.insert(slot.name.as_str()) {
                return Err(Error::invalid(format!("slot {index} needs a unique, non-empty name"))
                    .got(format!("'{}'", slot.name)));
            }
            if let SlotForm::Dense(shape) = &slot.form {
                let width = shape.iter().try_fold(1usize, |all, &one| all.checked_mul(one));
                if !width.is_some_and(|width| (1..=WIDTH_MAX).contains(&width)) {
                    return Err(Error::invalid(format!(
                        "number of values in slot '{}' is out of range",
                        slot.name
                    ))
                    .expected(format!("a shape of 1 to {WIDTH_MAX} values"))
                    .got(format!("{shape:?}")));
                }
            }
        }
        drop(names);
        Ok(Arc::new(Schema { slots, record_ids }))
    }

    /// Returns the schema of batches that are not filled from records.
    pub(crate) fn without_slots() -> Schema {
        Schema { slots: Vec::new(), record_ids: false }
    }

    /// Returns the slots, in the order of the columns.
    pub fn slots(&self) -> &[Slot] {
        &self.slots
    }

    /// Returns whether records have an id besides their slots.
    pub fn has_record_ids(&self) -> bool {
        self.record_ids
    }

    /// Returns the index of a slot; the error for an unknown name suggests the nearest one.
    pub fn index(&self, name: &str) -> Result<usize> {
        self.slots.iter().position(|slot| slot.name == name).ok_or_else(|| {
            let names = self.slots.iter().map(|slot| slot.name.as_str());
            let hint = text::did_you_mean(name, names);
            Error::invalid(format!("unknown slot '{name}'{hint}"))
        })
    }
}

/// Limit of the number of slots; click logs have far fewer.
const SLOTS_MAX: usize = 1 << 16;
/// Limit of the values of one record in a dense slot: an image of 3 x 8192 x 8192.
const WIDTH_MAX: usize = 3 << 26;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_shapes_are_checked() {
        let refused = |slots: Vec<Slot>| Schema::new(slots).unwrap_err().to_string();
        assert_eq!(refused(vec![]), "number of slots is out of range: expected 1 to 65536, got 0");
        assert_eq!(
            refused(vec![Slot::ragged_ids("a"), Slot::ragged_floats("a")]),
            "slot 1 needs a unique, non-empty name: got 'a'"
        );
        assert!(
            refused(vec![Slot::ragged_ids("")])
                .starts_with("slot 0 needs a unique, non-empty name")
        );
        let zero = refused(vec![Slot::dense_ids("x", [3, 0])]);
        assert!(zero.contains("'x'") && zero.ends_with("got [3, 0]"), "{zero}");
        assert!(Schema::new([Slot::dense_ids("x", [usize::MAX, 2])]).is_err());
        assert_eq!(Schema::new([Slot::dense_ids("x", [])]).unwrap().slots()[0].width(), Some(1));
    }
}
