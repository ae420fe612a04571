//! Parts of a tensor: `slice` and `strided_slice`. Any element type.
//!
//! Negative starts and ends count from the end, and both are limited to the tensor. `decrease_axis`
//! removes dimensions of size 1 from the shape. The gradient is zero outside the slice.

use crate::prelude::*;
use crate::rules::{by_width, check_row_major, sizes};
use fleet_ir::{AttrSpec, Op, SlotSpec};
use fleet_kernels::strided::{Strided, row_major};

const AXES: AttrSpec = required("axes", AttrKind::Ints);
const STARTS: AttrSpec = required("starts", AttrKind::Ints);
const ENDS: AttrSpec = required("ends", AttrKind::Ints);
const DECREASE: AttrSpec = attr("decrease_axis", Ints(&[]));

const IN: &[SlotSpec] = &[one("Input")];
const OUT: &[SlotSpec] = &[one("Out")];
const GRAD_IN: &[SlotSpec] = &[one("Input"), one("Out@GRAD")];
const GRAD_OUT: &[SlotSpec] = &[one("Input@GRAD")];

pub static SLICE: OpDef =
    def("slice", AmpClass::Gray, &[AXES, STARTS, ENDS, DECREASE], &SLICE_GRAD);
pub static SLICE_GRAD: OpDef = grad_def("slice_grad", &[AXES, STARTS, ENDS, DECREASE]);

const STRIDED_ATTRS: &[AttrSpec] =
    &[AXES, STARTS, ENDS, required("strides", AttrKind::Ints), DECREASE];

pub static STRIDED_SLICE: OpDef =
    def("strided_slice", AmpClass::Unlisted, STRIDED_ATTRS, &STRIDED_SLICE_GRAD);
pub static STRIDED_SLICE_GRAD: OpDef = grad_def("strided_slice_grad", STRIDED_ATTRS);

const fn def(
    name: &'static str,
    amp: AmpClass,
    attrs: &'static [AttrSpec],
    grad: &'static OpDef,
) -> OpDef {
    OpDef {
        spec: OpSpec { name, inputs: IN, outputs: OUT, attrs },
        infer,
        grad: Grad::Op(grad),
        cpu,
        traits: OpTraits { divide, ..OpTraits::amp(amp) },
    }
}

const fn grad_def(name: &'static str, attrs: &'static [AttrSpec]) -> OpDef {
    OpDef {
        spec: OpSpec { name, inputs: GRAD_IN, outputs: GRAD_OUT, attrs },
        infer: |i| {
            let input = i.input("Input")?;
            i.set("Input@GRAD", input.dtype, input.shape);
            Ok(())
        },
        grad: Grad::None,
        cpu: grad_cpu,
        traits: OpTraits { shape_only: &["Input"], ..OpTraits::amp(AmpClass::Gray) },
    }
}

/// Slices of other dimensions than the divided one keep the parts.
fn divide(d: &mut Divide<'_>) -> Result<()> {
    let shape = d.shape("Input")?;
    let Some(along) = d.along("Input") else { return Err(d.unsupported("has no divided input")) };
    let axes = |name: &str| -> Result<Vec<usize>> {
        d.op.attr_ints(name).iter().map(|axis| shape.axis(*axis)).collect()
    };
    let (cut, removed) = (axes("axes")?, axes("decrease_axis")?);
    if cut.contains(&along.axis) {
        return Err(d.unsupported("does not slice the divided dimension"));
    }
    let before = removed.iter().filter(|axis| **axis < along.axis).count();
    d.keep_padding();
    d.set_part("Out", along.at(along.axis - before))
}

/// Slice along one dimension.
#[derive(Clone, Copy)]
struct AxisSlice {
    start: i64,
    step: i64,
    /// Length of the slice; -1 if it depends on an unknown dimension.
    len: i64,
}

