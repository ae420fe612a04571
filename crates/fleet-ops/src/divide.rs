//! How ops compute on parts of tensors, where ranks divide the layers of a model (tensor
//! parallelism).
//!
//! Every op may state a rule (`OpTraits::divide`). The rule gets the placement of each input. It
//! sets the placement of each output, requests parts of inputs that are whole, and changes
//! attributes that depend on the divided size. The strategy calls the rules op by op; it gives
//! variables the shapes of their parts and inserts the communication. Elementwise ops need no rule.
//! An op without a rule does not support divided inputs.
//!
//! Rules see the shapes of the whole tensors.

use crate::Meta;
use fleet_base::{Error, Result};
use fleet_ir::{Attr, AttrConst, AttrSpec, Division, Op, attr};
use fleet_tensor::Shape;
use std::ops::Range;

/// Where the ranks that share layers have a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Every rank has the whole value.
    Whole,
    /// Each rank has a part.
    Part(Along),
    /// The value is the sum of the values that the ranks have.
    Sum,
}

/// The axis along which a value is divided. See [`Division`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Along {
    /// The axis.
    pub axis: usize,
    /// Number of blocks along the axis that are divided separately.
    pub groups: usize,
    /// Number of elements along the axis by which the parts, which have equal sizes, exceed the
    /// whole value. The last parts have them at their ends.
    pub padding: usize,
}

impl Along {
    /// Returns the division of an axis as one block.
    pub const fn axis(axis: usize) -> Along {
        Along { axis, groups: 1, padding: 0 }
    }

    /// Returns one part of such a division.
    pub const fn part(self, part: usize, parts: usize) -> Division {
        Division { axis: self.axis, groups: self.groups, part, parts, padding: self.padding }
    }

    /// Returns the same division of another axis.
    pub const fn at(self, axis: usize) -> Along {
        Along { axis, ..self }
    }
}

impl From<Division> for Along {
    fn from(division: Division) -> Along {
        let Division { axis, groups, padding, .. } = division;
        Along { axis, groups, padding }
    }
}

