//! Scores and loss of a task.

use crate::features::{Features, INPUT_LABEL, INPUT_WEIGHT, Meaning};
use fleet::DType;
use fleet::nn::{CrossEntropy, Net, Var};

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
}

/// Adds loss and scores to the raw outputs.
pub fn outputs<'n>(net: &'n Net, raw: Var<'n>, features: &Features) -> Outputs<'n> {
    let mut means = Vec::new();
    let (row_loss, scores) = match &features.label.meaning {
        Meaning::Classes(_) => {
            let label = net.data(INPUT_LABEL, [-1, 1], DType::I64);
            means.push(("accuracy", raw.accuracy(label, 1)));
            // Scores must not need the label, as the softmax of the loss does.
            (raw.softmax_with_cross_entropy(label, CrossEntropy::new()).0, raw.softmax())
        }
        Meaning::Number { mean, deviation } => {
            let (mean, deviation) = (f64::from(*mean), f64::from(*deviation));
            let label = net.data(INPUT_LABEL, [-1, 1], DType::F32);
            let scores = raw.scale(deviation, mean);
            means.push(("mse", (scores - label).square()));
            let scaled = label.scale(1.0 / deviation, -mean / deviation);
            ((raw - scaled).square(), scores)
        }
        _ => {
            let label = net.data(INPUT_LABEL, [-1, 1], DType::F32);
            (raw.sigmoid_cross_entropy_with_logits(label), raw.sigmoid())
        }
    };
    let weighted = match features.weight {
        Some(_) => row_loss * net.data(INPUT_WEIGHT, [-1, 1], DType::F32),
        None => row_loss,
    };
    Outputs { loss: weighted.mean(), row_loss, scores, means }
}
