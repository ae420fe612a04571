//! Networks of jobs: from features, a task and the table `[model]` to a program.
//!
//! `inputs.rs` makes vectors of the features, `networks.rs` has the networks over them, and
//! `output.rs` the loss and the scores of a task.

mod inputs;
mod networks;
mod output;

pub use output::Outputs;

use crate::features::Features;
use crate::job::{Job, Sparse};
use fleet::nn::Net;
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
    let raw = networks::network(net, &inputs, job, features.label.scores() as i64);
    output::outputs(net, raw, features)
}

/// Returns whether the gradient of a table has only the rows of the batch.
fn is_sparse(job: &Job, rows: i64, ids_per_row: usize) -> bool {
    match job.tables.sparse {
        Sparse::Yes => true,
        Sparse::No => false,
        Sparse::Auto => {
            let touched = job.train.batch as i64 * ids_per_row.max(1) as i64;
            job.tables.weight_decay == 0.0 && rows > touched.saturating_mul(SPARSE_FACTOR)
        }
    }
}

/// A dense update of a table reads and writes all of its rows, but without merging ids. It is
/// faster up to about this many times the ids of a batch.
const SPARSE_FACTOR: i64 = 4;
