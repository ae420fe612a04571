//! Networks of jobs: from features, a task and the table `[model]` to a program.
//!
//! `inputs.rs` makes vectors of the features, `networks.rs` has the networks over them, `hidden.rs`
//! their hidden layers, and `output.rs` the loss and the scores of a task; `ranking.rs` has those
//! of rows in groups, `retrieval.rs` those of choices among all items. `mmoe.rs` has the network of
//! several labels.

mod hidden;
mod inputs;
mod mmoe;
mod networks;
mod output;
mod ranking;
mod retrieval;

pub use inputs::is_table;
pub use networks::has_linear;
pub use output::Outputs;

use crate::features::Features;
use crate::job::{Job, ModelKind, Sparse};
use fleet::DType;
use fleet::nn::{Init, Net, ParamAttr, Var};
use inputs::Inputs;

/// Where the embedding tables are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TablePlace {
    /// In the program, as parameters.
    Program,
    /// On parameter servers.
    Servers,
}

/// Writes the network of a job.
pub fn build<'n>(net: &'n Net, features: &Features, job: &Job, place: TablePlace) -> Outputs<'n> {
    net.set_seed(job.train.seed);
    let inputs = Inputs::new(net, features, job, (place, networks::has_linear(job)));
    let towers = match job.model.kind {
        ModelKind::TwoTower => networks::towers(net, &inputs, features, job),
        _ => None,
    };
    let Some(vectors) = towers else {
        let raw = networks::network(net, &inputs, job, features.scores() as i64);
        return task_outputs(net, raw, features, job);
    };
    let outputs = match features.choices {
        Some(_) => retrieval::outputs(net, vectors, features, job),
        None => {
            let bias = ParamAttr::from("bias").init(Init::Constant(0.0));
            let bias = net.create_parameter([1], DType::F32, bias);
            task_outputs(net, retrieval::products(vectors, job) + bias, features, job)
        }
    };
    Outputs { vectors: Some(vectors), ..outputs }
}

/// Adds loss and scores of the task.
fn task_outputs<'n>(net: &'n Net, raw: Var<'n>, features: &Features, job: &Job) -> Outputs<'n> {
    match features.group {
        Some(_) => ranking::outputs(net, raw, features, job.ranking.is_listwise),
        None => output::outputs(net, raw, features),
    }
}

/// Returns whether the gradient of a table has only the rows of the batch.
fn is_sparse(job: &Job, rows: i64, ids_per_row: usize) -> bool {
    match job.tables.sparse {
        Sparse::Yes => true,
        Sparse::No => false,
        Sparse::Auto => {
            let decay = job.tables.weight_decay + job.tables.linear_decay.unwrap_or(0.0);
            let touched = job.train.batch as i64 * ids_per_row.max(1) as i64;
            decay == 0.0 && rows > touched.saturating_mul(SPARSE_FACTOR)
        }
    }
}

/// A dense update of a table reads and writes all of its rows, but without merging ids. It is
/// faster up to about this many times the ids of a batch.
const SPARSE_FACTOR: i64 = 4;