/// A rule: how an op computes on parts.
pub type DivideRule = fn(&mut Divide<'_>) -> Result<()>;

/// Context of a rule: one op, and the placements of its variables.
pub struct Divide<'a> {
    /// The op, with its attributes for whole tensors.
    pub op: &'a Op,
    /// The part that this rank has.
    pub part: usize,
    /// Number of ranks that divide the values.
    pub parts: usize,
    /// Whether the op is elementwise.
    is_elementwise: bool,
    /// Whether the op supports padded parts ([`Divide::keep_padding`]).
    keeps_padding: bool,
    inputs: Vec<Vec<(Meta, Placement)>>,
    outputs: Vec<Vec<(Meta, Option<Placement>)>>,
    attrs: Vec<(&'static str, Attr)>,
    replacement: Option<&'static str>,
}

/// The results of a rule.
pub struct Divided {
    /// The placement that the op needs of each input, by slot.
    pub inputs: Vec<Vec<Placement>>,
    /// The placement of each output, by slot.
    pub outputs: Vec<Vec<Placement>>,
    /// Attributes to set.
    pub attrs: Vec<(&'static str, Attr)>,
    /// Name of the op that computes on parts, if it is another one. Its slots and attributes are
    /// found by name.
    pub replacement: Option<&'static str>,
}

impl<'a> Divide<'a> {
    /// Returns the context of an op. Inputs and outputs have the types and shapes of the whole
    /// variables.
    pub fn new(
        is_elementwise: bool,
        op: &'a Op,
        (part, parts): (usize, usize),
        inputs: Vec<Vec<(Meta, Placement)>>,
        outputs: Vec<Vec<Meta>>,
    ) -> Divide<'a> {
        let unset = |metas: Vec<Meta>| metas.into_iter().map(|meta| (meta, None)).collect();
        Divide {
            op,
            part,
            parts,
            is_elementwise,
            keeps_padding: false,
            inputs,
            outputs: outputs.into_iter().map(unset).collect(),
            attrs: Vec::new(),
            replacement: None,
        }
    }

    /// Applies the rule of the op.
    pub fn apply(mut self, rule: DivideRule) -> Result<Divided> {
        rule(&mut self)?;
        if !self.keeps_padding {
            self.check_unpadded()?;
        }
        let op = self.op;
        let placed = |slot: usize, vars: Vec<(Meta, Option<Placement>)>| {
            let all = vars.into_iter().map(|(_, placement)| placement).collect::<Option<Vec<_>>>();
            all.ok_or_else(|| {
                let name = op.spec.outputs[slot].name;
                Error::internal(format!("no placement of output '{name}' of {}", op.name()))
            })
        };
        let outputs = self.outputs.into_iter().enumerate();
        let placements = |vars: Vec<(Meta, Placement)>| vars.into_iter().map(|it| it.1).collect();
        Ok(Divided {
            inputs: self.inputs.into_iter().map(placements).collect(),
            outputs: outputs.map(|(slot, vars)| placed(slot, vars)).collect::<Result<_>>()?,
            attrs: self.attrs,
            replacement: self.replacement,
        })
    }

    /// Sets the placement of the output of an op without inputs, before its rule is applied: an
    /// initializer makes the part that is requested.
    pub fn request(mut self, along: Along) -> Self {
        let all = self.outputs.iter_mut().flatten();
        all.for_each(|(_, placement)| *placement = Some(Placement::Part(along)));
        self
    }

    /// States that the op supports padded parts. Padding has finite numbers, and its gradient is
    /// zero: in the backward pass, the op must make zeros of zeros, and must not mix padding with
    /// other elements.
    pub fn keep_padding(&mut self) {
        self.keeps_padding = true;
    }

    /// Fails if a part is padded.
    fn check_unpadded(&self) -> Result<()> {
        let padded = self.inputs.iter().flatten().find_map(|(meta, placement)| match placement {
            Placement::Part(along) if along.padding > 0 => Some((meta.shape, along.axis)),
            _ => None,
        });
        let Some((shape, axis)) = padded else { return Ok(()) };
        let Divide { op, parts, .. } = self;
        Err(Error::unsupported(format!("{} needs parts of equal sizes", op.name()))
            .expected(format!("a multiple of {parts} in dimension {axis}"))
            .got(shape)
            .help(
                "change the size of the layer, or mp_degree; only the rows of an embedding and \
                 the classes of a softmax cross entropy may have a remainder",
            ))
    }

    /// Returns the requested part of the only output of an op without inputs.
    pub fn requested(&self) -> Result<Along> {
        match self.outputs.iter().flatten().next() {
            Some((_, Some(Placement::Part(along)))) => Ok(*along),
            _ => Err(self.unsupported("computes no part of a tensor")),
        }
    }

    /// Returns the division of the first variable of an input slot, if it is divided.
    pub fn along(&self, slot: &str) -> Option<Along> {
        match self.first(slot)?.1 {
            Placement::Part(along) => Some(along),
            Placement::Whole | Placement::Sum => None,
        }
    }

    /// Returns the shape of the first variable of an input slot.
    pub fn shape(&self, slot: &str) -> Result<Shape> {
        self.first(slot).map(|(meta, _)| meta.shape).ok_or_else(|| {
            Error::invalid(format!("missing input '{slot}' of op '{}'", self.op.name()))
        })
    }

    /// Returns whether an input slot has a variable.
    pub fn has(&self, slot: &str) -> bool {
        self.first(slot).is_some()
    }

    fn first(&self, slot: &str) -> Option<&(Meta, Placement)> {
        self.inputs[self.op.spec.input_index(slot)?].first()
    }

    /// Returns the shape of the first variable of an output slot.
    pub fn output_shape(&self, slot: &str) -> Result<Shape> {
        let index = self.op.spec.output_index(slot);
        let first = index.and_then(|index| self.outputs[index].first());
        first.map(|(meta, _)| meta.shape).ok_or_else(|| {
            Error::invalid(format!("missing output '{slot}' of op '{}'", self.op.name()))
        })
    }

    /// Requests a part of the first variable of an input slot.
    pub fn want(&mut self, slot: &str, along: Along) -> Result<()> {
        let shape = self.shape(slot)?;
        self.check_divides(&shape, along)?;
        if let Some(index) = self.op.spec.input_index(slot) {
            self.inputs[index][0].1 = Placement::Part(along);
        }
        Ok(())
    }

    /// Sets the placement of the variables of an output slot. Slots without variables may be set.
    pub fn set(&mut self, slot: &str, placement: Placement) -> Result<()> {
        let Some(index) = self.op.spec.output_index(slot) else { return Ok(()) };
        for at in 0..self.outputs[index].len() {
            if let Placement::Part(along) = placement {
                let shape = self.outputs[index][at].0.shape;
                self.check_divides(&shape, along)?;
            }
            self.outputs[index][at].1 = Some(placement);
        }
        Ok(())
    }

    /// Sets an output slot to a part.
    pub fn set_part(&mut self, slot: &str, along: Along) -> Result<()> {
        self.set(slot, Placement::Part(along))
    }

    /// Changes an attribute.
    pub fn set_attr(&mut self, name: &'static str, value: impl Into<Attr>) {
        self.attrs.push((name, value.into()));
    }

    /// Sets the attribute [`PART`] of an op that draws random numbers.
    pub fn set_random_part(&mut self, along: Along) {
        let mut numbers = vec![along.axis, along.groups, self.part, self.parts];
        numbers.extend(Some(along.padding).filter(|padding| *padding > 0));
        let numbers: Vec<i64> = numbers.into_iter().map(|number| number as i64).collect();
        self.set_attr(PART.name, numbers);
    }

    /// Replaces the op by another one, which computes on parts.
    pub fn become_op(&mut self, name: &'static str) {
        self.replacement = Some(name);
    }

    /// Fails unless the ranks can divide a shape.
    pub fn check_divides(&self, shape: &Shape, along: Along) -> Result<()> {
        let Some(size) = shape.get(along.axis) else {
            return Err(Error::internal(format!("no dimension {} in {shape}", along.axis)));
        };
        let pieces = (along.groups * self.parts) as i64;
        let padded = size.saturating_add(along.padding as i64);
        if *size < 0 || padded % pieces == 0 {
            return Ok(());
        }
        let groups = match along.groups {
            1 => String::new(),
            groups => format!(" in each of {groups} blocks"),
        };
        Err(Error::invalid(format!("{} ranks cannot divide a tensor{groups}", self.parts))
            .expected(format!("a multiple of {pieces} in dimension {}", along.axis))
            .got(shape))
    }

    /// Returns the error of an op that cannot compute on the given parts: `what` completes the
    /// sentence that begins with the op's name.
    pub fn unsupported(&self, what: &str) -> Error {
        let at = self.inputs.iter().position(|slot| {
            slot.iter().any(|(_, placement)| matches!(placement, Placement::Part(_)))
        });
        let error = Error::unsupported(format!("{} {what}", self.op.name()));
        match at {
            Some(slot) => error.got(format!("a divided '{}'", self.op.spec.inputs[slot].name)),
            None => error,
        }
    }
}

/// The rule of elementwise ops, and of all ops without a rule of their own.
pub fn elementwise(d: &mut Divide<'_>) -> Result<()> {
    let mut parts = d.inputs.iter().flatten().filter_map(|(meta, placement)| match placement {
        Placement::Part(along) => Some((meta.shape, *along)),
        Placement::Whole | Placement::Sum => None,
    });
    let Some((shape, along)) = parts.next().filter(|_| d.is_elementwise) else {
        return Err(d.unsupported("does not compute on parts of tensors"));
    };
    let all = d.inputs.iter().flatten().map(|(meta, _)| meta.shape);
    let outputs = d.outputs.iter().flatten().map(|(meta, _)| meta.shape);
    if !all.chain(outputs).all(|other| other.agrees(&shape)) {
        return Err(d.unsupported("does not compute on parts of tensors of several shapes"));
    }
    let other = d
        .inputs
        .iter()
        .flatten()
        .any(|(_, placement)| matches!(placement, Placement::Part(other) if *other != along));
    if other {
        return Err(d.unsupported("needs the same parts of all operands"));
    }
    d.inputs.iter_mut().flatten().for_each(|(_, to)| *to = Placement::Part(along));
    d.outputs.iter_mut().flatten().for_each(|(_, to)| *to = Some(Placement::Part(along)));
    Ok(())
}

/// The rule of elementwise ops that may also compute on padding.
pub fn padded_elementwise(d: &mut Divide<'_>) -> Result<()> {
    d.keep_padding();
    elementwise(d)
}

/// Returns the division of a tensor in another shape of the same elements, or `None` if its parts
/// are no parts of that shape. Dimensions match from the last one on.
///
/// Three packed blocks of 4 heads of width 8, as a matrix and one by one:
///
/// ```
/// use fleet_ops::divide::{Along, reshaped};
/// use fleet_tensor::Shape;
/// let (flat, apart) = (Shape::from([-1, 96]), Shape::from([-1, 3, 4, 8]));
/// let packed = Along { groups: 3, ..Along::axis(1) };
/// assert_eq!(reshaped(&flat, &apart, packed, 2), Some(Along::axis(2)));
/// assert_eq!(reshaped(&apart, &flat, Along::axis(2), 2), Some(packed));
/// assert_eq!(reshaped(&flat, &apart, packed, 8), None, "4 heads have no 8 parts");
/// ```
pub fn reshaped(from: &Shape, to: &Shape, along: Along, parts: usize) -> Option<Along> {
    let (old, new) = matching_axes(from, to, along.axis)?;
    if along.padding > 0 {
        // Padded parts are those of one axis only.
        return (old.len() == 1 && new.len() == 1).then(|| along.at(new.start));
    }
    let before = |shape: &Shape, range: Range<usize>| -> Option<i64> {
        shape[range].iter().try_fold(1i64, |all, dim| all.checked_mul(*dim).filter(|it| *it >= 0))
    };
    // Blocks of the merged axis, each of which consists of pieces.
    let groups = before(from, old.start..along.axis)?.checked_mul(along.groups as i64)?;
    new.clone().find_map(|axis| {
        let outer = before(to, new.start..axis)?;
        let (dim, rest) = (to[axis], (groups % outer.max(1) == 0).then(|| groups / outer.max(1))?);
        // One axis copied from the other has an unknown size.
        let is_copied = dim < 0 && old.len() == 1 && new.len() == 1;
        let divides = dim > 0 && dim % (rest * parts as i64) == 0;
        (outer <= groups && (divides || is_copied))
            .then_some(Along { groups: usize::try_from(rest).ok()?, ..Along::axis(axis) })
    })
}

/// Returns the smallest ranges of axes with the same elements in both shapes, of which the first
/// includes `axis`.
fn matching_axes(from: &Shape, to: &Shape, axis: usize) -> Option<(Range<usize>, Range<usize>)> {
    let (mut old, mut new) = (from.rank()..from.rank(), to.rank()..to.rank());
    loop {
        // A new block, from its last axes on.
        old = old.start.checked_sub(1)?..old.start;
        new = new.start.checked_sub(1)?..new.start;
        let (mut left, mut right) = (from[old.start], to[new.start]);
        while left != right {
            if left < 0 || right < 0 {
                return None;
            }
            if left < right {
                old.start = old.start.checked_sub(1)?;
                left = left.checked_mul(from[old.start])?;
            } else {
                new.start = new.start.checked_sub(1)?;
                right = right.checked_mul(to[new.start])?;
            }
        }
        if old.contains(&axis) {
            return Some((old, new));
        }
    }
}

/// The attribute of ops that draw random numbers for a part of a tensor: the axis, its number of
/// groups, the part, the number of parts, and for initial values the padding, if there is any. The
/// part has the numbers of the whole tensor, and zeros as padding.
pub const PART: AttrSpec = attr("part", AttrConst::Ints(&[]));

/// The elements of a part of a tensor: runs of consecutive elements of the whole tensor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Runs {
    /// Elements of a run, with padding.
    len: usize,
    /// Elements of a run, without padding.
    own: usize,
    /// Distance in the whole tensor between the starts of two runs.
    stride: usize,
    /// Place of the first run in the whole tensor.
    first: usize,
}

