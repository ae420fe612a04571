//! word2vec: skip-gram with negative sampling.

use crate::prelude::*;

/// Sizes of a skip-gram model.
///
/// ```
/// use fleet_nn::models::Word2VecConfig;
/// assert_eq!(Word2VecConfig::new(10_000).negatives, 5);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Word2VecConfig {
    /// Number of words.
    pub vocabulary: i64,
    /// Width of a word vector.
    pub width: i64,
    /// Number of random words per true neighbour.
    pub negatives: i64,
}

impl Word2VecConfig {
    /// Returns vectors of width 128 and 5 random words per neighbour.
    pub fn new(vocabulary: i64) -> Word2VecConfig {
        Word2VecConfig { vocabulary, width: 128, negatives: 5 }
    }
}

/// Inputs and outputs of a skip-gram model.
#[derive(Clone, Copy, Debug)]
pub struct Word2Vec<'n> {
    /// `center`: `[batch, 1]`.
    pub center: Var<'n>,
    /// `context`: `[batch, 1]`, the true neighbour.
    pub context: Var<'n>,
    /// `negatives`: `[batch, negatives]`, random words.
    pub negatives: Var<'n>,
    /// `[batch, 1 + negatives]`: score of each word, with the true neighbour first.
    pub logits: Var<'n>,
    /// Logistic loss of a neighbour plus those of its random words, averaged over the batch.
    pub loss: Var<'n>,
}

/// Builds the model. The word vectors are the parameter `emb`.
///
/// ```
/// # use fleet_nn::prelude::*;
/// use fleet_nn::models::{Word2VecConfig, word2vec};
/// let net = Net::new();
/// let model = word2vec(&net, &Word2VecConfig::new(10_000));
/// net.minimize(model.loss, Sgd::new(1.0))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub fn word2vec<'n>(net: &'n Net, config: &Word2VecConfig) -> Word2Vec<'n> {
    let center = net.data("center", [-1, 1], DType::I64);
    let context = net.data("context", [-1, 1], DType::I64);
    let negatives = net.data("negatives", [-1, config.negatives], DType::I64);
    let bound = 0.5 / config.width as f64;
    let table = |name: &str, init| {
        let attr = ParamAttr::from(name).init(init);
        Embedding::new(config.vocabulary, config.width).sparse().weight(attr)
    };
    let word = center.embedding(table("emb", Init::uniform(-bound, bound)));
    let others = net.concat(&[context, negatives], 1);
    let others = others.embedding(table("emb_w", Init::Constant(0.0)));
    let logits = (others * word).reduce_sum([2], false);

    // -log sigmoid(true) - sum log sigmoid(-false), as the softplus of the logits with flipped
    // signs.
    let parts = logits.split_sections(&[1, config.negatives], 1);
    let right = (-parts[0]).softplus();
    let wrong = parts[1].softplus().reduce_sum([1], true);
    let loss = (right + wrong).mean();
    Word2Vec { center, context, negatives, logits, loss }
}
