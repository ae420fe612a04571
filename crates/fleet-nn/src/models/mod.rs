//! The model zoo. Each model is a function from a net and a config to handles.
//!
//! ```
//! use fleet_nn::models::{ResNetConfig, resnet};
//! use fleet_nn::prelude::*;
//! let net = Net::new();
//! let model = resnet(&net, &ResNetConfig::new(50));
//! net.minimize(model.loss, Momentum::new(0.1, 0.9).weight_decay(Regularizer::L2(1e-4)))?;
//! # Ok::<(), fleet_nn::Error>(())
//! ```

mod bert;
mod deepfm;
mod gpt;
mod lenet;
mod resnet;
mod vgg;
mod wide_deep;
mod word2vec;

pub use bert::{
    BertConfig, BertMlm, Encoder, TokenClassifier, bert_encoder, bert_mlm, bert_tokens,
};
pub use deepfm::{DeepFmConfig, deepfm};
pub use gpt::{Gpt, GptConfig, gpt};
pub use lenet::lenet;
pub use resnet::{ResNetConfig, resnet};
pub use vgg::{VggConfig, vgg, vgg16};
pub use wide_deep::{WideDeepConfig, wide_deep};
pub use word2vec::{Word2Vec, Word2VecConfig, word2vec};

use crate::{Auc, AucVars, DType, Net, Var};

/// Inputs and outputs of an image classifier.
///
/// ```
/// # use fleet_nn::prelude::*;
/// let net = Net::new();
/// let model = fleet_nn::models::lenet(&net, 10);
/// assert_eq!(model.logits.shape(), Shape::from([-1, 10]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ImageClassifier<'n> {
    /// `x`: `[batch, channels, height, width]`.
    pub image: Var<'n>,
    /// `y`: `[batch, 1]`, class numbers.
    pub label: Var<'n>,
    /// `[batch, classes]`, before the softmax.
    pub logits: Var<'n>,
    /// Mean cross entropy of the batch.
    pub loss: Var<'n>,
    /// Share of images whose class has the largest logit.
    pub acc1: Var<'n>,
    /// Share of images whose class is among the five largest logits.
    pub acc5: Var<'n>,
}

/// Adds loss and metrics to logits.
fn classify<'n>(image: Var<'n>, logits: Var<'n>) -> ImageClassifier<'n> {
    let net = image.net();
    let label = net.data("y", [-1, 1], DType::I64);
    let loss = logits.cross_entropy(label);
    let acc1 = logits.accuracy(label, 1);
    let acc5 = logits.accuracy(label, 5);
    ImageClassifier { image, label, logits, loss, acc1, acc5 }
}

/// Inputs and outputs of a model that predicts clicks.
///
/// ```
/// # use fleet_nn::prelude::*;
/// use fleet_nn::models::{WideDeepConfig, wide_deep};
/// let net = Net::new();
/// let model = wide_deep(&net, &WideDeepConfig::criteo());
/// assert_eq!(model.prediction.shape(), Shape::from([-1, 1]));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ClickModel<'n> {
    /// `dense_input`: `[batch, numbers]`.
    pub dense: Var<'n>,
    /// `sparse_input`: `[batch, slots]`, ids in one table.
    pub ids: Var<'n>,
    /// `label`: `[batch, 1]`, 0 or 1.
    pub label: Var<'n>,
    /// Probability of a click.
    pub prediction: Var<'n>,
    /// Mean logistic loss of the batch.
    pub loss: Var<'n>,
    /// The areas under the curve, if the model measures them.
    pub auc: Option<AucVars<'n>>,
}

/// Adds the inputs of a click model.
fn click_inputs(net: &Net, numbers: i64, slots: i64) -> [Var<'_>; 3] {
    let dense = net.data("dense_input", [-1, numbers], DType::F32);
    let ids = net.data("sparse_input", [-1, slots], DType::I64);
    [dense, ids, net.data("label", [-1, 1], DType::F32)]
}

/// Adds loss and metric to a logit.
fn click_model<'n>([dense, ids, label]: [Var<'n>; 3], logit: Var<'n>, auc: bool) -> ClickModel<'n> {
    let loss = logit.sigmoid_cross_entropy_with_logits(label).mean();
    let prediction = logit.sigmoid();
    let options = Auc::new().num_thresholds(1 << 12).slide_steps(20);
    let auc = auc.then(|| prediction.auc(label.cast(DType::I64), options));
    ClickModel { dense, ids, label, prediction, loss, auc }
}
