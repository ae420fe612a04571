//! Attributes of a parameter.

use crate::Init;
use crate::setters::setters;
use fleet_ir::{Division, Regularizer};

/// Name, initializer, learning-rate factor, regularizer and switches of a parameter. Layers accept
/// anything that converts to it: a name, an initializer, or a full attribute.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 13], DType::F32);
/// let weight = ParamAttr::new()
///     .name("w")
///     .init(Init::normal(0.0, 0.02))
///     .learning_rate(0.1)
///     .regularizer(Regularizer::L2(1e-4));
/// x.fc(Fc::new(1).weight(weight).bias(Init::Constant(1.0)));
/// assert_eq!(net.var("w").shape(), Shape::from([13, 1]));
/// let fixed = ParamAttr::from("fixed").init(Init::truncated_normal(0.0, 0.1)).trainable(false);
/// x.fc(Fc::new(1).weight(fixed).bias(ParamAttr::new().need_clip(false)));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ParamAttr {
    /// Name. The default is the layer's documented name (`fc_0.w_0`).
    pub name: Option<String>,
    /// Initializer. The default is the layer's own.
    pub initializer: Option<Init>,
    /// Factor for the optimizer's learning rate.
    pub learning_rate: f64,
    /// Regularizer, which replaces the optimizer's weight decay for this parameter.
    pub regularizer: Option<Regularizer>,
    /// Whether the parameter is trained. A frozen one keeps its value and gets no gradient.
    pub trainable: bool,
    /// Whether gradient clipping includes the parameter.
    pub need_clip: bool,
    /// Whether the parameter is stored on parameter servers, if the job has any.
    pub is_distributed: bool,
    /// The axis along which ranks may divide the parameter (tensor parallelism).
    pub division: Option<Division>,
}

impl Default for ParamAttr {
    fn default() -> Self {
        ParamAttr::new()
    }
}

impl ParamAttr {
    /// Returns the defaults: the layer's name and initializer, learning-rate factor 1, trained,
    /// clipped.
    pub fn new() -> ParamAttr {
        ParamAttr {
            name: None,
            initializer: None,
            learning_rate: 1.0,
            regularizer: None,
            trainable: true,
            need_clip: true,
            is_distributed: false,
            division: None,
        }
    }

    setters! {
        name: Some(impl Into<String>),
        learning_rate: f64,
        regularizer: Some(Regularizer),
        trainable: bool,
        need_clip: bool,
    }

    /// Permits ranks to divide an axis of the parameter (`mp_degree`). Layers of divided parameters
    /// must support it; [`Split`](crate::layers::Split) sets it for the parameters of a layer.
    pub fn split(self, axis: usize) -> Self {
        self.split_groups(axis, 1)
    }

    /// Like [`ParamAttr::split`], for an axis of several blocks, of each of which a rank has its
    /// part.
    pub fn split_groups(mut self, axis: usize, groups: usize) -> Self {
        self.division = Some(Division { groups, ..Division::along(axis) });
        self
    }

    /// Returns the attribute with a division, unless it has one.
    pub(crate) fn or_split(mut self, division: Option<Division>) -> Self {
        self.division = self.division.or(division);
        self
    }

    /// Sets the initializer.
    pub fn init(mut self, init: Init) -> Self {
        self.initializer = Some(init);
        self
    }
}

impl From<&str> for ParamAttr {
    fn from(name: &str) -> Self {
        ParamAttr::new().name(name)
    }
}

impl From<String> for ParamAttr {
    fn from(name: String) -> Self {
        ParamAttr::new().name(name)
    }
}

impl From<Init> for ParamAttr {
    fn from(init: Init) -> Self {
        ParamAttr::new().init(init)
    }
}
