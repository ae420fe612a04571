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
pub(crate) mod exchange;
mod geo;
mod remote;
mod tables;
pub mod transpiler;

pub use click::{ClickRows, RowPart};
pub use exchange::Exchange;
pub use remote::LookupSpec;
pub use tables::{DenseTable, ParamBlock, RowInit, RowRule, SparseTable, Tables, UpdateRule};

use crate::check::validate;
use crate::compiler;
use crate::decision::{Decided, Decision, Verdict};
use crate::job::Job;
use crate::meta::{Facts, Kind, STRATEGIES, StrategyId};
use crate::ranks::Ranks;
use crate::source::Written;
use fleet_base::{Error, Result};
use fleet_ir::{OpRole, VarId};
use fleet_nn::optimizer::{OptimizerDesc, ParamGrad};
use fleet_nn::{LearningRate, Programs};
use fleet_ops::{Emit, Registry};

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
    strategy: impl Into<Written<'s>>,
    place: Place,
) -> Result<ServerPlan> {
    let written: Written<'_> = strategy.into();
    check(place)?;
    fleet_passes::check_loss(&programs.main, loss)?;
    validate(written)?;
    let exchange = Exchange::written(&written, place.half_async)?;
    let alone = Ranks::new(0, 1);
    let rates = crate::Rates::default();
    let facts = Facts { optimizer, ranks: &alone, rates: &rates, program: &programs.main };
    let Decided { strategy, decisions } = decide(written, &facts);
    compiler::refuse(&decisions, &written)?;
    let mut job =
        compiler::differentiate(programs, registry, loss, optimizer, &strategy, &decisions)?;
    let sparse = sparse.or(optimizer.rows.as_deref()).unwrap_or(optimizer);
    let (tables, lookups) = match exchange {
        Exchange::Geo { .. } => (geo::rewrite(&mut job, sparse)?, Vec::new()),
        _ => remote::rewrite(&mut job, sparse, exchange, place)?,
    };
    verify(&job)?;
    let mut chain = vec![StrategyId::ParameterServer.name()];
    chain.extend(compiler::chain(&decisions));
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
        decisions,
        chain,
        params_grads,
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
pub fn decide<'a>(strategy: impl Into<Written<'a>>, facts: &Facts<'_>) -> Decided<'a> {
    let mut decided = compiler::decide(strategy, facts);
    let fits = |id| STRATEGIES.iter().any(|it| it.id() == id && it.kind() == Kind::Keeps);
    decided.decisions.retain(|decision| {
        // Gradients go to servers, not to other workers.
        decision.strategy != StrategyId::RawProgram || decision.verdict == Verdict::Refused
    });
    for decision in &mut decided.decisions {
        if decision.verdict == Verdict::Applied && !fits(decision.strategy) {
            decision.verdict = Verdict::Refused;
            decision.reason = format!(
                "{} conflicts with parameter servers, which make the updates",
                decision.strategy
            );
        }
    }
    decided
}

fn verify(job: &Job<'_>) -> Result<()> {
    if cfg!(debug_assertions) {
        for program in [&job.programs.main, &job.programs.startup] {
            fleet_ops::verify::verify(program, job.registry).map_err(|error| {
                Error::internal(format!(
                    "pass 'ParameterServer' produced an invalid program: {error}"
                ))
            })?;
        }
    }
    Ok(())
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
