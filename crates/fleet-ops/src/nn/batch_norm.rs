//! Batch normalization: `Y = (X - mean) / sqrt(variance + epsilon) * Scale + Bias` over all
//! dimensions but the channels. X may have half precision. All values per channel are f32.
//!
//! Training uses mean and biased variance of the batch, and updates the running values:
//! `running = running * momentum + batch * (1 - momentum)`. MeanOut and VarianceOut are the same
//! variables as Mean and Variance. With `is_test` or `use_global_stats`, the running values are
//! used and stay unchanged. The gradient needs SavedMean and SavedVariance (the inverse standard
//! deviation). Stats are partial sums `[blocks, 2, C]` from the preceding convolution, which save a
//! pass over X.
//!
//! The functions here also serve the fused ops, which add a residual Z and a ReLU.

use super::rank_sums::RankSums;
use crate::prelude::*;
use crate::rules::{number, set_requested};
use crate::widen::{FLOATS, any_float};
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::batch_norm::{
    self, Act, Backward, Dims, InputGradient, Mask, Masked, Operand, Order, Output, Partials,
    Training,
};

pub(super) const ATTRS: &[AttrSpec] = &[
    attr("momentum", Float(0.9)),
    attr("epsilon", Float(1e-5)),
    attr("is_test", Bool(false)),
    attr("use_global_stats", Bool(false)),
    attr("data_layout", Str("NCHW")),
];

/// The op `batch_norm`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "batch_norm",
        inputs: &[
            one("X"),
            one("Scale"),
            one("Bias"),
            one("Mean"),
            one("Variance"),
            optional("Stats"),
        ],
        outputs: &[
            one("Y"),
            one("MeanOut"),
            one("VarianceOut"),
            one("SavedMean"),
            one("SavedVariance"),
        ],
        attrs: ATTRS,
    },
    infer,
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, |p| forward(p, None)),
    traits: OpTraits { wide: &["Scale", "Bias", "Mean", "Variance"], ..TRAITS },
};

/// The op `batch_norm_grad`.
pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "batch_norm_grad",
        inputs: &[
            one("X"),
            one("Scale"),
            one("Bias"),
            one("SavedMean"),
            one("SavedVariance"),
            one("Y@GRAD"),
            optional("Addend"),
        ],
        outputs: &[optional("X@GRAD"), optional("Scale@GRAD"), optional("Bias@GRAD")],
        attrs: ATTRS,
    },
    infer: infer_grad,
    grad: Grad::None,
    cpu: |p| any_float(p, |p| backward(p, None)),
    traits: OpTraits {
        inplace: &[("X@GRAD", "Y@GRAD"), ("X@GRAD", "X")],
        images: Some(Images { format: "data_layout", slots: &["X", "Y@GRAD", "Addend", "X@GRAD"] }),
        cost: cost_grad,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

/// Traits of the forward ops.
pub(super) const TRAITS: OpTraits = OpTraits {
    inplace: &[("Y", "X")],
    state: &[("MeanOut", "Mean"), ("VarianceOut", "Variance")],
    images: Some(Images { format: "data_layout", slots: &["X", "Y"] }),
    cost,
    spread: Spread::Mean,
    ..OpTraits::amp(AmpClass::Gray)
};

// Slots, which are the same in the fused ops.
const X: usize = 0;
const SCALE: usize = 1;
const BIAS: usize = 2;
const MEAN: usize = 3;
const VARIANCE: usize = 4;
const STATS: usize = 5;
const Z: usize = 6;
const Y: usize = 0;
const MEAN_OUT: usize = 1;
const VARIANCE_OUT: usize = 2;
const SAVED_MEAN: usize = 3;
const SAVED_INV_STD: usize = 4;
// Slots of the gradient ops.
const DY: usize = 5;
const ADDEND: usize = 6;
const Y_SAVED: usize = 7;
const DX: usize = 0;
const DSCALE: usize = 1;
const DBIAS: usize = 2;
const DZ: usize = 3;

pub(super) fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    act_of(i.op)?;
    let (x, channels) = check(i)?;
    for slot in ["Scale", "Bias", "Mean", "Variance"] {
        i.check_dtype(slot, &[DType::F32])?;
        i.check_shape(slot, [channels])?;
    }
    if i.optional("Z").is_some() {
        i.check_dtype("Z", &[i.input("X")?.dtype])?;
        i.check_shape("Z", x)?;
    }
    if i.optional("Stats").is_some() {
        i.check_dtype("Stats", &[DType::F32])?;
        i.check_shape("Stats", [-1, 2, channels])?;
    }
    i.set("Y", i.input("X")?.dtype, x);
    for slot in ["MeanOut", "VarianceOut", "SavedMean", "SavedVariance"] {
        i.set(slot, DType::F32, [channels]);
    }
    Ok(())
}

