//! Training with parameter servers: the workers and servers of such a job.
//!
//! A network is minimised as usual. The result is a [`ServerJob`]: a worker's programs and the
//! tables of its servers. A server serves the tables until it is stopped. A [`Worker`] is a session
//! whose program looks up rows and sends gradients.

mod agree;
mod control;
mod end_marker;
mod infer;
mod launch_barrier;
mod lifecycle;
mod loss_scale;
mod port;
mod prepare;
mod remote_save;
mod rows;
mod save;
mod settings;
mod transpiler;
mod worker;

pub use infer::DistributedInfer;
pub use lifecycle::Server;
pub use port::UnknownIds;
pub use prepare::PreparedWorker;
pub(crate) use save::worker_var_names;
pub use settings::{communicator_options, steps_between_reports};
pub use transpiler::{DistributeTranspiler, Part, TranspiledJob};
pub use worker::{Worker, WorkerStats};

use fleet_base::{Error, Result, text};
use fleet_nn::optimizer::OptimizerDesc;
use fleet_nn::{Net, Programs, Var};
use fleet_ops::Registry;
use fleet_ps::JobTables;
use fleet_strategy::servers::SparseTable;
pub use fleet_strategy::servers::transpiler::{
    CollectiveMode, DistributeTranspilerConfig, SplitMethod, Trainers, Transpile, TranspilerMode,
};
pub use fleet_strategy::servers::{Exchange, Place, PushMode, ServerPlan, written_exchange};
use fleet_strategy::{DistributedStrategy, Written};

/// A network rewritten for training with parameter servers.
#[derive(Clone, Debug)]
pub struct ServerJob {
    /// The rewrite of the programs, and the tables that they use.
    pub plan: ServerPlan,
    /// The strategy of the rewrite.
    pub strategy: DistributedStrategy,
    /// The servers' table configurations.
    pub tables: JobTables,
    /// This process's place among workers and servers.
    pub place: Place,
}

impl ServerJob {
    /// Rewrites a network into a worker's; `sparse`, if given, updates the rows instead of
    /// `optimizer`.
    ///
    /// ```
    /// use fleet::prelude::*;
    /// use fleet::servers::{Place, ServerJob};
    /// use fleet::DistributedStrategy;
    /// let net = Net::new();
    /// let ids = net.data("ids", [-1, 26], DType::I64);
    /// let rows = ids.sparse_embedding([1_000_000, 16]);
    /// let loss = rows.flatten(1).fc(1).mean();
    /// let strategy = DistributedStrategy::new().with_a_sync(true);
    /// let place = Place { worker: 0, worker_count: 2, server_count: 3, half_async: false };
    /// let optimizer = Adagrad::new(0.1).into();
    /// let job = ServerJob::minimize(&net, loss, &optimizer, None, &strategy, place)?;
    /// assert_eq!(job.tables.tables.len(), 2);
    /// # Ok::<(), fleet::Error>(())
    /// ```
    #[track_caller]
    pub fn minimize<'s>(
        net: &Net,
        loss: Var<'_>,
        optimizer: &OptimizerDesc,
        sparse: Option<&OptimizerDesc>,
        strategy: impl Into<Written<'s>>,
        place: Place,
    ) -> Result<ServerJob> {
        let written: Written<'_> = strategy.into();
        let (loss, strategy) = (loss.id(), written.strategy);
        let rewrite = |programs: &mut Programs, registry: &'static Registry| {
            use fleet_strategy::servers::minimize;
            minimize(programs, registry, loss, optimizer, sparse, written, place)
        };
        let plan = match written.source {
            Some(source) => net.rewrite_for(&source.file().display().to_string(), rewrite)?,
            None => net.rewrite_with(rewrite)?,
        };
        let tables = plan.job_tables(place);
        Ok(ServerJob { plan, strategy: strategy.clone(), tables, place })
    }

    /// Returns the sparse table of an embedding, given the name of its parameter.
    fn sparse_table(&self, name: &str) -> Result<&SparseTable> {
        let tables = &self.plan.tables.sparse;
        tables.iter().find(|table| table.name == name).ok_or_else(|| {
            let known: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
            let hint = text::did_you_mean(name, known.iter().copied());
            Error::invalid(format!("unknown sparse table '{name}'{hint}"))
                .expected(format!("one of {}", known.join(", ")))
        })
    }
}
