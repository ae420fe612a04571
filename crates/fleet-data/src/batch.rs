//! Turns records into the tensors that a program takes. Each input is filled from one slot, or from
//! several slots side by side, directly in memory that an executor can read in place. A batch is
//! reused: while its number of records stays the same, filling it allocates nothing, except for
//! ragged inputs, whose number of values changes.

use crate::block::{Block, Column, Values};
use crate::lines::Skipped;
use crate::slot::{Schema, Slot, SlotForm, SlotKind};
use fleet_base::{Error, Result};
use fleet_tensor::{DType, RANK_MAX, Shape, Tensor};
use std::sync::Arc;

/// Number of values of an input for each record.
#[derive(Clone, Debug, PartialEq)]
enum Form {
    /// The sum of its slots' widths; all slots are dense.
    Dense,
    /// `width` values for each slot; shorter records are padded, longer ones cut if `truncate`.
    Padded { width: usize, pad: f64, truncate: bool },
    /// `width` values for each slot; any other number is an error.
    Exact { width: usize },
    /// The length of the batch's longest record, rounded up.
    Longest { pad: f64 },
    /// Any number: values `[total, 1]` and offsets.
    Ragged,
}

impl Form {
    /// Returns the padding value, and whether values beyond the width are cut off.
    fn padding(&self) -> Option<(f64, bool)> {
        match self {
            Form::Padded { pad, truncate, .. } => Some((*pad, *truncate)),
            Form::Longest { pad } => Some((*pad, false)),
            Form::Dense | Form::Exact { .. } | Form::Ragged => None,
        }
    }
}

/// One input of a program, and the slots that fill it.
///
/// ```
/// use fleet_data::{Block, Batch, BatchLayout, Input, RowRef, Schema, Slot};
/// use fleet_tensor::DType;
/// let schema = Schema::new([
///     Slot::ragged_ids("C1"), Slot::ragged_ids("C2"), Slot::dense_ids("label", [1]),
/// ])?;
/// let layout = BatchLayout::new(&schema, [
///     Input::new("ids", ["C1", "C2"]).padded(1, 0.0), // [batch, 2]
///     Input::new("label", ["label"]).dtype(DType::F32),
/// ])?;
/// let mut block = Block::new(&schema);
/// block.push_ids(0, &[7])?;
/// block.push_ids(1, &[8])?;
/// block.push_ids(2, &[1])?;
/// block.end_record()?;
/// let mut batch = Batch::new(&layout);
/// batch.fill(&[&block], &[RowRef { block: 0, row: 0 }])?;
/// assert_eq!(batch.tensor("ids")?.as_slice::<i64>()?, [7, 8]);
/// assert_eq!(batch.tensor("label")?.as_slice::<f32>()?, [1.0]);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Input {
    name: String,
    slots: Vec<String>,
    dtype: Option<DType>,
    form: Option<Form>,
}

impl Input {
    /// Creates an input filled from these slots, side by side.
    pub fn new<S: Into<String>>(name: &str, slots: impl IntoIterator<Item = S>) -> Input {
        let slots = slots.into_iter().map(Into::into).collect();
        Input { name: name.to_string(), slots, dtype: None, form: None }
    }

    /// Sets the element type: `I64` or `F32` for ids (usually labels), `F32` for floats.
    pub fn dtype(mut self, dtype: DType) -> Input {
        self.dtype = Some(dtype);
        self
    }

    /// Takes `width` values for each slot: shorter records are padded with `pad`, longer ones are
    /// an error.
    pub fn padded(mut self, width: usize, pad: f64) -> Input {
        self.form = Some(Form::Padded { width, pad, truncate: false });
        self
    }

    /// Takes exactly `width` values for each slot; any other number is an error.
    pub fn exact(mut self, width: usize) -> Input {
        self.form = Some(Form::Exact { width });
        self
    }

    /// Like [`Input::padded`], but keeps the first `width` values of longer records.
    pub fn padded_or_cut(mut self, width: usize, pad: f64) -> Input {
        self.form = Some(Form::Padded { width, pad, truncate: true });
        self
    }

    /// Takes as many values as the longest record of the batch has, rounded up to a multiple of 8.
    /// The rounding keeps the number of shapes, and so of plans, small. Shorter records are padded
    /// with `pad`.
    pub fn padded_to_longest(mut self, pad: f64) -> Input {
        self.form = Some(Form::Longest { pad });
        self
    }
}

