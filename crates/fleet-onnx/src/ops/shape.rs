//! Ops that move elements: other shapes, joined and split tensors, parts, repetitions.

use super::Translate;
use crate::context::Context;
use crate::graph::{Attribute, Value};
use fleet_base::{Error, Result};
use fleet_tensor::{DType, Shape};

pub(super) const RULES: &[(&str, Translate)] = &[
    ("concat", |c| {
        let (parts, axis) = (c.all("X")?, c.op.attr_int("axis"));
        let y = c.concat(&parts, axis);
        c.set("Out", y)
    }),
    ("expand_v2", |c| {
        let dims: Vec<i64> = c.op.attr_ints("shape").iter().map(|dim| dim.abs()).collect();
        let (x, dims) = (c.x("X")?, c.ints(&dims)?);
        let y = c.node("Expand", &[x, dims]);
        c.set("Out", y)
    }),
    ("flatten2", |c| {
        let (x, axis) = (c.x("X")?, c.op.attr_int("axis"));
        let y = c.with("Flatten", &[x], vec![("axis", Attribute::Int(axis))]);
        c.set("Out", y)
    }),
    ("flatten_contiguous_range", flatten_range),
    ("flip", flip),
    ("pad", pad),
    ("reshape2", |c| {
        let (x, dims) = (c.x("X")?, c.op.attr_ints("shape").to_vec());
        let y = c.reshape(x, &dims)?;
        c.set("Out", y)
    }),
    ("roll", roll),
    ("shape", |c| {
        let (x, rank) = (c.x("Input")?, c.shape("Input")?.rank());
        let sizes = c.sizes(x, 0..rank);
        let y = c.cast(sizes, DType::I32);
        c.set("Out", y)
    }),
    ("slice", slice),
    ("split", split),
    ("squeeze2", squeeze),
    ("stack", stack),
    ("strided_slice", slice),
    ("tile", tile),
    ("transpose2", |c| {
        let (x, shape) = (c.x("X")?, c.shape("X")?);
        let order = c.op.attr_ints("axis").iter().map(|axis| Ok(shape.axis(*axis)? as i64));
        let order = order.collect::<Result<Vec<_>>>()?;
        let y = c.transpose(x, &order);
        c.set("Out", y)
    }),
    ("tril_triu", tril_triu),
    ("unsqueeze2", unsqueeze),
    ("unstack", unstack),
];

fn flatten_range(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, shape) = (c.x("X")?, c.shape("X")?);
    let start = shape.axis(c.op.attr_int("start_axis"))?;
    let stop = shape.axis(c.op.attr_int("stop_axis"))?;
    let after = &shape[stop + 1..];
    let y = if after.iter().all(|dim| *dim >= 0) {
        let dims: Vec<i64> =
            [0].repeat(start).into_iter().chain([-1]).chain(after.iter().copied()).collect();
        c.reshape(x, &dims)?
    } else {
        let parts = [c.sizes(x, 0..start), c.ints(&[-1])?, c.sizes(x, stop + 1..shape.rank())];
        let dims = c.concat(&parts, 0);
        c.node("Reshape", &[x, dims])
    };
    c.set("Out", y)
}

/// Axes of another size than 1 stay.
fn squeeze(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, shape) = (c.x("X")?, c.shape("X")?);
    let mut axes = Vec::new();
    for axis in c.op.attr_ints("axes") {
        let axis = shape.axis(*axis)?;
        if shape[axis] == 1 && !axes.contains(&(axis as i64)) {
            axes.push(axis as i64);
        }
    }
    let y = if axes.is_empty() { x } else { c.squeeze(x, &axes)? };
    c.set("Out", y)
}

/// The op inserts one axis after the other; ONNX inserts all at once.
fn unsqueeze(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, shape) = (c.x("X")?, c.shape("X")?);
    let mut is_new = vec![false; shape.rank()];
    for axis in c.op.attr_ints("axes") {
        let rank = is_new.len() as i64;
        let at = if *axis < 0 { axis + rank + 1 } else { *axis };
        is_new.insert(at.clamp(0, rank) as usize, true);
    }
    let axes: Vec<i64> = (0..is_new.len() as i64).filter(|at| is_new[*at as usize]).collect();
    let y = if axes.is_empty() { x } else { c.unsqueeze(x, &axes)? };
    c.set("Out", y)
}

