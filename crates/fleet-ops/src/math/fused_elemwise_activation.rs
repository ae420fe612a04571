//! `Out = act(X + Y)` in one pass over memory. A fusion pass makes this op from `elementwise_add`
//! and an activation. `functor_list` is [act, "elementwise_add"]. The activation is relu, relu6,
//! sigmoid or tanh: their gradients read Out, so the sum is not stored.
//!
//! f32, halves through f32. Y is broadcast to X as in `elementwise_add`; X has the shape of Out.

use crate::math::elementwise::{align, broadcast_shape};
use crate::prelude::*;
use crate::rules::{check_row_major, grads_like, sizes};
use crate::widen::any_float;
use fleet_ir::Op;
use fleet_kernels::bias::{
    bias_activation, bias_activation_grad, bias_activation_grad_scratch_len,
};
use fleet_kernels::binary::{Binary, Broadcast, binary};
use fleet_kernels::elementwise::{Unary, unary, unary_grad};
use fleet_kernels::reduce::{Fold, Reduction, reduce};

const X: usize = 0;
const Y: usize = 1;
const OUT: usize = 2;
const DOUT: usize = 3;

const ATTRS: &[fleet_ir::AttrSpec] =
    &[attr("functor_list", Strs(&["relu", "elementwise_add"])), attr("axis", Int(-1))];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_elemwise_activation",
        inputs: &[one("X"), one("Y")],
        outputs: &[one("Out")],
        attrs: ATTRS,
    },
    infer: |i| {
        function(i.op)?;
        let x = i.input("X")?;
        i.check_dtype("Y", &[x.dtype])?;
        let shape = broadcast_shape(i)?;
        if !shape.agrees(&x.shape) {
            return Err(i.error("X", "has the wrong shape").expected(shape).got(x.shape));
        }
        i.set("Out", x.dtype, shape);
        Ok(())
    },
    grad: Grad::OpRule(&GRAD, grad),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits {
        inplace: &[("Out", "X"), ("Out", "Y")],
        elementwise_unpadded: true,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "fused_elemwise_activation_grad",
        inputs: &[one("X"), one("Y"), one("Out"), one("Out@GRAD")],
        outputs: &[one("X@GRAD"), optional("Y@GRAD")],
        attrs: ATTRS,
    },
    infer: |i| {
        let x = i.input("X")?;
        i.set("X@GRAD", x.dtype, x.shape);
        grads_like(i, &["Y"])
    },
    grad: Grad::None,
    cpu: |p| any_float(p, grad_cpu),
    traits: OpTraits {
        shape_only: &["X", "Y"],
        inplace: &[("X@GRAD", "Out@GRAD")],
        elementwise_unpadded: true,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

fn function(op: &Op) -> Result<Unary> {
    match op.attr_strs("functor_list") {
        [act, add] if add == "elementwise_add" => match act.as_str() {
            "relu" => return Ok(Unary::Relu),
            "relu6" => return Ok(Unary::Relu6),
            "sigmoid" => return Ok(Unary::Sigmoid),
            "tanh" => return Ok(Unary::Tanh),
            _ => {}
        },
        _ => {}
    }
    Err(Error::unsupported("unsupported attribute 'functor_list' of fused_elemwise_activation")
        .expected("[act, elementwise_add], act one of relu, relu6, sigmoid, tanh")
        .got(format!("{:?}", op.attr_strs("functor_list"))))
}

fn shapes(p: &PrepareCtx<'_>) -> Result<(Shape, Shape)> {
    check_row_major(p)?;
    align(&p.input("X").shape, &p.input("Y").shape, p.op.attr_int("axis"))
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    if p.input("X").dtype != DType::F32 {
        return Err(p.no_kernel(p.input("X").dtype));
    }
    let (op, (x, y)) = (function(p.op)?, shapes(p)?);
    // One pass if Y applies contiguously to a row of X or to all of X; two passes otherwise.
    let columns = y.len();
    let is_row = is_row(&x, &y);
    let plan = Broadcast::new(&sizes(&x), &sizes(&y))?;
    Ok(Kernel::infallible(move |k| {
        let (x, y) = (k.input_or_output(X, 0), k.input_or_output(Y, 0));
        let out = k.output(0);
        if is_row {
            bias_activation(k.pool, op, x, y, columns, out);
        } else {
            binary(k.pool, Binary::Add, &plan, x, y, out);
            unary(k.pool, op, Input::Output, out);
        }
    }))
}

/// Whether Y is X or one of its rows.
fn is_row(x: &Shape, y: &Shape) -> bool {
    let trailing = y.iter().rev().zip(x.iter().rev()).take_while(|(y, x)| y == x).map(|(y, _)| *y);
    trailing.product::<i64>() as usize == y.len() && !y.is_empty()
}

fn grad(g: &mut GradCtx<'_, '_>, def: &'static OpDef) -> Result<()> {
    let (x, y, out, dout) = (g.x("X")?, g.x("Y")?, g.y("Out")?, g.dy("Out")?);
    let (want_x, want_y) = (g.wants("X"), g.wants("Y"));
    if !want_x && !want_y {
        return Ok(());
    }
    let names = g.op.attr_strs("functor_list").to_vec();
    let axis = g.op.attr_int("axis");
    // If Y has the shape of X, both have the same gradient. It is computed once, unless Y is a
    // parameter.
    let shared =
        g.meta(x).shape == g.meta(y).shape && !g.emit.program.var(y).is_parameter() && want_x;
    let dx = if want_x { Some(g.dx_of(x, VarKind::Dense)?) } else { None };
    let dyy = if want_y && !shared { Some(g.dx_of(y, VarKind::Dense)?) } else { None };
    g.op(def)
        .input("X", x)
        .input("Y", y)
        .input("Out", out)
        .input("Out@GRAD", dout)
        .attr("functor_list", names)
        .attr("axis", axis)
        .maybe_output("X@GRAD", dx)
        .maybe_output("Y@GRAD", dyy)
        .done()?;
    if let (true, true, Some(dx)) = (want_y, shared, dx) {
        g.alias_grad(y, dx);
    }
    Ok(())
}

fn grad_cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let (op, (x, y)) = (function(p.op)?, shapes(p)?);
    let (len, row) = (x.len(), y.len());
    let is_row = is_row(&x, &y) && row < len;
    let repeated: Vec<usize> = (0..x.rank()).filter(|axis| x[*axis] != y[*axis]).collect();
    let sums = Reduction::new(&sizes(&x), &repeated);
    let rows = len.checked_div(row).unwrap_or(0);
    let scratch = match is_row {
        true => bias_activation_grad_scratch_len(rows, row),
        false => sums.scratch_len(),
    };
    Ok(Kernel::infallible(move |k| {
        let (out, dout) = (k.input_or_output(OUT, 0), k.input_or_output(DOUT, 0));
        let dx = k.output::<f32>(0);
        match k.optional_output::<f32>(1) {
            Some(dy) if is_row => {
                bias_activation_grad(k.pool, Some(op), out, dout, dx, dy, k.scratch());
            }
            dy => {
                unary_grad(k.pool, op, out, dout, dx);
                if let Some(dy) = dy {
                    reduce(k.pool, Fold::Sum, &sums, dx, dy, k.scratch());
                }
            }
        }
    })
    .scratch::<f32>(scratch))
}
