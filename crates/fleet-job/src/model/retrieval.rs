//! Scores and loss of a retrieval: each row is a user's choice of an item. The items of the other
//! rows of the batch are those that the user did not choose, or items that are drawn
//! (`negatives.rs`).

use super::output::Outputs;
use super::ranking::{FAR, own_place};
use crate::features::{Features, INPUT_ITEM, INPUT_LOG_FREQUENCY, INPUT_WEIGHT};
use crate::job::Job;
use fleet::DType;
use fleet::nn::{CrossEntropy, Net, Var};

/// Adds loss and scores to the vectors of users and items.
pub fn outputs<'n>(
    net: &'n Net,
    vectors: [Var<'n>; 2],
    features: &Features,
    job: &Job,
) -> Outputs<'n> {
    let names = net.data(INPUT_ITEM, [-1, 1], DType::I64);
    let log_frequency = net.data(INPUT_LOG_FREQUENCY, [-1, 1], DType::F32);
    let softmax = Softmax {
        temperature: job.model.temperature,
        drawn: job.model.negatives.map(|count| (count as i64, job.model.negatives_power)),
    };
    let row_loss = softmax.row_loss(vectors, names, log_frequency);
    let weights = features.weight.as_ref();
    let weights = weights.map(|_| softmax.own(net.data(INPUT_WEIGHT, [-1, 1], DType::F32)));
    let weighted = weights.map_or(row_loss, |weights| row_loss * weights);
    let scores = products(vectors, job);
    Outputs {
        loss: weighted.mean(),
        row_loss,
        scores,
        means: Vec::new(),
        areas: Vec::new(),
        weights,
        vectors: None,
    }
}

/// A softmax over the item of a row and items that its user did not choose.
struct Softmax {
    /// Divides the products of vectors.
    temperature: f64,
    /// Number of drawn items, whose rows follow those of the batch, and the power of the frequency
    /// by which they are drawn. Without, the items of the other rows are taken.
    drawn: Option<(i64, f64)>,
}

impl Softmax {
    /// The loss of each row, `[batch, 1]`.
    ///
    /// A frequent item is among the others more often than a rare one; without a correction it
    /// would be pushed away more often. So the logarithm of the probability by which an item is
    /// there is subtracted from its score, in the loss only. A constant in it has no effect.
    fn row_loss<'n>(
        &self,
        [user, item]: [Var<'n>; 2],
        names: Var<'n>,
        log_frequency: Var<'n>,
    ) -> Var<'n> {
        match self.drawn {
            None => self.in_batch([user, item], names, log_frequency),
            Some((_, power)) => {
                self.sampled([self.own(user), item], names, log_frequency.scale(power, 0.0))
            }
        }
    }

    fn in_batch<'n>(
        &self,
        [user, item]: [Var<'n>; 2],
        names: Var<'n>,
        log_frequency: Var<'n>,
    ) -> Var<'n> {
        let place = own_place(log_frequency);
        // The same item in another row is the chosen one, too: it has no part in the softmax.
        let same_item = names.equal(names.transpose([1, 0])).cast(DType::F32);
        let same_row = place.equal(place.transpose([1, 0])).cast(DType::F32);
        let all = user.matmul_transposed(item, false, true).scale(1.0 / self.temperature, 0.0);
        let logits = all - log_frequency.transpose([1, 0]) - (same_item - same_row).scale(FAR, 0.0);
        logits.softmax_with_cross_entropy(place, CrossEntropy::new()).0
    }

    fn sampled<'n>(
        &self,
        [user, item]: [Var<'n>; 2],
        names: Var<'n>,
        log_chance: Var<'n>,
    ) -> Var<'n> {
        let by = 1.0 / self.temperature;
        let chosen = (user * self.own(item)).reduce_sum([1], true).scale(by, 0.0);
        let chosen = chosen - self.own(log_chance);
        let others = user.matmul_transposed(self.others(item), false, true).scale(by, 0.0);
        // An item that is drawn and chosen is in the softmax once.
        let is_chosen = self.own(names).equal(self.others(names).transpose([1, 0]));
        let others = others
            - self.others(log_chance).transpose([1, 0])
            - is_chosen.cast(DType::F32).scale(FAR, 0.0);
        let logits = chosen.net().concat(&[chosen, others], 1);
        let first = chosen.full_batch([-1, 1], 0.0, DType::I64);
        logits.softmax_with_cross_entropy(first, CrossEntropy::new()).0
    }

    /// The rows of the batch, without those of drawn items.
    fn own<'n>(&self, rows: Var<'n>) -> Var<'n> {
        match self.drawn {
            None => rows,
            Some((count, _)) => rows.slice([0], [0], [-count]),
        }
    }

    /// The rows of the drawn items.
    fn others<'n>(&self, rows: Var<'n>) -> Var<'n> {
        let count = self.drawn.map_or(0, |(count, _)| count);
        rows.slice([0], [-count], [i64::MAX])
    }
}

