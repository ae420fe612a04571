//! Two-dimensional convolution.

use crate::build::Build;
use crate::layers::DataFormat;
use crate::setters::setters;
use crate::{Act, Init, ParamAttr, Var};
use fleet_base::{Error, Result};
use fleet_ir::VarId;

/// A size along height and width. A single number converts to both.
///
/// ```
/// use fleet_nn::layers::Pair;
/// assert_eq!(Pair::from(3), Pair::from([3, 3]));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pair(pub [i64; 2]);

impl From<i64> for Pair {
    fn from(size: i64) -> Pair {
        Pair([size, size])
    }
}

impl From<i32> for Pair {
    fn from(size: i32) -> Pair {
        Pair::from(i64::from(size))
    }
}

impl From<[i64; 2]> for Pair {
    fn from(sizes: [i64; 2]) -> Pair {
        Pair(sizes)
    }
}

/// Padding around the image.
///
/// ```
/// use fleet_nn::layers::Padding;
/// assert_eq!(Padding::from(1), Padding::Explicit(vec![1, 1]));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Height and width; or top, bottom, left, right.
    Explicit(Vec<i64>),
    /// Padding for which the output size is the input size divided by the stride, rounded up.
    Same,
    /// No padding.
    Valid,
}

impl Padding {
    /// Returns the attributes `paddings` and `padding_algorithm`.
    pub(crate) fn attrs(&self) -> (Vec<i64>, &'static str) {
        match self {
            Padding::Explicit(sizes) => (sizes.clone(), "EXPLICIT"),
            Padding::Same => (vec![0, 0], "SAME"),
            Padding::Valid => (vec![0, 0], "VALID"),
        }
    }
}

impl From<i64> for Padding {
    fn from(size: i64) -> Padding {
        Padding::Explicit(vec![size, size])
    }
}

impl From<i32> for Padding {
    fn from(size: i32) -> Padding {
        Padding::from(i64::from(size))
    }
}

impl From<[i64; 2]> for Padding {
    fn from(sizes: [i64; 2]) -> Padding {
        Padding::Explicit(sizes.to_vec())
    }
}

impl From<[i64; 4]> for Padding {
    fn from(sizes: [i64; 4]) -> Padding {
        Padding::Explicit(sizes.to_vec())
    }
}

/// Options of a convolution.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let image = net.data("image", [-1, 3, 224, 224], DType::F32);
/// let y = image.conv2d(Conv2d::new(64, 7).stride(2).padding(3).no_bias().act(Act::Relu));
/// assert_eq!(y.shape(), Shape::from([-1, 64, 112, 112]));
/// assert_eq!(net.var("conv2d_0.w_0").shape(), Shape::from([64, 3, 7, 7]));
/// let apart = Conv2d::new(64, 3).groups(64).dilation(2).padding(Padding::Same);
/// assert_eq!(y.conv2d(apart).shape(), y.shape());
/// let last = Conv2d::new(8, 1).data_format(DataFormat::Nhwc);
/// assert_eq!(y.transpose([0, 2, 3, 1]).conv2d(last).shape(), Shape::from([-1, 112, 112, 8]));
/// ```
#[derive(Clone, Debug)]
pub struct Conv2d {
    /// Number of output channels.
    pub num_filters: i64,
    /// Height and width of a filter.
    pub filter_size: Pair,
    /// Distance between neighbouring windows; 1 by default.
    pub stride: Pair,
    /// Padding around the image; none by default.
    pub padding: Padding,
    /// Distance between neighbouring taps of a filter; 1 by default.
    pub dilation: Pair,
    /// Number of groups of channels, each with its own filters. As many as channels gives a
    /// depthwise convolution.
    pub groups: i64,
    /// Activation of the output; none by default.
    pub act: Option<Act>,
    /// The filters.
    pub weight: ParamAttr,
    /// The bias per output channel, 0 at first; `None` for no bias.
    pub bias: Option<ParamAttr>,
    /// Position of the channels in the input; NCHW by default.
    pub data_format: DataFormat,
    /// Name of the layer, which begins the names of its variables; `conv2d_0` and so on by default.
    pub name: Option<String>,
}

