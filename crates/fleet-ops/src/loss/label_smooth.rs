//! `Out = (1 - epsilon) * X + epsilon * PriorDist`; f32. The default prior is uniform over the last
//! dimension.

use super::pointwise::fill;
use crate::math;
use crate::prelude::*;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "label_smooth",
        inputs: &[one("X"), optional("PriorDist")],
        outputs: &[one("Out")],
        attrs: &[attr("epsilon", Float(0.1))],
    },
    infer: |i| {
        i.check_dtype("X", &[DType::F32])?;
        i.check_dtype("PriorDist", &[DType::F32])?;
        let x = i.input("X")?;
        let last = x.shape.axis(-1)?;
        if let Some(prior) = i.optional("PriorDist") {
            let classes = x.shape[last];
            let found = prior.numel() as i64;
            if prior.shape.is_known() && classes >= 0 && found != classes {
                return Err(i
                    .error("PriorDist", "does not have one number per class")
                    .expected(classes)
                    .got(found));
            }
        }
        i.set("Out", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::Rule(|g| {
        let dy = g.dy("Out")?;
        let scale = 1.0 - g.op.attr_float("epsilon");
        if let Some(dx) = g.dx("X")? {
            g.op(&math::scale::DEF).input("X", dy).attr("scale", scale).output("Out", dx).done()?;
        }
        Ok(())
    }),
    cpu: |p| {
        let epsilon = p.op.attr_float("epsilon") as f32;
        let shape = p.input("X").shape;
        let classes = shape.at(shape.rank() - 1);
        Ok(Kernel::infallible(move |k| {
            let x = k.input::<f32>(0);
            let uniform = epsilon / classes as f32;
            match k.optional::<f32>(1) {
                Some(prior) => fill(k.pool, k.output(0), |i| {
                    (1.0 - epsilon) * x[i] + epsilon * prior[i % classes]
                }),
                None => fill(k.pool, k.output(0), |i| (1.0 - epsilon) * x[i] + uniform),
            }
        }))
    },
    traits: OpTraits::plain(),
};
