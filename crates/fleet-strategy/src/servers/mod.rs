//! Training with parameter servers: a worker's programs, and the tables on the servers.
//!
//! | mode | condition | the worker's program |
//! | --- | --- | --- |
//! | sync | `a_sync` false | lookups, backward, pushes, `send`, `recv`, and a barrier after each |
//! | half-async | like sync, [`Place::half_async`] | the same; barriers wait only for own pushes |
//! | async | `a_sync` true, `k_steps` 0 or unset | lookups, backward, pushes, `send`, `recv` |
//! | geo | `a_sync` true, `k_steps` above 0 | as in one process; `send` and `recv` of changes |
//!
//! In all modes except geo, the servers update parameters: a worker's program has neither updates
//! nor learning rates. Gradients are clipped and decayed before they are sent, based on the
//! worker's dense parameters. In async mode, `recv` takes the newest parameters without waiting.
//! Embeddings with `is_sparse` or `is_distributed` become tables of rows (`remote.rs`). All other
//! parameters are concatenated, by name, in dense tables, one for each learning rate. Sparse tables
//! are numbered first, then dense ones, then the step counter if there is a schedule.

mod click;
mod descriptor;
pub(crate) mod exchange;
mod geo;
mod lookups;
mod remote;
mod tables;
pub mod transpiler;

pub use exchange::{exchange_of, written_exchange};
pub use fleet_table::{Exchange, PushMode};
pub use remote::LookupSpec;
pub use tables::{DenseTable, ParamBlock, SparseTable, TableRule, Tables};

use crate::buckets::grouped;
use crate::compiler::{self, Start};
use crate::decision::{Decision, Outcome};
use crate::job::Job;
use crate::meta::{Facts, ServerFacts, StrategyId};
use crate::ranks::Ranks;
use crate::report::{Report, decide};
use fleet_base::{Error, Result};
use fleet_config::Written;
use fleet_config::{DistributedStrategy, Problem, TableParameter};
use fleet_ir::{OpRole, Program, VarId};
use fleet_nn::optimizer::{OptimizerDesc, ParamGrad};
use fleet_nn::{LrSchedule, Programs};
use fleet_ops::ps::recv;
use fleet_ops::{Emit, Registry};
use fleet_passes::PassManager;
use fleet_table::{JobTables, NonFinite, SparseConfig, TableConfig};

/// The position of a worker in a job with servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Rank of this worker, from 0.
    pub worker: usize,
    /// Number of workers of the job.
    pub worker_count: usize,
    /// Number of servers of the job.
    pub server_count: usize,
    /// Without `a_sync`: workers wait only for their own pushes, not for each other.
    pub half_async: bool,
}

