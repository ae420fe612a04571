//! Convolution of images: `Output = act(conv(Input, Filter) + Bias + ResidualData)`, in one float
//! type. Half precision is computed in f32.
//!
//! Filter is [Cout, Cin / groups, kh, kw]. The fast path is channels last with a filter stored in
//! `Layout::Filter64`, which needs no copy. Channels first uses transposed copies in scratch, and a
//! row-major filter is packed there. Stats [blocks, 2, Cout] are partial sums and sums of squares
//! of Output for a following batch norm, computed while the tiles are in cache.
//!
//! `depthwise_conv2d` is the documented name of the same op with one filter per channel. With
//! `fuse_relu_before_depthwise_conv`, it clips Input at 0 while reading.

use super::window::{Axes, pair, window};
use crate::prelude::*;
use crate::rules::{grads_like, is_requested, set_requested};
use crate::widen::{FLOATS, any_float};
use fleet_ir::{AttrSpec, Op};
use fleet_kernels::conv::{Backward, Conv2d, Forward};
use fleet_kernels::micro::PANEL;
use fleet_kernels::reduce::{Fold, Reduction, reduce};
use fleet_kernels::transpose::{Permute, permute};

const ATTRS: &[AttrSpec] = &[
    attr("strides", Ints(&[1, 1])),
    attr("paddings", Ints(&[0, 0])),
    attr("padding_algorithm", Str("EXPLICIT")),
    attr("dilations", Ints(&[1, 1])),
    attr("groups", Int(1)),
    attr("data_format", Str("NCHW")),
    attr("activation", Str("")),
];

const DEPTHWISE_ATTRS: &[AttrSpec] = &[
    ATTRS[0],
    ATTRS[1],
    ATTRS[2],
    ATTRS[3],
    ATTRS[4],
    ATTRS[5],
    ATTRS[6],
    attr("fuse_relu_before_depthwise_conv", Bool(false)),
];

const INPUT: usize = 0;
const FILTER: usize = 1;
const BIAS: usize = 2;
const RESIDUAL: usize = 3;
const OUTPUT: usize = 0;
const STATS: usize = 1;
// Slots of the gradient op.
const OUTPUT_SAVED: usize = 2;
const DOUTPUT: usize = 3;
const DINPUT: usize = 0;
const DFILTER: usize = 1;
const DBIAS: usize = 2;
const DRESIDUAL: usize = 3;

/// The op `conv2d`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "conv2d",
        inputs: &[one("Input"), one("Filter"), optional("Bias"), optional("ResidualData")],
        outputs: &[one("Output"), optional("Stats")],
        attrs: ATTRS,
    },
    infer,
    grad: Grad::OpRule(&GRAD, rule),
    cpu: |p| any_float(p, cpu),
    traits: OpTraits {
        images: Some(Images { format: "data_format", slots: &["Input", "ResidualData", "Output"] }),
        cost,
        ..OpTraits::amp(AmpClass::White)
    },
};

/// The op `conv2d_grad`.
pub static GRAD: OpDef = OpDef {
    spec: OpSpec {
        name: "conv2d_grad",
        inputs: &[one("Input"), one("Filter"), optional("Output"), one("Output@GRAD")],
        outputs: &[
            optional("Input@GRAD"),
            optional("Filter@GRAD"),
            optional("Bias@GRAD"),
            optional("ResidualData@GRAD"),
        ],
        attrs: ATTRS,
    },
    infer: infer_grad,
    grad: Grad::None,
    cpu: |p| any_float(p, cpu_grad),
    traits: OpTraits {
        images: Some(Images {
            format: "data_format",
            slots: &["Input", "Output", "Output@GRAD", "Input@GRAD", "ResidualData@GRAD"],
        }),
        cost: cost_grad,
        separable: true,
        ..OpTraits::amp(AmpClass::White)
    },
};

/// The op `depthwise_conv2d`.
pub static DEPTHWISE: OpDef = OpDef {
    spec: OpSpec { name: "depthwise_conv2d", attrs: DEPTHWISE_ATTRS, ..DEF.spec },
    grad: Grad::OpRule(&DEPTHWISE_GRAD, rule),
    traits: OpTraits { amp: AmpClass::Unlisted, ..DEF.traits },
    ..DEF
};

/// The op `depthwise_conv2d_grad`.
pub static DEPTHWISE_GRAD: OpDef = OpDef {
    spec: OpSpec { name: "depthwise_conv2d_grad", attrs: DEPTHWISE_ATTRS, ..GRAD.spec },
    traits: OpTraits { amp: AmpClass::Unlisted, separable: false, ..GRAD.traits },
    ..GRAD
};