impl Conv2d {
    /// Returns a convolution with stride 1, no padding, a bias and no activation.
    pub fn new(num_filters: i64, filter_size: impl Into<Pair>) -> Conv2d {
        Conv2d {
            num_filters,
            filter_size: filter_size.into(),
            stride: Pair([1, 1]),
            padding: Padding::from(0),
            dilation: Pair([1, 1]),
            groups: 1,
            act: None,
            weight: ParamAttr::new(),
            bias: Some(ParamAttr::new()),
            data_format: DataFormat::Nchw,
            name: None,
        }
    }

    setters! {
        stride: impl Into<Pair>,
        padding: impl Into<Padding>,
        dilation: impl Into<Pair>,
        groups: i64,
        act: Some(Act),
        weight: impl Into<ParamAttr>,
        bias: Some(impl Into<ParamAttr>),
        data_format: DataFormat,
        name: Some(impl Into<String>),
    }

    /// Leaves out the bias, for example before a batch norm.
    pub fn no_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    fn emit(&self, b: &mut Build<'_>, x: VarId) -> Result<VarId> {
        let meta = b.meta(x);
        if meta.shape.rank() != 4 {
            return Err(Error::invalid("input of conv2d has the wrong number of dimensions")
                .expected(4)
                .got(format!("{} (shape {})", meta.shape.rank(), meta.shape)));
        }
        let channels = b.known_dim("conv2d", &meta.shape, self.data_format.channel_axis())?;
        self.check(channels)?;
        let layer = b.layer_name("conv2d", self.name.as_deref());
        let Pair([kh, kw]) = self.filter_size;
        let init = Init::normal(0.0, (2.0 / (kh as f64 * kw as f64 * channels as f64)).sqrt());
        let shape = [self.num_filters, channels / self.groups, kh, kw];
        let filter = b.parameter(&layer, "w", &self.weight, shape, meta.dtype, &init)?;
        let bias = match &self.bias {
            Some(attr) => {
                let zero = Init::Constant(0.0);
                Some(b.parameter(&layer, "b", attr, [self.num_filters], meta.dtype, &zero)?)
            }
            None => None,
        };
        let depthwise = self.groups > 1 && self.groups == channels;
        let op = if depthwise { "depthwise_conv2d" } else { "conv2d" };
        let (paddings, algorithm) = self.padding.attrs();
        let call = b.op(op)?.input("Input", x).input("Filter", filter).maybe("Bias", bias);
        let call = call.attr("strides", self.stride.0.to_vec()).attr("paddings", paddings);
        let call = call.attr("padding_algorithm", algorithm);
        let call = call.attr("dilations", self.dilation.0.to_vec()).attr("groups", self.groups);
        let call = call.attr("data_format", self.data_format.name());
        let out = call.named(format!("{layer}.tmp")).one("Output")?;
        b.act(out, self.act.as_ref(), &layer)
    }

    fn check(&self, channels: i64) -> Result<()> {
        if self.num_filters <= 0 || self.filter_size.0.iter().any(|size| *size <= 0) {
            return Err(Error::invalid("invalid number or size of filters of conv2d")
                .expected("1 or more, of size 1 or more")
                .got(format!("{} of {:?}", self.num_filters, self.filter_size.0)));
        }
        let groups = self.groups;
        if groups <= 0 || channels % groups != 0 || self.num_filters % groups != 0 {
            return Err(Error::invalid("wrong number of groups of conv2d")
                .expected(format!("a divisor of {channels} and of {}", self.num_filters))
                .got(groups));
        }
        Ok(())
    }
}

impl<'n> Var<'n> {
    /// Convolves images with filters.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("image", [-1, 1, 28, 28], DType::F32).conv2d(Conv2d::new(6, 5).padding(2));
    /// assert_eq!(y.shape(), Shape::from([-1, 6, 28, 28]));
    /// ```
    #[track_caller]
    pub fn conv2d(self, with: Conv2d) -> Var<'n> {
        self.layer(|b, x| with.emit(b, x))
    }
}
