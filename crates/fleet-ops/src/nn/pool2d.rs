//! Pooling of images: maximum or average of windows.
//!
//! `ksize` is the window size, or with `adaptive` the output size. `global_pooling` uses one window
//! over the whole image. Averages exclude the padding (`exclusive`) or include it. If requested,
//! max pooling writes Mask, the position of each maximum in its window. It is u8, or i32 for
//! windows of more than 256 elements, and the gradient reads it.

use super::window::{Axes, pair, window};
use crate::prelude::*;
use crate::widen::{FLOATS, any_float};
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::batch_norm::Order;
use fleet_kernels::pool2d::{Count, Input, Pool2d, Strided};

const ATTRS: &[AttrSpec] = &[
    attr("pooling_type", Str("max")),
    attr("ksize", Ints(&[1, 1])),
    attr("strides", Ints(&[1, 1])),
    attr("paddings", Ints(&[0, 0])),
    attr("padding_algorithm", Str("EXPLICIT")),
    attr("global_pooling", Bool(false)),
    attr("adaptive", Bool(false)),
    attr("ceil_mode", Bool(false)),
    attr("exclusive", Bool(true)),
    attr("data_format", Str("NCHW")),
];

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "pool2d",
        inputs: &[one("X")],
        outputs: &[one("Out"), optional("Mask")],
        attrs: ATTRS,
    },
    infer: |i| {
        let (x, out) = check(i)?;
        i.set("Out", x.dtype, out);
        // While a program is built, the mask is always made, because the gradient will need it.
        if is_max(i.op)? {
            i.set("Mask", mask_type(i.op)?, out);
        }
        Ok(())
    },
    grad: Grad::Op(&GRAD),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits {
        images: Some(Images { format: "data_format", slots: &["X", "Out", "Mask"] }),
        cost,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "pool2d_grad",
        inputs: &[one("X"), optional("Mask"), one("Out@GRAD")],
        outputs: &[one("X@GRAD")],
        attrs: ATTRS,
    },
    infer: |i| {
        let (x, out) = check(i)?;
        i.check_shape("Out@GRAD", out)?;
        if is_max(i.op)? {
            if i.optional("Mask").is_none() {
                return Err(i.error("Mask", "is needed for the gradient of max pooling"));
            }
            i.check_dtype("Mask", &[mask_type(i.op)?])?;
            i.check_shape("Mask", out)?;
        }
        i.set("X@GRAD", x.dtype, x.shape);
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| any_float(p, cpu_grad),
    traits: OpTraits {
        shape_only: &["X"],
        images: Some(Images { format: "data_format", slots: &["X", "Mask", "Out@GRAD", "X@GRAD"] }),
        cost: cost_grad,
        ..OpTraits::amp(AmpClass::Gray)
    },
};

/// Checks X, and returns it with the shape of Out.
fn check(i: &InferCtx<'_>) -> Result<(Meta, Shape)> {
    i.check_dtype("X", FLOATS)?;
    let x = i.check_rank("X", 4)?;
    let axes = Axes::of(i.op, "data_format")?;
    let image = axes.image(i, "X")?;
    is_max(i.op)?;
    let outputs = match kind(i.op)? {
        Kind::Global => [1, 1],
        Kind::Adaptive(size) => size.map(|size| size as i64),
        Kind::Windows(size) => {
            let ceil = i.op.attr_bool("ceil_mode");
            window(i.op, size, [1, 1], image)?.outputs(i.op, image, ceil)?
        }
    };
    Ok((i.input("X")?, axes.shape(x[0], x[axes.channels], outputs)))
}

fn is_max(op: &Op) -> Result<bool> {
    match op.attr_str("pooling_type") {
        "max" => Ok(true),
        "avg" => Ok(false),
        other => {
            Err(Error::invalid("unknown pooling_type of pool2d").expected("max or avg").got(other))
        }
    }
}

/// Kind of pooling. Sizes are height and width.
enum Kind {
    Global,
    Adaptive([usize; 2]),
    Windows([usize; 2]),
}

