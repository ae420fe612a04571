//! Layer normalization.

use crate::build::Build;
use crate::setters::setters;
use crate::{Act, Init, ParamAttr, Var};
use fleet_base::Result;
use fleet_ir::VarId;
use fleet_tensor::DType;

/// Options of layer normalization.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 128, 768], DType::F32);
/// let y = x.layer_norm(LayerNorm::last().epsilon(1e-12));
/// assert_eq!(net.var("layer_norm_0.w_0").shape(), Shape::from([768]));
/// let whole = LayerNorm::new().begin_norm_axis(1).no_scale().shift(Init::Constant(0.5));
/// assert_eq!(x.layer_norm(whole).shape(), y.shape());
/// x.layer_norm(LayerNorm::last().no_shift());
/// ```
#[derive(Clone, Debug)]
pub struct LayerNorm {
    /// First of the dimensions that are normalized together. Negative counts from the end.
    pub begin_norm_axis: i64,
    /// Added to the variance before the root is taken; 1e-5 by default.
    pub epsilon: f64,
    /// The scale per element, 1 at first; `None` for none.
    pub scale: Option<ParamAttr>,
    /// The shift per element, 0 at first; `None` for none.
    pub shift: Option<ParamAttr>,
    /// Activation of the output; none by default.
    pub act: Option<Act>,
    /// Name of the layer, which begins the names of its variables; `layer_norm_0` and so on by
    /// default.
    pub name: Option<String>,
}

impl Default for LayerNorm {
    fn default() -> Self {
        LayerNorm::new()
    }
}

impl LayerNorm {
    /// Normalizes over every dimension but the first.
    pub fn new() -> LayerNorm {
        LayerNorm {
            begin_norm_axis: 1,
            epsilon: 1e-5,
            scale: Some(ParamAttr::new()),
            shift: Some(ParamAttr::new()),
            act: None,
            name: None,
        }
    }

    /// Normalizes over the last dimension.
    pub fn last() -> LayerNorm {
        LayerNorm { begin_norm_axis: -1, ..LayerNorm::new() }
    }

    setters! {
        begin_norm_axis: i64,
        epsilon: f64,
        scale: Some(impl Into<ParamAttr>),
        shift: Some(impl Into<ParamAttr>),
        act: Some(Act),
        name: Some(impl Into<String>),
    }

    /// Leaves out the scale.
    pub fn no_scale(mut self) -> Self {
        self.scale = None;
        self
    }

    /// Leaves out the shift.
    pub fn no_shift(mut self) -> Self {
        self.shift = None;
        self
    }

    fn emit(&self, b: &mut Build<'_>, x: VarId) -> Result<VarId> {
        let shape = b.shape(x);
        let begin = shape.axis(self.begin_norm_axis)?;
        let width = b.known_tail("layer_norm", &shape, begin)?;
        let layer = b.layer_name("layer_norm", self.name.as_deref());
        let mut made = [None, None];
        let wanted = [("w", &self.scale, 1.0), ("b", &self.shift, 0.0)];
        for (slot, (suffix, attr, start)) in made.iter_mut().zip(wanted) {
            if let Some(attr) = attr {
                let init = Init::Constant(start);
                *slot = Some(b.parameter(&layer, suffix, attr, [width], DType::F32, &init)?);
            }
        }
        let [scale, shift] = made;
        let call = b.op("layer_norm")?.input("X", x).maybe("Scale", scale).maybe("Bias", shift);
        let call = call.attr("epsilon", self.epsilon).attr("begin_norm_axis", begin);
        let out = call.named(format!("{layer}.tmp")).one("Y")?;
        b.act(out, self.act.as_ref(), &layer)
    }
}

impl<'n> Var<'n> {
    /// Applies layer normalization.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 768], DType::F32).layer_norm(LayerNorm::new());
    /// assert_eq!(y.shape(), Shape::from([-1, 768]));
    /// ```
    #[track_caller]
    pub fn layer_norm(self, with: LayerNorm) -> Var<'n> {
        self.layer(|b, x| with.emit(b, x))
    }
}
