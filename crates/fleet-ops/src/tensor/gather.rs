//! Selection by index: `gather` and `index_select` along an axis, `gather_nd` by tuples. Any
//! element type, indices i32 or i64. The gradients are summed where an element is selected several
//! times (f32, halves through f32).

use crate::prelude::*;
use crate::rules::{axis_of, by_width, check_row_major, split_at_axis};
use crate::tensor::slice::zero;
use crate::widen::any_float;
use fleet_ir::{AttrSpec, SlotSpec};
use fleet_kernels::map::{add_rows, gather_rows};

const AXIS: &[AttrSpec] = &[attr("axis", Int(0))];
const DIM: &[AttrSpec] = &[attr("dim", Int(0))];

const IN: &[SlotSpec] = &[one("X"), one("Index")];
const OUT: &[SlotSpec] = &[one("Out")];
const GRAD_IN: &[SlotSpec] = &[one("X"), one("Index"), one("Out@GRAD")];
const GRAD_OUT: &[SlotSpec] = &[one("X@GRAD")];

pub static GATHER: OpDef = def("gather", AmpClass::Gray, AXIS, &GATHER_GRAD);
pub static GATHER_GRAD: OpDef = grad_def("gather_grad", AXIS, |p| any_float(p, grad_cpu));
pub static INDEX_SELECT: OpDef = def("index_select", AmpClass::Unlisted, DIM, &INDEX_SELECT_GRAD);
pub static INDEX_SELECT_GRAD: OpDef =
    grad_def("index_select_grad", DIM, |p| any_float(p, grad_cpu));

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
        traits: OpTraits::amp(amp),
    }
}

const fn grad_def(
    name: &'static str,
    attrs: &'static [AttrSpec],
    cpu: fn(&PrepareCtx<'_>) -> Result<Kernel>,
) -> OpDef {
    OpDef {
        spec: OpSpec { name, inputs: GRAD_IN, outputs: GRAD_OUT, attrs },
        infer: |i| {
            let x = i.input("X")?;
            i.set("X@GRAD", x.dtype, x.shape);
            Ok(())
        },
        grad: Grad::None,
        cpu,
        traits: OpTraits { shape_only: &["X"], ..OpTraits::amp(AmpClass::Gray) },
    }
}

fn axis(op: &fleet_ir::Op, x: &Shape) -> Result<usize> {
    axis_of(op, op.spec.attrs[0].name, x)
}

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    let (x, index) = (i.input("X")?, i.input("Index")?);
    i.check_dtype("Index", &[DType::I32, DType::I64])?;
    let axis = axis(i.op, &x.shape)?;
    // [N, 1] counts as [N], as in the documented op.
    let column = index.shape.rank() == 2 && index.shape[1] == 1 && i.op.name() == "gather";
    let picked = if column { &index.shape[..1] } else { index.shape.dims() };
    if picked.len() > 1 {
        return Err(i
            .error("Index", "has the wrong number of dimensions")
            .expected("1")
            .got(index.shape));
    }
    let mut dims = x.shape[..axis].to_vec();
    dims.extend_from_slice(picked);
    dims.extend_from_slice(&x.shape[axis + 1..]);
    i.set("Out", x.dtype, Shape::new(&dims)?);
    Ok(())
}

