//! Losses, as methods of the prediction that take the label.

use crate::setters::setters;
use crate::{Net, Var};

/// Reduction of elementwise losses.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let (x, y) = (net.data("x", [-1, 4], DType::F32), net.data("y", [-1, 4], DType::F32));
/// assert_eq!(x.l1_loss(y, Reduction::None).shape(), Shape::from([-1, 4]));
/// assert_eq!(x.l1_loss(y, Reduction::Sum).shape(), Shape::from([1]));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reduction {
    /// One loss per element.
    None,
    /// The mean of all losses.
    #[default]
    Mean,
    /// The sum of all losses.
    Sum,
}

impl Reduction {
    #[track_caller]
    fn apply(self, loss: Var<'_>) -> Var<'_> {
        match self {
            Reduction::None => loss,
            Reduction::Mean => loss.mean(),
            Reduction::Sum => loss.sum(),
        }
    }
}

/// Options of softmax cross entropy.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let logits = net.data("logits", [-1, 10], DType::F32);
/// let label = net.data("label", [-1, 1], DType::I64);
/// let loss = logits.cross_entropy_with(label, CrossEntropy::new().ignore_index(-1));
/// assert_eq!(loss.shape(), Shape::from([1]));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy {
    /// Whether labels are probabilities, one per class.
    pub soft_label: bool,
    /// Label of rows to ignore. The mean does not count them either.
    pub ignore_index: Option<i64>,
    /// Axis of the classes; the last by default.
    pub axis: Option<i64>,
    /// How the losses of the rows are combined; the mean by default.
    pub reduction: Reduction,
}

impl CrossEntropy {
    /// Returns the defaults: class numbers as labels, the mean over rows.
    pub fn new() -> CrossEntropy {
        CrossEntropy::default()
    }

    setters! {
        soft_label: true,
        ignore_index: Some(i64),
        axis: Some(i64),
        reduction: Reduction,
    }
}

