//! Joining and splitting of tensors: `concat`, `split`, `stack`, `unstack`. Any element type. The
//! gradient of one op is another of them. Outputs without a gradient count as zero.

use crate::prelude::*;
use crate::rules::{PARTS_MAX, axis_of, by_width, check_row_major, same_dim, sizes};
use crate::tensor::fill::FILL_ANY_LIKE;
use fleet_ir::Op;
use fleet_kernels::strided::{Strided, row_major};

/// The op `concat`.
pub static CONCAT: OpDef = OpDef {
    spec: OpSpec {
        name: "concat",
        inputs: &[many("X")],
        outputs: &[one("Out")],
        attrs: &[attr("axis", Int(0))],
    },
    infer: |i| {
        let (dtype, mut shape) = first_of(i)?;
        let axis = axis_of(i.op, "axis", &shape)?;
        let mut total = 0;
        for meta in i.inputs("X") {
            let mut other = meta.shape;
            if other.rank() == shape.rank() {
                total = match (total, other[axis]) {
                    (-1, _) | (_, -1) => -1,
                    (sum, dim) => i64::saturating_add(sum, dim),
                };
                other.dims_mut()[axis] = shape[axis];
            }
            shape = merge_shapes(i, &shape, &other, meta, dtype)?;
        }
        shape.dims_mut()[axis] = total;
        i.set("Out", dtype, shape);
        Ok(())
    },
    grad: Grad::OpRule(&CONCAT_GRAD, |g, grad| {
        let (dy, axis) = (g.dy("Out")?, g.op.attr_int("axis"));
        let (inputs, grads) = input_grads(g)?;
        g.op(grad)
            .inputs("X", &inputs)
            .input("Out@GRAD", dy)
            .attr("axis", axis)
            .outputs("X@GRAD", &grads)
            .done()?;
        Ok(())
    }),
    cpu: join,
    traits: OpTraits::amp(AmpClass::Gray),
};

/// The op `concat_grad`.
pub static CONCAT_GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "concat_grad",
        inputs: &[many("X"), one("Out@GRAD")],
        outputs: &[many("X@GRAD")],
        attrs: &[attr("axis", Int(0))],
    },
    infer: |i| {
        for meta in i.inputs("X").to_vec() {
            i.push("X@GRAD", Meta::dense(meta.dtype, meta.shape));
        }
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| part(p, 1),
    traits: OpTraits { shape_only: &["X"], ..OpTraits::amp(AmpClass::Gray) },
};

/// The op `split`.
pub static SPLIT: OpDef = OpDef {
    spec: OpSpec {
        name: "split",
        inputs: &[one("X")],
        outputs: &[many("Out")],
        attrs: &[attr("axis", Int(0)), attr("num", Int(0)), attr("sections", Ints(&[]))],
    },
    infer: |i| {
        let x = i.input("X")?;
        let axis = axis_of(i.op, "axis", &x.shape)?;
        for len in sections(i.op, &x.shape, axis)? {
            let mut shape = x.shape;
            shape.dims_mut()[axis] = len;
            i.push("Out", Meta::dense(x.dtype, shape));
        }
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let axis = g.op.attr_int("axis");
        let Some(dx) = g.dx("X")? else { return Ok(()) };
        let grads = output_grads(g, "Out")?;
        g.op(&CONCAT).inputs("X", &grads).attr("axis", axis).output("Out", dx).done()?;
        Ok(())
    }),
    cpu: |p| part(p, 0),
    traits: OpTraits { divide: divide_split, ..OpTraits::amp(AmpClass::Gray) },
};

/// Along the divided axis, `split` takes the groups apart. Along other axes, it keeps the parts.
fn divide_split(d: &mut Divide<'_>) -> Result<()> {
    let x = d.shape("X")?;
    let (axis, along) = (axis_of(d.op, "axis", &x)?, d.along("X"));
    let Some(along) = along else { return Err(d.unsupported("has no divided input")) };
    if along.axis != axis {
        return d.set_part("Out", along);
    }
    let sections = sections(d.op, &x, axis)?;
    let is_by_group =
        sections.len() == along.groups && sections.iter().all(|it| *it == sections[0]);
    if !is_by_group {
        return Err(d.unsupported("splits the divided dimension only into its blocks"));
    }
    if !d.op.attr_ints("sections").is_empty() {
        let own: Vec<i64> = sections.iter().map(|size| size / d.parts as i64).collect();
        d.set_attr("sections", own);
    }
    d.set_part("Out", Along::axis(axis))
}

