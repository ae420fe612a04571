//! Training with parameter servers: a worker's programs, and the tables on the servers.
//!
//! | mode | condition | the worker's program |
//! | --- | --- | --- |
//! | sync | `a_sync` false | lookups, backward, pushes, `send`, `send_barrier`, `recv`, `fetch_barrier` |
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
mod geo;
mod remote;
mod tables;
pub mod transpiler;

pub use click::{ClickRows, RowPart};
pub use remote::LookupSpec;
pub use tables::{DenseTable, ParamBlock, RowInit, RowRule, SparseTable, Tables, UpdateRule};

use crate::DistributedStrategy;
use crate::compiler::{self, Decision, Verdict};
use crate::meta::{Facts, Job, Kind, Ranks, STRATEGIES};
use crate::source::Asked;
use fleet_base::{Error, Result};
use fleet_ir::{OpRole, VarId};
use fleet_nn::optimizer::{OptimizerDesc, ParamGrad};
use fleet_nn::{LearningRate, Programs};
use fleet_ops::{Emit, Registry};
use fleet_passes::{Observer, PassManager};

/// How workers and servers synchronise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exchange {
    Sync,
    HalfAsync,
    Async,
    Geo { k_steps: usize },
}

impl Exchange {
    /// Returns the mode of a strategy; without any assignment it is async, the default of `a_sync`.
    pub fn of(strategy: &DistributedStrategy, half_async: bool) -> Result<Exchange> {
        let k_steps = strategy.a_sync_configs().k_steps();
        if strategy.a_sync_configs().enable_dc_asgd() {
            if strategy.a_sync() && k_steps <= 0 {
                // DC-ASGD corrects a gradient by the parameters that its worker read last, so
                // workers must wait for their own pushes.
                return Ok(Exchange::HalfAsync);
            }
            return Err(Error::invalid("enable_dc_asgd requires an asynchronous job")
                .expected("a_sync true and k_steps 0")
                .got(format!("a_sync {}, k_steps {k_steps}", strategy.a_sync())));
        }
        match (strategy.a_sync(), k_steps) {
            (false, ..=0) if half_async => Ok(Exchange::HalfAsync),
            (false, ..=0) => Ok(Exchange::Sync),
            (true, ..=0) => Ok(Exchange::Async),
            (true, k_steps) => Ok(Exchange::Geo { k_steps: k_steps as usize }),
            (false, k_steps) => Err(Error::invalid("a_sync_configs.k_steps requires a_sync")
                .expected("a_sync true for GEO, or k_steps 0")
                .got(format!("a_sync false, k_steps {k_steps}"))),
        }
    }

    /// Like [`of`](Self::of), with the field's position in errors.
    pub fn asked(asked: &Asked<'_>, half_async: bool) -> Result<Exchange> {
        let configs = asked.strategy.a_sync_configs();
        let field = if configs.enable_dc_asgd() { "enable_dc_asgd" } else { "k_steps" };
        Exchange::of(asked.strategy, half_async)
            .map_err(|error| error.at(asked.place_of(&format!("a_sync_configs.{field}"))))
    }

    pub fn name(self) -> &'static str {
        match self {
            Exchange::Sync => "sync",
            Exchange::HalfAsync => "half-async",
            Exchange::Async => "async",
            Exchange::Geo { .. } => "geo",
        }
    }

    pub fn is_geo(self) -> bool {
        matches!(self, Exchange::Geo { .. })
    }
}

/// The position of a worker in a job with servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub worker: usize,
    pub worker_count: usize,
    pub server_count: usize,
    /// Without `a_sync`: workers wait only for their own pushes, not for each other.
    pub half_async: bool,
}

