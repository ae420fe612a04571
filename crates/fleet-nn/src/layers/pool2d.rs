//! Two-dimensional pooling.

use crate::Var;
use crate::layers::{DataFormat, Padding, Pair};
use crate::setters::setters;

/// Options of a pooling layer.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let image = net.data("image", [-1, 64, 112, 112], DType::F32);
/// let y = image.pool2d(Pool2d::max(3).stride(2).padding(1));
/// assert_eq!(y.shape(), Shape::from([-1, 64, 56, 56]));
/// assert_eq!(y.pool2d(Pool2d::global_avg()).shape(), Shape::from([-1, 64, 1, 1]));
/// assert_eq!(y.pool2d(Pool2d::global_max()).shape(), Shape::from([-1, 64, 1, 1]));
/// assert_eq!(y.pool2d(Pool2d::adaptive_max(7)).shape(), Shape::from([-1, 64, 7, 7]));
/// assert_eq!(y.pool2d(Pool2d::adaptive_avg([7, 1])).shape(), Shape::from([-1, 64, 7, 1]));
/// let wide = Pool2d::avg(3).stride(2).ceil_mode(true).exclusive(false);
/// assert_eq!(y.pool2d(wide).shape(), Shape::from([-1, 64, 28, 28]));
/// let last = Pool2d::max(2).stride(2).data_format(DataFormat::Nhwc);
/// assert_eq!(y.pool2d(last).shape(), Shape::from([-1, 32, 28, 56]));
/// ```
#[derive(Clone, Debug)]
pub struct Pool2d {
    /// `max` or `avg`.
    pub pool_type: &'static str,
    /// Height and width of a window.
    pub pool_size: Pair,
    /// Distance between neighbouring windows; 1 by default.
    pub stride: Pair,
    /// Padding around the image; none by default.
    pub padding: Padding,
    /// Whether one window covers the whole image.
    pub global: bool,
    /// Whether `pool_size` is the number of windows, which cover the image evenly.
    pub adaptive: bool,
    /// Whether a window at the end may be partly outside the padded image; off by default.
    pub ceil_mode: bool,
    /// Whether averages exclude padding.
    pub exclusive: bool,
    /// Position of the channels in the input; NCHW by default.
    pub data_format: DataFormat,
    /// Name of the layer, from which the output gets its name.
    pub name: Option<String>,
}

impl Pool2d {
    /// Pools the largest element of each window.
    pub fn max(size: impl Into<Pair>) -> Pool2d {
        Pool2d::of("max", size.into())
    }

    /// Pools the mean of each window.
    pub fn avg(size: impl Into<Pair>) -> Pool2d {
        Pool2d::of("avg", size.into())
    }

    /// Pools the largest element of each channel.
    pub fn global_max() -> Pool2d {
        Pool2d { global: true, ..Pool2d::max(1) }
    }

    /// Pools the mean of each channel.
    pub fn global_avg() -> Pool2d {
        Pool2d { global: true, ..Pool2d::avg(1) }
    }

    /// Pools the largest element of each of `size` windows, which cover the image evenly.
    pub fn adaptive_max(size: impl Into<Pair>) -> Pool2d {
        Pool2d { adaptive: true, ..Pool2d::max(size) }
    }

    /// Pools the mean of each of `size` windows, which cover the image evenly.
    pub fn adaptive_avg(size: impl Into<Pair>) -> Pool2d {
        Pool2d { adaptive: true, ..Pool2d::avg(size) }
    }

    fn of(pool_type: &'static str, pool_size: Pair) -> Pool2d {
        Pool2d {
            pool_type,
            pool_size,
            stride: Pair([1, 1]),
            padding: Padding::from(0),
            global: false,
            adaptive: false,
            ceil_mode: false,
            exclusive: true,
            data_format: DataFormat::Nchw,
            name: None,
        }
    }

    setters! {
        stride: impl Into<Pair>,
        padding: impl Into<Padding>,
        ceil_mode: bool,
        exclusive: bool,
        data_format: DataFormat,
        name: Some(impl Into<String>),
    }
}

impl<'n> Var<'n> {
    /// Applies pooling to images.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("image", [-1, 6, 28, 28], DType::F32).pool2d(Pool2d::max(2).stride(2));
    /// assert_eq!(y.shape(), Shape::from([-1, 6, 14, 14]));
    /// ```
    #[track_caller]
    pub fn pool2d(self, with: Pool2d) -> Var<'n> {
        let (paddings, algorithm) = with.padding.attrs();
        let call = self
            .net
            .op("pool2d")
            .input("X", self)
            .attr("pooling_type", with.pool_type)
            .attr("ksize", with.pool_size.0.to_vec())
            .attr("strides", with.stride.0.to_vec())
            .attr("paddings", paddings)
            .attr("padding_algorithm", algorithm)
            .attr("global_pooling", with.global)
            .attr("adaptive", with.adaptive)
            .attr("ceil_mode", with.ceil_mode)
            .attr("exclusive", with.exclusive)
            .attr("data_format", with.data_format.name());
        match with.name {
            Some(name) => call.named(name).one("Out"),
            None => call.one("Out"),
        }
    }
}
