//! `Out = X op Y` with broadcasting: add, sub, mul, div, max, min, pow, mod, floordiv.
//!
//! With `axis` -1, shapes broadcast as in NumPy, aligned at the last dimension. Otherwise the
//! dimensions of the smaller operand start at `axis` of the larger one. f32, f64, i32 and i64;
//! halves through f32. Gradients are summed over the broadcast dimensions. Where both operands are
//! equal, max and min give the gradient to Y.

use crate::prelude::*;
use crate::rules::{check_row_major, grads_like, physical_len, sizes};
use crate::widen::any_float;
use fleet_kernels::binary::{
    Binary, Broadcast, Number, binary, binary_grad, binary_grad_scratch_len,
};
use fleet_tensor::Element;

const X: usize = 0;
const Y: usize = 1;
const DOUT: usize = 2;

macro_rules! elementwise {
    ($(
        $name:literal, $DEF:ident, $GRAD:ident, zero_stays: $zero:literal,
        unpadded: [$unpadded:literal, $grad_unpadded:literal], shape_only: $only:expr,
        $spread:ident, accumulates: $accumulates:literal;
    )*) => {$(
        #[doc = concat!("The op `", $name, "`.")]
        pub static $DEF: OpDef = OpDef {
            spec: OpSpec {
                name: $name,
                inputs: &[one("X"), one("Y")],
                outputs: &[one("Out")],
                attrs: &[attr("axis", Int(-1))],
            },
            infer,
            grad: Grad::OpRule(&$GRAD, grad),
            cpu: |p| any_float(p, cpu),
            traits: OpTraits {
                inplace: &[("Out", "X"), ("Out", "Y")],
                elementwise: $zero,
                elementwise_unpadded: $unpadded,
                broadcasts: true,
                spread: Spread::$spread,
                accumulates: $accumulates,
                divide,
                ..OpTraits::amp(AmpClass::Gray)
            },
        };

        #[doc = concat!("The op `", $name, "_grad`.")]
        pub static $GRAD: OpDef = OpDef {
            spec: OpSpec {
                name: concat!($name, "_grad"),
                inputs: &[one("X"), one("Y"), one("Out@GRAD")],
                outputs: &[optional("X@GRAD"), optional("Y@GRAD")],
                attrs: &[attr("axis", Int(-1))],
            },
            infer: |i| grads_like(i, &["X", "Y"]),
            grad: Grad::None,
            cpu: |p| any_float(p, grad_cpu),
            traits: OpTraits {
                shape_only: $only,
                elementwise_unpadded: $grad_unpadded,
                ..OpTraits::amp(AmpClass::Gray)
            },
        };
    )*};
}

elementwise! {
    "elementwise_add", ADD, ADD_GRAD, zero_stays: true, unpadded: [true, true],
        shape_only: &["X", "Y"], Mean, accumulates: true;
    "elementwise_sub", SUB, SUB_GRAD, zero_stays: true, unpadded: [true, true],
        shape_only: &["X", "Y"], Mean, accumulates: false;
    "elementwise_mul", MUL, MUL_GRAD, zero_stays: true, unpadded: [true, true],
        shape_only: &[], Mean, accumulates: false;
    "elementwise_div", DIV, DIV_GRAD, zero_stays: false, unpadded: [true, false],
        shape_only: &[], Mean, accumulates: false;
    "elementwise_max", MAX, MAX_GRAD, zero_stays: true, unpadded: [true, false],
        shape_only: &[], First, accumulates: false;
    "elementwise_min", MIN, MIN_GRAD, zero_stays: true, unpadded: [true, false],
        shape_only: &[], First, accumulates: false;
    "elementwise_pow", POW, POW_GRAD, zero_stays: false, unpadded: [false, false],
        shape_only: &[], First, accumulates: false;
    "elementwise_mod", MOD, MOD_GRAD, zero_stays: false, unpadded: [false, false],
        shape_only: &[], First, accumulates: false;
}

/// The op `elementwise_floordiv`.
pub static FLOORDIV: OpDef = OpDef {
    spec: OpSpec { name: "elementwise_floordiv", ..ADD.spec },
    infer,
    grad: Grad::None,
    cpu: |p| any_float(p, cpu),
    traits: OpTraits { inplace: &[("Out", "X"), ("Out", "Y")], ..OpTraits::amp(AmpClass::Gray) },
};