/// Checks all inputs and returns the shape of the output.
fn check(i: &InferCtx<'_>) -> Result<Shape> {
    i.check_dtype("Input", FLOATS)?;
    i.check_dtype("Filter", &[i.input("Input")?.dtype])?;
    let (input, filter) = (i.check_rank("Input", 4)?, i.check_rank("Filter", 4)?);
    let axes = Axes::of(i.op, "data_format")?;
    let groups = i.op.attr_int("groups");
    if groups < 1 || (filter[0] >= 0 && filter[0] % groups != 0) {
        return Err(Error::invalid(format!("attribute 'groups' of {} is wrong", i.op.name()))
            .expected(format!("a divisor of the {} output channels", filter[0]))
            .got(groups));
    }
    let channels = input[axes.channels];
    if channels >= 0 && filter[1] >= 0 && channels != filter[1].saturating_mul(groups) {
        return Err(i
            .error("Filter", "does not fit the channels of the input")
            .expected(format!("{channels} input channels in {groups} groups"))
            .got(format!("{} per group (shape {filter})", filter[1])));
    }
    is_relu(i.op)?;
    if filter[2] < 1 || filter[3] < 1 {
        return Err(i.error("Filter", "has an empty window").got(filter));
    }
    let image = axes.image(i, "Input")?;
    let kernel = [filter[2] as usize, filter[3] as usize];
    let window = window(i.op, kernel, pair(i.op, "dilations", 1)?, image)?;
    Ok(axes.shape(input[0], filter[0], window.outputs(i.op, image, false)?))
}

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    let output = check(i)?;
    let (input, filter) = (i.input("Input")?.shape, i.input("Filter")?.shape);
    let dtype = i.input("Input")?.dtype;
    if i.optional("Bias").is_some() {
        i.check_dtype("Bias", &[dtype])?;
        i.check_shape("Bias", [filter[0]])?;
    }
    if i.optional("ResidualData").is_some() {
        i.check_dtype("ResidualData", &[dtype])?;
        i.check_shape("ResidualData", output)?;
    }
    i.set("Output", dtype, output);
    if is_requested(i, "Stats") {
        if is_relu(i.op)? || i.optional("ResidualData").is_some() {
            return Err(Error::unsupported(format!(
                "{} computes statistics only without residual and activation",
                i.op.name()
            )));
        }
        let blocks = match input.is_known() && filter.is_known() {
            true => stats_blocks(&conv_of(i.op, &input, &filter)?) as i64,
            false => -1,
        };
        i.set("Stats", DType::F32, [blocks, 2, filter[0]]);
    }
    Ok(())
}

fn infer_grad(i: &mut InferCtx<'_>) -> Result<()> {
    let output = check(i)?;
    i.check_shape("Output@GRAD", output)?;
    if is_relu(i.op)? && i.optional("Output").is_none() {
        return Err(i.error("Output", "is needed for the gradient of the activation"));
    }
    let (channels, dtype) = (i.input("Filter")?.shape[0], i.input("Input")?.dtype);
    set_requested(i, "Bias@GRAD", dtype, [channels]);
    set_requested(i, "ResidualData@GRAD", dtype, output);
    grads_like(i, &["Input", "Filter"])
}

fn is_relu(op: &Op) -> Result<bool> {
    match op.attr_str("activation") {
        "" | "identity" => Ok(false),
        "relu" => Ok(true),
        other => Err(Error::unsupported(format!("unknown activation of {}", op.name()))
            .expected("relu")
            .got(other)),
    }
}

fn fuses_input_relu(op: &Op) -> bool {
    const CLIP: &str = "fuse_relu_before_depthwise_conv";
    op.spec.attr_index(CLIP).is_some() && op.attr_bool(CLIP)
}

fn rule(g: &mut GradCtx<'_, '_>, grad: &'static OpDef) -> Result<()> {
    // Only the gradient of the activation reads the output.
    let unused: &[&str] = if is_relu(&g.op)? { &[] } else { &["Output"] };
    g.by_name(grad, unused, VarKind::Dense)
}

