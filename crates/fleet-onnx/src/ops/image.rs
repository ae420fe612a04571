//! Convolution, pooling and batch normalization. ONNX has channels first only: other images are
//! transposed before and after.

use super::Translate;
use super::activation::activation;
use crate::context::Context;
use crate::graph::{Attribute, Attributes, Value};
use fleet_base::{Error, Result};
use fleet_tensor::Shape;

pub(super) const RULES: &[(&str, Translate)] = &[
    ("batch_norm", batch_norm),
    ("conv2d", conv2d),
    ("depthwise_conv2d", conv2d),
    ("fused_batch_norm_act", batch_norm),
    ("fused_bn_add_activation", batch_norm),
    ("pool2d", pool2d),
    ("sync_batch_norm", batch_norm),
];

/// The order of images in memory.
#[derive(Clone, Copy, PartialEq)]
enum Order {
    ChannelsFirst,
    ChannelsLast,
}

impl Order {
    fn of(c: &Context<'_, '_>, attr: &str) -> Order {
        match c.op.attr_str(attr) {
            "NHWC" => Order::ChannelsLast,
            _ => Order::ChannelsFirst,
        }
    }

    /// Moves the channels of an input to the front.
    fn first(self, c: &mut Context<'_, '_>, x: Value, rank: usize) -> Value {
        if self == Order::ChannelsFirst || rank < 3 {
            return x;
        }
        let last = rank as i64 - 1;
        let order: Vec<i64> = [0, last].into_iter().chain(1..last).collect();
        c.transpose(x, &order)
    }

    /// Moves the channels of a result back to the end.
    fn back(self, c: &mut Context<'_, '_>, x: Value, rank: usize) -> Value {
        if self == Order::ChannelsFirst || rank < 3 {
            return x;
        }
        let order: Vec<i64> = [0].into_iter().chain(2..rank as i64).chain([1]).collect();
        c.transpose(x, &order)
    }

    /// Returns height and width of images, -1 if unknown.
    fn sizes(self, shape: &Shape) -> [i64; 2] {
        match self {
            Order::ChannelsFirst => [shape[2], shape[3]],
            Order::ChannelsLast => [shape[1], shape[2]],
        }
    }
}

fn conv2d(c: &mut Context<'_, '_>) -> Result<()> {
    let order = Order::of(c, "data_format");
    let (mut x, shape) = (c.x("Input")?, c.shape("Input")?);
    let (filter, kernel) = (c.x("Filter")?, c.shape("Filter")?);
    if c.op.attr("fuse_relu_before_depthwise_conv").is_some()
        && c.op.attr_bool("fuse_relu_before_depthwise_conv")
    {
        x = c.node("Relu", &[x]);
    }
    let x = order.first(c, x, 4);
    let same = c.op.attr_str("padding_algorithm") == "SAME";
    let dilations = if same { vec![1, 1] } else { pair(c.op.attr_ints("dilations")) };
    let kernel = [kernel[2], kernel[3]];
    let mut attributes = vec![
        ("kernel_shape", Attribute::Ints(kernel.to_vec())),
        ("strides", Attribute::Ints(pair(c.op.attr_ints("strides")))),
        ("dilations", Attribute::Ints(dilations)),
        ("group", Attribute::Int(c.op.attr_int("groups"))),
    ];
    match paddings(c, order.sizes(&shape), kernel) {
        Some(pads) => attributes.push(("pads", ends(&pads))),
        None => attributes.push(("auto_pad", Attribute::Str("SAME_UPPER"))),
    }
    let bias = c.optional("Bias")?.unwrap_or(Value::NONE);
    let y = c.with("Conv", &[x, filter, bias], attributes);
    let mut y = order.back(c, y, 4);
    if let Some(residual) = c.optional("ResidualData")? {
        y = c.add(y, residual);
    }
    let name = c.op.attr_str("activation").to_string();
    let y = activation(c, &name, "Input", y)?;
    c.set("Output", y)
}

/// Paddings before and after, for height and width.
type Pads = [[i64; 2]; 2];

/// Returns the paddings of a window; `None` if they depend on an unknown size.
fn paddings(c: &Context<'_, '_>, image: [i64; 2], kernel: [i64; 2]) -> Option<Pads> {
    match c.op.attr_str("padding_algorithm") {
        "VALID" => Some([[0; 2]; 2]),
        "SAME" => {
            let strides = pair(c.op.attr_ints("strides"));
            let mut pads = [[0; 2]; 2];
            for axis in 0..2 {
                if image[axis] < 0 {
                    return None;
                }
                let outputs = (image[axis] + strides[axis] - 1) / strides[axis];
                let covered = (outputs.max(1) - 1) * strides[axis] + kernel[axis];
                let total = (covered - image[axis]).max(0);
                pads[axis] = [total / 2, total - total / 2];
            }
            Some(pads)
        }
        _ => Some(match c.op.attr_ints("paddings") {
            [all] => [[*all; 2]; 2],
            [height, width] => [[*height; 2], [*width; 2]],
            [top, bottom, left, right] => [[*top, *bottom], [*left, *right]],
            _ => [[0; 2]; 2],
        }),
    }
}

/// Paddings in the order of ONNX: all starts, then all ends.
fn ends(pads: &Pads) -> Attribute {
    Attribute::Ints(vec![pads[0][0], pads[1][0], pads[0][1], pads[1][1]])
}

