//! Batch normalization.

use crate::build::Build;
use crate::layers::DataFormat;
use crate::setters::setters;
use crate::{Act, Init, ParamAttr, Var};
use fleet_base::Result;
use fleet_ir::VarId;

/// Options of batch normalization. Scale and shift are trained (`.w_0`, `.b_0`). The moving mean
/// and variance (`.w_1`, `.w_2`) are updated from the batches.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 64, 56, 56], DType::F32);
/// let y = x.batch_norm(BatchNorm::new().act(Act::Relu));
/// assert_eq!(net.var("batch_norm_0.w_2").shape(), Shape::from([64]));
/// let last = BatchNorm::new().data_format(DataFormat::Nhwc).moving("mean", "variance");
/// let last = last.shift("shift").use_global_stats(true);
/// net.data("z", [-1, 56, 56, 8], DType::F32).batch_norm(last);
/// assert_eq!(net.var("mean").shape(), Shape::from([8]));
/// # let _ = y;
/// ```
#[derive(Clone, Debug)]
pub struct BatchNorm {
    /// Activation of the output; none by default.
    pub act: Option<Act>,
    /// Weight of the old value in the moving averages: `moving = momentum * moving + (1 - momentum)
    /// * batch`. 0.9 by default.
    pub momentum: f64,
    /// Added to the variance before the root is taken; 1e-5 by default.
    pub epsilon: f64,
    /// The scale per channel, 1 at first.
    pub scale: ParamAttr,
    /// The shift per channel, 0 at first.
    pub shift: ParamAttr,
    /// Name of the moving mean; by default the layer's name and `.w_1`.
    pub moving_mean_name: Option<String>,
    /// Name of the moving variance; by default the layer's name and `.w_2`.
    pub moving_variance_name: Option<String>,
    /// Whether training also normalizes by the moving averages.
    pub use_global_stats: bool,
    /// Position of the channels in the input; NCHW by default.
    pub data_format: DataFormat,
    /// Name of the layer, which begins the names of its variables; `batch_norm_0` and so on by
    /// default.
    pub name: Option<String>,
}

impl Default for BatchNorm {
    fn default() -> Self {
        BatchNorm::new()
    }
}

impl BatchNorm {
    /// Returns the defaults: momentum 0.9, epsilon 1e-5, no activation, NCHW.
    pub fn new() -> BatchNorm {
        BatchNorm {
            act: None,
            momentum: 0.9,
            epsilon: 1e-5,
            scale: ParamAttr::new(),
            shift: ParamAttr::new(),
            moving_mean_name: None,
            moving_variance_name: None,
            use_global_stats: false,
            data_format: DataFormat::Nchw,
            name: None,
        }
    }

    setters! {
        act: Some(Act),
        momentum: f64,
        epsilon: f64,
        scale: impl Into<ParamAttr>,
        shift: impl Into<ParamAttr>,
        use_global_stats: bool,
        data_format: DataFormat,
        name: Some(impl Into<String>),
    }

    /// Sets the names of the moving mean and variance.
    pub fn moving(mut self, mean: impl Into<String>, variance: impl Into<String>) -> Self {
        self.moving_mean_name = Some(mean.into());
        self.moving_variance_name = Some(variance.into());
        self
    }

    fn emit(&self, b: &mut Build<'_>, x: VarId) -> Result<VarId> {
        let shape = b.shape(x);
        let channels = b.known_dim("batch_norm", &shape, self.data_format.channel_axis())?;
        let layer = b.layer_name("batch_norm", self.name.as_deref());
        // Statistics are in single precision for any input type.
        let dtype = fleet_tensor::DType::F32;
        let one = Init::Constant(1.0);
        let zero = Init::Constant(0.0);
        let scale = b.parameter(&layer, "w", &self.scale, [channels], dtype, &one)?;
        let shift = b.parameter(&layer, "b", &self.shift, [channels], dtype, &zero)?;
        let moving = |name: &Option<String>| ParamAttr {
            name: name.clone(),
            trainable: false,
            ..ParamAttr::new()
        };
        let attr = moving(&self.moving_mean_name);
        let mean = b.parameter(&layer, "w", &attr, [channels], dtype, &zero)?;
        let attr = moving(&self.moving_variance_name);
        let variance = b.parameter(&layer, "w", &attr, [channels], dtype, &one)?;
        let call = b.op("batch_norm")?.input("X", x).input("Scale", scale).input("Bias", shift);
        let call = call.input("Mean", mean).input("Variance", variance);
        let call = call.output("MeanOut", mean).output("VarianceOut", variance);
        let call = call.attr("momentum", self.momentum).attr("epsilon", self.epsilon);
        let call = call.attr("use_global_stats", self.use_global_stats);
        let call = call.attr("data_layout", self.data_format.name());
        let out = call.named(format!("{layer}.tmp")).one("Y")?;
        b.act(out, self.act.as_ref(), &layer)
    }
}

impl<'n> Var<'n> {
    /// Applies batch normalization per channel.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 64, 56, 56], DType::F32).batch_norm(BatchNorm::new());
    /// assert_eq!(y.shape(), Shape::from([-1, 64, 56, 56]));
    /// ```
    #[track_caller]
    pub fn batch_norm(self, with: BatchNorm) -> Var<'n> {
        self.layer(|b, x| with.emit(b, x))
    }
}