impl Runs {
    /// Returns the runs of a part of this shape, by the attribute [`PART`]. The part has no
    /// padding.
    pub fn of(op: &Op, shape: &Shape) -> Result<Runs> {
        let runs = Runs::of_initial(op, shape)?;
        match runs.own == runs.len {
            true => Ok(runs),
            false => Err(Runs::wrong(op, shape)),
        }
    }

    /// Like [`Runs::of`], for a part that may have padding.
    pub fn of_initial(op: &Op, shape: &Shape) -> Result<Runs> {
        let numbers = op.attr_ints(PART.name);
        if numbers.is_empty() {
            let len = shape.len().max(1);
            return Ok(Runs { len, own: len, stride: len, first: 0 });
        }
        let wrong = || Runs::wrong(op, shape);
        let sizes: Vec<usize> = numbers
            .iter()
            .map(|number| usize::try_from(*number).map_err(|_| wrong()))
            .collect::<Result<_>>()?;
        let (axis, groups, part, parts, padding) = match sizes[..] {
            [axis, groups, part, parts] => (axis, groups, part, parts, 0),
            [axis, groups, part, parts, padding] => (axis, groups, part, parts, padding),
            _ => return Err(wrong()),
        };
        let division = Division { axis, groups, part, parts, padding };
        if !division.fits(shape) {
            return Err(wrong());
        }
        let inner = shape.product(axis + 1..shape.rank());
        let len = (shape.at(axis) / groups * inner).max(1);
        let first = part.saturating_mul(len);
        let stride = len.saturating_mul(parts).saturating_sub(padding.saturating_mul(inner));
        Ok(Runs { len, own: stride.saturating_sub(first).min(len), stride, first })
    }

