//! Matrix products.

use super::Translate;
use super::activation::activation;
use crate::context::Context;
use crate::graph::{Attribute, Value};
use fleet_base::Result;
use fleet_tensor::{DType, Shape};

pub(super) const RULES: &[(&str, Translate)] = &[
    ("fused_gemm_epilogue", fused),
    ("matmul_v2", matmul),
    ("mul", |c| {
        let cut = c.op.attr_usize("y_num_col_dims");
        let y = product(c, cut)?;
        c.set("Out", y)
    }),
];

/// The product of X and Y, flattened to matrices at their column dimensions.
fn product(c: &mut Context<'_, '_>, y_cut: usize) -> Result<Value> {
    let (mut x, mut y) = (c.x("X")?, c.x("Y")?);
    let (x_shape, y_shape) = (c.shape("X")?, c.shape("Y")?);
    let x_cut = c.op.attr_usize("x_num_col_dims");
    if x_cut + 1 == x_shape.rank() && y_cut == 1 && y_shape.rank() == 2 {
        return Ok(c.node("MatMul", &[x, y]));
    }
    let whole = x;
    if x_shape.rank() > 2 {
        x = c.with("Flatten", &[x], vec![("axis", Attribute::Int(x_cut as i64))]);
    }
    if y_shape.rank() > 2 {
        y = c.with("Flatten", &[y], vec![("axis", Attribute::Int(y_cut as i64))]);
    }
    let made = c.node("MatMul", &[x, y]);
    if x_cut == 1 && y_cut + 1 == y_shape.rank() {
        return Ok(made);
    }
    let dims: Vec<i64> = x_shape[..x_cut].iter().chain(&y_shape[y_cut..]).copied().collect();
    c.reshape_like(made, (whole, x_cut), &dims)
}

fn fused(c: &mut Context<'_, '_>) -> Result<()> {
    let mut y = product(c, 1)?;
    if let Some(bias) = c.optional("Bias")? {
        y = c.add(y, bias);
    }
    c.set("PreAct", y)?;
    let name = c.op.attr_str("activation").to_string();
    let out = activation(c, &name, "X", y)?;
    c.set("Out", out)
}

fn matmul(c: &mut Context<'_, '_>) -> Result<()> {
    let (mut x, mut y, dtype) = (c.x("X")?, c.x("Y")?, c.dtype("X")?);
    let (x_shape, y_shape) = (c.shape("X")?, c.shape("Y")?);
    let transposes = |name: &str, shape: &Shape| c.op.attr_bool(name) && shape.rank() > 1;
    let (trans_x, trans_y) = (transposes("trans_x", &x_shape), transposes("trans_y", &y_shape));
    let alpha = c.op.attr_float("alpha");
    if x_shape.rank() == 2 && y_shape.rank() == 2 && (trans_x || trans_y) && dtype == DType::F32 {
        let attributes = vec![
            ("transA", Attribute::Int(trans_x.into())),
            ("transB", Attribute::Int(trans_y.into())),
            ("alpha", Attribute::Float(alpha)),
        ];
        let out = c.with("Gemm", &[x, y], attributes);
        return c.set("Out", out);
    }
    if trans_x {
        x = c.transpose(x, &swapped(&x_shape));
    }
    if trans_y {
        y = c.transpose(y, &swapped(&y_shape));
    }
    let mut out = c.node("MatMul", &[x, y]);
    if alpha != 1.0 {
        let alpha = c.scalar(dtype, alpha)?;
        out = c.mul(out, alpha);
    }
    if x_shape.rank() == 1 && y_shape.rank() == 1 {
        out = c.reshape(out, &[1])?;
    }
    c.set("Out", out)
}

/// The order of dimensions with the last two swapped.
fn swapped(shape: &Shape) -> Vec<i64> {
    let rank = shape.rank();
    let mut order: Vec<i64> = (0..rank as i64).collect();
    order.swap(rank - 2, rank - 1);
    order
}