fn pair(values: &[i64]) -> Vec<i64> {
    match values {
        [one] => vec![*one; 2],
        several => several.to_vec(),
    }
}

fn pool2d(c: &mut Context<'_, '_>) -> Result<()> {
    let order = Order::of(c, "data_format");
    let (x, shape) = (c.x("X")?, c.shape("X")?);
    let is_max = c.op.attr_str("pooling_type") == "max";
    let x = order.first(c, x, 4);
    let size = pair(c.op.attr_ints("ksize"));
    let is_global = c.op.attr_bool("global_pooling");
    let y = match is_global || (c.op.attr_bool("adaptive") && size == [1, 1]) {
        true => c.node(if is_max { "GlobalMaxPool" } else { "GlobalAveragePool" }, &[x]),
        false if c.op.attr_bool("adaptive") => adaptive(c, x, order.sizes(&shape), &size, is_max)?,
        false => {
            let attributes = windows(c, order.sizes(&shape), [size[0], size[1]], is_max)?;
            c.with(if is_max { "MaxPool" } else { "AveragePool" }, &[x], attributes)
        }
    };
    let y = order.back(c, y, 4);
    c.set("Out", y)
}

/// Returns the attributes of a pooling with windows at regular intervals.
fn windows(
    c: &Context<'_, '_>,
    image: [i64; 2],
    size: [i64; 2],
    is_max: bool,
) -> Result<Attributes> {
    let strides = pair(c.op.attr_ints("strides"));
    let counts_padding = !is_max && !c.op.attr_bool("exclusive");
    let mut attributes = vec![
        ("kernel_shape", Attribute::Ints(size.to_vec())),
        ("strides", Attribute::Ints(strides.clone())),
    ];
    if counts_padding {
        attributes.push(("count_include_pad", Attribute::Int(1)));
    }
    let same = c.op.attr_str("padding_algorithm") == "SAME";
    let Some(mut pads) = paddings(c, image, size) else {
        attributes.push(("auto_pad", Attribute::Str("SAME_UPPER")));
        return Ok(attributes);
    };
    if c.op.attr_bool("ceil_mode") && !same {
        let is_known = image.iter().all(|size| *size >= 0);
        if is_known && !counts_padding {
            // A larger padding at the end is the same in every runtime.
            for axis in 0..2 {
                let rest = image[axis] + pads[axis][0] + pads[axis][1] - size[axis];
                let missing = (strides[axis] - rest % strides[axis]) % strides[axis];
                pads[axis][1] += missing;
                if pads[axis][1] >= size[axis] {
                    return Err(Error::unsupported("ceil_mode adds windows beyond the image")
                        .help("pad the image first, or switch ceil_mode off"));
                }
            }
        } else {
            attributes.push(("ceil_mode", Attribute::Int(1)));
        }
    }
    attributes.push(("pads", ends(&pads)));
    Ok(attributes)
}

/// Pools to a given size: window `o` of `n` covers `floor(o len / n)..ceil((o + 1) len / n)`.
fn adaptive(
    c: &mut Context<'_, '_>,
    x: Value,
    image: [i64; 2],
    size: &[i64],
    is_max: bool,
) -> Result<Value> {
    if image.iter().any(|len| *len < 0) {
        return Err(Error::unsupported("adaptive pooling of images of unknown size")
            .help("declare height and width of the input, or pool globally"));
    }
    if (0..2).all(|axis| image[axis] % size[axis] == 0) {
        let window = vec![image[0] / size[0], image[1] / size[1]];
        let attributes = vec![
            ("kernel_shape", Attribute::Ints(window.clone())),
            ("strides", Attribute::Ints(window)),
        ];
        return Ok(c.with(if is_max { "MaxPool" } else { "AveragePool" }, &[x], attributes));
    }
    // Averages and maxima of windows are those of rows, and then of columns.
    let node = if is_max { "ReduceMax" } else { "ReduceMean" };
    let mut y = x;
    for axis in 0..2 {
        let (len, count, at) = (image[axis], size[axis], axis as i64 + 2);
        let mut parts = Vec::new();
        for index in 0..count {
            let (start, end) = (index * len / count, ((index + 1) * len + count - 1) / count);
            let part = c.slice(y, at, start, end)?;
            parts.push(c.reduce(node, part, &[at], true)?);
        }
        y = c.concat(&parts, at);
    }
    Ok(y)
}

/// Normalization by the running statistics; the fused forms add a residual and an activation.
fn batch_norm(c: &mut Context<'_, '_>) -> Result<()> {
    let (order, rank) = (Order::of(c, "data_layout"), c.shape("X")?.rank());
    let (x, mean, variance) = (c.x("X")?, c.x("Mean")?, c.x("Variance")?);
    let x = order.first(c, x, rank);
    let inputs = [x, c.x("Scale")?, c.x("Bias")?, mean, variance];
    let attributes = vec![("epsilon", Attribute::Float(c.op.attr_float("epsilon")))];
    let y = c.with("BatchNormalization", &inputs, attributes);
    let mut y = order.back(c, y, rank);
    if let Some(residual) = c.optional("Z")? {
        y = c.add(y, residual);
    }
    if c.op.attr("act_type").is_some() {
        let name = c.op.attr_str("act_type").to_string();
        y = activation(c, &name, "X", y)?;
    }
    c.set("Y", y)?;
    c.set("MeanOut", mean)?;
    c.set("VarianceOut", variance)
}
