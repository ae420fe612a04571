//! `Out = X` with elements set to 0 with probability `dropout_prob`.
//!
//! "upscale_in_train" divides the kept elements by their probability, and changes nothing in a test
//! run. "downgrade_in_infer" leaves them unchanged, and multiplies by that probability in a test
//! run. The dropped elements are a function of seed, stream, step and position. The gradient op
//! draws them again, so no mask is stored.

use super::random;
use crate::divide::Runs;
use crate::prelude::*;
use crate::widen::{FLOATS, any_float};
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::dropout::{Dropout, Mode, dropout, dropout_infer};
use fleet_kernels::fill::Draw;

const ATTRS: &[AttrSpec] = &[
    attr("dropout_prob", Float(0.5)),
    attr("is_test", Bool(false)),
    attr("dropout_implementation", Str("upscale_in_train")),
    attr("seed", Int(0)),
    attr("stream", Int(0)),
    PART,
];

pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "dropout", inputs: &[one("X")], outputs: &[one("Out")], attrs: ATTRS },
    infer: |i| infer(i, "X", "Out"),
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits {
        inplace: &[("Out", "X")],
        random: true,
        cost,
        divide: |d| {
            let Some(along) = d.along("X") else {
                return Err(d.unsupported("computes no part of a tensor"));
            };
            d.set_random_part(along);
            d.set_part("Out", along)
        },
        ..OpTraits::amp(AmpClass::Gray)
    },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "dropout_grad",
        inputs: &[one("Out@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: ATTRS,
    },
    infer: |i| infer(i, "Out@GRAD", "X@GRAD"),
    grad: Grad::None,
    cpu: |p| any_float(p, cpu),
    traits: OpTraits { inplace: &[("X@GRAD", "Out@GRAD")], cost, ..OpTraits::amp(AmpClass::Gray) },
};

fn infer(i: &mut InferCtx<'_>, x: &str, out: &str) -> Result<()> {
    i.check_dtype(x, FLOATS)?;
    let probability = i.op.attr_float("dropout_prob");
    if !(0.0..=1.0).contains(&probability) {
        return Err(Error::invalid("dropout_prob is not a probability")
            .expected("0 to 1")
            .got(probability));
    }
    mode(i.op)?;
    let meta = i.input(x)?;
    i.set(out, meta.dtype, meta.shape);
    Ok(())
}

fn mode(op: &Op) -> Result<Mode> {
    match op.attr_str("dropout_implementation") {
        "upscale_in_train" => Ok(Mode::UpscaleInTrain),
        "downgrade_in_infer" => Ok(Mode::DowngradeInInfer),
        other => Err(Error::invalid("unknown dropout_implementation")
            .expected("upscale_in_train or downgrade_in_infer")
            .got(other)),
    }
}

/// Kernel of the op and of its gradient: both multiply by the mask and the scale.
fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let mode = mode(p.op)?;
    let probability = p.op.attr_float("dropout_prob") as f32;
    let (seed, stream) = (p.op.attr_int("seed"), p.op.attr_int("stream"));
    let is_test = p.op.attr_bool("is_test");
    let runs = Runs::of(p.op, &p.outputs[0][0].shape)?;
    Ok(Kernel::infallible(move |k| {
        let draw =
            Draw { seed: random::seed(seed, k), stream: random::stream(stream, k), offset: 0 };
        let drop = Dropout { probability, mode, draw };
        let (x, y) = (k.input_or_output(0, 0), k.output::<f32>(0));
        if is_test {
            return dropout_infer(k.pool, drop, x, y);
        }
        runs.each(y.len(), |run, offset| {
            let drop = Dropout { draw: Draw { offset, ..draw }, ..drop };
            dropout(k.pool, drop, x.range(run.clone()), &mut y[run]);
        });
    }))
}

/// Cost of a quarter of ten rounds of Philox per element.
fn cost(c: &CostCtx<'_>) -> Cost {
    Cost {
        flops: 20.0 * c.outputs[0].iter().map(Meta::numel).sum::<usize>() as f64,
        bytes: c.bytes(),
    }
}