pub(super) fn infer_grad(i: &mut InferCtx<'_>) -> Result<()> {
    let (x, channels) = check(i)?;
    for slot in ["Scale", "Bias", "SavedMean", "SavedVariance"] {
        i.check_dtype(slot, &[DType::F32])?;
        i.check_shape(slot, [channels])?;
    }
    for slot in ["Y@GRAD", "Addend", "Y"] {
        if i.optional(slot).is_some() {
            i.check_dtype(slot, FLOATS)?;
            i.check_shape(slot, x)?;
        }
    }
    let dtype = i.input("X")?.dtype;
    for slot in ["X@GRAD", "Z@GRAD"] {
        set_requested(i, slot, dtype, x);
    }
    for slot in ["Scale@GRAD", "Bias@GRAD"] {
        set_requested(i, slot, DType::F32, [channels]);
    }
    Ok(())
}

/// Checks X, and returns its shape and its number of channels.
fn check(i: &InferCtx<'_>) -> Result<(Shape, i64)> {
    i.check_dtype("X", FLOATS)?;
    let x = i.input("X")?.shape;
    if !(2..=5).contains(&x.rank()) {
        return Err(i
            .error("X", "has the wrong number of dimensions")
            .expected("2 to 5")
            .got(format!("{} (shape {x})", x.rank())));
    }
    Ok((x, x[channel_axis(i.op, &x)?]))
}

/// Returns the activation of a fused op.
fn act_of(op: &Op) -> Result<Act> {
    if op.spec.attr_index("act_type").is_none() {
        return Ok(Act::None);
    }
    match op.attr_str("act_type") {
        "relu" => Ok(Act::Relu),
        "" => Ok(Act::None),
        other => Err(Error::unsupported(format!("unknown activation of {}", op.name()))
            .expected("relu")
            .got(other)),
    }
}

fn channel_axis(op: &Op, x: &Shape) -> Result<usize> {
    match op.attr_str("data_layout") {
        "NCHW" | "AnyLayout" => Ok(1),
        "NHWC" => Ok(x.rank() - 1),
        other => Err(Error::invalid(format!("unknown data_layout of {}", op.name()))
            .expected("NCHW or NHWC")
            .got(other)),
    }
}

fn dims(p: &PrepareCtx<'_>) -> Result<Dims> {
    let x = p.input("X").shape;
    let axis = channel_axis(p.op, &x)?;
    let last = axis == x.rank() - 1;
    Ok(Dims {
        batch: x.at(0),
        plane: if last { x.product(1..axis) } else { x.product(axis + 1..x.rank()) },
        channels: x.at(axis),
        order: if last { Order::ChannelsLast } else { Order::ChannelsFirst },
    })
}

fn is_frozen(p: &PrepareCtx<'_>) -> bool {
    p.op.attr_bool("is_test") || p.op.attr_bool("use_global_stats")
}

