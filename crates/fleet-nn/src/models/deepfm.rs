//! DeepFM: a linear term, a factorization machine and a deep network over the same rows.

use super::wide_deep::table;
use super::{ClickModel, click_inputs, click_model};
use crate::prelude::*;

/// Sizes of a DeepFM.
///
/// ```
/// use fleet_nn::models::DeepFmConfig;
/// assert_eq!(DeepFmConfig::criteo().width, 10);
/// ```
#[derive(Clone, Debug)]
pub struct DeepFmConfig {
    /// Number of dense features per sample.
    pub numbers: i64,
    /// Number of ids per sample.
    pub slots: i64,
    /// Number of rows of the table, which all slots share.
    pub vocabulary: i64,
    /// Numbers per row.
    pub width: i64,
    /// Sizes of the hidden layers.
    pub hidden: Vec<i64>,
    /// Whether the tables are stored on parameter servers, if the job has any.
    pub use_parameter_servers: bool,
    /// Whether to measure the area under the curve in each step.
    pub auc: bool,
}

impl DeepFmConfig {
    /// Returns the sizes for Criteo: 13 numbers, 26 slots over a million rows of width 10, three
    /// layers of 400.
    pub fn criteo() -> DeepFmConfig {
        DeepFmConfig {
            numbers: 13,
            slots: 26,
            vocabulary: 1_000_000,
            width: 10,
            hidden: vec![400; 3],
            use_parameter_servers: false,
            auc: true,
        }
    }
}

/// Builds the model.
///
/// ```
/// # use fleet_nn::prelude::*;
/// use fleet_nn::models::{DeepFmConfig, deepfm};
/// let net = Net::new();
/// let model = deepfm(&net, &DeepFmConfig::criteo());
/// net.minimize(model.loss, Adam::new(1e-3).lazy_mode(true))?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub fn deepfm<'n>(net: &'n Net, config: &DeepFmConfig) -> ClickModel<'n> {
    let inputs = click_inputs(net, config.numbers, config.slots);
    let [dense, ids, _] = inputs;
    let rows =
        |width, name| table(ids, config.vocabulary, width, config.use_parameter_servers, name);

    // First order: one weight per id and per number.
    let first = rows(1, "first_order").flatten(1).reduce_sum([1], true) + dense.fc(1);

    // Second order: the sum, over all pairs of features, of the products of their rows. The row of
    // a number is its value times a trained row.
    let shape = [config.numbers, config.width];
    let attr = ParamAttr::from("dense_factors").init(Init::uniform(-0.01, 0.01));
    let factors = net.create_parameter(shape, DType::F32, attr);
    let numbers = dense.unsqueeze([2]) * factors;
    let features = net.concat(&[rows(config.width, "factors"), numbers], 1);
    let square_of_sum = features.reduce_sum([1], false).square();
    let sum_of_squares = features.square().reduce_sum([1], false);
    let second = (square_of_sum - sum_of_squares).reduce_sum([1], true) * 0.5;

    let mut deep = features.flatten(1);
    for size in &config.hidden {
        deep = deep.fc(Fc::new(*size).act(Act::Relu));
    }
    click_model(inputs, net.sum_of(&[first, second, deep.fc(1)]), config.auc)
}