/// Returns the slice of every dimension of the input.
fn axis_slices(op: &Op, input: &Shape) -> Result<Vec<AxisSlice>> {
    let (axes, starts) = (op.attr_ints("axes"), op.attr_ints("starts"));
    let ends = op.attr_ints("ends");
    let strides = match op.attr("strides") {
        Some(_) => op.attr_ints("strides").to_vec(),
        None => vec![1; axes.len()],
    };
    if [starts.len(), ends.len(), strides.len()].iter().any(|len| *len != axes.len()) {
        return Err(Error::invalid(format!("attributes of {} differ in length", op.name()))
            .expected(format!("{} starts, ends and strides, one per axis", axes.len()))
            .got(format!("{}, {} and {}", starts.len(), ends.len(), strides.len())));
    }
    let mut slices: Vec<AxisSlice> =
        input.iter().map(|dim| AxisSlice { start: 0, step: 1, len: *dim }).collect();
    for (index, axis) in axes.iter().enumerate() {
        let axis = input.axis(*axis).map_err(|error| error.at("attribute 'axes'"))?;
        if strides[index] == 0 {
            return Err(Error::invalid("attribute 'strides' of strided_slice holds a 0"));
        }
        slices[axis] = axis_slice(input[axis], starts[index], ends[index], strides[index]);
    }
    Ok(slices)
}

fn axis_slice(dim: i64, start: i64, end: i64, step: i64) -> AxisSlice {
    if dim < 0 {
        return AxisSlice { start, step, len: -1 };
    }
    let from_end = |at: i64| if at < 0 { at.saturating_add(dim) } else { at };
    let (start, end) = if step > 0 {
        (from_end(start).clamp(0, dim), from_end(end).clamp(0, dim))
    } else {
        (
            from_end(start).clamp(-1, dim - 1),
            if end < -dim { -1 } else { from_end(end).clamp(-1, dim - 1) },
        )
    };
    let span = if step > 0 { end - start } else { start - end };
    let len = if span <= 0 { 0 } else { 1 + (span - 1) / step.saturating_abs() };
    AxisSlice { start, step, len }
}

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    let input = i.input("Input")?;
    let slices = axis_slices(i.op, &input.shape)?;
    let dropped = crate::rules::axes_of(i.op.attr_ints("decrease_axis"), &input.shape)?;
    let mut dims = Vec::new();
    for (axis, slice) in slices.iter().enumerate() {
        if !dropped.contains(&axis) {
            dims.push(slice.len);
        } else if slice.len != 1 && slice.len != -1 {
            return Err(Error::invalid(format!(
                "attribute 'decrease_axis' of {} drops axis {axis}",
                i.op.name()
            ))
            .expected("length 1")
            .got(slice.len));
        }
    }
    if dims.is_empty() {
        dims.push(1);
    }
    i.set("Out", input.dtype, Shape::new(&dims)?);
    Ok(())
}

/// Returns the slice as a view of the input: lengths, offset, strides.
fn view(op: &Op, input: &Shape) -> Result<(Vec<usize>, usize, Vec<isize>)> {
    let slices = axis_slices(op, input)?;
    let mut strides = row_major(&sizes(input));
    let lens: Vec<usize> = slices.iter().map(|slice| slice.len as usize).collect();
    let mut at = 0;
    if !lens.contains(&0) {
        for (stride, slice) in strides.iter_mut().zip(&slices) {
            at += slice.start as isize * *stride;
            *stride *= slice.step as isize;
        }
    }
    Ok((lens, at as usize, strides))
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (lens, at, strides) = view(p.op, &p.input("Input").shape)?;
    let copy = Strided::new(&lens, (at, &strides), (0, &row_major(&lens)));
    by_width!(p.input("Input").dtype, T => {
        Ok(Kernel::infallible(move |k| {
            copy.run::<T>(k.pool, k.arg(0).bits(), k.out(0).into_bits());
        }))
    })
}

fn grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let (lens, at, strides) = view(p.op, &p.input("Input").shape)?;
    let copy = Strided::new(&lens, (0, &row_major(&lens)), (at, &strides));
    by_width!(p.input("Out@GRAD").dtype, T => {
        Ok(Kernel::infallible(move |k| {
            let out = k.out(0).into_bits::<T>();
            zero(k.pool, out);
            copy.run(k.pool, k.arg(1).bits(), out);
        }))
    })
}

/// Elements per task.
const GRAIN: usize = 16 * 1024;

/// Zeros a slice.
pub(crate) fn zero<T: Copy + Default + Send>(pool: &Pool, out: &mut [T]) {
    pool.run_parts(out, GRAIN, |_, part| part.fill(T::default()));
}