/// The op `stack`.
pub static STACK: OpDef = OpDef {
    spec: OpSpec {
        name: "stack",
        inputs: &[many("X")],
        outputs: &[one("Y")],
        attrs: &[attr("axis", Int(0))],
    },
    infer: |i| {
        let (dtype, mut shape) = first_of(i)?;
        for meta in i.inputs("X") {
            shape = merge_shapes(i, &shape, &meta.shape, meta, dtype)?;
        }
        let axis = new_axis(i.op, &shape)?;
        let mut dims = shape.to_vec();
        dims.insert(axis, i.inputs("X").len() as i64);
        i.set("Y", dtype, Shape::new(&dims)?);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let (dy, axis) = (g.dy("Y")?, g.op.attr_int("axis"));
        let (inputs, grads) = input_grads(g)?;
        g.op(&UNSTACK)
            .input("X", dy)
            .attr("axis", axis)
            .attr("num", inputs.len())
            .outputs("Y", &grads)
            .done()?;
        Ok(())
    }),
    cpu: join,
    traits: OpTraits::amp(AmpClass::Gray),
};

/// The op `unstack`.
pub static UNSTACK: OpDef = OpDef {
    spec: OpSpec {
        name: "unstack",
        inputs: &[one("X")],
        outputs: &[many("Y")],
        attrs: &[attr("axis", Int(0)), attr("num", Int(0))],
    },
    infer: |i| {
        let x = i.input("X")?;
        let axis = axis_of(i.op, "axis", &x.shape)?;
        let requested = i.op.attr_int("num");
        let count = if requested == 0 { x.shape[axis] } else { requested };
        if !(1..=PARTS_MAX).contains(&count) || same_dim(count, x.shape[axis]).is_none() {
            return Err(Error::invalid("attribute 'num' of unstack does not fit X")
                .expected(format!("dimension {axis} of {}", x.shape))
                .got(requested));
        }
        let mut dims = x.shape.to_vec();
        dims.remove(axis);
        for _ in 0..count {
            i.push("Y", Meta::dense(x.dtype, Shape::of(&dims)));
        }
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let axis = g.op.attr_int("axis");
        let Some(dx) = g.dx("X")? else { return Ok(()) };
        let grads = output_grads(g, "Y")?;
        g.op(&STACK).inputs("X", &grads).attr("axis", axis).output("Y", dx).done()?;
        Ok(())
    }),
    cpu: |p| part(p, 0),
    traits: OpTraits::amp(AmpClass::Gray),
};

fn first_of(i: &InferCtx<'_>) -> Result<(DType, Shape)> {
    let first = i.inputs("X").first();
    first
        .map(|meta| (meta.dtype, meta.shape))
        .ok_or_else(|| Error::invalid(format!("missing input 'X' of op '{}'", i.op.name())))
}

/// Merges two shapes. If they conflict, the error names `meta`.
fn merge_shapes(
    i: &InferCtx<'_>,
    shape: &Shape,
    other: &Shape,
    meta: &Meta,
    dtype: DType,
) -> Result<Shape> {
    if meta.dtype != dtype || !shape.agrees(other) {
        return Err(i
            .error("X", "holds variables with conflicting types or shapes")
            .expected(format!("{dtype}{shape}"))
            .got(format!("{}{}", meta.dtype, meta.shape)));
    }
    let mut both = *shape;
    for (dim, known) in both.dims_mut().iter_mut().zip(other.iter()) {
        *dim = (*dim).max(*known);
    }
    Ok(both)
}

fn new_axis(op: &Op, shape: &Shape) -> Result<usize> {
    let mut wider = *shape;
    wider.push(1)?;
    axis_of(op, "axis", &wider)
}