/// Result of [`minimize`].
#[derive(Clone, Debug)]
pub struct ServerPlan {
    /// How workers and servers exchange gradients and parameters.
    pub exchange: Exchange,
    /// The outcome for each requested strategy.
    pub decisions: Vec<Decision>,
    /// The outcome for each assigned field.
    pub outcomes: Vec<Outcome>,
    /// Warnings of the report on the strategy.
    pub warnings: Vec<Problem>,
    /// The applied strategies, outermost first, then the optimizer.
    pub chain: Vec<&'static str>,
    /// The trained parameters with their gradients.
    pub params_grads: Vec<ParamGrad>,
    /// The tables on the servers.
    pub tables: Tables,
    /// Lookups of rows, for prefetching.
    pub lookups: Vec<LookupSpec>,
    /// How servers treat gradients that are not finite.
    pub non_finite: NonFinite,
    /// Whether servers correct gradients by the changes since their worker read the parameters
    /// (DC-ASGD).
    pub corrects_delay: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl ServerPlan {
    /// Formats the chain, for example `ParameterServer -> AMP -> adam`.
    pub fn chain_text(&self) -> String {
        self.chain.join(" -> ")
    }

    /// Returns the configs of all tables, for servers and workers.
    pub fn job_tables(&self, place: Place) -> JobTables {
        let rows = self.tables.sparse.iter().map(|table| match self.exchange {
            Exchange::Geo { .. } => TableConfig::Geo(table.config.clone()),
            Exchange::Pushes(_) => TableConfig::Sparse(table.config.clone()),
        });
        let dense = self.tables.dense.iter();
        let dense = dense.map(|table| table.config(self.non_finite, self.corrects_delay));
        let steps = self.tables.steps.map(|table_id| TableConfig::GlobalStep { table_id });
        JobTables {
            server_count: place.server_count,
            worker_count: place.worker_count,
            sync: self.exchange.is_sync(),
            tables: rows.chain(dense).chain(steps).collect(),
        }
    }

    /// Makes a network that was built for inference read this job's tables: its lookups of them
    /// become lookups on servers that create no rows. Programs of GEO hold whole tables and stay as
    /// they are. Parameters are matched by name.
    ///
    /// ```
    /// use fleet_nn::prelude::*;
    /// use fleet_ops::Registry;
    /// use fleet_strategy::{DistributedStrategy, servers};
    /// fn network(net: &Net) -> Var<'_> {
    ///     net.data("ids", [-1, 2], DType::I64).sparse_embedding([9, 4])
    /// }
    /// let (net, test) = (Net::new(), Net::new());
    /// let loss = network(&net).mean().id();
    /// network(&test);
    /// let (worker_count, server_count, half_async) = (1, 1, false);
    /// let place = servers::Place { worker: 0, worker_count, server_count, half_async };
    /// let plan = net.rewrite_with(|programs, registry| {
    ///     let (optimizer, strategy) = (Sgd::new(0.1).into(), DistributedStrategy::new());
    ///     servers::minimize(programs, registry, loss, &optimizer, None, &strategy, place)
    /// })?;
    /// let mut programs = test.build()?;
    /// plan.read_tables(&mut programs, Registry::standard())?;
    /// assert!(programs.main.to_string().contains("distributed_lookup_table"));
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn read_tables(&self, programs: &mut Programs, registry: &'static Registry) -> Result<()> {
        match self.exchange {
            Exchange::Geo { .. } => Ok(()),
            Exchange::Pushes(_) => remote::read_tables(programs, registry, &self.tables.sparse),
        }
    }

    /// Returns the tables whose learning rate follows a schedule.
    pub fn schedules(&self) -> impl Iterator<Item = (u32, &LrSchedule)> {
        let sparse = self.tables.sparse.iter();
        let sparse = sparse.map(|table| (table.table_id(), table.schedule.as_ref()));
        let dense = self.tables.dense.iter();
        let dense = dense.map(|table| (table.table_id, table.rule.schedule.as_ref()));
        sparse.chain(dense).filter_map(|(id, schedule)| Some((id, schedule?)))
    }
}

/// Rewrites the programs of a network into those of a worker, and lists the tables of its servers.
/// `sparse` is the optimizer of sparse tables, if it is neither `optimizer` nor its own optimizer
/// for rows.
///
/// ```
/// use fleet_nn::prelude::*;
/// use fleet_strategy::{DistributedStrategy, servers};
/// let net = Net::new();
/// let ids = net.data("ids", [-1, 26], DType::I64);
/// let rows = ids.embedding(Embedding::new(1000, 16).sparse());
/// let loss = rows.flatten(1).fc(1).mean().id();
/// let strategy = DistributedStrategy::new().with_a_sync(true);
/// let place = servers::Place { worker: 0, worker_count: 2, server_count: 1, half_async: false };
/// let plan = net.rewrite_with(|programs, registry| {
///     let optimizer = Sgd::new(0.1).into();
///     servers::minimize(programs, registry, loss, &optimizer, None, &strategy, place)
/// })?;
/// assert_eq!(plan.exchange.name(), "async");
/// assert_eq!((plan.tables.sparse.len(), plan.tables.dense.len()), (1, 1));
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn minimize<'s>(
    programs: &mut Programs,
    registry: &'static Registry,
    loss: VarId,
    optimizer: &OptimizerDesc,
    sparse: Option<&OptimizerDesc>,
    strategy: impl Into<Written<'s>>,
    place: Place,
) -> Result<ServerPlan> {
    let manager = PassManager::new(registry);
    minimize_with(manager, programs, registry, loss, optimizer, sparse, strategy, place)
}

