//! `Out = scale * X + bias`, or `scale * (X + bias)` when `bias_after_scale` is off.
//!
//! Any float or integer type; integers are scaled in f64 and truncated. The gradient is a scale.

use crate::prelude::*;

const X: usize = 0;
const OUT: usize = 0;

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
        i.set("Out", x.dtype, x.shape);
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
    cpu,
    traits: OpTraits { inplace: &[("Out", "X")], ..OpTraits::amp(AmpClass::Gray) },
};

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let scale = p.op.attr_float("scale");
    let bias = p.op.attr_float("bias");
    let bias = if p.op.attr_bool("bias_after_scale") { bias } else { bias * scale };
    match p.input("X").dtype {
        DType::F32 => Ok(Kernel::new(move |k| {
            let (a, b) = (scale as f32, bias as f32);
            let (x, y) = (k.input::<f32>(X), k.output::<f32>(OUT));
            x.iter().zip(y).for_each(|(x, y)| *y = a * *x + b);
            Ok(())
        })),
        dtype => Err(p.no_kernel(dtype)),
    }
}