/// Result of [`minimize`].
#[derive(Clone, Debug)]
pub struct ServerPlan {
    pub exchange: Exchange,
    pub decisions: Vec<Decision>,
    pub chain: Vec<&'static str>,
    pub params_grads: Vec<ParamGrad>,
    pub tables: Tables,
    /// Lookups of rows, for prefetching.
    pub lookups: Vec<LookupSpec>,
    /// Whether servers correct gradients by the changes since their worker read the parameters
    /// (DC-ASGD).
    pub corrects_delay: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl ServerPlan {
    pub fn chain_text(&self) -> String {
        self.chain.join(" -> ")
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
/// assert_eq!(plan.exchange, servers::Exchange::Async);
/// assert_eq!((plan.tables.sparse.len(), plan.tables.dense.len()), (1, 1));
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn minimize<'s>(
    programs: &mut Programs,
    registry: &'static Registry,
    loss: VarId,
    optimizer: &OptimizerDesc,
    sparse: Option<&OptimizerDesc>,
    strategy: impl Into<Asked<'s>>,
    place: Place,
) -> Result<ServerPlan> {
    let manager = PassManager::new(registry);
    minimize_with(manager, programs, registry, loss, optimizer, sparse, strategy.into(), place)
}

/// Like [`minimize`]; `observer` sees the programs before and after every pass.
pub fn minimize_observed<'s>(
    programs: &mut Programs,
    registry: &'static Registry,
    loss: VarId,
    optimizer: &OptimizerDesc,
    sparse: Option<&OptimizerDesc>,
    strategy: impl Into<Asked<'s>>,
    place: Place,
    observer: &mut dyn Observer,
) -> Result<ServerPlan> {
    let manager = PassManager::observed(registry, observer);
    minimize_with(manager, programs, registry, loss, optimizer, sparse, strategy.into(), place)
}

fn minimize_with(
    mut manager: PassManager<'_>,
    programs: &mut Programs,
    registry: &'static Registry,
    loss: VarId,
    optimizer: &OptimizerDesc,
    sparse: Option<&OptimizerDesc>,
    asked: Asked<'_>,
    place: Place,
) -> Result<ServerPlan> {
    let strategy = asked.strategy;
    check(place)?;
    fleet_passes::check_loss(&programs.main, loss)?;
    asked.check()?;
    let exchange = Exchange::asked(&asked, place.half_async)?;
    let alone = Ranks::new(0, 1);
    let rates = crate::Rates::default();
    let facts =
        Facts { strategy, optimizer, ranks: &alone, rates: &rates, program: &programs.main };
    let decisions = decide(&facts);
    compiler::refuse(&decisions, &asked)?;
    let run = &mut manager;
    let mut job =
        compiler::differentiate(run, programs, registry, loss, optimizer, strategy, &decisions)?;
    job.chain.insert(0, "ParameterServer");
    let sparse = sparse.or(optimizer.rows.as_deref()).unwrap_or(optimizer);
    let (tables, lookups) = manager.run("ParameterServer", &mut job, |job| match exchange {
        Exchange::Geo { .. } => Ok((geo::rewrite(job, sparse)?, Vec::new())),
        _ => remote::rewrite(job, sparse, exchange, place),
    })?;
    let mut chain = job.chain.clone();
    chain.push(optimizer.rule.op());
    let mut notes = vec![format!(
        "{}: {} sparse table{}, {} dense numbers",
        exchange.name(),
        tables.sparse.len(),
        if tables.sparse.len() == 1 { "" } else { "s" },
        tables.dense.iter().map(|table| table.len).sum::<usize>()
    )];
    notes.append(&mut job.notes);
    Ok(ServerPlan {
        exchange,
        decisions,
        chain,
        params_grads: job.grads,
        tables,
        lookups,
        corrects_delay: strategy.a_sync_configs().enable_dc_asgd(),
        notes,
    })
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

/// Decides which strategies apply with servers, and why. Refuses strategies that change updates or
/// communicate with other workers.
pub fn decide(facts: &Facts<'_>) -> Vec<Decision> {
    compiler::decide(facts)
        .into_iter()
        .filter(|decision| decision.strategy != "RawProgram")
        .map(|decision| {
            let keeps = STRATEGIES
                .iter()
                .any(|it| it.name() == decision.strategy && it.kind() == Kind::Keeps);
            let fits = keeps && !matches!(decision.strategy, "AMP" | "FP16AllReduce");
            match decision.verdict {
                Verdict::Applied if !fits => Decision {
                    verdict: Verdict::Refused,
                    reason: format!(
                        "{} conflicts with parameter servers, which make the updates",
                        decision.strategy
                    ),
                    ..decision
                },
                _ => decision,
            }
        })
        .collect()
}

/// Returns tables of dense parameters, grouped by learning rate and sorted by name, numbered from
/// `first`.
fn dense_tables(
    job: &Job<'_>,
    dense: &[ParamGrad],
    first: u32,
    rule: impl Fn(f64) -> Result<UpdateRule>,
) -> Result<Vec<(DenseTable, Vec<ParamGrad>)>> {
    let main = &job.programs.main;
    let mut by_rate: Vec<(f64, Vec<ParamGrad>)> = Vec::new();
    let mut sorted = dense.to_vec();
    sorted.sort_by(|a, b| main.var_name(a.0).cmp(main.var_name(b.0)));
    for pair in sorted {
        let rate = main.var(pair.0).param.as_ref().map_or(1.0, |param| param.learning_rate);
        match by_rate.iter_mut().find(|(other, _)| *other == rate) {
            Some((_, pairs)) => pairs.push(pair),
            None => by_rate.push((rate, vec![pair])),
        }
    }
    let mut tables = Vec::new();
    for (at, (rate, pairs)) in by_rate.into_iter().enumerate() {
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
        let table = DenseTable { table_id, params, len, rule: rule(rate)?, blocks: None };
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
    emit.named_op("recv")?
        .inputs("X", vars)
        .outputs("Out", vars)
        .attr("table_id", i64::from(table_id))
        .attr("is_sparse", i64::from(is_sparse))
        .attr("is_geo", is_geo)
        .attr("recv_varnames", names)
        .done()?;
    Ok(())
}

/// Returns whether any rate follows a schedule, which depends on the steps of all workers.
fn has_schedule<'r>(mut rules: impl Iterator<Item = &'r UpdateRule>) -> bool {
    rules.any(|rule| matches!(rule, UpdateRule::Optimizer { rate: LearningRate::Schedule(_), .. }))
}