/// The inputs of a batch.
#[derive(Clone, Debug)]
pub struct BatchLayout {
    schema: Arc<Schema>,
    inputs: Vec<Resolved>,
}

#[derive(Clone, Debug)]
struct Resolved {
    name: String,
    slots: Vec<usize>,
    dtype: DType,
    form: Form,
    /// Values of one record in each slot; 0 for ragged and longest-padded inputs.
    widths: Vec<usize>,
    /// Shape without the batch dimension.
    shape: Vec<usize>,
}

impl BatchLayout {
    /// Creates an input for every slot, with the slot's name and form.
    pub fn of_slots(schema: &Arc<Schema>) -> Result<Arc<BatchLayout>> {
        Self::new(schema, schema.slots().iter().map(|slot| Input::new(&slot.name, [&slot.name])))
    }

    /// Creates a layout of these inputs. Fails if an input names a slot that the schema lacks, or
    /// its slots do not fit together.
    pub fn new(
        schema: &Arc<Schema>,
        inputs: impl IntoIterator<Item = Input>,
    ) -> Result<Arc<BatchLayout>> {
        let inputs: Result<Vec<Resolved>> = inputs
            .into_iter()
            .map(|input| {
                let name = input.name.clone();
                resolve(schema, input).map_err(|error| error.at(format!("input '{name}'")))
            })
            .collect();
        Ok(Arc::new(BatchLayout { schema: Arc::clone(schema), inputs: inputs? }))
    }

    /// Creates inputs of tensors that are not filled from slots, with their names, types and shapes
    /// of one sample.
    pub(crate) fn of_tensors<'a>(
        inputs: impl Iterator<Item = (&'a str, DType, &'a [usize])>,
    ) -> Arc<BatchLayout> {
        let resolved = |(name, dtype, shape): (&str, DType, &[usize])| Resolved {
            name: name.to_string(),
            slots: Vec::new(),
            dtype,
            form: Form::Dense,
            widths: Vec::new(),
            shape: shape.to_vec(),
        };
        let schema = Arc::new(Schema::without_slots());
        Arc::new(BatchLayout { schema, inputs: inputs.map(resolved).collect() })
    }

    /// Returns the slots of the records.
    pub fn schema(&self) -> &Arc<Schema> {
        &self.schema
    }

    /// Iterates over the names of the inputs.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().map(|input| input.name.as_str())
    }
}

fn resolve(schema: &Schema, input: Input) -> Result<Resolved> {
    let slots: Result<Vec<usize>> = input.slots.iter().map(|name| schema.index(name)).collect();
    let slots = slots?;
    let chosen: Vec<&Slot> = slots.iter().map(|index| &schema.slots()[*index]).collect();
    let Some(first) = chosen.first() else {
        return Err(Error::invalid("input has no slots"));
    };
    let kind = first.kind;
    if let Some(other) = chosen.iter().find(|slot| slot.kind != kind) {
        return Err(Error::invalid("slots of one input hold different kinds of values")
            .expected(format!("{kind} as in '{}'", first.name))
            .got(format!("{} in '{}'", other.kind, other.name)));
    }
    let own = if kind == SlotKind::Ids { DType::I64 } else { DType::F32 };
    let dtype = input.dtype.unwrap_or(own);
    if dtype != own && dtype != DType::F32 {
        return Err(Error::unsupported(format!("slots of {kind} cannot fill an input of {dtype}")));
    }
    let ragged = chosen.iter().any(|slot| slot.form == SlotForm::Ragged);
    let form = match input.form {
        Some(form) => form,
        None if !ragged => Form::Dense,
        None if chosen.len() == 1 => Form::Ragged,
        None => {
            return Err(Error::invalid("ragged slots cannot be placed side by side")
                .help("set a width for each slot with Input::padded"));
        }
    };
    if matches!(form, Form::Padded { width: 0, .. } | Form::Exact { width: 0 }) {
        return Err(Error::invalid("input width is 0"));
    }
    if matches!(form, Form::Longest { .. }) && chosen.len() > 1 {
        return Err(Error::invalid("only one slot can be padded to its longest record")
            .help("set a width for slots that are side by side with Input::padded"));
    }
    let widths: Vec<usize> = match form {
        Form::Padded { width, .. } | Form::Exact { width } => vec![width; chosen.len()],
        Form::Dense => chosen.iter().filter_map(|slot| slot.width()).collect(),
        Form::Ragged | Form::Longest { .. } => vec![0],
    };
    let shape = match (&first.form, &form) {
        (SlotForm::Dense(shape), Form::Dense) if chosen.len() == 1 => shape.clone(),
        _ => vec![widths.iter().sum::<usize>().max(1)],
    };
    if shape.len() >= RANK_MAX {
        return Err(Error::unsupported("input has too many dimensions").got(shape.len() + 1));
    }
    Ok(Resolved { name: input.name, slots, dtype, form, widths, shape })
}