/// Like [`minimize`], with a pass manager that may have an observer.
#[allow(clippy::too_many_arguments, reason = "the network and its job, as `minimize` takes them")]
pub fn minimize_with<'s>(
    manager: PassManager<'_>,
    programs: &mut Programs,
    registry: &'static Registry,
    loss: VarId,
    optimizer: &OptimizerDesc,
    sparse: Option<&OptimizerDesc>,
    strategy: impl Into<Written<'s>>,
    place: Place,
) -> Result<ServerPlan> {
    let (start, on) = (Start::Loss(loss), (place, Grouping::ByRate));
    minimize_from(manager, programs, registry, start, optimizer, sparse, strategy, on)
}

/// How dense parameters are grouped into tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// A table for each learning rate: few messages, sent at the end of a step.
    ByRate,
    /// A table for each parameter, whose gradient is sent as soon as it is complete.
    ByParameter,
}

#[allow(clippy::too_many_arguments, reason = "the network and its job, as `minimize` takes them")]
fn minimize_from<'s>(
    mut manager: PassManager<'_>,
    programs: &mut Programs,
    registry: &'static Registry,
    start: Start,
    optimizer: &OptimizerDesc,
    sparse: Option<&OptimizerDesc>,
    strategy: impl Into<Written<'s>>,
    (place, grouping): (Place, Grouping),
) -> Result<ServerPlan> {
    let written = strategy.into();
    check(place)?;
    if let Start::Loss(loss) = start {
        fleet_passes::check_loss(&programs.main, loss)?;
    }
    let rows = sparse.or(optimizer.rows.as_deref());
    let report = report(written, place, optimizer, rows, &programs.main);
    report.refuse()?;
    let exchange = exchange_of(&report.strategy, place.half_async)?;
    let non_finite = non_finite(&report.strategy).map_err(|error| written.blame(error))?;
    let run = &mut manager;
    let mut job = compiler::differentiate(run, programs, registry, start, optimizer, &report)?;
    let sparse = rows.unwrap_or(optimizer);
    let own = StrategyId::ParameterServer.name();
    let (mut tables, lookups) = manager.run(own, &mut job, |job| match exchange {
        Exchange::Geo { .. } => Ok((geo::rewrite(job, sparse, grouping)?, Vec::new())),
        Exchange::Pushes(mode) => remote::rewrite(job, sparse, mode, (place, grouping)),
    })?;
    tables.sparse.iter_mut().for_each(|table| table.config.non_finite = non_finite);
    let mut chain = vec![own];
    chain.extend(report.chain());
    chain.push(optimizer.rule.op());
    let mut notes = vec![format!(
        "{}: {} sparse table{}, {} dense numbers",
        exchange.name(),
        tables.sparse.len(),
        if tables.sparse.len() == 1 { "" } else { "s" },
        tables.dense.iter().map(|table| table.len).sum::<usize>()
    )];
    notes.append(&mut job.notes);
    let params_grads = job.grads;
    Ok(ServerPlan {
        exchange,
        decisions: report.decisions.clone(),
        outcomes: report.outcomes.clone(),
        warnings: report.warnings(),
        chain,
        params_grads,
        tables,
        lookups,
        non_finite,
        corrects_delay: report.strategy.a_sync_configs().enable_dc_asgd(),
        notes: compiler::once(notes),
    })
}

/// Returns the report on a strategy for a worker of a job with servers. `rows` is the optimizer of
/// sparse tables, if it is not `optimizer`.
pub fn report<'a>(
    strategy: impl Into<Written<'a>>,
    place: Place,
    optimizer: &OptimizerDesc,
    rows: Option<&OptimizerDesc>,
    program: &Program,
) -> Report<'a> {
    let workers = Ranks::new(place.worker, place.worker_count);
    let rates = crate::Rates::default();
    let servers = Some(ServerFacts { rows });
    let (ranks, rates) = (&workers, &rates);
    decide(strategy, &Facts { optimizer, ranks, rates, layout: None, program, servers })
}