/// Operands have the same part, or are broadcast along the divided axis.
fn divide(d: &mut Divide<'_>) -> Result<()> {
    let (x, y, out) = (d.shape("X")?, d.shape("Y")?, d.output_shape("Out")?);
    let axis = d.op.attr_int("axis");
    // The first dimension of each operand in the result.
    let (x_at, y_at) = match x.rank() >= y.rank() {
        true => (0, start_of(&x, &y, axis)),
        false => (start_of(&y, &x, axis), 0),
    };
    let in_out = |slot: &str, start: usize| d.along(slot).map(|it| it.at(it.axis + start));
    let (x_along, y_along) = (in_out("X", x_at), in_out("Y", y_at));
    let Some(along) = x_along.or(y_along) else {
        return Err(d.unsupported("has no divided input"));
    };
    if x_along.and(y_along).is_some_and(|_| x_along != y_along) {
        return Err(d.unsupported("needs the same parts of both operands"));
    }
    for (slot, shape, start) in [("X", x, x_at), ("Y", y, y_at)] {
        let own = along.axis.checked_sub(start).filter(|own| *own < shape.rank());
        if let Some(own) = own.filter(|own| shape[*own] != 1) {
            d.want(slot, along.at(own))?;
        }
    }
    if out.get(along.axis) == Some(&1) {
        return Err(d.unsupported("cannot divide a dimension of 1"));
    }
    match binary_of(d.op.name())? {
        Binary::Add | Binary::Sub | Binary::Mul | Binary::Max | Binary::Min => d.keep_padding(),
        // Padding may be zero, so only the dividend may have it.
        Binary::Div if d.along("Y").is_none() => d.keep_padding(),
        _ => {}
    }
    d.set_part("Out", along)
}

/// Returns the dimension of the larger operand at which the smaller one starts.
fn start_of(large: &Shape, small: &Shape, axis: i64) -> usize {
    let last = large.rank() - small.rank().min(large.rank());
    if axis < 0 { last } else { axis as usize }
}

/// Returns the function for the name of an op or of its gradient op.
pub(crate) fn binary_of(name: &str) -> Result<Binary> {
    Ok(match name.trim_start_matches("elementwise_").trim_end_matches("_grad") {
        "add" => Binary::Add,
        "sub" => Binary::Sub,
        "mul" => Binary::Mul,
        "div" => Binary::Div,
        "max" => Binary::Max,
        "min" => Binary::Min,
        "pow" => Binary::Pow,
        "mod" => Binary::Mod,
        "floordiv" => Binary::FloorDiv,
        _ => return Err(Error::invalid(format!("'{name}' is not a binary elementwise op"))),
    })
}

/// Returns both shapes with the same rank, aligned by `axis`.
pub(crate) fn align(x: &Shape, y: &Shape, axis: i64) -> Result<(Shape, Shape)> {
    if y.rank() > x.rank() {
        let (y, x) = align(y, x, axis)?;
        return Ok((x, y));
    }
    let (rank, inner) = (x.rank(), y.rank());
    let start = if axis == -1 { (rank - inner) as i64 } else { axis.clamp(-1, rank as i64 + 1) };
    // Trailing dimensions of size 1 may extend past the larger shape.
    let trimmed = y.iter().rposition(|dim| *dim != 1).map_or(0, |last| last + 1);
    let dims = if start >= 0 && start as usize + inner <= rank { y.dims() } else { &y[..trimmed] };
    if start < 0 || start as usize + dims.len() > rank {
        return Err(Error::invalid(format!("shape {y} does not fit into {x} at axis {axis}")));
    }
    let mut wide = Shape::of(&[1; fleet_tensor::RANK_MAX][..rank]);
    wide.dims_mut()[start as usize..start as usize + dims.len()].copy_from_slice(dims);
    Ok((*x, wide))
}

/// Returns the shape of the result of an op with X, Y and axis.
pub(crate) fn broadcast_shape(i: &InferCtx<'_>) -> Result<Shape> {
    let (x, y) = (i.input("X")?.shape, i.input("Y")?.shape);
    let axis = i.op.attr_int("axis");
    align(&x, &y, axis).and_then(|(x, y)| x.broadcast(&y)).map_err(|_| {
        i.error("Y", "does not broadcast with X")
            .expected(format!("a shape that fits {x} at axis {axis}"))
            .got(y)
    })
}

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    let dtype = i.input("X")?.dtype;
    i.check_dtype("Y", &[dtype])?;
    let shape = broadcast_shape(i)?;
    i.set("Out", dtype, shape);
    Ok(())
}