/// The score of each row, `[batch, 1]`: the product of its vectors.
pub fn products<'n>([user, item]: [Var<'n>; 2], job: &Job) -> Var<'n> {
    (user * item).reduce_sum([1], true).scale(1.0 / job.model.temperature, 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet::{ExecOptions, Session, Tensor};

    const DIM: usize = 3;

    fn dot(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
    }

    /// Losses of rows `own` of a batch, by the network and by the plain formula: `-log(p)` with
    /// `p = exp(s) / (exp(s) + sum of exp(s of others))`. Each s is the product divided by the
    /// temperature, minus the logarithm of the item's chance to be there.
    fn check(softmax: &Softmax, names: &[i64], log_frequency: &[f32], own: usize) {
        let net = Net::new();
        let count = names.len();
        let [user, item] =
            ["user", "item"].map(|name| net.data(name, [-1, DIM as i64], DType::F32));
        let ids = net.data("names", [-1, 1], DType::I64);
        let log = net.data("log", [-1, 1], DType::F32);
        let loss = softmax.row_loss([user, item], ids, log);
        assert_eq!(loss.shape().dims()[1], 1);
        let gradient_of = net.create_parameter([1], DType::F32, "scale");
        net.minimize((loss * gradient_of).mean(), fleet::nn::optimizer::Sgd::new(0.1)).unwrap();
        let loss = loss.name();
        let mut session = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
        let value = |at: usize| ((at * 29 % 17) as f32 - 8.0) / 7.0;
        let users: Vec<f32> = (0..count * DIM).map(value).collect();
        let items: Vec<f32> = (0..count * DIM).map(|at| value(at + 5)).collect();
        let rows = count as i64;
        let tensors = [
            ("user", Tensor::from_slice(&users, [rows, DIM as i64]).unwrap()),
            ("item", Tensor::from_slice(&items, [rows, DIM as i64]).unwrap()),
            ("names", Tensor::from_slice(names, [rows, 1]).unwrap()),
            ("log", Tensor::from_slice(log_frequency, [rows, 1]).unwrap()),
        ];
        let feeds: Vec<(&str, &Tensor)> = tensors.iter().map(|(name, it)| (*name, it)).collect();
        let got = session.run(&feeds, &[&loss]).unwrap()[0].to_vec::<f32>().unwrap();
        assert_eq!(got.len(), own);
        let power = softmax.drawn.map_or(1.0, |(_, power)| power);
        let score = |row: usize, of: usize| {
            let product = dot(&users[row * DIM..][..DIM], &items[of * DIM..][..DIM]);
            product / softmax.temperature - power * f64::from(log_frequency[of])
        };
        let first_other = if softmax.drawn.is_some() { own } else { 0 };
        for (row, got) in got.iter().enumerate() {
            let others = (first_other..count).filter(|of| names[*of] != names[row]);
            let chosen = score(row, row).exp();
            let sum: f64 = others.map(|of| score(row, of).exp()).sum();
            let expected = -(chosen / (chosen + sum)).ln();
            assert!((f64::from(*got) - expected).abs() < 1e-4, "{row}: {got}, {expected}");
        }
    }

    /// Items 7 and 9 are there several times; item 9 is drawn for a row that has chosen it.
    const NAMES: [i64; 9] = [7, 8, 9, 7, 5, 9, 6, 6, 3];
    const LOG_FREQUENCY: [f32; 9] = [-0.5, -3.0, -1.2, -0.5, -4.0, -1.2, -2.0, -2.0, -2.5];

    #[test]
    fn the_softmax_of_a_batch_is_corrected() {
        for temperature in [1.0, 0.3] {
            let softmax = Softmax { temperature, drawn: None };
            check(&softmax, &NAMES, &LOG_FREQUENCY, NAMES.len());
        }
    }

    #[test]
    fn the_softmax_of_drawn_items_is_corrected() {
        for (temperature, power) in [(1.0, 1.0), (1.0, 0.75), (0.3, 0.0)] {
            let softmax = Softmax { temperature, drawn: Some((4, power)) };
            check(&softmax, &NAMES, &LOG_FREQUENCY, NAMES.len() - 4);
        }
    }
}