/// Reference to one record in a list of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RowRef {
    /// Index of the block in the list.
    pub block: u32,
    /// Index of the record in the block.
    pub row: u32,
}

/// The tensors of some records, ready to be fed.
#[derive(Debug)]
pub struct Batch {
    layout: Arc<BatchLayout>,
    rows: usize,
    tensors: Vec<Tensor>,
    /// For each ragged input: the start of each record, then the end of the last one.
    offsets: Vec<Vec<i64>>,
}

impl Batch {
    /// Returns a batch without records.
    pub fn new(layout: &Arc<BatchLayout>) -> Batch {
        let count = layout.inputs.len();
        Batch {
            layout: Arc::clone(layout),
            rows: 0,
            tensors: (0..count).map(|_| Tensor::empty()).collect(),
            offsets: vec![Vec::new(); count],
        }
    }

    /// Returns the number of records.
    pub fn len(&self) -> usize {
        self.rows
    }

    /// Returns whether the batch has no records.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Returns the inputs of the batch.
    pub fn layout(&self) -> &Arc<BatchLayout> {
        &self.layout
    }

    /// Returns names and tensors in the form that an executor takes.
    pub fn feeds(&self) -> Vec<(&str, &Tensor)> {
        self.layout.names().zip(&self.tensors).collect()
    }

    /// Returns the tensors in the order of the inputs.
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// Returns the tensors, in the order of the inputs (`return_list`).
    ///
    /// ```
    /// use fleet_data::{DataLoader, DataLoaderOptions, Feed};
    /// use fleet_tensor::DType;
    /// let feeds = [Feed::new("x", DType::F32, [2]), Feed::new("label", DType::I64, [1])];
    /// let mut loader = DataLoader::from_generator(feeds, DataLoaderOptions::default())?;
    /// let sample = || Ok(vec![vec![0.5f32, 1.0].into(), 7i64.into()]);
    /// loader.set_sample_generator(2, false, move |_part| (0..2).map(move |_| sample()))?;
    /// for batch in loader.batches()? {
    ///     let tensors = batch?.into_tensors();
    ///     assert_eq!(tensors[0].shape().to_string(), "[2, 2]");
    ///     assert_eq!(tensors[1].to_vec::<i64>()?, [7, 7]);
    /// }
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn into_tensors(self) -> Vec<Tensor> {
        self.tensors
    }

    /// Returns the tensor of an input. Fails if the layout has no input of this name.
    pub fn tensor(&self, name: &str) -> Result<&Tensor> {
        Ok(&self.tensors[self.index(name)?])
    }

    /// Returns the start of each record of a ragged input, then the end of the last one.
    pub fn offsets(&self, name: &str) -> Result<&[i64]> {
        Ok(&self.offsets[self.index(name)?])
    }

    /// Returns the tensors of dense inputs, sized for `rows` records, for the caller to fill.
    /// `layout` must match the batch's layout.
    pub(crate) fn dense(&mut self, layout: &BatchLayout, rows: usize) -> Result<&mut [Tensor]> {
        self.check_dense(layout)?;
        for (input, tensor) in self.layout.inputs.iter().zip(&mut self.tensors) {
            reshape(tensor, input.dtype, rows, &input.shape)?;
        }
        self.rows = rows;
        Ok(&mut self.tensors)
    }

    /// Replaces the tensors of dense inputs. `layout` must match the batch's layout.
    pub(crate) fn set_dense(&mut self, layout: &BatchLayout, tensors: Vec<Tensor>) -> Result<()> {
        self.check_dense(layout)?;
        self.rows = tensors.first().map_or(0, |tensor| tensor.shape().at(0));
        self.tensors = tensors;
        Ok(())
    }

