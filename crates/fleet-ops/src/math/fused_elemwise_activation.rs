//! `Out = act(X + Y)` in one pass over memory. A fusion pass makes this op from `elementwise_add`
//! and an activation. `functor_list` is [act, "elementwise_add"]. The activation is relu, relu6,
//! sigmoid or tanh: their gradients read Out, so the sum is not stored.
//!
//! f32, halves through f32. Y is broadcast to X as in `elementwise_add`; X has the shape of Out.

use crate::math::elementwise::{align, broadcast_shape};
use crate::math::unary::named;
use crate::prelude::*;
use crate::rules::{check_row_major, grads_like, sizes};
use crate::widen::{has_half, through_f32};
use fleet_ir::Op;
use fleet_kernels::binary::{Binary, Broadcast, binary_raw};
use fleet_kernels::chain::{bias_activation_grad_raw, bias_activation_grad_scratch_len};
use fleet_kernels::elementwise::{Unary, unary_grad_raw, unary_raw};
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
    cpu,
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
    cpu: grad_cpu,
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
            "relu" | "relu6" | "sigmoid" | "tanh" => return named(act),
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

/// Elements of the sum that are passed to the activation while they are in L1.
const TILE: usize = 4096;

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    if has_half(p) {
        return through_f32(p, cpu);
    }
    if p.input("X").dtype != DType::F32 {
        return Err(p.no_kernel(p.input("X").dtype));
    }
    let (op, (x, y)) = (function(p.op)?, shapes(p)?);
    let len = x.len();
    // One pass if Y applies contiguously to a row of X or to all of X; two passes otherwise.
    let row = y.len();
    let trailing = y.iter().rev().zip(x.iter().rev()).take_while(|(y, x)| y == x).map(|(y, _)| *y);
    let is_row = trailing.product::<i64>() as usize == row && row > 0;
    let plan = Broadcast::new(&sizes(&x), &sizes(&y))?;
    let tiles = is_row.then(|| (row.min(TILE), row));
    let parts = Broadcast::new(&[TILE], &[TILE])?;
    let rest = match tiles {
        Some((tile, row)) => Broadcast::new(&[row % tile], &[row % tile])?,
        None => parts.clone(),
    };
    let whole = match tiles {
        Some((tile, _)) => Broadcast::new(&[tile], &[tile])?,
        None => parts,
    };
    Ok(Kernel::new(move |k| {
        let x = k.arg(X).as_ptr::<f32>(len) as usize;
        let y = k.arg(Y).as_ptr::<f32>(row) as usize;
        let out = k.out_arg(0).as_ptr::<f32>(len) as usize;
        let Some((tile, row)) = tiles else {
            assert_eq!(plan.lens(), [len, row, len], "lengths differ from the plan");
            // SAFETY: the arguments have the lengths in the plan. Out may share memory with an
            // operand of its size, which is then read at the position being written.
            unsafe {
                binary_raw::<f32>(k.pool, Binary::Add, &plan, x as _, y as _, out as _);
                unary_raw(k.pool, op, out as _, out as _, len);
            }
            return Ok(());
        };
        let per_row = row.div_ceil(tile);
        let rows = len / row;
        let group = (4 * TILE / row.min(4 * TILE)).max(1);
        k.pool.run_ranges(rows * per_row, group, |range| {
            for part in range {
                let at = part % per_row * tile;
                let n = tile.min(row - at);
                let plan = if n == tile { &whole } else { &rest };
                let start = part / per_row * row + at;
                // SAFETY: parts are disjoint and inside the operands; as above for sharing.
                unsafe {
                    let out = (out as *mut f32).add(start);
                    let (x, y) = ((x as *const f32).add(start), (y as *const f32).add(at));
                    binary_raw(k.pool, Binary::Add, plan, x, y, out);
                    unary_raw(k.pool, op, out, out, n);
                }
            }
        });
        Ok(())
    }))
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
    if has_half(p) {
        return through_f32(p, grad_cpu);
    }
    let (op, (x, y)) = (function(p.op)?, shapes(p)?);
    let (len, row) = (x.len(), y.len());
    let trailing = y.iter().rev().zip(x.iter().rev()).take_while(|(y, x)| y == x).map(|(y, _)| *y);
    let is_row = trailing.product::<i64>() as usize == row && row > 0 && row < len;
    let repeated: Vec<usize> = (0..x.rank()).filter(|axis| x[*axis] != y[*axis]).collect();
    let sums = Reduction::new(&sizes(&x), &repeated);
    let rows = len.checked_div(row).unwrap_or(0);
    let scratch = match is_row {
        true => bias_activation_grad_scratch_len(rows, row),
        false => sums.scratch_len(),
    };
    Ok(Kernel::new(move |k| {
        let start = |slot: usize| k.arg(slot).as_ptr::<f32>(len).cast_const();
        let (out, dout, dx) = (start(OUT), start(DOUT), k.out_arg(0).as_ptr(len));
        let dy = k.optional_output::<f32>(1);
        if let (true, true) = (is_row, dy.is_some()) {
            if let Some(dy) = dy {
                // SAFETY: all have the shape of X; dX may be Out@GRAD, which is read at the
                // position being written.
                unsafe {
                    let scratch = k.scratch();
                    bias_activation_grad_raw(k.pool, Some(op), out, dout, dx, rows, dy, scratch);
                }
            }
            return Ok(());
        }
        // SAFETY: as above.
        unsafe { unary_grad_raw(k.pool, op, out, dout, dx, len) };
        if let Some(dy) = dy {
            let dx = k.out_arg(0).slice::<f32>();
            reduce(k.pool, Fold::Sum, &sums, dx, dy, k.scratch());
        }
        Ok(())
    })
    .scratch::<f32>(scratch))
}