    fn wrong(op: &Op, shape: &Shape) -> Error {
        Error::invalid(format!("invalid attribute 'part' of {}", op.name()))
            .expected(format!("axis, groups, part and parts of a tensor, of which {shape} is one"))
            .got(format!("{:?}", op.attr_ints(PART.name)))
    }

    /// Calls `run` with each range of elements of the part, and the place of its first element in
    /// the whole tensor. Ranges have no padding.
    pub fn each(&self, len: usize, mut run: impl FnMut(Range<usize>, u64)) {
        for (index, start) in (0..len).step_by(self.len).enumerate() {
            let place = (index as u64).wrapping_mul(self.stride as u64);
            let place = place.wrapping_add(self.first as u64);
            if self.own > 0 {
                run(start..(start + self.own).min(len), place);
            }
        }
    }

    /// Returns whether the part has padding, which [`Runs::each`] leaves out.
    pub fn has_padding(&self) -> bool {
        self.own < self.len
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn divisions_of_other_shapes() {
        let check = |from: &[i64], to: &[i64], (axis, groups), parts, expected| {
            let along = Along { groups, ..Along::axis(axis) };
            let found = reshaped(&Shape::of(from), &Shape::of(to), along, parts);
            assert_eq!(found.map(|it| (it.axis, it.groups)), expected, "{from:?} to {to:?}");
        };
        check(&[-1, 8, 64], &[-1, 8, 3, 4, 8], (2, 1), 2, None);
        check(&[-1, 8, 96], &[-1, 8, 3, 4, 8], (2, 3), 4, Some((3, 1)));
        check(&[-1, 8, 96], &[-1, 8, 3, 4, 8], (2, 3), 3, None);
        check(&[-1, 8, 4, 8], &[-1, 8, 32], (2, 1), 2, Some((2, 1)));
        check(&[-1, 8, 4, 8], &[-1, 8, 32], (3, 1), 2, Some((2, 4)));
        check(&[-1, 8, 32], &[-1, 32], (2, 1), 2, Some((1, 1)));
        check(&[-1, 32], &[-1, 32, 1, 1], (1, 1), 2, Some((1, 1)));
        check(&[-1, 1, 32], &[-1, 32], (2, 1), 2, Some((1, 1)));
        check(&[12, 32], &[12 * 32], (1, 1), 2, Some((0, 12)));
        check(&[12, 32], &[12 * 32], (0, 1), 2, Some((0, 1)));
        check(&[-1, 32], &[-1], (1, 1), 2, None);
    }
}
