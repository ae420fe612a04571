//! Sliding windows of convolution and pooling: attributes, padding rules, output sizes.

use crate::prelude::*;
use fleet_ir::Op;

/// A window: each property has values for height and width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub kernel: [usize; 2],
    pub strides: [usize; 2],
    pub dilations: [usize; 2],
    /// Paddings before and after, for each of height and width.
    pub paddings: [[usize; 2]; 2],
}

/// Positions of channels, height and width in a tensor of rank 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Axes {
    pub channels: usize,
    pub height: usize,
}

impl Axes {
    /// Parses `data_format` (or `data_layout`): "NCHW", "NHWC", or "AnyLayout", which means NCHW.
    pub(super) fn of(op: &Op, attr: &str) -> Result<Axes> {
        match op.attr_str(attr) {
            "NCHW" | "AnyLayout" => Ok(Axes { channels: 1, height: 2 }),
            "NHWC" => Ok(Axes { channels: 3, height: 1 }),
            other => Err(Error::invalid(format!("unknown {attr} of {}", op.name()))
                .expected("NCHW or NHWC")
                .got(other)),
        }
    }

    pub(super) fn is_nhwc(self) -> bool {
        self.channels == 3
    }

    pub(super) fn spatial(self, shape: &Shape) -> [i64; 2] {
        [shape[self.height], shape[self.height + 1]]
    }

    /// Returns height and width of the images. They must not be 0, because a window needs at least
    /// one pixel.
    pub(super) fn image(self, i: &InferCtx<'_>, slot: &str) -> Result<[i64; 2]> {
        let shape = i.input(slot)?.shape;
        let image = self.spatial(&shape);
        if image.contains(&0) {
            return Err(i.error(slot, "has empty images").got(shape));
        }
        Ok(image)
    }

    /// Returns the shape of `[n, c, h, w]` in this data format.
    pub(super) fn shape(self, n: i64, c: i64, [h, w]: [i64; 2]) -> Shape {
        if self.is_nhwc() { Shape::from([n, h, w, c]) } else { Shape::from([n, c, h, w]) }
    }
}

/// Maximum size of windows, strides and paddings: as large as an image can be, and small enough
/// that sums do not overflow.
const REACH_MAX: i64 = i32::MAX as i64;

/// Returns an attribute with one value for both axes or one for each, all at least `min`.
pub(super) fn pair(op: &Op, attr: &str, min: i64) -> Result<[usize; 2]> {
    let values = op.attr_ints(attr);
    let fits = |value: &i64| (min..=REACH_MAX).contains(value);
    match values {
        [one] if fits(one) => Ok([*one as usize; 2]),
        [h, w] if fits(h) && fits(w) => Ok([*h as usize, *w as usize]),
        _ => Err(Error::invalid(format!("attribute '{attr}' of {} is wrong", op.name()))
            .expected(format!("1 or 2 numbers of {min} to {REACH_MAX}"))
            .got(format!("{values:?}"))),
    }
}

/// Returns the window of an op over an image (height, width; -1 if unknown), with resolved
/// paddings.
///
/// `padding_algorithm` "SAME" pads so that the output size is the input size divided by the stride,
/// rounded up. As in the documented op, it sets dilations to 1. "VALID" does not pad. "SAME" with
/// an unknown size leaves the paddings 0; the size is known when the program is planned.
pub(super) fn window(
    op: &Op,
    kernel: [usize; 2],
    dilations: [usize; 2],
    image: [i64; 2],
) -> Result<Window> {
    let strides = pair(op, "strides", 1)?;
    let mut window = Window { kernel, strides, dilations, paddings: [[0; 2]; 2] };
    match op.attr_str("padding_algorithm") {
        "VALID" => {}
        "SAME" => {
            window.dilations = [1, 1];
            for axis in 0..2 {
                if image[axis] >= 0 {
                    window.paddings[axis] =
                        same_padding(image[axis] as usize, kernel[axis], strides[axis]);
                }
            }
        }
        "EXPLICIT" => window.paddings = explicit(op)?,
        other => {
            return Err(Error::invalid(format!("unknown padding_algorithm of {}", op.name()))
                .expected("EXPLICIT, SAME or VALID")
                .got(other));
        }
    }
    Ok(window)
}

/// Returns `paddings`: one number for all sides, two for height and width, or four for top, bottom,
/// left, right.
fn explicit(op: &Op) -> Result<[[usize; 2]; 2]> {
    let values = op.attr_ints("paddings");
    if values.iter().all(|value| (0..=REACH_MAX).contains(value)) {
        let at = |index: usize| values[index] as usize;
        match values.len() {
            1 => return Ok([[at(0); 2]; 2]),
            2 => return Ok([[at(0); 2], [at(1); 2]]),
            4 => return Ok([[at(0), at(1)], [at(2), at(3)]]),
            _ => {}
        }
    }
    Err(Error::invalid(format!("attribute 'paddings' of {} is wrong", op.name()))
        .expected(format!("1, 2 or 4 numbers of 0 to {REACH_MAX}"))
        .got(format!("{values:?}")))
}

fn same_padding(image: usize, kernel: usize, stride: usize) -> [usize; 2] {
    let outputs = image.div_ceil(stride);
    let total = (outputs.max(1) - 1) * stride + kernel;
    let total = total.saturating_sub(image);
    [total / 2, total - total / 2]
}

impl Window {
    /// Returns output height and width; -1 if the image size is unknown.
    pub(super) fn outputs(&self, op: &Op, image: [i64; 2], ceil: bool) -> Result<[i64; 2]> {
        let same = op.attr_str("padding_algorithm") == "SAME";
        let mut outputs = [-1; 2];
        for axis in 0..2 {
            if image[axis] < 0 {
                continue;
            }
            let (size, stride) = (image[axis] as usize, self.strides[axis]);
            if same {
                outputs[axis] = size.div_ceil(stride) as i64;
                continue;
            }
            // A program may declare any filter size.
            let reach =
                self.dilations[axis].saturating_mul(self.kernel[axis] - 1).saturating_add(1);
            let padded = size + self.paddings[axis][0] + self.paddings[axis][1];
            if padded < reach {
                return Err(Error::invalid(format!(
                    "the window of {} does not fit the image",
                    op.name()
                ))
                .expected(format!("at least {reach} {}", ["rows", "columns"][axis]))
                .got(format!("{padded}, padding included")));
            }
            let round_up = if ceil { stride - 1 } else { 0 };
            outputs[axis] = ((padded - reach + round_up) / stride + 1) as i64;
        }
        Ok(outputs)
    }
}
