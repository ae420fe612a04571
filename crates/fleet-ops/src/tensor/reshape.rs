//! The same elements in another shape: `reshape2`, `squeeze2`, `unsqueeze2`, `flatten2`,
//! `flatten_contiguous_range`. These are views. If the planner lets input and output share memory,
//! nothing is copied.

use crate::divide;
use crate::prelude::*;
use crate::rules::{axes_of, dim_product};
use crate::tensor::assign::copied;
use fleet_ir::Op;

macro_rules! views {
    ($($name:literal $DEF:ident $GRAD:ident [$($attr:expr),*] $amp:ident, $shape:ident;)*) => {$(
        #[doc = concat!("The op `", $name, "`.")]
        pub static $DEF: OpDef = OpDef {
            spec: OpSpec {
                name: $name,
                inputs: &[one("X")],
                outputs: &[one("Out")],
                attrs: &[$($attr),*],
            },
            infer: |i| {
                let x = i.input("X")?;
                let shape = $shape(i.op, &x.shape)?;
                i.set("Out", x.dtype, shape);
                Ok(())
            },
            grad: Grad::Op(&$GRAD),
            cpu,
            traits: OpTraits {
                view: Some(("Out", "X")),
                cost: no_cost,
                divide: divide_view,
                ..OpTraits::amp(AmpClass::$amp)
            },
        };

        #[doc = concat!("The op `", $name, "_grad`.")]
        pub static $GRAD: OpDef = OpDef {
            spec: OpSpec {
                name: concat!($name, "_grad"),
                inputs: &[one("X"), one("Out@GRAD")],
                outputs: &[one("X@GRAD")],
                attrs: &[],
            },
            infer: |i| {
                let (x, dout) = (i.input("X")?, i.input("Out@GRAD")?);
                i.check_dtype("Out@GRAD", &[x.dtype])?;
                let lens = (x.shape.numel(), dout.shape.numel());
                if let (Some(len), Some(found)) = lens
                    && len != found
                {
                    return Err(i
                        .error("Out@GRAD", "has the wrong number of elements")
                        .expected(format!("{len}, as in X {}", x.shape))
                        .got(format!("{found}, as in {}", dout.shape)));
                }
                i.set("X@GRAD", x.dtype, x.shape);
                Ok(())
            },
            grad: Grad::None,
            cpu: |_| Ok(copied(1)),
            traits: OpTraits {
                view: Some(("X@GRAD", "Out@GRAD")),
                shape_only: &["X"],
                cost: no_cost,
                ..OpTraits::amp(AmpClass::$amp)
            },
        };
    )*};
}

views! {
    "reshape2" RESHAPE RESHAPE_GRAD [required("shape", AttrKind::Ints)] Gray, reshaped;
    "squeeze2" SQUEEZE SQUEEZE_GRAD [required("axes", AttrKind::Ints)] Unlisted, squeezed;
    "unsqueeze2" UNSQUEEZE UNSQUEEZE_GRAD [required("axes", AttrKind::Ints)] Unlisted, unsqueezed;
    "flatten2" FLATTEN FLATTEN_GRAD [attr("axis", Int(1))] Gray, flattened;
    "flatten_contiguous_range" FLATTEN_RANGE FLATTEN_RANGE_GRAD
        [attr("start_axis", Int(1)), attr("stop_axis", Int(-1))] Unlisted, range_flattened;
}

/// Parts of a tensor are parts of its other shape if the axes match.
fn divide_view(d: &mut Divide<'_>) -> Result<()> {
    let Some(along) = d.along("X") else { return Err(d.unsupported("has no divided input")) };
    let (x, out) = (d.shape("X")?, d.output_shape("Out")?);
    let Some(made) = divide::reshaped(&x, &out, along, d.parts) else {
        let what = format!("has no dimension that {} ranks can divide", d.parts);
        let of = format!("dimension {} of X {x} as {out}", along.axis);
        return Err(d.unsupported(&what).expected(format!("a multiple of {}", d.parts)).got(of));
    };
    if d.op.spec.attr_index("shape").is_some() {
        let mut shape = d.op.attr_ints("shape").to_vec();
        // 0 and -1 follow from X.
        if let Some(dim) = shape.get_mut(made.axis).filter(|dim| **dim > 0) {
            *dim = (*dim + made.padding as i64) / d.parts as i64;
        }
        d.set_attr("shape", shape);
    }
    d.keep_padding();
    d.set_part("Out", made)
}