    /// Replaces the tensors: one for each input, in their order, with its type. The first dimension
    /// of the first tensor is the number of records.
    ///
    /// ```
    /// use fleet_data::{Batch, BatchSource, Dataset, TensorDataset};
    /// use fleet_tensor::Tensor;
    /// let ids = |count: i64| Tensor::from_slice(&vec![7; count as usize], [count]);
    /// let dataset = TensorDataset::new([("id".into(), ids(2)?)], 1)?;
    /// let mut batch = Batch::new(dataset.layout());
    /// batch.set_tensors(vec![ids(3)?])?;
    /// assert_eq!(batch.len(), 3);
    /// assert!(batch.set_tensors(vec![Tensor::from_slice(&[0.5f32], [1])?]).is_err());
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn set_tensors(&mut self, tensors: Vec<Tensor>) -> Result<()> {
        let inputs = &self.layout.inputs;
        if tensors.len() != inputs.len() {
            return Err(Error::invalid("a batch needs a tensor for each input")
                .expected(inputs.len())
                .got(tensors.len()));
        }
        for (input, tensor) in inputs.iter().zip(&tensors) {
            if input.dtype != tensor.dtype() {
                return Err(Error::invalid(format!("wrong type for input '{}'", input.name))
                    .expected(input.dtype)
                    .got(tensor.dtype()));
            }
        }
        self.rows = tensors.first().map_or(0, |tensor| *tensor.shape().dims().first().unwrap_or(&1))
            as usize;
        self.tensors = tensors;
        Ok(())
    }

    fn check_dense(&self, layout: &BatchLayout) -> Result<()> {
        let same = self.layout.schema == layout.schema && self.layout.names().eq(layout.names());
        if same && self.layout.inputs.iter().all(|input| input.form == Form::Dense) {
            return Ok(());
        }
        Err(Error::invalid("inputs of the batch do not match the samples")
            .expected(layout.names().collect::<Vec<_>>().join(", "))
            .got(self.layout.names().collect::<Vec<_>>().join(", ")))
    }

    fn index(&self, name: &str) -> Result<usize> {
        self.layout.names().position(|known| known == name).ok_or_else(|| {
            let hint = fleet_base::text::did_you_mean(name, self.layout.names());
            Error::invalid(format!("batch has no input '{name}'{hint}"))
        })
    }

    /// Fills all inputs with records of `blocks`, in the order of `rows`.
    pub fn fill<B: AsRef<Block>>(&mut self, blocks: &[B], rows: &[RowRef]) -> Result<()> {
        let layout = Arc::clone(&self.layout);
        if let Some(wrong) = blocks.iter().find(|it| *it.as_ref().schema() != layout.schema) {
            return Err(Error::invalid("slots of the records do not match the batch")
                .expected(layout.schema.slots().len())
                .got(wrong.as_ref().schema().slots().len()));
        }
        let inside = |row: &RowRef| {
            blocks.get(row.block as usize).is_some_and(|it| (row.row as usize) < it.as_ref().len())
        };
        if !rows.iter().all(inside) {
            return Err(Error::invalid("record reference is out of range"));
        }
        for (index, input) in layout.inputs.iter().enumerate() {
            let (tensor, offsets) = (&mut self.tensors[index], &mut self.offsets[index]);
            if input.form == Form::Ragged {
                fill_ragged(input, &layout.schema, blocks, rows, tensor, offsets)?;
            } else {
                fill_fixed(input, &layout.schema, blocks, rows, tensor)?;
            }
        }
        self.rows = rows.len();
        Ok(())
    }
}

impl AsRef<Block> for Block {
    fn as_ref(&self) -> &Block {
        self
    }
}

/// Replaces the tensor unless it already has this type and shape.
fn reshape(tensor: &mut Tensor, dtype: DType, rows: usize, rest: &[usize]) -> Result<()> {
    let mut dims = [0i64; RANK_MAX];
    dims[0] = rows as i64;
    for (to, from) in dims[1..].iter_mut().zip(rest) {
        *to = *from as i64;
    }
    let shape = Shape::new(&dims[..1 + rest.len()])?;
    if tensor.dtype() != dtype || *tensor.shape() != shape {
        *tensor = Tensor::zeros(dtype, shape)?;
    }
    Ok(())
}