/// Makes the forward kernel. `sync` merges the statistics over ranks.
pub(super) fn forward(p: &PrepareCtx<'_>, sync: Option<RankSums>) -> Result<Kernel> {
    let (dims, act) = (dims(p)?, act_of(p.op)?);
    let training =
        Training { momentum: number(p.op, "momentum"), epsilon: number(p.op, "epsilon") };
    let has_z = p.optional("Z").is_some();
    let frozen = is_frozen(p);
    if dims.is_empty() && !frozen {
        return Err(Error::invalid("batch_norm cannot train on an empty batch")
            .got(p.input("X").shape)
            .help("set is_test to use the running statistics"));
    }
    let own = batch_norm::scratch_len(&dims);
    let shared = sync.as_ref().map_or(0, |sync| sync.scratch_len(dims.channels));
    let kernel = Kernel::new(move |k| {
        let (scratch, exchange) = k.scratch::<f32>().split_at_mut(own);
        let mean = k.output::<f32>(SAVED_MEAN);
        let inv_std = k.output::<f32>(SAVED_INV_STD);
        let y = k.output::<f32>(Y);
        let running_mean = k.updated::<f32>(MEAN_OUT, MEAN);
        let running_variance = k.updated::<f32>(VARIANCE_OUT, VARIANCE);
        if frozen {
            mean.copy_from_slice(running_mean);
            inv_std.copy_from_slice(running_variance);
        } else {
            match k.optional::<f32>(STATS) {
                Some(sums) => {
                    let partials = Partials { sums, shift: None };
                    batch_norm::statistics_of_partials(dims.rows(), partials, mean, inv_std);
                }
                None => {
                    let x = k.input_or_output(X, Y).or(y);
                    batch_norm::statistics(k.pool, &dims, x, scratch, mean, inv_std);
                }
            }
            if let Some(sync) = &sync {
                k.communicate(|| sync.merge(dims.rows(), mean, inv_std, exchange))?;
            }
            batch_norm::update_running(training.momentum, mean, running_mean);
            batch_norm::update_running(training.momentum, inv_std, running_variance);
        }
        batch_norm::invert_deviation(training.epsilon, inv_std);
        let affine = (k.input::<f32>(SCALE), k.input::<f32>(BIAS));
        let residual = if has_z { Some(k.input::<f32>(Z)) } else { None };
        let (x, y) = match k.shares_memory(Y, X) {
            true => (Operand::Reuse(y), Output::OverX),
            false => (Operand::Read(k.input(X)), Output::New(y)),
        };
        let given = (&*mean, &*inv_std);
        batch_norm::normalise(k.pool, &dims, x, given, affine, residual, act, y, scratch);
        Ok(())
    });
    Ok(kernel.scratch::<f32>(own + shared))
}