fn split(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, shape) = (c.x("X")?, c.shape("X")?);
    let axis = shape.axis(c.op.attr_int("axis"))?;
    let outputs = c.op.output("Out").to_vec();
    let lens: Vec<i64> = outputs.iter().map(|var| c.meta_of(*var).shape[axis]).collect();
    let mut attributes = vec![("axis", Attribute::Int(axis as i64))];
    let mut inputs = vec![x];
    let open = lens.iter().filter(|len| **len < 0).count();
    if open == 0 {
        inputs.push(c.ints(&lens)?);
    } else if !c.op.attr_ints("sections").is_empty() {
        return sections(c, x, axis as i64, &lens);
    } else if c.since(18) {
        attributes.push(("num_outputs", Attribute::Int(lens.len() as i64)));
    }
    let made = c.many("Split", &inputs, attributes, outputs.len());
    for (index, value) in made.into_iter().enumerate() {
        c.set_at("Out", index, value)?;
    }
    Ok(())
}

/// Parts of known sizes, and one of the rest of an unknown dimension.
fn sections(c: &mut Context<'_, '_>, x: Value, axis: i64, lens: &[i64]) -> Result<()> {
    let open = lens.iter().position(|len| *len < 0).unwrap_or(lens.len());
    let before: i64 = lens[..open].iter().sum();
    let after: i64 = lens.get(open + 1..).unwrap_or_default().iter().sum();
    let mut start = 0;
    for (index, len) in lens.iter().enumerate() {
        let (from, to) = match index.cmp(&open) {
            std::cmp::Ordering::Less => (start, start + len),
            std::cmp::Ordering::Equal => (before, if after == 0 { i64::MAX } else { -after }),
            std::cmp::Ordering::Greater => {
                let left: i64 = lens[index..].iter().sum();
                (-left, if left == *len { i64::MAX } else { len - left })
            }
        };
        start += len;
        let part = c.slice(x, axis, from, to)?;
        c.set_at("Out", index, part)?;
    }
    Ok(())
}

fn stack(c: &mut Context<'_, '_>) -> Result<()> {
    let (parts, rank) = (c.all("X")?, c.out_meta("Y")?.shape.rank() as i64);
    let axis = c.op.attr_int("axis");
    let axis = if axis < 0 { axis + rank } else { axis };
    let parts = parts.into_iter().map(|part| c.unsqueeze(part, &[axis]));
    let parts = parts.collect::<Result<Vec<_>>>()?;
    let y = c.concat(&parts, axis);
    c.set("Y", y)
}

fn unstack(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, shape) = (c.x("X")?, c.shape("X")?);
    let axis = shape.axis(c.op.attr_int("axis"))? as i64;
    for index in 0..c.op.output("Y").len() {
        let at = c.int(index as i64)?;
        let part = c.with("Gather", &[x, at], vec![("axis", Attribute::Int(axis))]);
        c.set_at("Y", index, part)?;
    }
    Ok(())
}

fn tile(c: &mut Context<'_, '_>) -> Result<()> {
    let (mut x, rank) = (c.x("X")?, c.shape("X")?.rank());
    let mut times = c.op.attr_ints("repeat_times").to_vec();
    if times.len() > rank {
        let added: Vec<i64> = (0..(times.len() - rank) as i64).collect();
        x = c.unsqueeze(x, &added)?;
    }
    while times.len() < rank {
        times.insert(0, 1);
    }
    let times = c.ints(&times)?;
    let y = c.node("Tile", &[x, times]);
    c.set("Out", y)
}

fn slice(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, shape) = (c.x("Input")?, c.shape("Input")?);
    let axes = c.op.attr_ints("axes").iter().map(|axis| Ok(shape.axis(*axis)? as i64));
    let axes = axes.collect::<Result<Vec<_>>>()?;
    let (starts, ends) = (c.op.attr_ints("starts").to_vec(), c.op.attr_ints("ends").to_vec());
    let mut inputs = vec![x, c.ints(&starts)?, c.ints(&ends)?, c.ints(&axes)?];
    if c.op.attr("strides").is_some() {
        let strides = c.op.attr_ints("strides").to_vec();
        inputs.push(c.ints(&strides)?);
    }
    let mut y = if axes.is_empty() { x } else { c.node("Slice", &inputs) };
    let mut dropped = Vec::new();
    for axis in c.op.attr_ints("decrease_axis") {
        dropped.push(shape.axis(*axis)? as i64);
    }
    // A result without dimensions has shape [1].
    if dropped.len() == shape.rank() {
        dropped.pop();
    }
    if !dropped.is_empty() {
        y = c.squeeze(y, &dropped)?;
    }
    c.set("Out", y)
}

