//! Scores and loss of a task.

use crate::features::{Features, INPUT_LABEL, INPUT_LEVELS, INPUT_WEIGHT, Label, Meaning};
use fleet::DType;
use fleet::nn::{CrossEntropy, Init, Net, ParamAttr, Var};

/// The outputs of a network.
pub struct Outputs<'n> {
    /// Mean loss of the batch, weighted by the rows' weights.
    pub loss: Var<'n>,
    /// Loss of each row, `[batch, 1]`.
    pub row_loss: Var<'n>,
    /// Scores, `[batch, outputs]`: probabilities, or the number of a regression.
    pub scores: Var<'n>,
    /// Further values that a validation takes the mean of: label and variable.
    pub means: Vec<(&'static str, Var<'n>)>,
    /// Numbers between 0 and 1, and labels 0 or 1, of which a validation takes the AUC: of one
    /// label without a name, or of several with theirs.
    pub areas: Vec<(Option<String>, [Var<'n>; 2])>,
    /// Weights of the rows of a batch, if they are not all of the input.
    pub weights: Option<Var<'n>>,
    /// The vectors of user and item, `[batch, dim]`, of a model with two towers.
    pub vectors: Option<[Var<'n>; 2]>,
}

/// Adds loss and scores to the raw outputs.
pub fn outputs<'n>(net: &'n Net, raw: Var<'n>, features: &Features) -> Outputs<'n> {
    let (mut means, mut areas) = (Vec::new(), Vec::new());
    let (row_loss, scores) = match &features.label.meaning {
        _ if features.has_labels() => {
            let labels = net.data(INPUT_LABEL, [-1, features.scores() as i64], DType::F32);
            let scores = raw.sigmoid();
            let of = |all: Var<'n>, at: i64| all.slice([1], [at], [at + 1]);
            let names = features.label_names().into_iter().map(Some);
            areas.extend(names.zip(0..).map(|(name, at)| (name, [of(scores, at), of(labels, at)])));
            (raw.sigmoid_cross_entropy_with_logits(labels).reduce_mean([1], true), scores)
        }
        Meaning::Classes(_) => {
            let label = net.data(INPUT_LABEL, [-1, 1], DType::I64);
            means.push(match features.weight {
                None => ("accuracy", raw.accuracy(label, 1)),
                // A value for each row, which its weight multiplies.
                Some(_) => {
                    let found = raw.argmax(1).reshape([-1, 1]);
                    ("accuracy", found.equal(label).cast(DType::F32))
                }
            });
            // Scores must not need the label, as the softmax of the loss does.
            (raw.softmax_with_cross_entropy(label, CrossEntropy::new()).0, raw.softmax())
        }
        Meaning::Number { mean, deviation } => {
            let (mean, deviation) = (f64::from(*mean), f64::from(*deviation));
            let label = net.data(INPUT_LABEL, [-1, 1], DType::F32);
            let scores = raw.scale(deviation, mean);
            means.push(("mse", (scores - label).square()));
            areas.extend(features.label.at_least.map(|least| {
                let reached = label.greater_equal(f64::from(least)).cast(DType::F32);
                (None, [raw.sigmoid(), reached])
            }));
            let scaled = label.scale(1.0 / deviation, -mean / deviation);
            ((raw - scaled).square(), scores)
        }
        _ => {
            let label = net.data(INPUT_LABEL, [-1, 1], DType::F32);
            let loss = raw.sigmoid_cross_entropy_with_logits(label);
            let scores = raw.sigmoid();
            areas.push((None, [scores, label]));
            (ordinal_loss(net, raw, &features.label, loss), scores)
        }
    };
    let weighted = match features.weight {
        Some(_) => row_loss * net.data(INPUT_WEIGHT, [-1, 1], DType::F32),
        None => row_loss,
    };
    Outputs { loss: weighted.mean(), row_loss, scores, means, areas, weights: None, vectors: None }
}

/// The mean loss of predicting whether the label is at or above each level, if it has levels: those
/// besides `at_least` share the raw output, each with a trained offset.
fn ordinal_loss<'n>(net: &'n Net, raw: Var<'n>, label: &Label, loss: Var<'n>) -> Var<'n> {
    let others = label.other_levels();
    let Meaning::AtLeast(least) = &label.meaning else { return loss };
    if others.is_empty() {
        return loss;
    }
    let count = others.len() as i64;
    let levels = net.data(INPUT_LEVELS, [-1, count], DType::F32);
    // A lower level is reached more often: its offset is larger.
    let offsets = others.iter().map(|level| f64::from(*least - *level)).collect();
    let offsets = ParamAttr::from("level_offsets").init(Init::Assign(offsets));
    let offsets = net.create_parameter([1, count], DType::F32, offsets);
    let other_loss = (raw + offsets).sigmoid_cross_entropy_with_logits(levels);
    (loss + other_loss.reduce_sum([1], true)) * (1.0 / (count + 1) as f64)
}