/// Makes the backward kernel. `sync` sums the statistics of the gradient of X over ranks.
pub(super) fn backward(p: &PrepareCtx<'_>, sync: Option<RankSums>) -> Result<Kernel> {
    let (dims, act) = (dims(p)?, act_of(p.op)?);
    let is_frozen = is_frozen(p);
    let has_y = p.op.spec.input_index("Y").is_some();
    let has_z = p.optional_output("Z@GRAD").is_some();
    let own = batch_norm::scratch_len(&dims);
    let c = dims.channels;
    // The kernel always writes the gradient of X, so it needs memory even if the gradient is not
    // requested.
    let spare = if p.optional_output("X@GRAD").is_some() { 0 } else { dims.len() };
    let shared = sync.as_ref().map_or(0, |sync| sync.scratch_len(c) + 2 * c);
    let kernel = Kernel::new(move |k| {
        let (all, exchange) = k.scratch::<f32>().split_at_mut(own + 2 * c + spare);
        let (scratch, spare_x) = all.split_at_mut(own + 2 * c);
        let (scratch, spare_c) = scratch.split_at_mut(own);
        let (spare_scale, spare_bias) = spare_c.split_at_mut(c);
        let (x, dy, dx, masked) = gradient_operands(k, has_z, &mut spare_x[..spare]);
        let mask = match act {
            Act::None => Mask::None,
            Act::Relu if has_y => Mask::FromOutput(k.input(Y_SAVED)),
            Act::Relu => Mask::FromInput,
        };
        let d_gamma = k.optional_output(DSCALE).unwrap_or(spare_scale);
        let d_beta = k.optional_output(DBIAS).unwrap_or(spare_bias);
        let args = Backward {
            dy,
            addend: k.optional(ADDEND),
            mask,
            masked,
            x,
            dx,
            mean: k.input(MEAN),
            inv_std: k.input(VARIANCE),
            gamma: k.input(SCALE),
            beta: k.input(BIAS),
            is_frozen,
            d_gamma: &mut *d_gamma,
            d_beta: &mut *d_beta,
        };
        let Some(sync) = &sync else {
            batch_norm::backward(k.pool, &dims, args, scratch);
            return Ok(());
        };
        let (kept, exchange) = exchange.split_at_mut(2 * c);
        let mut outcome = Ok(());
        batch_norm::backward_across(k.pool, &dims, args, scratch, |d_beta, d_gamma| {
            kept[..c].copy_from_slice(d_beta);
            kept[c..].copy_from_slice(d_gamma);
            let sums = k.communicate(|| sync.sum(dims.rows(), d_beta, d_gamma, exchange));
            sums.unwrap_or_else(|error| {
                outcome = Err(error);
                dims.rows()
            })
        });
        // Scale and bias get the gradients of this rank. Like all gradients, they are summed over
        // ranks later.
        d_beta.copy_from_slice(&kept[..c]);
        d_gamma.copy_from_slice(&kept[c..]);
        outcome
    });
    Ok(kernel.scratch::<f32>(own + 2 * c + spare + shared))
}

/// Returns X and dY, and the destinations of dX and of the masked dY, with their overlaps. A
/// missing dX goes to `spare`.
fn gradient_operands<'a>(
    k: &KernelCtx<'a>,
    has_z: bool,
    spare: &'a mut [f32],
) -> (Operand<'a>, Operand<'a>, InputGradient<'a>, Masked<'a>) {
    let (dx_over_dy, dx_over_x) = (k.shares_memory(DX, DY), k.shares_memory(DX, X));
    let dz_over_dy = has_z && k.shares_memory(DZ, DY);
    let dy = match () {
        () if dx_over_dy => Operand::Reuse(k.output(DX)),
        () if dz_over_dy => Operand::Reuse(k.output(DZ)),
        () => Operand::Read(k.input(DY)),
    };
    let x = match dx_over_x {
        true => Operand::Reuse(k.output(DX)),
        false => Operand::Read(k.input(X)),
    };
    let dx = match () {
        () if dx_over_dy => InputGradient::OverDy,
        () if dx_over_x => InputGradient::OverX,
        () => InputGradient::New(k.optional_output(DX).unwrap_or(spare)),
    };
    let masked = match () {
        () if dz_over_dy => Masked::OverDy,
        () if has_z => Masked::New(k.output(DZ)),
        () => Masked::Drop,
    };
    (x, dy, dx, masked)
}

/// Cost of two flops per element for the statistics, two to normalize, and one each for residual
/// and ReLU.
fn cost(c: &CostCtx<'_>) -> Cost {
    let x = c.input("X").map_or(0, Meta::bytes) as f64;
    let passes = if c.input("Stats").is_some() { 0.0 } else { 1.0 };
    Cost { flops: 6.0 * c.input("X").map_or(0, Meta::numel) as f64, bytes: c.bytes() + passes * x }
}

pub(super) fn cost_grad(c: &CostCtx<'_>) -> Cost {
    let x = c.input("X").map_or(0, Meta::bytes) as f64;
    // Both passes read x and the gradient.
    Cost { flops: 9.0 * c.input("X").map_or(0, Meta::numel) as f64, bytes: c.bytes() + 2.0 * x }
}
