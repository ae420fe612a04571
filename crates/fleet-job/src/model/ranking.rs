//! Scores and losses of rankings: rows of a batch that belong to the same group.

use super::output::Outputs;
use crate::features::{Features, INPUT_GROUP, INPUT_LABEL, INPUT_WEIGHT};
use fleet::DType;
use fleet::nn::{CrossEntropy, Net, Var};

/// Adds loss and scores to the raw outputs, `[batch, 1]`.
pub fn outputs<'n>(
    net: &'n Net,
    raw: Var<'n>,
    features: &Features,
    is_listwise: bool,
) -> Outputs<'n> {
    let label = net.data(INPUT_LABEL, [-1, 1], DType::F32);
    let group = net.data(INPUT_GROUP, [-1, 1], DType::I64);
    // Whether two rows of the batch are of the same group.
    let same = group.equal(group.transpose([1, 0])).cast(DType::F32);
    let weight = features.weight.as_ref().map(|_| net.data(INPUT_WEIGHT, [-1, 1], DType::F32));
    let loss = match is_listwise {
        true => listwise(raw, label, same, weight),
        false => pairwise(raw, label, same, weight),
    };
    // A loss of pairs or lists has no value for a single row: the mean stands for each.
    Outputs {
        loss,
        row_loss: loss,
        scores: raw.scale(1.0, 0.0),
        means: Vec::new(),
        areas: Vec::new(),
        weights: None,
        vectors: None,
    }
}

/// The mean over all pairs of a group whose grades differ: `log(1 + exp(-(better - worse)))`. The
/// weight of a pair is that of the better row.
fn pairwise<'n>(raw: Var<'n>, label: Var<'n>, same: Var<'n>, weight: Option<Var<'n>>) -> Var<'n> {
    let is_better = label.greater_than(label.transpose([1, 0])).cast(DType::F32);
    let pairs = weight.into_iter().fold(same * is_better, |pairs, weight| pairs * weight);
    let difference = raw - raw.transpose([1, 0]);
    mean_of(difference.scale(-1.0, 0.0).softplus(), pairs)
}

/// The cross entropy between a softmax over the scores of a group and its grades, whose shares are
/// the target. The weight of a term is that of its row.
fn listwise<'n>(raw: Var<'n>, label: Var<'n>, same: Var<'n>, weight: Option<Var<'n>>) -> Var<'n> {
    // Rows of other groups have no part in the softmax.
    let scores = raw.transpose([1, 0]) + same.scale(FAR, -FAR);
    let (entropy, _) = scores.softmax_with_cross_entropy(own_place(label), CrossEntropy::new());
    let sum = same.matmul(label).maximum(TINY);
    let share = label / sum;
    mean_of(entropy, weight.into_iter().fold(share, |share, weight| share * weight))
}

/// The place of each row in the batch, `[batch, 1]`: 0, 1, ..
pub fn own_place(column: Var<'_>) -> Var<'_> {
    let ones = column.full_batch([-1, 1], 1.0, DType::F32);
    ones.cumsum(0).scale(1.0, -1.0).cast(DType::I64)
}

/// The mean of values by weights; 0 if there are none.
fn mean_of<'n>(values: Var<'n>, weights: Var<'n>) -> Var<'n> {
    (values * weights).sum() / weights.sum().maximum(TINY)
}

/// Subtracted from scores that have no part in a softmax: far below all scores, and exp of it is 0.
pub const FAR: f64 = 1e9;
/// Keeps the divisor of an empty sum from 0.
const TINY: f64 = 1e-12;