/// Returns the kernel's description of a convolution with known shapes.
fn conv_of(op: &Op, input: &Shape, filter: &Shape) -> Result<Conv2d> {
    let axes = Axes::of(op, "data_format")?;
    let image = axes.spatial(input);
    let kernel = [filter.at(2), filter.at(3)];
    let window = window(op, kernel, pair(op, "dilations", 1)?, image)?;
    let conv = Conv2d {
        n: input.at(0),
        h: image[0] as usize,
        w: image[1] as usize,
        c_in: input.at(axes.channels),
        c_out: filter.at(0),
        kh: kernel[0],
        kw: kernel[1],
        stride: window.strides,
        pad: window.paddings,
        dilation: window.dilations,
        groups: op.attr_usize("groups"),
    };
    conv.check()?;
    Ok(conv)
}

/// Returns the number of panels of 64 channels in the kernel's statistics.
fn stats_panels(conv: &Conv2d) -> usize {
    match conv.is_depthwise() {
        true => conv.c_out.div_ceil(PANEL),
        false => conv.groups * (conv.c_out / conv.groups).div_ceil(PANEL),
    }
}

fn stats_blocks(conv: &Conv2d) -> usize {
    conv.stats_len() / (stats_panels(conv) * 2 * PANEL)
}

/// Converts the kernel's [blocks][panel][2][64] to [blocks][2][channels].
fn spread_stats(conv: &Conv2d, from: &[f32], to: &mut [f32]) {
    let panels = stats_panels(conv);
    let channels = if conv.is_depthwise() { conv.c_out } else { conv.c_out / conv.groups };
    let in_group = channels.div_ceil(PANEL);
    let blocks = from.chunks_exact(panels * 2 * PANEL).zip(to.chunks_exact_mut(2 * conv.c_out));
    for (from, to) in blocks {
        let (sums, squares) = to.split_at_mut(conv.c_out);
        for (panel, from) in from.chunks_exact(2 * PANEL).enumerate() {
            let (group, column) = (panel / in_group, panel % in_group * PANEL);
            let (start, width) = (group * channels + column, (channels - column).min(PANEL));
            sums[start..start + width].copy_from_slice(&from[..width]);
            squares[start..start + width].copy_from_slice(&from[PANEL..PANEL + width]);
        }
    }
}

/// Copies of images and filter that the kernel needs in scratch.
struct Plan {
    conv: Conv2d,
    /// For channels first: permutations to channels last and back.
    input_moves: Option<[Permute; 2]>,
    output_moves: Option<[Permute; 2]>,
    is_packed: bool,
    is_relu: bool,
    fuse_input_relu: bool,
}

impl Plan {
    fn new(p: &PrepareCtx<'_>, filter: Layout) -> Result<Plan> {
        let (input, weights) = (p.input("Input").shape, p.input("Filter").shape);
        let conv = conv_of(p.op, &input, &weights)?;
        let is_packed = filter == Layout::Filter64;
        if is_packed && conv.filter_len() != filter.physical_len(&weights) {
            return Err(Error::unsupported(format!(
                "{} with {} groups does not support layout filter64 for shape {weights}",
                p.op.name(),
                conv.groups
            )));
        }
        let moves = |h: usize, w: usize, c: usize| -> Result<[Permute; 2]> {
            Ok([
                Permute::new(&[conv.n, c, h, w], &[0, 2, 3, 1])?,
                Permute::new(&[conv.n, h, w, c], &[0, 3, 1, 2])?,
            ])
        };
        let is_nhwc = Axes::of(p.op, "data_format")?.is_nhwc();
        let (input_moves, output_moves) = match is_nhwc {
            true => (None, None),
            false => (
                Some(moves(conv.h, conv.w, conv.c_in)?),
                Some(moves(conv.out_h(), conv.out_w(), conv.c_out)?),
            ),
        };
        let (is_relu, fuse_input_relu) = (is_relu(p.op)?, fuses_input_relu(p.op));
        Ok(Plan { conv, input_moves, output_moves, is_packed, is_relu, fuse_input_relu })
    }

    fn input_scratch(&self) -> usize {
        let copies = self.input_moves.is_some() || self.fuse_input_relu;
        if copies { self.conv.input_len() } else { 0 }
    }

    fn filter_scratch(&self) -> usize {
        if self.is_packed { 0 } else { self.conv.filter_len() }
    }

    /// Returns the sizes of scratch of the gradient kernel: image, filter, gradient of the output
    /// before the activation and channels last, gradients of image and filter, and the scratch of
    /// the functions that it calls.
    fn grad_scratch(
        &self,
        [has_dx, has_dw]: [bool; 2],
        dw_packed: bool,
        bias_scratch: usize,
        threads: usize,
    ) -> [usize; 7] {
        let (conv, moves) = (&self.conv, self.output_moves.is_some());
        let if_so = |yes: bool, len: usize| if yes { len } else { 0 };
        let data = if_so(has_dx, conv.backward_data_scratch_len(threads));
        let weights = if_so(has_dw, conv.backward_weights_scratch_len(threads));
        [
            if_so(has_dw, self.input_scratch()),
            if_so(has_dx, self.filter_scratch()),
            if_so(self.is_relu, conv.output_len()),
            if_so(moves, conv.output_len()),
            if_so(has_dx && moves, conv.input_len()),
            if_so(has_dw && !dw_packed, conv.filter_len()),
            data.max(weights).max(bias_scratch),
        ]
    }

