//! Scores and loss of a retrieval: each row is a user's choice of an item, and the items of the
//! other rows of the batch are those that the user did not choose.

use super::output::Outputs;
use super::ranking::{FAR, own_place};
use crate::features::{Features, INPUT_ITEM, INPUT_LOG_FREQUENCY, INPUT_WEIGHT};
use crate::job::Job;
use fleet::DType;
use fleet::nn::{CrossEntropy, Net, Var};

/// Adds loss and scores to the vectors of users and items.
///
/// The loss is a softmax over the items of the batch. A frequent item is in more batches than a
/// rare one; without a correction it would be pushed away more often. So the logarithm of its
/// frequency is subtracted from its score, in the loss only.
pub fn outputs<'n>(
    net: &'n Net,
    [user, item]: [Var<'n>; 2],
    features: &Features,
    job: &Job,
) -> Outputs<'n> {
    let names = net.data(INPUT_ITEM, [-1, 1], DType::I64);
    let log_frequency = net.data(INPUT_LOG_FREQUENCY, [-1, 1], DType::F32);
    let place = own_place(log_frequency);
    let all = user.matmul_transposed(item, false, true).scale(1.0 / job.model.temperature, 0.0);
    // The same item in another row is the chosen one, too: it has no part in the softmax.
    let same_item = names.equal(names.transpose([1, 0])).cast(DType::F32);
    let same_row = place.equal(place.transpose([1, 0])).cast(DType::F32);
    let logits = all - log_frequency.transpose([1, 0]) - (same_item - same_row).scale(FAR, 0.0);
    let (row_loss, _) = logits.softmax_with_cross_entropy(place, CrossEntropy::new());
    let weighted = match features.weight {
        Some(_) => row_loss * net.data(INPUT_WEIGHT, [-1, 1], DType::F32),
        None => row_loss,
    };
    let scores = products([user, item], job);
    Outputs {
        loss: weighted.mean(),
        row_loss,
        scores,
        means: Vec::new(),
        areas: Vec::new(),
        vectors: None,
    }
}

/// The score of each row, `[batch, 1]`: the product of its vectors.
pub fn products<'n>([user, item]: [Var<'n>; 2], job: &Job) -> Var<'n> {
    (user * item).reduce_sum([1], true).scale(1.0 / job.model.temperature, 0.0)
}