fn fill_fixed<B: AsRef<Block>>(
    input: &Resolved,
    schema: &Schema,
    blocks: &[B],
    rows: &[RowRef],
    tensor: &mut Tensor,
) -> Result<()> {
    let longest = match input.form {
        Form::Longest { .. } => Some(longest(input.slots[0], blocks, rows)),
        _ => None,
    };
    let rest = longest.as_ref().map_or(&input.shape[..], std::slice::from_ref);
    reshape(tensor, input.dtype, rows.len(), rest)?;
    let total: usize = longest.unwrap_or(input.widths.iter().sum());
    let mut start = 0;
    for (&slot, &width) in input.slots.iter().zip(&input.widths) {
        let width = longest.unwrap_or(width);
        let column = |row: &RowRef| blocks[row.block as usize].as_ref().column(slot);
        let span = SlotSpan { start, width, total, form: &input.form };
        let outcome = match (schema.slots()[slot].kind, input.dtype) {
            (SlotKind::Ids, DType::I64) => {
                span.scatter(rows, tensor.as_mut_slice::<i64>()?, column, ids_of, |id| id)
            }
            (SlotKind::Ids, _) => {
                span.scatter(rows, tensor.as_mut_slice::<f32>()?, column, ids_of, |id| id as f32)
            }
            (SlotKind::Floats, _) => {
                span.scatter(rows, tensor.as_mut_slice::<f32>()?, column, floats_of, |it| it)
            }
        };
        outcome.map_err(|count| {
            let name = &schema.slots()[slot].name;
            let error = match input.form.padding() {
                Some(_) => Error::invalid(format!("slot '{name}' has too many values"))
                    .expected(format!("at most {width}"))
                    .help("increase the width, or truncate with Input::padded_or_cut"),
                None => Error::invalid(format!("slot '{name}' has a wrong number of values"))
                    .expected(format!("exactly {width} in every record"))
                    .help(
                        "set the table's padding_idx, whose row is zero, so that shorter records \
                         are padded; or pad them with Input::padded",
                    ),
            };
            error.got(count).at(format!("input '{}'", input.name))
        })?;
        start += width;
    }
    Ok(())
}

/// Returns the width that fits every record of a batch.
fn longest<B: AsRef<Block>>(slot: usize, blocks: &[B], rows: &[RowRef]) -> usize {
    let count = |row: &RowRef| {
        blocks[row.block as usize].as_ref().column(slot).range(row.row as usize).len()
    };
    rows.iter().map(count).max().unwrap_or(0).max(1).next_multiple_of(LONGEST_STEP)
}

/// The width of inputs that are padded to their longest record is a multiple of this.
const LONGEST_STEP: usize = 8;

/// The part of an input's rows that one slot fills.
struct SlotSpan<'a> {
    start: usize,
    width: usize,
    total: usize,
    form: &'a Form,
}

