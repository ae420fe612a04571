//! The loss of many classes: a layer without bias and its softmax cross entropy, whose classes
//! ranks may divide.

use crate::build::Build;
use crate::setters::setters;
use crate::{Init, ParamAttr, Reduction, Var};
use fleet_base::{Error, Result};
use fleet_ir::VarId;
use fleet_tensor::{DType, Shape};

/// The classes that a step uses.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let loss = ClassLoss::softmax(1_000_000).sample(0.1);
/// assert_eq!(loss.sample, ClassSample::Ratio(0.1));
/// assert_eq!(ClassLoss::softmax(1000).sample(64).sample, ClassSample::Count(64));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ClassSample {
    /// All classes.
    #[default]
    All,
    /// This share of the classes of each rank.
    Ratio(f64),
    /// This number of the classes of each rank.
    Count(i64),
}

impl From<f64> for ClassSample {
    fn from(ratio: f64) -> ClassSample {
        ClassSample::Ratio(ratio)
    }
}

impl From<i64> for ClassSample {
    fn from(count: i64) -> ClassSample {
        ClassSample::Count(count)
    }
}

impl From<i32> for ClassSample {
    fn from(count: i32) -> ClassSample {
        ClassSample::Count(i64::from(count))
    }
}

/// Options of [`Var::class_loss`]: the softmax cross entropy of features and class weights
/// `[classes, width]`. With `split_classes` of `hybrid_configs`, each rank has some of the classes.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let features = net.data("features", [-1, 128], DType::F32);
/// let label = net.data("label", [-1, 1], DType::I64);
/// let loss = features.class_loss(label, ClassLoss::arcface(85_742).margin(0.4).sample(0.1));
/// assert_eq!(loss.shape(), Shape::from([1]));
/// assert_eq!(net.var("class_loss_0.w_0").shape(), Shape::from([85_742, 128]));
/// ```
#[derive(Clone, Debug)]
pub struct ClassLoss {
    /// Number of classes.
    pub classes: i64,
    /// Whether features and class weights are divided by their norms, so that a product is the
    /// cosine of their angle.
    pub normalize: bool,
    /// Angle that is added to that of the label's class; needs `normalize`.
    pub margin: f64,
    /// Factor of the products.
    pub scale: f64,
    /// The classes that a training step uses: those of the labels of all ranks, and random others
    /// up to this share or number. There are at least as many as samples of all ranks. Only their
    /// weights get gradients. Evaluation uses all classes.
    pub sample: ClassSample,
    /// Seed of the choice of classes; that of the program by default.
    pub seed: i64,
    /// The class weights, a row for each class.
    pub weight: ParamAttr,
    /// How the losses of samples are combined; the mean by default.
    pub reduction: Reduction,
    /// Name of the layer, which begins the names of its variables; `class_loss_0` and so on by
    /// default.
    pub name: Option<String>,
}

impl ClassLoss {
    /// Returns the plain softmax cross entropy.
    pub fn softmax(classes: impl TryInto<i64>) -> ClassLoss {
        ClassLoss {
            // A number out of range becomes -1, which is rejected like any negative number.
            classes: classes.try_into().unwrap_or(-1),
            normalize: false,
            margin: 0.0,
            scale: 1.0,
            sample: ClassSample::All,
            seed: 0,
            weight: ParamAttr::new(),
            reduction: Reduction::Mean,
            name: None,
        }
    }

    /// Returns the loss of ArcFace: 64 times the cosines, with a margin of 0.5 for the label.
    pub fn arcface(classes: impl TryInto<i64>) -> ClassLoss {
        ClassLoss { normalize: true, margin: 0.5, scale: 64.0, ..ClassLoss::softmax(classes) }
    }

    setters! {
        normalize: bool,
        margin: f64,
        scale: f64,
        sample: impl Into<ClassSample>,
        seed: i64,
        weight: impl Into<ParamAttr>,
        reduction: Reduction,
        name: Some(impl Into<String>),
    }

    /// Emits the losses of samples.
    fn emit(&self, b: &mut Build<'_>, x: VarId, label: VarId) -> Result<VarId> {
        if self.classes <= 0 {
            return Err(Error::invalid("wrong number of classes of class_loss")
                .expected("1 or more")
                .got(self.classes));
        }
        let shape = b.shape(x);
        let width = match shape.dims() {
            [_, width] if *width > 0 => *width,
            _ => {
                return Err(Error::invalid("wrong features of class_loss")
                    .expected("a row of known width for each sample")
                    .got(shape)
                    .help("flatten them before"));
            }
        };
        let (count, ratio) = self.samples()?;
        let layer = b.layer_name("class_loss", self.name.as_deref());
        let (shape, init) = (Shape::from([self.classes, width]), Init::XAVIER_UNIFORM);
        let w = b.parameter(&layer, "w", &self.weight, shape, DType::F32, &init)?;
        let stream = b.main.program.next_stream() as i64;
        let call = b.op("class_cross_entropy")?.input("X", x).input("Label", label);
        let call = call.input("W", w).attr("normalize", self.normalize);
        let call = call.attr("margin", self.margin).attr("scale", self.scale);
        let call = call.attr("num_samples", count).attr("sample_ratio", ratio);
        let call = call.attr("seed", self.seed).attr("stream", stream);
        call.named(format!("{layer}.tmp")).one("Loss")
    }

    /// Returns the number and the share of sampled classes; 0 for those that do not apply.
    fn samples(&self) -> Result<(i64, f64)> {
        let wrong = |got: String| {
            Err(Error::invalid("wrong sample of class_loss")
                .expected("a share above 0 and at most 1, or a number of at least 1")
                .got(got))
        };
        match self.sample {
            ClassSample::All => Ok((0, 0.0)),
            ClassSample::Ratio(ratio) if ratio > 0.0 && ratio <= 1.0 => Ok((0, ratio)),
            ClassSample::Ratio(ratio) => wrong(ratio.to_string()),
            ClassSample::Count(count) if count >= 1 => Ok((count, 0.0)),
            ClassSample::Count(count) => wrong(count.to_string()),
        }
    }
}

impl<'n> Var<'n> {
    /// Returns the softmax cross entropy of features `[samples, width]` and class numbers, with
    /// class weights of its own.
    ///
    /// ```
    /// # use fleet_nn::prelude::*;
    /// # let net = Net::new();
    /// let features = net.data("features", [-1, 128], DType::F32);
    /// let label = net.data("label", [-1], DType::I64);
    /// let losses = ClassLoss::softmax(1000).reduction(Reduction::None);
    /// assert_eq!(features.class_loss(label, losses).shape(), Shape::from([-1, 1]));
    /// ```
    #[track_caller]
    pub fn class_loss(self, label: Var<'n>, with: ClassLoss) -> Var<'n> {
        let loss = self.layer(|b, x| {
            let label = b.id(label)?;
            with.emit(b, x, label)
        });
        with.reduction.apply(loss)
    }
}