    /// Returns the image in the kernel's layout.
    fn image<'a>(&self, k: &KernelCtx<'_>, x: &'a [f32], scratch: &'a mut [f32]) -> &'a [f32] {
        if let Some([to_last, _]) = &self.input_moves {
            permute(k.pool, to_last, x, scratch);
            if self.fuse_input_relu {
                clip(k.pool, None, scratch);
            }
        } else if self.fuse_input_relu {
            clip(k.pool, Some(x), scratch);
        } else {
            return x;
        }
        scratch
    }

    /// Returns the filter in the kernel's layout.
    fn filter<'a>(&self, filter: &'a [f32], scratch: &'a mut [f32]) -> &'a [f32] {
        if self.is_packed {
            return filter;
        }
        self.conv.pack_filter_oihw(filter, scratch);
        scratch
    }
}

/// Scratch, split into parts that start at cache lines.
struct Parts<'a>(&'a mut [f32]);

impl<'a> Parts<'a> {
    const LINE: usize = 16;

    fn take(&mut self, len: usize) -> &'a mut [f32] {
        let whole = std::mem::take(&mut self.0);
        let (part, rest) = whole.split_at_mut(Parts::room(len));
        self.0 = rest;
        &mut part[..len]
    }

    fn room(len: usize) -> usize {
        len.next_multiple_of(Parts::LINE)
    }

    fn total(lens: &[usize]) -> usize {
        lens.iter().map(|len| Parts::room(*len)).sum()
    }
}

fn cpu(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let plan = Plan::new(p, p.input_layouts[FILTER][0])?;
    let conv = plan.conv;
    let has_residual = p.optional("ResidualData").is_some();
    let own_stats = if p.optional_output("Stats").is_some() { conv.stats_len() } else { 0 };
    let moved = if plan.output_moves.is_some() { conv.output_len() } else { 0 };
    let lens = [
        plan.input_scratch(),
        plan.filter_scratch(),
        moved,
        own_stats,
        conv.forward_scratch_len(p.threads),
    ];
    let kernel = Kernel::infallible(move |k| {
        let mut parts = Parts(k.scratch());
        let [x, filter, moved, stats, scratch] = lens.map(|len| parts.take(len));
        let x = plan.image(k, k.input(INPUT), x);
        let filter = plan.filter(k.input(FILTER), filter);
        let out = k.output::<f32>(OUTPUT);
        let wants_stats = !stats.is_empty();
        let options = Forward {
            bias: k.optional(BIAS),
            relu: plan.is_relu && !has_residual,
            stats: wants_stats.then_some(&mut *stats),
            isa: None,
        };
        match &plan.output_moves {
            None => conv.forward(k.pool, x, filter, out, scratch, options),
            Some([_, to_first]) => {
                conv.forward(k.pool, x, filter, moved, scratch, options);
                permute(k.pool, to_first, moved, out);
            }
        }
        if has_residual {
            add(k.pool, k.input(RESIDUAL), plan.is_relu, out);
        }
        if wants_stats {
            spread_stats(&conv, stats, k.output(STATS));
        }
    });
    Ok(kernel.scratch::<f32>(Parts::total(&lens)))
}