impl SlotSpan<'_> {
    /// Copies a slot's values for each record. If a record does not fit, fails with its number of
    /// values.
    fn scatter<'b, F: Copy + 'b, T: Copy + FromPad>(
        &self,
        rows: &[RowRef],
        out: &mut [T],
        column: impl Fn(&RowRef) -> &'b Column,
        values: impl Fn(&'b Column) -> &'b [F],
        convert: impl Fn(F) -> T,
    ) -> Result<(), usize> {
        for (rows, out) in rows.chunks(LOOKUP_ROWS).zip(out.chunks_mut(LOOKUP_ROWS * self.total)) {
            let found = look_up(rows, &column, &values);
            for (from, out) in found.iter().zip(out.chunks_exact_mut(self.total)) {
                match (from, &mut out[self.start..self.start + self.width]) {
                    // The case of most slots. A shorter loop keeps more memory loads in flight at
                    // once.
                    ([from], [to]) => *to = convert(*from),
                    (from, to) => self.copy(from, to, &convert)?,
                }
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn copy<F: Copy, T: Copy + FromPad>(
        &self,
        mut from: &[F],
        out: &mut [T],
        convert: &impl Fn(F) -> T,
    ) -> Result<(), usize> {
        if let Some((pad, truncate)) = self.form.padding() {
            if from.len() > self.width {
                if !truncate {
                    return Err(from.len());
                }
                from = &from[..self.width];
            }
            out[from.len()..].fill(T::from_pad(pad));
        } else if from.len() != self.width {
            return Err(from.len());
        }
        for (to, value) in out.iter_mut().zip(from) {
            *to = convert(*value);
        }
        Ok(())
    }
}

/// Finds the values of some records. Shuffled records lie anywhere in memory. Two short loops, one
/// that only looks up and one that only copies, let the processor keep many loads in flight at
/// once.
#[inline(always)]
fn look_up<'b, F>(
    rows: &[RowRef],
    column: &impl Fn(&RowRef) -> &'b Column,
    values: &impl Fn(&'b Column) -> &'b [F],
) -> [&'b [F]; LOOKUP_ROWS] {
    let mut found: [&[F]; LOOKUP_ROWS] = [&[]; LOOKUP_ROWS];
    for (found, row) in found.iter_mut().zip(rows) {
        let column = column(row);
        *found = &values(column)[column.range(row.row as usize)];
    }
    found
}

/// Records that are looked up before they are copied: more than a processor's loads in flight, and
/// few enough that their addresses fit the L1 cache.
const LOOKUP_ROWS: usize = 64;

trait FromPad {
    fn from_pad(pad: f64) -> Self;
}

impl FromPad for i64 {
    fn from_pad(pad: f64) -> i64 {
        pad as i64
    }
}

impl FromPad for f32 {
    fn from_pad(pad: f64) -> f32 {
        pad as f32
    }
}

fn ids_of(column: &Column) -> &[i64] {
    match column.values() {
        Values::Ids(values) => values,
        Values::Floats(_) => &[],
    }
}

fn floats_of(column: &Column) -> &[f32] {
    match column.values() {
        Values::Floats(values) => values,
        Values::Ids(_) => &[],
    }
}

fn fill_ragged<B: AsRef<Block>>(
    input: &Resolved,
    schema: &Schema,
    blocks: &[B],
    rows: &[RowRef],
    tensor: &mut Tensor,
    offsets: &mut Vec<i64>,
) -> Result<()> {
    let slot = input.slots[0];
    let column = |row: &RowRef| blocks[row.block as usize].as_ref().column(slot);
    offsets.clear();
    offsets.push(0);
    let mut total = 0;
    for row in rows {
        total += column(row).range(row.row as usize).len();
        offsets.push(total as i64);
    }
    reshape(tensor, input.dtype, total, &[1])?;
    match (schema.slots()[slot].kind, input.dtype) {
        (SlotKind::Ids, DType::I64) => {
            gather(rows, tensor.as_mut_slice::<i64>()?, column, ids_of, |id| id);
        }
        (SlotKind::Ids, _) => {
            gather(rows, tensor.as_mut_slice::<f32>()?, column, ids_of, |id| id as f32);
        }
        (SlotKind::Floats, _) => {
            gather(rows, tensor.as_mut_slice::<f32>()?, column, floats_of, |it| it);
        }
    }
    Ok(())
}

/// Copies the values of all records into `out`, without gaps.
fn gather<'b, F: Copy + 'b, T>(
    rows: &[RowRef],
    mut out: &mut [T],
    column: impl Fn(&RowRef) -> &'b Column,
    values: impl Fn(&'b Column) -> &'b [F],
    convert: impl Fn(F) -> T,
) {
    for rows in rows.chunks(LOOKUP_ROWS) {
        for from in &look_up(rows, &column, &values)[..rows.len()] {
            let (to, rest) = out.split_at_mut(from.len());
            match (from, &mut *to) {
                ([from], [to]) => *to = convert(*from),
                (from, to) => to.iter_mut().zip(*from).for_each(|(to, it)| *to = convert(*it)),
            }
            out = rest;
        }
    }
}

/// A source of batches.
pub trait BatchSource: Send {
    /// Fills the batch with the next records; returns false at the end.
    fn next_batch(&mut self, batch: &mut Batch) -> Result<bool>;

    /// Returns a function that ends what the source may wait for; the source then fails.
    fn stopper(&self) -> Option<Box<dyn Fn() + Send + Sync>> {
        None
    }

    /// Returns the skipped lines; complete at the end.
    fn skipped(&self) -> Skipped {
        Skipped::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Block {
        let schema = Schema::new([
            Slot::ragged_ids("words"),
            Slot::dense_floats("x", [2, 2]),
            Slot::dense_ids("label", [1]),
            Slot::ragged_floats("weights"),
        ])
        .unwrap();
        let mut block = Block::new(&schema);
        for row in 0..4i64 {
            let words: Vec<i64> = (0..row + 1).collect();
            block.push_ids(0, &words).unwrap();
            block.push_floats(1, &[row as f32; 4]).unwrap();
            block.push_ids(2, &[row % 2]).unwrap();
            block.push_floats(3, &[0.5]).unwrap();
            block.end_record().unwrap();
        }
        block
    }

    fn rows(list: &[u32]) -> Vec<RowRef> {
        list.iter().map(|row| RowRef { block: 0, row: *row }).collect()
    }

    #[test]
    fn every_form_is_filled() {
        let block = example();
        let layout = BatchLayout::new(
            block.schema(),
            [
                Input::new("words", ["words"]),
                Input::new("padded", ["words"]).padded(5, -1.0),
                Input::new("cut", ["words"]).padded_or_cut(2, 0.0),
                Input::new("longest", ["words"]).padded_to_longest(-1.0),
                Input::new("exact", ["weights"]).exact(1),
                Input::new("x", ["x"]),
                Input::new("both", ["x", "weights"]).padded(4, 9.0),
                Input::new("label", ["label"]).dtype(DType::F32),
            ],
        )
        .unwrap();
        let mut batch = Batch::new(&layout);
        batch.fill(&[&block], &rows(&[2, 0])).unwrap();
        let ids = |name: &str| batch.tensor(name).unwrap().to_vec::<i64>().unwrap();
        let floats = |name: &str| batch.tensor(name).unwrap().to_vec::<f32>().unwrap();
        assert_eq!(ids("words"), [0, 1, 2, 0]);
        assert_eq!(batch.offsets("words").unwrap(), [0, 3, 4]);
        assert_eq!(ids("padded"), [0, 1, 2, -1, -1, 0, -1, -1, -1, -1]);
        assert_eq!(ids("cut"), [0, 1, 0, 0]);
        assert_eq!(batch.tensor("longest").unwrap().shape().to_string(), "[2, 8]");
        assert_eq!(ids("longest")[..4], [0, 1, 2, -1]);
        assert_eq!(ids("longest")[8..10], [0, -1]);
        assert_eq!(batch.tensor("x").unwrap().shape().to_string(), "[2, 2, 2]");
        assert_eq!(
            floats("both"),
            [2., 2., 2., 2., 0.5, 9., 9., 9., 0., 0., 0., 0., 0.5, 9., 9., 9.]
        );
        assert_eq!(floats("label"), [0.0, 0.0]);
        assert_eq!(floats("exact"), [0.5, 0.5]);
        assert_eq!(batch.feeds().len(), 8);
    }

    #[test]
    fn wrong_layouts_and_rows_are_errors() {
        let block = example();
        let layout = |input: Input| BatchLayout::new(block.schema(), [input]);
        let message = |input: Input| layout(input).unwrap_err().to_string();
        assert!(message(Input::new("a", ["wrds"])).contains("did you mean 'words'"));
        assert!(message(Input::new("a", ["words", "x"])).contains("different kinds of values"));
        assert!(message(Input::new("a", ["words", "label"])).contains("side by side"));
        assert!(message(Input::new("a", ["x"]).dtype(DType::I64)).contains("i64"));
        let both = Input::new("a", ["words", "label"]).padded_to_longest(0.0);
        assert!(message(both).contains("longest record"));
        assert!(message(Input::new("a", Vec::<String>::new())).contains("no slots"));
        let narrow = layout(Input::new("a", ["words"]).padded(2, 0.0)).unwrap();
        let error = Batch::new(&narrow).fill(&[&block], &rows(&[0, 3])).unwrap_err().to_string();
        assert!(error.starts_with("slot 'words' has too many values: expected at most 2, got 4"));
        assert!(Batch::new(&narrow).fill(&[&block], &rows(&[4])).is_err());
        let exact = layout(Input::new("a", ["words"]).exact(2)).unwrap();
        for row in [0, 2] {
            let error = Batch::new(&exact).fill(&[&block], &rows(&[1, row])).unwrap_err();
            let error = error.to_string();
            assert!(error.contains("expected exactly 2") && error.contains("input 'a'"), "{error}");
        }
    }
}