fn flip(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, shape) = (c.x("X")?, c.shape("X")?);
    let axes = c.op.attr_ints("axis").iter().map(|axis| Ok(shape.axis(*axis)? as i64));
    let axes = axes.collect::<Result<Vec<_>>>()?;
    if axes.is_empty() {
        return c.set("Out", x);
    }
    let all = |value: i64| vec![value; axes.len()];
    let inputs = [x, c.ints(&all(-1))?, c.ints(&all(i64::MIN))?, c.ints(&axes)?, c.ints(&all(-1))?];
    let y = c.node("Slice", &inputs);
    c.set("Out", y)
}

fn roll(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, shape) = (c.x("X")?, c.shape("X")?);
    let (shifts, axes) = (c.op.attr_ints("shifts").to_vec(), c.op.attr_ints("axis").to_vec());
    if axes.is_empty() {
        let flat = c.reshape(x, &[-1])?;
        let len = shape.numel().map_or(-1, |len| len as i64);
        let moved = rolled(c, flat, 0, shifts[0], len)?;
        let sizes = c.sizes(x, 0..shape.rank());
        let y = c.node("Reshape", &[moved, sizes]);
        return c.set("Out", y);
    }
    let mut y = x;
    for (axis, shift) in axes.iter().zip(shifts) {
        let axis = shape.axis(*axis)?;
        y = rolled(c, y, axis as i64, shift, shape[axis])?;
    }
    c.set("Out", y)
}

fn rolled(c: &mut Context<'_, '_>, x: Value, axis: i64, shift: i64, len: i64) -> Result<Value> {
    let shift = match len {
        0 => 0,
        len if len > 0 => shift.rem_euclid(len),
        _ => {
            return Err(Error::unsupported("a roll of a dimension of unknown size")
                .help("declare the size of this dimension in the input"));
        }
    };
    if shift == 0 {
        return Ok(x);
    }
    let parts = [c.slice(x, axis, -shift, i64::MAX)?, c.slice(x, axis, 0, -shift)?];
    Ok(c.concat(&parts, axis))
}

fn pad(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, dtype) = (c.x("X")?, c.dtype("X")?);
    let pairs = c.op.attr_ints("paddings");
    let sides = [0, 1].map(|side| pairs.iter().skip(side).step_by(2).copied());
    let pads: Vec<i64> = sides.into_iter().flatten().collect();
    let value = c.op.attr_float("pad_value");
    let inputs = [x, c.ints(&pads)?, c.scalar(dtype, value)?];
    let y = c.node("Pad", &inputs);
    c.set("Out", y)
}

fn tril_triu(c: &mut Context<'_, '_>) -> Result<()> {
    let (x, dtype) = (c.x("X")?, c.dtype("X")?);
    let (diagonal, upper) = (c.op.attr_int("diagonal"), !c.op.attr_bool("lower"));
    let diagonal = c.int(diagonal)?;
    // Runtimes have no kernel for the other types.
    let is_direct = matches!(dtype, DType::F32 | DType::F64 | DType::I64 | DType::Bool);
    let wide = if dtype.is_float() { DType::F32 } else { DType::I64 };
    let x = if is_direct { x } else { c.cast(x, wide) };
    let y = c.with("Trilu", &[x, diagonal], vec![("upper", Attribute::Int(upper.into()))]);
    let y = if is_direct { y } else { c.cast(y, dtype) };
    c.set("Out", y)
}

/// Returns the product of known dimensions; -1 if one is unknown.
pub(super) fn known_product(shape: &Shape, axes: std::ops::Range<usize>) -> i64 {
    match shape[axes.clone()].iter().all(|dim| *dim >= 0) {
        true => shape[axes].iter().product(),
        false => -1,
    }
}
