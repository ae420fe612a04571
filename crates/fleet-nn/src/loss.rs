//! Losses, as methods of the prediction that take the label.

use crate::setters::setters;
use crate::{Net, Var};
use fleet_base::{Error, Result};
use fleet_tensor::Shape;
use std::panic::Location;

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
    pub(crate) fn apply(self, loss: Var<'_>) -> Var<'_> {
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
/// // Rows of class 1 count twice.
/// let weight = net.create_parameter([10], DType::F32, Init::Constant(1.0));
/// let loss = logits.cross_entropy_with(label, CrossEntropy::new().weight(weight));
/// assert_eq!(loss.shape(), Shape::from([1]));
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CrossEntropy<'n> {
    /// Whether labels are probabilities, one per class.
    pub soft_label: bool,
    /// Label of rows to ignore. The mean does not count them either.
    pub ignore_index: Option<i64>,
    /// Axis of the classes; the last by default.
    pub axis: Option<i64>,
    /// Weights of the classes, as many numbers as there are classes. The loss of a row is
    /// multiplied by the weight of its class. With `soft_label`, it is multiplied by the mean of
    /// the weights under the label. The mean divides by the sum of the rows' weights.
    pub weight: Option<Var<'n>>,
    /// How the losses of the rows are combined; the mean by default.
    pub reduction: Reduction,
}

impl<'n> CrossEntropy<'n> {
    /// Returns the defaults: class numbers as labels, the mean over rows.
    pub fn new() -> CrossEntropy<'n> {
        CrossEntropy::default()
    }

    setters! {
        soft_label: true,
        ignore_index: Some(i64),
        axis: Some(i64),
        weight: Some(Var<'n>),
        reduction: Reduction,
    }

    /// The label of ignored rows, as ops have it.
    fn ignored(&self) -> i64 {
        self.ignore_index.unwrap_or(IGNORED)
    }

    /// Combines the losses of rows, of which each counts as much as its weight, if there are any.
    #[track_caller]
    fn reduce(&self, loss: Var<'n>, label: Var<'n>, weights: Option<Var<'n>>) -> Var<'n> {
        let count = match (self.reduction, weights, self.ignore_index) {
            (Reduction::Mean, Some(weights), _) => weights.sum(),
            (Reduction::Mean, None, Some(ignored)) if !self.soft_label => {
                let counted = label.not_equal(ignored as f64).cast(loss.dtype()).sum();
                // A batch with only ignored rows has loss 0, not 0 / 0.
                return loss.sum() / counted.maximum(1.0);
            }
            (reduction, _, _) => return reduction.apply(loss),
        };
        // As above; a sum of weights may be any other number.
        loss.sum() / (count + count.equal(0.0).cast(loss.dtype()))
    }
}

/// Label of rows that the ops ignore by default.
const IGNORED: i64 = -100;

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
    pub fn cross_entropy_with(self, label: Var<'n>, with: CrossEntropy<'n>) -> Var<'n> {
        let (loss, _) =
            self.softmax_with_cross_entropy(label, CrossEntropy { weight: None, ..with });
        self.weighted_and_reduced(loss, label, with)
    }

    /// Multiplies the losses of rows by the weights of their classes, and reduces them.
    #[track_caller]
    fn weighted_and_reduced(
        self,
        loss: Var<'n>,
        label: Var<'n>,
        with: CrossEntropy<'n>,
    ) -> Var<'n> {
        // Without closures, which would hide the caller's line.
        let Some(weight) = with.weight else { return with.reduce(loss, label, None) };
        let weights = self.row_weights(loss, label, weight, with);
        with.reduce(loss * weights, label, Some(weights))
    }

    /// Returns the weight of each row's class, in the shape of the losses. Ignored rows have
    /// weight 0.
    #[track_caller]
    fn row_weights(
        self,
        loss: Var<'n>,
        label: Var<'n>,
        weight: Var<'n>,
        with: CrossEntropy<'n>,
    ) -> Var<'n> {
        let axis = with.axis.unwrap_or(-1);
        let axis = self.net.checked(Location::caller(), || check_weight(self, axis, weight));
        let Some(axis) = axis else { return self.net.invalid_var() };
        if with.soft_label {
            // Along the axis of the classes, as the label is.
            let mut shape = vec![1; self.shape().rank()];
            shape[axis] = -1;
            return (label * weight.reshape(shape)).reduce_sum([axis as i64], true);
        }
        let counts = label.not_equal(with.ignored() as f64);
        // The number of an ignored row may not be a class: any class stands for it.
        let class = label * counts.cast(label.dtype());
        let tuples = class.unsqueeze([class.shape().rank() as i64]);
        let weights = weight.gather_nd(tuples) * counts.cast(weight.dtype());
        match label.shape().rank() < loss.shape().rank() {
            true => weights.unsqueeze([axis as i64]),
            false => weights,
        }
    }

    /// Returns the softmax cross entropy of each row, and the softmax. Losses are not reduced.
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
        with: CrossEntropy<'n>,
    ) -> (Var<'n>, Var<'n>) {
        let call = self.net.op("softmax_with_cross_entropy").input("Logits", self);
        let call = call.input("Label", label).attr("soft_label", with.soft_label);
        let call = call.attr("ignore_index", with.ignored());
        let made = call.attr("axis", with.axis.unwrap_or(-1)).done();
        let with = CrossEntropy { reduction: Reduction::None, ..with };
        (self.weighted_and_reduced(made.one("Loss"), label, with), made.one("Softmax"))
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
        let with = CrossEntropy { soft_label, reduction: Reduction::None, ..CrossEntropy::new() };
        self.cross_entropy_of_probabilities_with(label, with)
    }

    /// Like [`Var::cross_entropy_of_probabilities`], with options: the loss is reduced. Classes are
    /// along the last axis.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let p = net.data("x", [-1, 10], DType::F32).softmax();
    /// let label = net.data("label", [-1, 1], DType::I64);
    /// let loss = p.cross_entropy_of_probabilities_with(label, CrossEntropy::new());
    /// assert_eq!(loss.shape(), Shape::from([1]));
    /// ```
    #[track_caller]
    pub fn cross_entropy_of_probabilities_with(
        self,
        label: Var<'n>,
        with: CrossEntropy<'n>,
    ) -> Var<'n> {
        let rank = self.shape().rank() as i64;
        let is_last = with.axis.is_none_or(|axis| axis == -1 || axis == rank - 1);
        let checked = self.net.checked(Location::caller(), || match is_last {
            true => Ok(()),
            false => Err(Error::unsupported("wrong axis of a cross entropy of probabilities")
                .expected("the last one")
                .got(with.axis.unwrap_or(-1))
                .help("use logits, or transpose the probabilities")),
        });
        if checked.is_none() {
            return self.net.invalid_var();
        }
        let call = self.net.op("cross_entropy").input("X", self).input("Label", label);
        let call = call.attr("soft_label", with.soft_label).attr("ignore_index", with.ignored());
        self.weighted_and_reduced(call.one("Y"), label, with)
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

/// Returns the position of the axis of the classes. Fails if there is not one weight for each
/// class.
fn check_weight(predictions: Var<'_>, axis: i64, weight: Var<'_>) -> Result<usize> {
    let (dtype, shape) = (predictions.dtype(), predictions.shape());
    let axis = shape.axis(axis)?;
    let expected = Shape::new(&[shape[axis]])?;
    if !weight.shape().agrees(&expected) || weight.dtype() != dtype {
        return Err(Error::invalid("wrong weight of cross entropy")
            .expected(format!("one number for each class, {dtype}{expected}"))
            .got(format!("{}{}", weight.dtype(), weight.shape())));
    }
    Ok(axis)
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