impl<'n> Var<'n> {
    /// Returns the mean softmax cross entropy of logits and class numbers, computed in one pass.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let logits = net.data("logits", [-1, 10], DType::F32);
    /// let loss = logits.cross_entropy(net.data("label", [-1, 1], DType::I64));
    /// assert_eq!(loss.shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn cross_entropy(self, label: Var<'n>) -> Var<'n> {
        self.cross_entropy_with(label, CrossEntropy::new())
    }

    /// Like [`Var::cross_entropy`], with options.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let logits = net.data("logits", [-1, 10], DType::F32);
    /// let soft = net.data("soft", [-1, 10], DType::F32);
    /// let loss = logits.cross_entropy_with(soft, CrossEntropy::new().soft_label());
    /// assert_eq!(loss.shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn cross_entropy_with(self, label: Var<'n>, with: CrossEntropy) -> Var<'n> {
        let (loss, _) = self.softmax_with_cross_entropy(label, with);
        match (with.reduction, with.ignore_index) {
            (Reduction::Mean, Some(ignored)) if !with.soft_label => {
                let counted = label.not_equal(ignored as f64).cast(loss.dtype()).sum();
                // A batch with only ignored rows has loss 0, not 0 / 0.
                loss.sum() / counted.maximum(1.0)
            }
            (reduction, _) => reduction.apply(loss),
        }
    }

    /// Returns the softmax cross entropy of each row, and the softmax.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let logits = net.data("logits", [-1, 10], DType::F32);
    /// let label = net.data("label", [-1, 1], DType::I64);
    /// let (loss, probabilities) = logits.softmax_with_cross_entropy(label, CrossEntropy::new());
    /// assert_eq!((loss.shape(), probabilities.shape()), (Shape::from([-1, 1]), logits.shape()));
    /// ```
    #[track_caller]
    pub fn softmax_with_cross_entropy(
        self,
        label: Var<'n>,
        with: CrossEntropy,
    ) -> (Var<'n>, Var<'n>) {
        let call = self.net.op("softmax_with_cross_entropy").input("Logits", self);
        let call = call.input("Label", label).attr("soft_label", with.soft_label);
        let call = call.attr("ignore_index", with.ignore_index.unwrap_or(-100));
        let made = call.attr("axis", with.axis.unwrap_or(-1)).done();
        (made.one("Loss"), made.one("Softmax"))
    }

    /// Returns the cross entropy of each row of probabilities (such as the output of a softmax)
    /// with its class number. With `soft_label`, the label is a distribution.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let p = net.data("x", [-1, 10], DType::F32).softmax();
    /// let loss = p.cross_entropy_of_probabilities(net.data("label", [-1, 1], DType::I64), false);
    /// assert_eq!(loss.mean().shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn cross_entropy_of_probabilities(self, label: Var<'n>, soft_label: bool) -> Var<'n> {
        let call = self.net.op("cross_entropy").input("X", self).input("Label", label);
        call.attr("soft_label", soft_label).one("Y")
    }

    /// Returns the cross entropy of each logit and a label between 0 and 1.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let logit = net.data("logit", [-1, 1], DType::F32);
    /// let loss = logit.sigmoid_cross_entropy_with_logits(net.data("y", [-1, 1], DType::F32));
    /// assert_eq!(loss.shape(), Shape::from([-1, 1]));
    /// ```
    #[track_caller]
    pub fn sigmoid_cross_entropy_with_logits(self, label: Var<'n>) -> Var<'n> {
        let call = self.net.op("sigmoid_cross_entropy_with_logits");
        call.input("X", self).input("Label", label).one("Out")
    }

    /// Returns `-y log(p + eps) - (1 - y) log(1 - p + eps)` of each probability; eps is 1e-4.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let p = net.data("logit", [-1, 1], DType::F32).sigmoid();
    /// let loss = p.log_loss(net.data("y", [-1, 1], DType::F32));
    /// assert_eq!(loss.shape(), Shape::from([-1, 1]));
    /// ```
    #[track_caller]
    pub fn log_loss(self, label: Var<'n>) -> Var<'n> {
        self.log_loss_with(label, 1e-4)
    }

    /// Like [`Var::log_loss`], with another eps. It keeps the logarithms finite.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let p = net.data("logit", [-1, 1], DType::F32).sigmoid();
    /// let loss = p.log_loss_with(net.data("y", [-1, 1], DType::F32), 1e-7);
    /// assert_eq!(loss.shape(), Shape::from([-1, 1]));
    /// ```
    #[track_caller]
    pub fn log_loss_with(self, label: Var<'n>, epsilon: f64) -> Var<'n> {
        let call = self.net.op("log_loss").input("Predicted", self).input("Labels", label);
        call.attr("epsilon", epsilon).one("Loss")
    }

    /// Returns `(x - y)^2` of each element.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let (x, y) = (net.data("x", [-1, 1], DType::F32), net.data("y", [-1, 1], DType::F32));
    /// assert_eq!(x.square_error_cost(y).shape(), Shape::from([-1, 1]));
    /// ```
    #[track_caller]
    pub fn square_error_cost(self, label: Var<'n>) -> Var<'n> {
        self.net.op("square_error_cost").input("X", self).input("Y", label).one("Out")
    }

    /// Returns the squared errors, reduced.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let (x, y) = (net.data("x", [-1, 1], DType::F32), net.data("y", [-1, 1], DType::F32));
    /// assert_eq!(x.mse_loss(y, Reduction::Sum).shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn mse_loss(self, label: Var<'n>, reduction: Reduction) -> Var<'n> {
        reduction.apply(self.square_error_cost(label))
    }

    /// Returns the absolute errors, reduced.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let (x, y) = (net.data("x", [-1, 1], DType::F32), net.data("y", [-1, 1], DType::F32));
    /// assert_eq!(x.l1_loss(y, Reduction::Mean).shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn l1_loss(self, label: Var<'n>, reduction: Reduction) -> Var<'n> {
        reduction.apply((self - label).abs())
    }

    /// Returns the Huber loss: quadratic for errors up to `delta`, linear beyond.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let (x, y) = (net.data("x", [-1, 1], DType::F32), net.data("y", [-1, 1], DType::F32));
    /// assert_eq!(x.huber_loss(y, 1.0, Reduction::Mean).shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn huber_loss(self, label: Var<'n>, delta: f64, reduction: Reduction) -> Var<'n> {
        let call = self.net.op("huber_loss").input("X", self).input("Y", label);
        reduction.apply(call.attr("delta", delta).one("Out"))
    }

    /// Returns the smooth L1 loss of each row.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let (x, y) = (net.data("x", [-1, 4], DType::F32), net.data("y", [-1, 4], DType::F32));
    /// assert_eq!(x.smooth_l1_loss(y).shape(), Shape::from([-1, 1]));
    /// ```
    #[track_caller]
    pub fn smooth_l1_loss(self, label: Var<'n>) -> Var<'n> {
        self.net.op("smooth_l1_loss").input("X", self).input("Y", label).one("Out")
    }

    /// Returns the Kullback-Leibler divergence of log probabilities from target probabilities.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 4], DType::F32).log_softmax();
    /// let loss = x.kldiv_loss(net.data("target", [-1, 4], DType::F32), Reduction::Mean);
    /// assert_eq!(loss.shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn kldiv_loss(self, target: Var<'n>, reduction: Reduction) -> Var<'n> {
        let call = self.net.op("kldiv_loss").input("X", self).input("Target", target);
        call.attr("reduction", reduction_name(reduction)).one("Loss")
    }

    /// Returns the negative log probability of the true class.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let x = net.data("x", [-1, 4], DType::F32).log_softmax();
    /// let loss = x.nll_loss(net.data("label", [-1], DType::I64), Reduction::Mean);
    /// assert_eq!(loss.shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn nll_loss(self, label: Var<'n>, reduction: Reduction) -> Var<'n> {
        let call = self.net.op("nll_loss").input("X", self).input("Label", label);
        call.attr("reduction", reduction_name(reduction)).one("Out")
    }

    /// Redistributes a share `epsilon` of each label evenly over all classes.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let soft = net.data("label", [-1], DType::I64).one_hot(10).label_smooth(0.1);
    /// assert_eq!(soft.shape(), Shape::from([-1, 10]));
    /// ```
    #[track_caller]
    pub fn label_smooth(self, epsilon: f64) -> Var<'n> {
        self.net.op("label_smooth").input("X", self).attr("epsilon", epsilon).one("Out")
    }
}

fn reduction_name(reduction: Reduction) -> &'static str {
    match reduction {
        Reduction::None => "none",
        Reduction::Mean => "mean",
        Reduction::Sum => "sum",
    }
}

impl Net {
    /// Returns the weighted sum of losses.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 4], DType::F32);
    /// let loss = net.weighted_sum(&[(x.mean(), 1.0), (x.square().mean(), 0.5)]);
    /// assert_eq!(loss.shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn weighted_sum<'n>(&'n self, losses: &[(Var<'n>, f64)]) -> Var<'n> {
        let mut parts = Vec::with_capacity(losses.len());
        for (loss, weight) in losses {
            parts.push(*loss * *weight);
        }
        self.sum_of(&parts)
    }
}
