//! Wide & deep: the sum of a linear model of dense numbers, and a deep network over dense numbers
//! and table rows.

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
    /// Dense numbers per sample.
    pub numbers: i64,
    /// Ids per sample.
    pub slots: i64,
    /// Number of rows of the table, which all slots share.
    pub vocabulary: i64,
    /// Numbers per row.
    pub width: i64,
    /// Sizes of the hidden layers.
    pub hidden: Vec<i64>,
    /// Whether the table is stored on parameter servers, if the job has any.
    pub use_parameter_servers: bool,
    /// Whether the table's gradient holds only the rows of the batch. Otherwise it is the whole
    /// table, as gradient merge requires. On servers it always holds rows only.
    pub sparse: bool,
    /// Whether to measure the area under the curve in each step.
    pub auc: bool,
}

impl WideDeepConfig {
    /// Returns the sizes for Criteo: 13 numbers, 26 slots over a million rows of width 16, three
    /// layers of 400.
    pub fn criteo() -> WideDeepConfig {
        WideDeepConfig {
            numbers: 13,
            slots: 26,
            vocabulary: 1_000_000,
            width: 16,
            hidden: vec![400; 3],
            use_parameter_servers: false,
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
    let rows = match config.use_parameter_servers || config.sparse {
        true => table(ids, config.vocabulary, config.width, config.use_parameter_servers, "table"),
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

/// Looks up the rows of a table, local or on parameter servers.
pub(super) fn table<'n>(
    ids: Var<'n>,
    vocabulary: i64,
    width: i64,
    use_parameter_servers: bool,
    name: &str,
) -> Var<'n> {
    let weight = weight_of(name);
    if use_parameter_servers {
        ids.sparse_embedding(SparseEmbedding::new(vocabulary, width).weight(weight))
    } else {
        ids.embedding(Embedding::new(vocabulary, width).sparse().weight(weight))
    }
}

fn weight_of(table: &str) -> ParamAttr {
    ParamAttr::from(table).init(Init::uniform(-0.01, 0.01))
}