/// Indices as i32 or i64, without conversion.
#[derive(Clone, Copy)]
pub(crate) enum Indices<'a> {
    Short(&'a [i32]),
    Long(&'a [i64]),
}

impl<'a> Indices<'a> {
    pub(crate) fn of(k: &KernelCtx<'a>, slot: usize) -> Indices<'a> {
        match k.arg(slot).dtype {
            DType::I32 => Indices::Short(k.input(slot)),
            _ => Indices::Long(k.input(slot)),
        }
    }

    #[inline(always)]
    pub(crate) fn at(&self, index: usize) -> i64 {
        match self {
            Indices::Short(list) => i64::from(list[index]),
            Indices::Long(list) => list[index],
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Indices::Short(list) => list.len(),
            Indices::Long(list) => list.len(),
        }
    }

    /// Returns the position of the first index for which `holds` is true.
    pub(crate) fn position(&self, holds: impl Fn(i64) -> bool) -> Option<usize> {
        match self {
            Indices::Short(list) => list.iter().position(|index| holds(i64::from(*index))),
            Indices::Long(list) => list.iter().position(|index| holds(*index)),
        }
    }

    /// Rejects indices outside `0..limit`, because they are user data.
    pub(crate) fn check(&self, limit: usize, op: &str) -> Result<()> {
        match self.position(|index| index < 0 || index as usize >= limit) {
            None => Ok(()),
            Some(bad) => Err(Error::invalid(format!("an index of {op} is out of range"))
                .expected(format!("0 to {}", limit as i64 - 1))
                .got(self.at(bad))),
        }
    }
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let x = p.input("X");
    let (_, len, inner) = split_at_axis(&x.shape, axis(p.op, &x.shape)?);
    let (count, name) = (p.input("Index").shape.len(), p.op.name());
    by_width!(x.dtype, T => {
        Ok(Kernel::new(move |k| {
            let index = Indices::of(k, 1);
            index.check(len, name)?;
            let row = |i: usize| i / count * len + index.at(i % count) as usize;
            gather_rows(k.pool, inner, k.arg(0).bits::<T>(), k.out(0).into_bits(), row);
            Ok(())
        }))
    })
}

fn grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let x = p.input("X");
    if x.dtype != DType::F32 {
        return Err(p.no_kernel(x.dtype));
    }
    let (outer, len, inner) = split_at_axis(&x.shape, axis(p.op, &x.shape)?);
    let (count, name) = (p.input("Index").shape.len(), p.op.name());
    Ok(Kernel::new(move |k| {
        let (index, dout) = (Indices::of(k, 1), k.input::<f32>(2));
        index.check(len, name)?;
        let dx = k.output::<f32>(0);
        zero(k.pool, dx);
        add_rows(k.pool, outer, (count, len, inner), dout, dx, |i| index.at(i) as usize);
        Ok(())
    }))
}

/// `gather_nd`: an Index [.., D] selects X[i_0, .., i_(D-1)], with all trailing dimensions of X.
pub static GATHER_ND: OpDef = OpDef {
    spec: OpSpec {
        name: "gather_nd",
        inputs: &[one("X"), one("Index")],
        outputs: &[one("Out")],
        attrs: &[],
    },
    infer: |i| {
        let x = i.input("X")?;
        i.check_dtype("Index", &[DType::I32, DType::I64])?;
        let shape = nd_shape(i, &x.shape)?;
        i.set("Out", x.dtype, shape);
        Ok(())
    },
    grad: Grad::Op(&GATHER_ND_GRAD),
    cpu: nd_cpu,
    traits: OpTraits::plain(),
};

pub static GATHER_ND_GRAD: OpDef = grad_def("gather_nd_grad", &[], |p| any_float(p, nd_grad_cpu));

/// Returns the shape of the elements or slices of X that Index selects. The last dimension of Index
/// is the length of its tuples.
pub(crate) fn nd_shape(i: &InferCtx<'_>, x: &Shape) -> Result<Shape> {
    let index = i.input("Index")?.shape;
    match index.split_last() {
        Some((depth, tuples)) if (1..=x.rank() as i64).contains(depth) => {
            Shape::new(&[tuples, &x[*depth as usize..]].concat())
        }
        _ => Err(i
            .error("Index", "has the wrong shape")
            .expected(format!("a last dimension of 1 to {}", x.rank()))
            .got(index)),
    }
}

/// Converts tuples of indices to row numbers of a flattened tensor.
#[derive(Clone)]
pub(crate) struct Tuples {
    dims: Vec<usize>,
    pub(crate) count: usize,
    pub(crate) width: usize,
}

impl Tuples {
    pub(crate) fn new(x: &Shape, index: &Shape) -> Tuples {
        let depth = index.at(index.rank() - 1);
        Tuples {
            dims: (0..depth).map(|axis| x.at(axis)).collect(),
            count: index.product(0..index.rank() - 1),
            width: x.product(depth..x.rank()),
        }
    }

    pub(crate) fn rows(&self) -> usize {
        self.dims.iter().product()
    }

    #[inline]
    pub(crate) fn row(&self, index: &Indices<'_>, tuple: usize) -> usize {
        let depth = self.dims.len();
        let at = |axis: usize| index.at(tuple * depth + axis) as usize;
        (0..depth).fold(0, |row, axis| row * self.dims[axis] + at(axis))
    }

    pub(crate) fn check(&self, index: &Indices<'_>, op: &str) -> Result<()> {
        let depth = self.dims.len();
        for at in 0..index.len() {
            let (value, limit) = (index.at(at), self.dims[at % depth]);
            if value < 0 || value as usize >= limit {
                return Err(Error::invalid(format!("an index of {op} is out of range"))
                    .expected(format!("0 to {} in dimension {}", limit as i64 - 1, at % depth))
                    .got(value));
            }
        }
        Ok(())
    }
}

fn nd_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let x = p.input("X");
    let tuples = Tuples::new(&x.shape, &p.input("Index").shape);
    by_width!(x.dtype, T => {
        Ok(Kernel::new(move |k| {
            let index = Indices::of(k, 1);
            tuples.check(&index, "gather_nd")?;
            let row = |i: usize| tuples.row(&index, i);
            gather_rows(k.pool, tuples.width, k.arg(0).bits::<T>(), k.out(0).into_bits(), row);
            Ok(())
        }))
    })
}

fn nd_grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let x = p.input("X");
    if x.dtype != DType::F32 {
        return Err(p.no_kernel(x.dtype));
    }
    let tuples = Tuples::new(&x.shape, &p.input("Index").shape);
    Ok(Kernel::new(move |k| {
        let (index, dout) = (Indices::of(k, 1), k.input::<f32>(2));
        tuples.check(&index, "gather_nd_grad")?;
        let dx = k.output::<f32>(0);
        zero(k.pool, dx);
        let sizes = (tuples.count, tuples.rows(), tuples.width);
        add_rows(k.pool, 1, sizes, dout, dx, |i| tuples.row(&index, i));
        Ok(())
    }))
}