fn no_cost(_: &CostCtx<'_>) -> Cost {
    Cost::default()
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    crate::rules::check_row_major(p)?;
    Ok(copied(0))
}

/// Returns the shape of `reshape2`. 0 copies a dimension of X; -1 is inferred.
fn reshaped(op: &Op, x: &Shape) -> Result<Shape> {
    let requested = op.attr_ints("shape");
    let wrong = |what: &str| {
        Err(Error::invalid(format!("attribute 'shape' of reshape2 {what}"))
            .expected(format!("as many elements as X {x}"))
            .got(format!("{requested:?}")))
    };
    let mut dims = requested.to_vec();
    for (axis, dim) in dims.iter_mut().enumerate().filter(|(_, dim)| **dim == 0) {
        match x.get(axis) {
            Some(own) => *dim = *own,
            None => return wrong("copies a dimension that X does not have"),
        }
    }
    if requested.iter().any(|dim| *dim < -1) {
        return wrong("holds a dimension below -1");
    }
    if requested.iter().filter(|dim| **dim == -1).count() > 1 {
        return wrong("holds more than one dimension to be inferred");
    }
    let inferred = requested.iter().position(|dim| *dim == -1);
    let known = |dims: &[i64]| {
        let whole = dims.iter().filter(|dim| **dim >= 0);
        whole.fold(1, |product: i64, dim| product.saturating_mul(*dim))
    };
    let unknown = |dims: &[i64]| dims.iter().filter(|dim| **dim < 0).count();
    if let Some(at) = inferred {
        dims[at] = 1;
        // An unknown dimension copied by 0 cancels with the same dimension of X.
        if unknown(&dims) == unknown(x) {
            let (have, used) = (known(x), known(&dims));
            if used == 0 || have % used != 0 {
                return wrong("does not divide the elements of X");
            }
            dims[at] = have / used;
        } else {
            dims[at] = -1;
        }
    } else if unknown(&dims) == unknown(x) && known(&dims) != known(x) {
        return wrong("does not fit X");
    }
    Shape::new(&dims)
}

/// Returns the shape of `squeeze2`. Axes with a size other than 1 are kept. The op must name its
/// axes, and their sizes must be known. Otherwise the rank of the result would depend on whether
/// the batch is 1.
fn squeezed(op: &Op, x: &Shape) -> Result<Shape> {
    let axes = axes_of(op.attr_ints("axes"), x)?;
    if axes.is_empty() || axes.iter().any(|axis| x[*axis] < 0) {
        return Err(Error::invalid(format!("attribute 'axes' of squeeze2 does not fit X {x}"))
            .expected("at least one axis, of a size that is known before the program runs")
            .got(format!("{axes:?}")));
    }
    let kept = x.iter().enumerate().filter(|(axis, dim)| **dim != 1 || !axes.contains(axis));
    Shape::new(&kept.map(|(_, dim)| *dim).collect::<Vec<_>>())
}

fn unsqueezed(op: &Op, x: &Shape) -> Result<Shape> {
    let mut dims = x.to_vec();
    for axis in op.attr_ints("axes") {
        let at = if *axis < 0 { axis.saturating_add(dims.len() as i64 + 1) } else { *axis };
        if at < 0 || at > dims.len() as i64 {
            return Err(Error::invalid("attribute 'axes' of unsqueeze2 is out of range")
                .expected(format!("{} to {}", -(dims.len() as i64) - 1, dims.len()))
                .got(axis));
        }
        dims.insert(at as usize, 1);
    }
    Shape::new(&dims)
}

fn flattened(op: &Op, x: &Shape) -> Result<Shape> {
    let axis = op.attr_int("axis");
    if axis < 0 || axis > x.rank() as i64 {
        return Err(Error::invalid("attribute 'axis' of flatten2 is out of range")
            .expected(format!("0 to {}", x.rank()))
            .got(axis));
    }
    let (before, after) = x.split_at(axis as usize);
    Shape::new(&[dim_product(before), dim_product(after)])
}

fn range_flattened(op: &Op, x: &Shape) -> Result<Shape> {
    let (start, stop) = (x.axis(op.attr_int("start_axis"))?, x.axis(op.attr_int("stop_axis"))?);
    if start > stop {
        return Err(Error::invalid("attributes of flatten_contiguous_range are out of range")
            .expected("start_axis <= stop_axis")
            .got(format!("{start} and {stop}")));
    }
    let mut dims = x[..start].to_vec();
    dims.push(dim_product(&x[start..=stop]));
    dims.extend_from_slice(&x[stop + 1..]);
    Shape::new(&dims)
}
