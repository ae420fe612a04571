//! Constant tensors: `fill_constant` and similar ops, `assign_value`, `eye`, `range`. Every element
//! type.

use crate::prelude::*;
use crate::rules::{by_width, element_bytes};
use fleet_ir::Op;

/// Elements per task.
const GRAIN: usize = 32 * 1024;

/// The op `fill_constant`.
pub static FILL_CONSTANT: OpDef = OpDef {
    spec: OpSpec {
        name: "fill_constant",
        inputs: &[],
        outputs: &[one("Out")],
        attrs: &[
            required("shape", AttrKind::Ints),
            attr("dtype", DTypeOf(DType::F32)),
            attr("value", Float(0.0)),
        ],
    },
    infer: infer_shape_attr,
    grad: Grad::None,
    cpu: |p| Ok(filled(p, p.op.attr_float("value"))),
    traits: OpTraits {
        elementwise: true,
        divide: |d| {
            let (along, value) = (d.requested()?, d.op.attr_float("value"));
            divide_shape(d, along)?;
            if along.padding > 0 && value != 0.0 {
                // Numbers between two equal ones, with zeros as padding.
                d.become_op("uniform_random");
                d.set_attr("min", value);
                d.set_attr("max", value);
                d.set_random_part(along);
            }
            Ok(())
        },
        ..OpTraits::amp(AmpClass::Gray)
    },
};

/// Sets the attribute `shape` to that of a part.
pub(crate) fn divide_shape(d: &mut Divide<'_>, along: Along) -> Result<()> {
    let whole = known_shape(d.op)?;
    d.check_divides(&whole, along)?;
    if let Some(part) = along.part(d.part, d.parts).of(&whole) {
        d.set_attr("shape", part.to_vec());
    }
    Ok(())
}

/// The op `empty`: an output with unspecified values, for ops that need memory to write to.
pub static EMPTY: OpDef = OpDef {
    spec: OpSpec {
        name: "empty",
        inputs: &[],
        outputs: &[one("Out")],
        attrs: &[required("shape", AttrKind::Ints), attr("dtype", DTypeOf(DType::F32))],
    },
    infer: infer_shape_attr,
    grad: Grad::None,
    cpu: |_| Ok(Kernel::infallible(|_| {})),
    traits: OpTraits { cost: |_| crate::Cost::default(), ..OpTraits::plain() },
};

/// Gives Out the shape and element type of the attributes, which must be fully known.
pub(crate) fn infer_shape_attr(i: &mut InferCtx<'_>) -> Result<()> {
    let shape = known_shape(i.op)?;
    i.set("Out", i.op.attr_dtype("dtype"), shape);
    Ok(())
}

pub(crate) fn known_shape(op: &Op) -> Result<Shape> {
    let dims = op.attr_ints("shape");
    if dims.iter().any(|dim| *dim < 0) {
        return Err(Error::invalid(format!(
            "attribute 'shape' of {} has unknown dimensions",
            op.name()
        ))
        .expected("dimensions of 0 or more")
        .got(format!("{dims:?}")));
    }
    Shape::new(dims)
}

/// Fills the output with one number. The padding of a layout stays zero.
fn filled(p: &PrepareCtx<'_>, value: f64) -> Kernel {
    let (dtype, layout) = (p.output("Out").dtype, p.output_layouts[0][0]);
    let bytes = element_bytes(dtype, value);
    let shape = p.output("Out").shape;
    by_width!(dtype, T => {
        let mut own = [0; size_of::<T>()];
        own.copy_from_slice(&bytes[..size_of::<T>()]);
        let value = T::from_ne_bytes(own);
        Kernel::infallible(move |k| {
            let out = k.out(0).into_bits::<T>();
            if layout == Layout::Filter64 && value != 0 {
                out.fill(0);
                fill_filter64(&shape, out, value);
                return;
            }
            k.pool.run_parts(out, GRAIN, |_, part| part.fill(value));
        })
    })
}

/// Fills all lanes that hold an output channel, in blocks of 64 channels.
fn fill_filter64<T: Copy>(shape: &Shape, out: &mut [T], value: T) {
    let (channels, rest) = (shape.at(0), shape.product(1..shape.rank()));
    for (index, lanes) in out.chunks_mut(64).enumerate() {
        let first = index / rest.max(1) * 64;
        lanes[..channels.saturating_sub(first).min(64)].fill(value);
    }
}

