//! A linear map of the last dimension.

use crate::layers::{Fc, Split};
use crate::{Act, Init, ParamAttr, Var};

/// Options of a linear map of the last dimension. Like [`Fc`], but for inputs of any rank.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let x = net.data("x", [-1, 128, 768], DType::F32);
/// let y = x.linear(Linear::new(3072).act(Act::Gelu));
/// assert_eq!(y.shape(), Shape::from([-1, 128, 3072]));
/// assert_eq!(net.var("linear_0.w_0").shape(), Shape::from([768, 3072]));
/// ```
#[derive(Clone, Debug)]
pub struct Linear(Fc);

impl Linear {
    /// Returns a map of the last dimension to `size` outputs, with a bias.
    pub fn new(size: impl TryInto<i64>) -> Linear {
        Linear(Fc::new(size).num_flatten_dims(-1))
    }

    /// Returns the options of a part of a larger layer.
    pub(super) fn part(size: i64, initializer: Option<Init>, name: Option<String>) -> Linear {
        let Linear(fc) = Linear::new(size);
        Linear(Fc { weight: ParamAttr { initializer, ..ParamAttr::new() }, name, ..fc })
    }

    /// Sets the activation of the output.
    pub fn act(self, act: Act) -> Self {
        Linear(self.0.act(act))
    }

    /// Sets the attributes of the weight: name, initializer and others.
    pub fn weight(self, attr: impl Into<ParamAttr>) -> Self {
        Linear(self.0.weight(attr))
    }

    /// Sets the attributes of the bias.
    pub fn bias(self, attr: impl Into<ParamAttr>) -> Self {
        Linear(self.0.bias(attr))
    }

    /// Leaves out the bias.
    pub fn no_bias(self) -> Self {
        Linear(self.0.no_bias())
    }

    /// Permits ranks to divide the layer (tensor parallelism).
    pub fn split(self, split: Split) -> Self {
        Linear(self.0.split(split))
    }

    /// Permits ranks to divide the layer, if a way is given.
    pub(super) fn maybe_split(self, split: Option<Split>) -> Self {
        Linear(Fc { split, ..self.0 })
    }

    /// Sets the name of the layer, which begins the names of its variables.
    pub fn name(self, name: impl Into<String>) -> Self {
        Linear(self.0.name(name))
    }
}

impl From<usize> for Linear {
    fn from(size: usize) -> Linear {
        Linear::new(size)
    }
}

impl From<i64> for Linear {
    fn from(size: i64) -> Linear {
        Linear::new(size)
    }
}

impl From<i32> for Linear {
    fn from(size: i32) -> Linear {
        Linear::new(size)
    }
}

impl<'n> Var<'n> {
    /// Applies a linear map to the last dimension.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let y = net.data("x", [-1, 128, 768], DType::F32).linear(64);
    /// assert_eq!(y.shape(), Shape::from([-1, 128, 64]));
    /// ```
    #[track_caller]
    pub fn linear(self, with: impl Into<Linear>) -> Var<'n> {
        let Linear(fc) = with.into();
        self.layer(|b, x| fc.emit(b, x, "linear"))
    }
}