fn sections(op: &Op, x: &Shape, axis: usize) -> Result<Vec<i64>> {
    let (len, count, requested) = (x[axis], op.attr_int("num"), op.attr_ints("sections"));
    let wrong = |expected: String, got: String| {
        Err(Error::invalid(format!("cannot split dimension {axis} of X {x}"))
            .expected(expected)
            .got(got))
    };
    if requested.is_empty() {
        if !(1..=PARTS_MAX).contains(&count) || (len >= 0 && len % count != 0) {
            return wrong(format!("a 'num' that divides {len}"), count.to_string());
        }
        return Ok(vec![if len < 0 { -1 } else { len / count }; count as usize]);
    }
    let whole = requested.iter().filter(|it| **it >= 0);
    let known = whole.fold(0, |sum: i64, it| sum.saturating_add(*it));
    let open = requested.iter().filter(|it| **it < 0).count();
    let fits = match open {
        0 => len < 0 || known == len,
        1 => len < 0 || known <= len,
        _ => false,
    };
    if !fits || requested.iter().any(|it| *it < -1) {
        return wrong(format!("'sections' that add up to {len}"), format!("{requested:?}"));
    }
    let rest = if len < 0 { -1 } else { len - known };
    Ok(requested.iter().map(|it| if *it < 0 { rest } else { *it }).collect())
}

/// Returns the variables of X, and new ones for the gradients of all of them.
fn input_grads(g: &mut GradCtx<'_, '_>) -> Result<(Vec<VarId>, Vec<VarId>)> {
    let inputs = g.op.input("X").to_vec();
    let grads = inputs.iter().map(|var| g.dx_of(*var, VarKind::Dense)).collect::<Result<_>>()?;
    Ok((inputs, grads))
}

/// Returns the gradients of all variables of an output slot, with zeros where there is none.
fn output_grads(g: &mut GradCtx<'_, '_>, slot: &str) -> Result<Vec<VarId>> {
    let mut grads = Vec::new();
    for var in g.op.output(slot).to_vec() {
        grads.push(match g.dy_of(var) {
            Some(grad) => grad,
            None => g.op(&FILL_ANY_LIKE).input("X", var).one("Out")?,
        });
    }
    Ok(grads)
}

/// Plans the copies between a whole tensor and its parts along the op's axis, in the given
/// direction. A part with one dimension less than the whole has length 1 along the axis.
fn parts(op: &Op, whole: &Shape, parts: &[Meta], into_whole: bool) -> Result<Vec<Strided>> {
    let axis = axis_of(op, "axis", whole)?;
    let strides = row_major(&sizes(whole));
    let mut at = 0;
    let mut copies = Vec::new();
    for Meta { shape, .. } in parts {
        let len = if shape.rank() < whole.rank() { 1 } else { shape.at(axis) };
        let mut dims = sizes(whole);
        dims[axis] = len;
        let own = row_major(&dims);
        let place = (at * strides[axis] as usize, strides.as_slice());
        copies.push(match into_whole {
            true => Strided::new(&dims, (0, &own), place),
            false => Strided::new(&dims, place, (0, &own)),
        });
        at += len;
    }
    Ok(copies)
}

/// Makes the kernel that copies all inputs into the output.
fn join(p: &PrepareCtx<'_>) -> Result<Kernel> {
    check_row_major(p)?;
    let out = p.outputs[0][0];
    let copies = parts(p.op, &out.shape, &p.inputs[0], true)?;
    by_width!(out.dtype, T => {
        Ok(Kernel::infallible(move |k| {
            let out = k.out(0).into_bits::<T>();
            for (copy, arg) in copies.iter().zip(k.inputs(0)) {
                copy.run(k.pool, arg.bits(), out);
            }
        }))
    })
}

/// Makes the kernel that copies an input into all outputs.
fn part(p: &PrepareCtx<'_>, input: usize) -> Result<Kernel> {
    check_row_major(p)?;
    let x = p.inputs[input][0];
    let copies = parts(p.op, &x.shape, &p.outputs[0], false)?;
    by_width!(x.dtype, T => {
        Ok(Kernel::infallible(move |k| {
            for (copy, out) in copies.iter().zip(k.outs(0)) {
                copy.run::<T>(k.pool, k.arg(input).bits(), out.into_bits());
            }
        }))
    })
}