fn cpu_grad(p: &PrepareCtx<'_>) -> Result<Kernel> {
    let plan = Plan::new(p, p.input_layouts[FILTER][0])?;
    let conv = plan.conv;
    let has = |slot: &str| p.optional_output(slot).is_some();
    let (has_dx, has_dw) = (has("Input@GRAD"), has("Filter@GRAD"));
    let dw_packed = has_dw && p.output_layouts[DFILTER][0] == Layout::Filter64;
    if dw_packed && conv.filter_len() != Layout::Filter64.physical_len(&p.input("Filter").shape) {
        return Err(Error::unsupported("filter gradient does not support layout filter64"));
    }
    let bias_plan = Reduction::new(&[conv.n * conv.out_h() * conv.out_w(), conv.c_out], &[0]);
    let bias_scratch = if has("Bias@GRAD") { bias_plan.scratch_len() } else { 0 };
    let lens = plan.grad_scratch([has_dx, has_dw], dw_packed, bias_scratch, p.threads);
    let kernel = Kernel::infallible(move |k| {
        let mut parts = Parts(k.scratch());
        let [x, filter, masked, dy_last, dx_last, dw_last, scratch] =
            lens.map(|len| parts.take(len));
        let mut dy = k.input::<f32>(DOUTPUT);
        if plan.is_relu {
            mask(k.pool, dy, k.input(OUTPUT_SAVED), masked);
            dy = masked;
        }
        if let Some(residual) = k.optional_output::<f32>(DRESIDUAL) {
            residual.copy_from_slice(dy);
        }
        if let Some([to_last, _]) = &plan.output_moves {
            permute(k.pool, to_last, dy, dy_last);
            dy = dy_last;
        }
        if let Some(dw) = k.optional_output::<f32>(DFILTER) {
            let x = plan.image(k, k.input(INPUT), x);
            let into = if dw_packed { &mut *dw } else { &mut *dw_last };
            conv.backward_weights(k.pool, x, dy, into, scratch, Backward::default());
            if !dw_packed {
                conv.unpack_filter_oihw(dw_last, dw);
            }
        }
        if let Some(db) = k.optional_output::<f32>(DBIAS) {
            reduce(k.pool, Fold::Sum, &bias_plan, dy, db, scratch);
        }
        if let Some(dx) = k.optional_output::<f32>(DINPUT) {
            let filter = plan.filter(k.input(FILTER), filter);
            let options = Backward::default();
            match &plan.input_moves {
                None => conv.backward_data(k.pool, dy, filter, dx, scratch, options),
                Some([_, to_first]) => {
                    conv.backward_data(k.pool, dy, filter, dx_last, scratch, options);
                    permute(k.pool, to_first, dx_last, dx);
                }
            }
            if plan.fuse_input_relu {
                mask_in_place(k.pool, k.input(INPUT), dx);
            }
        }
    });
    Ok(kernel.scratch::<f32>(Parts::total(&lens)))
}

/// Floats per task of the loops below.
const GRAIN: usize = 1 << 14;

/// Computes `out = max(x, 0)`, in place without `x`.
fn clip(pool: &Pool, x: Option<&[f32]>, out: &mut [f32]) {
    pool.run_parts(out, GRAIN, |start, part| {
        if let Some(x) = x {
            part.copy_from_slice(&x[start..start + part.len()]);
        }
        part.iter_mut().for_each(|value| *value = value.max(0.0));
    });
}

/// Computes `out += x`, then clips at 0 if `relu` is set.
fn add(pool: &Pool, x: &[f32], relu: bool, out: &mut [f32]) {
    let low = if relu { 0.0 } else { f32::NEG_INFINITY };
    pool.run_parts(out, GRAIN, |start, part| {
        for (out, x) in part.iter_mut().zip(&x[start..]) {
            *out = (*out + x).max(low);
        }
    });
}

/// Computes `out = dy` where `y` is positive, else 0.
fn mask(pool: &Pool, dy: &[f32], y: &[f32], out: &mut [f32]) {
    pool.run_parts(out, GRAIN, |start, part| {
        for ((out, dy), y) in part.iter_mut().zip(&dy[start..]).zip(&y[start..]) {
            *out = if *y > 0.0 { *dy } else { 0.0 };
        }
    });
}

fn mask_in_place(pool: &Pool, x: &[f32], out: &mut [f32]) {
    pool.run_parts(out, GRAIN, |start, part| {
        for (out, x) in part.iter_mut().zip(&x[start..]) {
            *out = if *x > 0.0 { *out } else { 0.0 };
        }
    });
}

/// Cost of two flops per output element, tap and input channel of its group.
fn cost(c: &CostCtx<'_>) -> Cost {
    let output = c.output("Output").or_else(|| c.input("Output@GRAD")).map_or(0, Meta::numel);
    let taps: i64 = c.input("Filter").map_or(0, |filter| filter.shape[1..].iter().product());
    Cost { flops: 2.0 * output as f64 * taps.unsigned_abs() as f64, bytes: c.bytes() }
}

/// Cost of the forward product for each of the two large gradients.
fn cost_grad(c: &CostCtx<'_>) -> Cost {
    let one = cost(c);
    let parts = ["Input@GRAD", "Filter@GRAD"].iter().filter(|slot| c.output(slot).is_some());
    Cost { flops: one.flops * parts.count() as f64, ..one }
}