fn kind(op: &Op) -> Result<Kind> {
    if op.attr_bool("global_pooling") {
        return Ok(Kind::Global);
    }
    let size = pair(op, "ksize", 1)?;
    Ok(if op.attr_bool("adaptive") { Kind::Adaptive(size) } else { Kind::Windows(size) })
}

/// Returns the type of the mask. A byte holds positions in windows of up to 256 elements. Windows
/// that depend on the image may have any size, and the type must not depend on whether that size is
/// known yet.
fn mask_type(op: &Op) -> Result<DType> {
    match kind(op)? {
        Kind::Windows([h, w]) if h.saturating_mul(w) <= 256 => Ok(DType::U8),
        _ => Ok(DType::I32),
    }
}

fn pooling(p: &PrepareCtx<'_>) -> Result<Pool2d> {
    let x = p.input("X").shape;
    let axes = Axes::of(p.op, "data_format")?;
    let image = axes.spatial(&x);
    let input = Input {
        batch: x.at(0),
        channels: x.at(axes.channels),
        height: image[0] as usize,
        width: image[1] as usize,
        order: if axes.is_nhwc() { Order::ChannelsLast } else { Order::ChannelsFirst },
    };
    match kind(p.op)? {
        Kind::Global => Ok(Pool2d::global(input)),
        Kind::Adaptive(size) => Ok(Pool2d::adaptive(input, size)),
        Kind::Windows(size) => {
            let window = window(p.op, size, [1, 1], image)?;
            Pool2d::strided(
                input,
                Strided {
                    size,
                    stride: window.strides,
                    pads: window.paddings,
                    ceil_mode: p.op.attr_bool("ceil_mode"),
                },
            )
        }
    }
}

fn count(op: &Op) -> Count {
    if op.attr_bool("exclusive") { Count::Exclusive } else { Count::Inclusive }
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let pooling = pooling(p)?;
    if !is_max(p.op)? {
        let count = count(p.op);
        return Ok(Kernel::infallible(move |k| {
            pooling.average_forward(k.pool, count, k.input(0), k.output(0))
        }));
    }
    let is_narrow = p.optional_output("Mask").is_none_or(|mask| mask.dtype == DType::U8);
    Ok(Kernel::infallible(move |k| {
        let (x, y) = (k.input(0), k.output(0));
        match is_narrow {
            true => pooling.max_forward(k.pool, x, y, k.optional_output::<u8>(1)),
            false => {
                pooling.max_forward::<u32>(k.pool, x, y, k.optional_out(1).map(Out::into_bits));
            }
        }
    }))
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let pooling = pooling(p)?;
    if !is_max(p.op)? {
        let count = count(p.op);
        return Ok(Kernel::infallible(move |k| {
            pooling.average_backward(k.pool, count, k.input(2), k.output(0))
        }));
    }
    let is_narrow = p.input("Mask").dtype == DType::U8;
    Ok(Kernel::infallible(move |k| {
        let (dy, dx) = (k.input(2), k.output(0));
        match is_narrow {
            true => pooling.max_backward(k.pool, dy, k.input::<u8>(1), dx),
            false => {
                pooling.max_backward::<u32>(k.pool, dy, k.arg(1).bits(), dx);
            }
        }
    }))
}

/// Cost of one flop per position of each window.
fn cost(c: &CostCtx<'_>) -> Cost {
    let out = c.output("Out").map_or(0, Meta::numel) as f64;
    let x = c.input("X").map_or(0, Meta::numel) as f64;
    let flops = match kind(c.op) {
        Ok(Kind::Windows([h, w])) => out * h as f64 * w as f64,
        _ => x,
    };
    Cost { flops, bytes: c.bytes() }
}

fn cost_grad(c: &CostCtx<'_>) -> Cost {
    let x = c.input("X").map_or(0, Meta::bytes) as f64;
    Cost { flops: c.input("X").map_or(0, Meta::numel) as f64, bytes: c.bytes() - x }
}
