//! `Out = scale * X + bias`, or `scale * (X + bias)` when `bias_after_scale` is off.
//!
//! f32 (halves through f32), f64, i32 and i64. Integers are scaled in f64 and truncated towards
//! zero. X may be sparse rows if there is no bias. The gradient is a scale.

use crate::divide;
use crate::math::norm::scale_into;
use crate::prelude::*;
use crate::rules::by_type;
use crate::widen::any_float;
use fleet_kernels::elementwise::{Unary, unary};
use fleet_kernels::map::map;

/// The op `scale`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "scale",
        inputs: &[one("X")],
        outputs: &[one("Out")],
        attrs: &[
            attr("scale", Float(1.0)),
            attr("bias", Float(0.0)),
            attr("bias_after_scale", Bool(true)),
        ],
    },
    infer: |i| {
        let x = i.input("X")?;
        if x.kind == VarKind::SparseRows && i.op.attr_float("bias") != 0.0 {
            return Err(Error::unsupported("scale does not support a bias for sparse rows"));
        }
        i.push("Out", x);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let dy = g.dy("Out")?;
        let scale = g.op.attr_float("scale");
        if let Some(dx) = g.dx("X")? {
            g.op(&DEF).input("X", dy).attr("scale", scale).output("Out", dx).done()?;
        }
        Ok(())
    }),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits {
        inplace: &[("Out", "X")],
        sparse: &["X"],
        elementwise: true,
        spread: Spread::Mean,
        divide: divide::padded_elementwise,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let scale = p.op.attr_float("scale");
    let bias = p.op.attr_float("bias");
    let bias = if p.op.attr_bool("bias_after_scale") { bias } else { bias * scale };
    if bias != 0.0 && p.input_layouts[0][0] != Layout::RowMajor {
        return Err(Error::unsupported("scale does not support a bias in a padded layout"));
    }
    let x = p.input("X");
    if x.dtype == DType::F32 {
        let op = Unary::Scale { scale: scale as f32, bias: bias as f32 };
        return Ok(Kernel::infallible(move |k| {
            if k.arg(0).rows.is_some() {
                scale_into(k, k.out(0), scale as f32);
                return;
            }
            unary(k.pool, op, k.input_or_output(0, 0), k.output(0));
        }));
    }
    if x.kind == VarKind::SparseRows {
        return Err(p.no_kernel(x.dtype));
    }
    by_type!(x.dtype, Err(p.no_kernel(x.dtype)), [F64 => f64, I32 => i32, I64 => i64], T => {
        let number = |x: T| -> f64 { x as _ };
        Ok(Kernel::infallible(move |k| {
            let (x, y) = (k.input_or_output(0, 0), k.output::<T>(0));
            map(k.pool, x, y, |x| (scale * number(x) + bias) as T);
        }))
    })
}