/// Returns how X and Y broadcast. Operands in a layout other than row-major must have the same
/// shape and are combined element by element.
pub(crate) fn plan(p: &PrepareCtx<'_>) -> Result<Broadcast> {
    let (x, y) = (p.input("X").shape, p.input("Y").shape);
    let layouts = (p.input_layouts[X][0], p.input_layouts[Y][0]);
    if layouts.0 == layouts.1 && x == y && layouts.0 != Layout::RowMajor {
        let len = [physical_len(p, X)];
        return Broadcast::new(&len, &len);
    }
    check_row_major(p)?;
    let (x, y) = align(&x, &y, p.op.attr_int("axis"))?;
    Broadcast::new(&sizes(&x), &sizes(&y))
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (op, plan) = (binary_of(p.op.name())?, plan(p)?);
    match p.input("X").dtype {
        DType::F32 => Ok(typed::<f32>(op, plan)),
        DType::F64 => Ok(typed::<f64>(op, plan)),
        DType::I32 => Ok(typed::<i32>(op, plan)),
        DType::I64 => Ok(typed::<i64>(op, plan)),
        dtype => Err(p.no_kernel(dtype)),
    }
}

fn typed<T: Number + Element>(op: Binary, plan: Broadcast) -> Kernel {
    Kernel::infallible(move |k| {
        let (x, y) = (k.input_or_output::<T>(X, 0), k.input_or_output(Y, 0));
        binary(k.pool, op, &plan, x, y, k.output(0));
    })
}

fn grad(g: &mut GradCtx<'_, '_>, def: &'static OpDef) -> Result<()> {
    let (x, y, dy) = (g.x("X")?, g.x("Y")?, g.dy("Out")?);
    let shape = g.meta(dy).shape;
    let axis = g.op.attr_int("axis");
    let kind = binary_of(def.spec.name)?;
    // The gradient of a sum passes unchanged to an operand that is not broadcast.
    let passes = |g: &GradCtx<'_, '_>, var: VarId| {
        g.meta(var).shape == shape && !g.emit.program.var(var).is_parameter()
    };
    let mut wanted = [g.wants("X"), g.wants("Y")];
    if wanted[0] && matches!(kind, Binary::Add | Binary::Sub) && passes(g, x) {
        g.alias_grad(x, dy);
        wanted[0] = false;
    }
    if wanted[1] && kind == Binary::Add && passes(g, y) {
        g.alias_grad(y, dy);
        wanted[1] = false;
    }
    if wanted == [false, false] {
        return Ok(());
    }
    let dx = if wanted[0] { Some(g.dx_of(x, VarKind::Dense)?) } else { None };
    let dyy = if wanted[1] { Some(g.dx_of(y, VarKind::Dense)?) } else { None };
    g.op(def)
        .input("X", x)
        .input("Y", y)
        .input("Out@GRAD", dy)
        .attr("axis", axis)
        .maybe_output("X@GRAD", dx)
        .maybe_output("Y@GRAD", dyy)
        .done()?;
    Ok(())
}

fn grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (op, plan) = (binary_of(p.op.name())?, plan(p)?);
    if p.input("X").dtype != DType::F32 {
        return Err(p.no_kernel(p.input("X").dtype));
    }
    let scratch = binary_grad_scratch_len(op, &plan);
    Ok(Kernel::infallible(move |k| {
        let dout = k.input::<f32>(DOUT);
        // The gradient of a sum depends on the operands' lengths only: any numbers will do.
        let operand = |at: usize| match k.arg(at) {
            arg if arg.is_hidden() => &dout[..arg.len()],
            arg => arg.slice::<f32>(),
        };
        let (x, y) = (operand(X), operand(Y));
        let (dx, dy) = (k.optional_output::<f32>(0), k.optional_output::<f32>(1));
        binary_grad(k.pool, op, &plan, x, y, dout, dx, dy, k.scratch());
    })
    .scratch::<f32>(scratch))
}
