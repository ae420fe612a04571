//! Derives slots from a program's inputs, and the layout of batches from a program and the slots of
//! its records.

use fleet_base::{Error, Result, text};
use fleet_data::{BatchLayout, Input, Schema, Slot, SlotForm, SlotKind};
use fleet_ir::{Program, Var, VarId};
use fleet_tensor::DType;
use std::sync::Arc;

/// Returns the slots of records that fill these inputs of a program, in this order (`use_var`).
/// Integer inputs take slots of ids, float inputs slots of floats. An input of ragged rows takes a
/// ragged slot, any other input a dense one of its shape.
///
/// ```
/// use fleet::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 13], DType::F32);
/// net.data_lod("C1", [-1, 1], DType::I64, 1);
/// # x.fc(1);
/// let schema = fleet::slots_of(&net.build()?.main, &["x", "C1"])?;
/// assert_eq!(schema.slots()[0].width(), Some(13));
/// assert_eq!(schema.slots()[1].width(), None);
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn slots_of(program: &Program, inputs: &[&str]) -> Result<Arc<Schema>> {
    let slots: Result<Vec<Slot>> = inputs.iter().map(|name| slot_of(program, name)).collect();
    Schema::new(slots?)
}

fn slot_of(program: &Program, name: &str) -> Result<Slot> {
    let (_, var) = input(program, name)?;
    let kind = match var.dtype {
        DType::I64 => SlotKind::Ids,
        DType::F32 => SlotKind::Floats,
        other => {
            return Err(Error::invalid(format!("cannot fill input '{name}' from records"))
                .expected("int64 or float32")
                .got(other)
                .help("cast in the program, or lay out the batch by hand (BatchLayout)"));
        }
    };
    if var.lod_level > 0 {
        return Ok(Slot::new(name, kind, SlotForm::Ragged));
    }
    let size = |dim: &i64| {
        usize::try_from(*dim).map_err(|_| {
            Error::invalid(format!("input '{name}' has a dimension of unknown size"))
                .got(var.shape)
                .help("leave only the first one unknown; use lod_level 1 for ragged rows")
        })
    };
    let shape: Result<Vec<usize>> = var.shape.dims().iter().skip(1).map(size).collect();
    Ok(Slot::new(name, kind, SlotForm::Dense(shape?)))
}

/// Returns the layout of a program's batches, from records of a schema. Each input of the program
/// takes the slot of the same name.
///
/// A ragged slot fills an input of ragged rows as it is. For an input of fixed width it is padded
/// to that width, and for one of unknown width to the longest record of the batch. The padding
/// value is the `padding_idx` of the table that looks up the input, or 0 if no table does. The row
/// of `padding_idx` is zero, so that a sum over rows pools only the ids of the record. A table
/// without `padding_idx` would pool a row that is not in the record. Every record must then fill
/// the width, and an unknown width is an error.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::data::{Schema, Slot};
/// let net = Net::new();
/// let words = net.data("words", [-1, -1], DType::I64);
/// let rows = words.embedding(Embedding::new(100, 4).padding_idx(0));
/// let pooled = rows.reduce_sum([1], false); // [batch, 4]
/// # pooled.fc(1);
/// let schema = Schema::new([Slot::ragged_ids("words"), Slot::dense_ids("label", [1])])?;
/// let layout = fleet::feed_layout(&net.build()?.main, &schema)?;
/// assert_eq!(layout.names().collect::<Vec<_>>(), ["words"]);
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn feed_layout(program: &Program, schema: &Arc<Schema>) -> Result<Arc<BatchLayout>> {
    let mut inputs = Vec::new();
    for (id, var) in program.vars().filter(|(_, var)| var.is_data) {
        let slot = &schema.slots()[schema
            .index(&var.name)
            .map_err(|error| error.at(format!("input '{}' of the program", var.name)))?];
        let input = Input::new(&var.name, [&var.name]).dtype(var.dtype);
        inputs.push(match (&slot.form, var.lod_level) {
            (SlotForm::Ragged, 0) => padded(program, id, var, input)?,
            _ => input,
        });
    }
    BatchLayout::new(schema, inputs)
}

fn padded(program: &Program, id: VarId, var: &Var, input: Input) -> Result<Input> {
    let padding = padding_of(program, id);
    match (var.shape.dims(), padding) {
        ([_, -1], Some(pad)) => Ok(input.padded_to_longest(pad as f64)),
        ([_, -1], None) => {
            Err(Error::invalid(format!("cannot pad shorter records of input '{}'", var.name))
                .expected("a table with a padding_idx, whose row is zero")
                .help("set Embedding::padding_idx, or lay out the batch by hand (BatchLayout)"))
        }
        ([_, width], Some(pad)) => Ok(input.padded(*width as usize, pad as f64)),
        ([_, width], None) => Ok(input.exact(*width as usize)),
        _ => Err(Error::invalid(format!("a ragged slot cannot fill input '{}'", var.name))
            .expected("two dimensions, the batch and the values of a record")
            .got(var.shape)),
    }
}

/// Returns the value that pads records: the `padding_idx` of the tables that look up the variable,
/// or 0 if no table does. Returns `None` if one of these tables has no `padding_idx`, or if two
/// have different ones.
fn padding_of(program: &Program, id: VarId) -> Option<i64> {
    let lookups = program
        .root_ops()
        .map(|(_, op)| op)
        .filter(|op| op.attr("padding_idx").is_some() && op.all_inputs().any(|input| input == id));
    let mut rows = lookups.map(|op| op.attr_int("padding_idx"));
    let Some(first) = rows.next() else { return Some(0) };
    (first >= 0 && rows.all(|row| row == first)).then_some(first)
}

fn input<'p>(program: &'p Program, name: &str) -> Result<(VarId, &'p Var)> {
    let inputs = || program.vars().filter(|(_, var)| var.is_data);
    inputs().find(|(_, var)| var.name == name).ok_or_else(|| {
        let hint = text::did_you_mean(name, inputs().map(|(_, var)| var.name.as_str()));
        Error::invalid(format!("the program has no input '{name}'{hint}"))
    })
}