fn check(place: Place) -> Result<()> {
    if place.worker < place.worker_count && place.server_count > 0 {
        return Ok(());
    }
    Err(Error::invalid("invalid worker or number of servers")
        .expected("0 <= worker < workers, and at least one server")
        .got(format!(
            "worker {} of {}, {} servers",
            place.worker, place.worker_count, place.server_count
        )))
}

/// Returns tables of dense parameters, sorted by name and numbered from `first`.
fn dense_tables(
    job: &Job<'_>,
    dense: &[ParamGrad],
    first: u32,
    grouping: Grouping,
    rule: impl Fn(f64) -> Result<TableRule>,
) -> Result<Vec<(DenseTable, Vec<ParamGrad>)>> {
    let main = &job.programs.main;
    let mut sorted = dense.to_vec();
    sorted.sort_by(|a, b| main.var_name(a.0).cmp(main.var_name(b.0)));
    let rated = sorted.into_iter().map(|pair| {
        (main.var(pair.0).param.as_ref().map_or(1.0, |param| param.learning_rate), pair)
    });
    let groups: Vec<(f64, Vec<ParamGrad>)> = match grouping {
        Grouping::ByRate => grouped(rated),
        Grouping::ByParameter => rated.map(|(rate, pair)| (rate, vec![pair])).collect(),
    };
    let mut tables = Vec::new();
    for (at, (rate, pairs)) in groups.into_iter().enumerate() {
        let mut params = Vec::new();
        for (param, _) in &pairs {
            let var = main.var(*param);
            let len = var.shape.numel().ok_or_else(|| {
                Error::invalid(format!("unknown shape of parameter '{}'", var.name)).got(var.shape)
            })?;
            params.push((var.name.clone(), len));
        }
        let len = params.iter().map(|(_, len)| len).sum();
        let table_id = first + at as u32;
        let (rule, rate_scale, blocks) = (rule(rate)?, rate, None);
        let table = DenseTable { table_id, params, len, rule, rate_scale, blocks };
        tables.push((table, pairs));
    }
    Ok(tables)
}

/// Returns the documented names of a table's gradients.
fn send_names(table_id: u32) -> Vec<String> {
    vec![format!("Dense@GRAD_{table_id}")]
}

/// Emits a `recv`, which replaces parameters of a table by the newest ones available.
fn emit_recv(
    emit: &mut Emit<'_>,
    table_id: u32,
    vars: &[VarId],
    is_sparse: bool,
    is_geo: bool,
) -> Result<()> {
    emit.role = OpRole::RPC;
    let names: Vec<String> =
        vars.iter().map(|var| emit.program.var_name(*var).to_string()).collect();
    emit.op(&recv::DEF)
        .inputs("X", vars)
        .outputs("Out", vars)
        .attr("table_id", i64::from(table_id))
        .attr("is_sparse", i64::from(is_sparse))
        .attr("is_geo", is_geo)
        .attr("recv_varnames", names)
        .done()?;
    Ok(())
}

/// Sets the limits and options of a described table that do not depend on its rows.
fn set_limits(config: &mut SparseConfig, described: &TableParameter) {
    if let Some(count) = described.shard_num {
        config.shard_count = count as usize;
    }
    if let Some(max) = described.row_count_max.filter(|max| *max > 0) {
        config.row_count_max = max;
    }
    config.compress_in_save = described.compress_in_save();
}

/// Returns the treatment of gradients that are not finite.
fn non_finite(strategy: &DistributedStrategy) -> Result<NonFinite> {
    let config = strategy.a_sync_configs();
    match config.non_finite() {
        "refuse" => Ok(NonFinite::Refuse),
        "count" => Ok(NonFinite::Count),
        "clip" => Ok(NonFinite::Clip(config.non_finite_limit())),
        other => Err(Error::invalid("invalid a_sync_configs.non_finite")
            .expected("refuse, count or clip")
            .got(format!("'{other}'"))),
    }
}
