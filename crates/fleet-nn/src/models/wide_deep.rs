//! Wide & deep: a linear model of the dense numbers beside a deep one of numbers and table rows.

use super::{ClickModel, click_inputs, click_model};
use crate::prelude::*;

/// Sizes of a wide & deep model.
///
/// ```
/// use fleet_nn::models::WideDeepConfig;
/// assert_eq!(WideDeepConfig::criteo().slots, 26);
/// ```
#[derive(Clone, Debug)]
pub struct WideDeepConfig {
    /// Dense numbers of a sample.
    pub numbers: i64,
    /// Ids of a sample.
    pub slots: i64,
    /// Rows of the table that all slots share.
    pub vocabulary: i64,
    /// Numbers of a row.
    pub width: i64,
    /// Sizes of the hidden layers.
    pub hidden: Vec<i64>,
    /// The table lives on parameter servers where there are any.
    pub on_servers: bool,
    /// The table's gradient is the rows that a batch has touched; else the whole table, as gradient
    /// merge needs it. On servers it is always rows.
    pub sparse: bool,
    /// Measure the area under the curve in each step.
    pub auc: bool,
}

impl WideDeepConfig {
    /// 13 numbers, 26 slots over a million rows of 16, three layers of 400.
    pub fn criteo() -> WideDeepConfig {
        WideDeepConfig {
            numbers: 13,
            slots: 26,
            vocabulary: 1_000_000,
            width: 16,
            hidden: vec![400; 3],
            on_servers: false,
            sparse: true,
            auc: true,
        }
    }
}

/// Builds the model.
///
/// ```
/// # use fleet_nn::prelude::*;
/// use fleet_nn::models::{WideDeepConfig, wide_deep};
/// let net = Net::new();
/// let model = wide_deep(&net, &WideDeepConfig::criteo());
/// let (table, rest) = net.backward(model.loss)?.partition(|name| name == "table");
/// net.apply_gradients(Sgd::new(0.01), table)?;
/// net.apply_gradients(Adam::new(1e-3), rest)?;
/// # Ok::<(), fleet_nn::Error>(())
/// ```
pub fn wide_deep<'n>(net: &'n Net, config: &WideDeepConfig) -> ClickModel<'n> {
    let inputs = click_inputs(net, config.numbers, config.slots);
    let [dense, ids, _] = inputs;
    let rows = match config.on_servers || config.sparse {
        true => table(ids, config.vocabulary, config.width, config.on_servers, "table"),
        false => {
            let weight = weight_of("table");
            ids.embedding(Embedding::new(config.vocabulary, config.width).weight(weight))
        }
    };
    let mut deep = net.concat(&[rows.flatten(1), dense], 1);
    for size in &config.hidden {
        deep = deep.fc(Fc::new(*size).act(Act::Relu));
    }
    let logit = dense.fc(Fc::new(1).name("wide")) + deep.fc(Fc::new(1).name("deep"));
    click_model(inputs, logit, config.auc)
}

/// Rows of a table, here or on parameter servers.
pub(super) fn table<'n>(
    ids: Var<'n>,
    vocabulary: i64,
    width: i64,
    on_servers: bool,
    name: &str,
) -> Var<'n> {
    let weight = weight_of(name);
    if on_servers {
        ids.sparse_embedding(SparseEmbedding::new(vocabulary, width).weight(weight))
    } else {
        ids.embedding(Embedding::new(vocabulary, width).sparse().weight(weight))
    }
}

fn weight_of(table: &str) -> ParamAttr {
    ParamAttr::from(table).init(Init::uniform(-0.01, 0.01))
}
