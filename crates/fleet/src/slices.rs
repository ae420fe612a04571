//! Parts of tensors along one axis, where ranks share layers: cut from whole tensors, pasted into
//! them, and read from files of whole tensors one at a time.

use fleet_base::disk::Disk;
use fleet_base::{Error, Result};
use fleet_format::{Checkpoint, load_where_on};
use fleet_ir::{Division, Program};
use fleet_tensor::{Shape, Tensor};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// The variables of a program of which it has a part.
pub(crate) type Divisions = BTreeMap<String, Division>;

/// Returns the variables that persist between steps, and of which a program has a part.
pub(crate) fn divisions(program: &Program) -> Divisions {
    let kept = program.vars().filter(|(_, var)| var.persistable);
    let divided = kept.filter_map(|(_, var)| {
        let division = var.division.filter(Division::is_part)?;
        Some((var.name.clone(), division))
    });
    divided.collect()
}

/// Reads the variables for which `is_wanted` returns true, and cuts out the parts of a program. Of
/// divided variables, one whole tensor at a time is in memory.
pub(crate) fn load_parts(
    disk: &dyn Disk,
    path: &Path,
    is_wanted: impl Fn(&str) -> bool,
    divided: &Divisions,
) -> Result<Checkpoint> {
    let plain = |name: &str| is_wanted(name) && !divided.contains_key(name);
    let mut loaded = load_where_on(disk, path, plain)?;
    for (name, division) in divided.iter().filter(|(name, _)| is_wanted(name)) {
        for (name, whole) in load_where_on(disk, path, |other| other == name)?.tensors {
            let part = cut(&whole, division).map_err(|error| error.at(&name).at(path.display()))?;
            loaded.tensors.push((name, part));
        }
    }
    Ok(loaded)
}

/// Returns a part of a whole tensor.
pub(crate) fn cut(whole: &Tensor, division: &Division) -> Result<Tensor> {
    let Some(shape) = division.of(whole.shape()) else {
        return Err(Error::invalid("a tensor does not divide into the parts of this job")
            .expected(format!(
                "a multiple of {} in dimension {}",
                division.groups.saturating_mul(division.parts),
                division.axis
            ))
            .got(whole.shape()));
    };
    let mut part = Tensor::zeros(whole.dtype(), shape)?;
    copy_common((&mut part, *division), (whole, division.undivided()));
    Ok(part)
}

/// Copies the elements that two parts of a variable have in common.
pub(crate) fn copy_common(
    (to, of_to): (&mut Tensor, Division),
    (from, of_from): (&Tensor, Division),
) {
    let (to_shape, from_shape) = (*to.shape(), *from.shape());
    let row = to.dtype().size() * inner(&to_shape, of_to.axis);
    let (to_rows, from_rows) = (to_shape.at(of_to.axis), from_shape.at(of_from.axis));
    let source = spans(of_from, from_rows);
    let copies: Vec<(usize, usize, usize)> = spans(of_to, to_rows)
        .flat_map(|(to_at, wanted)| {
            let source = source.clone();
            source.filter_map(move |(from_at, held)| {
                let start = wanted.start.max(held.start);
                let count = wanted.end.min(held.end).checked_sub(start)?;
                let (to, from) = (to_at + start - wanted.start, from_at + start - held.start);
                (count > 0).then_some((to, from, count))
            })
        })
        .collect();
    let (to_block, from_block) = ((to_rows * row).max(1), (from_rows * row).max(1));
    let blocks = to.as_bytes_mut().chunks_exact_mut(to_block);
    for (to, from) in blocks.zip(from.as_bytes().chunks_exact(from_block)) {
        for (to_at, from_at, count) in &copies {
            to[to_at * row..(to_at + count) * row]
                .copy_from_slice(&from[from_at * row..(from_at + count) * row]);
        }
    }
}

/// Returns the runs of a part along its axis: the place in the part, and the range in the whole,
/// without padding.
fn spans(division: Division, rows: usize) -> impl Iterator<Item = (usize, Range<usize>)> + Clone {
    let Division { groups, part, parts, padding, .. } = division;
    let piece = rows / groups.max(1);
    let whole = (rows * parts).saturating_sub(padding);
    (0..groups).map(move |group| {
        let start = (group * parts + part) * piece;
        (group * piece, start.min(whole)..(start + piece).min(whole))
    })
}

fn inner(shape: &Shape, axis: usize) -> usize {
    shape.product(axis + 1..shape.rank())
}