/// The op `fill_constant_batch_size_like`.
pub static FILL_CONSTANT_BATCH_SIZE_LIKE: OpDef = OpDef {
    spec: OpSpec {
        name: "fill_constant_batch_size_like",
        inputs: &[one("Input")],
        outputs: &[one("Out")],
        attrs: &[
            required("shape", AttrKind::Ints),
            attr("dtype", DTypeOf(DType::F32)),
            attr("value", Float(0.0)),
            attr("input_dim_idx", Int(0)),
            attr("output_dim_idx", Int(0)),
        ],
    },
    infer: |i| {
        let input = i.input("Input")?;
        let mut shape = Shape::new(i.op.attr_ints("shape"))?;
        let from = crate::rules::axis_of(i.op, "input_dim_idx", &input.shape)?;
        let to = crate::rules::axis_of(i.op, "output_dim_idx", &shape)?;
        shape.dims_mut()[to] = input.shape[from];
        i.set("Out", i.op.attr_dtype("dtype"), shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| Ok(filled(p, p.op.attr_float("value"))),
    traits: OpTraits { shape_only: &["Input"], ..OpTraits::plain() },
};

/// The op `fill_any_like`.
pub static FILL_ANY_LIKE: OpDef = OpDef {
    spec: OpSpec {
        name: "fill_any_like",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[attr("value", Float(0.0)), attr("dtype", Str(""))],
    },
    infer: |i| {
        let x = i.input("X")?;
        let dtype = match i.op.attr_str("dtype") {
            "" => x.dtype,
            name => DType::parse(name)?,
        };
        i.set("Out", dtype, x.shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| Ok(filled(p, p.op.attr_float("value"))),
    traits: OpTraits { shape_only: &["X"], ..OpTraits::plain() },
};

/// The op `assign_value`.
pub static ASSIGN_VALUE: OpDef = OpDef {
    spec: OpSpec {
        name: "assign_value",
        inputs: &[],
        outputs: &[one("Out")],
        attrs: &[
            required("shape", AttrKind::Ints),
            attr("dtype", DTypeOf(DType::F32)),
            attr("values", Floats(&[])),
            attr("ints_values", Ints(&[])),
        ],
    },
    infer: |i| {
        let (floats, ints) = (i.op.attr_floats("values"), i.op.attr_ints("ints_values"));
        let shape = known_shape(i.op)?;
        let given = floats.len().max(ints.len());
        if shape.numel() != Some(given) || (!floats.is_empty() && !ints.is_empty()) {
            return Err(Error::invalid("shape and values of assign_value conflict")
                .expected(format!(
                    "{} numbers for shape {shape}",
                    crate::rules::dim_product(&shape)
                ))
                .got(format!("{} values and {} ints_values", floats.len(), ints.len())));
        }
        infer_shape_attr(i)
    },
    grad: Grad::None,
    cpu: |p| {
        let dtype = p.output("Out").dtype;
        let floats = p.op.attr_floats("values").iter().map(|value| element_bytes(dtype, *value));
        let ints = p.op.attr_ints("ints_values").iter().map(|value| match dtype {
            DType::I64 => value.to_ne_bytes(),
            _ => element_bytes(dtype, *value as f64),
        });
        let bytes: Vec<u8> =
            floats.chain(ints).flat_map(|it| it.into_iter().take(dtype.size())).collect();
        Ok(Kernel::infallible(move |k| k.out(0).into_bytes().copy_from_slice(&bytes)))
    },
    traits: OpTraits { divide: divide_values, ..OpTraits::plain() },
};

/// Keeps the values of a part.
fn divide_values(d: &mut Divide<'_>) -> Result<()> {
    let along = d.requested()?;
    let whole = known_shape(d.op)?;
    divide_shape(d, along)?;
    let (groups, axis_len) = (along.groups, whole.at(along.axis) + along.padding);
    let inner = whole.product(along.axis + 1..whole.rank());
    let (block, piece) = (axis_len / groups * inner, axis_len / groups / d.parts * inner);
    let first = d.part * piece;
    let is_own = move |index: &usize| (first..first + piece).contains(&(index % block.max(1)));
    let rows = whole.product(0..along.axis) * axis_len;
    let own = |count: usize| (0..if count == 0 { 0 } else { rows * inner }).filter(is_own);
    // The place in the whole tensor, unless the element is padding.
    let place = |index: usize| {
        let (outer, at) = (index / (axis_len * inner), index % (axis_len * inner));
        let whole_len = (axis_len - along.padding) * inner;
        (at < whole_len).then(|| outer * whole_len + at)
    };
    let (floats, ints) = (d.op.attr_floats("values"), d.op.attr_ints("ints_values"));
    let at = |index: usize| place(index).and_then(|at| floats.get(at)).copied();
    let own_floats: Vec<f64> = own(floats.len()).map(|it| at(it).unwrap_or_default()).collect();
    let at = |index: usize| place(index).and_then(|at| ints.get(at)).copied();
    let own_ints: Vec<i64> = own(ints.len()).map(|it| at(it).unwrap_or_default()).collect();
    d.set_attr("values", own_floats);
    d.set_attr("ints_values", own_ints);
    Ok(())
}

/// The op `eye`.
pub static EYE: OpDef = OpDef {
    spec: OpSpec {
        name: "eye",
        inputs: &[],
        outputs: &[one("Out")],
        attrs: &[
            required("num_rows", AttrKind::Int),
            attr("num_columns", Int(-1)),
            attr("dtype", DTypeOf(DType::F32)),
        ],
    },
    infer: |i| {
        let rows = i.op.attr_int("num_rows");
        let columns = match i.op.attr_int("num_columns") {
            -1 => rows,
            columns => columns,
        };
        if rows < 0 || columns < 0 {
            return Err(Error::invalid("attributes of eye are out of range")
                .expected("num_rows and num_columns of 0 or more")
                .got(format!("{rows} and {columns}")));
        }
        i.set("Out", i.op.attr_dtype("dtype"), [rows, columns]);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let out = p.output("Out");
        let (rows, columns) = (out.shape.at(0), out.shape.at(1));
        let (size, one) = (out.dtype.size(), element_bytes(out.dtype, 1.0));
        Ok(Kernel::infallible(move |k| {
            let out = k.out(0).into_bytes();
            out.fill(0);
            for at in 0..rows.min(columns) {
                let start = (at * columns + at) * size;
                out[start..start + size].copy_from_slice(&one[..size]);
            }
        }))
    },
    traits: OpTraits::plain(),
};

/// The op `range`.
pub static RANGE: OpDef = OpDef {
    spec: OpSpec {
        name: "range",
        inputs: &[],
        outputs: &[one("Out")],
        attrs: &[
            attr("start", Float(0.0)),
            required("end", AttrKind::Float),
            attr("step", Float(1.0)),
            attr("dtype", DTypeOf(DType::I64)),
        ],
    },
    infer: |i| {
        let count = range_len(i.op)?;
        i.set("Out", i.op.attr_dtype("dtype"), [count]);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let (start, step) = (p.op.attr_float("start"), p.op.attr_float("step"));
        let dtype = p.output("Out").dtype;
        Ok(Kernel::infallible(move |k| {
            let size = dtype.size();
            for (index, place) in k.out(0).into_bytes().chunks_exact_mut(size).enumerate() {
                let bytes = element_bytes(dtype, start + step * index as f64);
                place.copy_from_slice(&bytes[..size]);
            }
        }))
    },
    traits: OpTraits::plain(),
};

/// Returns the number of elements of a range. It is limited so that a wrong attribute gives an
/// error instead of exhausting memory.
fn range_len(op: &Op) -> Result<i64> {
    let (start, end, step) = (op.attr_float("start"), op.attr_float("end"), op.attr_float("step"));
    let count = ((end - start) / step).ceil();
    if !count.is_finite() || count > 1e12 {
        return Err(Error::invalid("attributes of range are out of range")
            .expected("finite numbers and a step other than 0")
            .got(format!("start {start}, end {end}, step {step}")));
    }
    Ok(count.max(0.0) as i64)
}
