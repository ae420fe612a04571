//! `auto`: chooses a strategy from the program's costs, and explains the choice.
//!
//! It chooses only if nothing else is assigned. Its choices keep the mathematics of training, with
//! one exception: fp16_allreduce rounds gradients in transit, and is chosen only if the network
//! would slow down the machine. DGC, LocalSGD, gradient merge, LARS and LAMB change the training,
//! so only the user can choose them.
//!
//! The estimate is a sum over ops: each op takes the longer of its arithmetic time and its memory
//! time. Communication that overlaps the backward pass is free up to the length of that pass. All
//! choices compare these two times.
//!
//! If a search over layouts was made for the job ([`ChosenLayout`](crate::ChosenLayout)), its
//! layout is used. The choices above apply if that is data parallelism.
//!
//! With parameter servers, it chooses between async and GEO.

use crate::decision::{Decision, Verdict};
use crate::effective::Effective;
use crate::meta::{Facts, StrategyId};
use crate::rates::{BATCH_ASSUMED, Origin};
use fleet_base::text;
use fleet_config::DistributedStrategy;
use fleet_config::Problem;
use fleet_config::{Field, Reflect};
use fleet_ir::{Op, Program, VarId};
use fleet_nn::optimizer::{OptimizerDesc, Rule};
use fleet_ops::{Cost, CostCtx, Meta, Registry, meta};
use std::fmt;

/// The backward pass costs twice the forward pass.
const BACKWARD_SHARE: f64 = 2.0 / 3.0;
const PASSES: f64 = 3.0;
/// Latency of an all-reduce among a few ranks.
const CALL_SECONDS: f64 = 50e-6;
/// Minimum ratio of a bucket's transfer time to its latency, so that latencies do not matter.
const CALLS_HIDDEN: f64 = 20.0;
/// Minimum number of buckets, so that one is in flight while the next is being computed.
const BUCKETS_MIN: f64 = 4.0;
const MB: f64 = 1024.0 * 1024.0;
/// Steps between two exchanges of GEO, as documented for the original's choice.
const GEO_STEPS: i32 = 800;
/// Limit of the memory for parameters and their copy on a worker of GEO: a quarter of 16 GB.
const GEO_BYTES_MAX: f64 = 4.0 * 1024.0 * MB;

/// Returns the strategy in effect, with the decision of `auto` if it is on.
pub fn effective<'a>(
    written: &'a DistributedStrategy,
    facts: &Facts<'_>,
) -> (Effective<'a>, Option<Decision>) {
    if !written.auto() {
        return (Effective::as_written(written), None);
    }
    let mut rest = written.clone();
    rest.auto = None;
    let decision = |verdict, reason: String| Decision {
        strategy: StrategyId::Auto,
        field: "auto".into(),
        verdict,
        reason,
    };
    if !rest.is_empty() {
        let reason = "no effect: other fields are assigned".to_string();
        return (Effective::chosen(rest), Some(decision(Verdict::Idle, reason)));
    }
    let (chosen, reasons) = match facts.servers {
        Some(servers) => choose_exchange(facts, servers.rows),
        None => choose(facts),
    };
    (Effective::chosen(chosen), Some(decision(Verdict::Applied, reasons.join("\n"))))
}

/// Returns whether `auto` chooses the settings: it is on, and nothing else is assigned.
pub fn chooses(written: &DistributedStrategy) -> bool {
    let mut rest = written.clone();
    rest.auto = None;
    written.auto() && rest.is_empty()
}

/// Reports `auto` beside other assigned fields, where it has no effect.
pub fn without_effect(written: &DistributedStrategy) -> Option<Problem> {
    let assigned = |field: &&Field| written.slot(field.number).count() > 0;
    let fields = written.shape().fields.iter().filter(assigned);
    let others: Vec<&str> = fields.map(|field| field.name).filter(|name| *name != "auto").collect();
    if !written.auto() || others.is_empty() {
        return None;
    }
    let message = format!("has no effect beside {}", others.join(", "));
    let problem = Problem::warning("auto", message)
        .why("auto chooses only where nothing else is assigned")
        .help("assign auto alone, or remove it");
    Some(problem)
}

fn choose(facts: &Facts<'_>) -> (DistributedStrategy, Vec<String>) {
    let mut strategy = DistributedStrategy::new();
    let (ranks, rates) = (facts.ranks, facts.rates);
    if ranks.count == 1 {
        return (strategy, vec!["one rank: nothing to choose".into()]);
    }
    if let Some(layout) = facts.layout.filter(|layout| !layout.strategy.is_empty()) {
        return (layout.strategy.clone(), layout.reasons.clone());
    }
    let batch = Batch::of(facts);
    let work = work(facts, batch.size);
    let gradients = gradients(facts, batch.size);
    let share = (ranks.count - 1) as f64 / ranks.count as f64;
    let bandwidth = rates.network(ranks);
    let transfer = 2.0 * gradients.bytes * share / bandwidth;
    let overlap = work.seconds * BACKWARD_SHARE;
    let mut reasons = facts.layout.map_or(Vec::new(), |layout| layout.reasons.clone());
    reasons.extend([
        format!(
            "{} parameters; a step of {batch} is {}flop and {} of memory traffic per rank, about \
             {} at {}flop/s and {}B/s ({})",
            text::count(gradients.parameters),
            text::count(work.flops),
            text::bytes(work.bytes as u64),
            duration(work.seconds),
            text::count(rates.flops_per_second),
            text::count(rates.memory_bytes_per_second),
            match rates.origin {
                Origin::Assumed => "assumed",
                Origin::Given => "given",
                Origin::Measured => "measured",
            }
        ),
        format!(
            "all-reduce of {} of gradients among {} ranks takes {} at {}B/s; up to {} can overlap \
             the backward pass",
            text::bytes(gradients.bytes as u64),
            ranks.count,
            duration(transfer),
            text::count(bandwidth),
            duration(overlap)
        ),
    ]);
    two_levels(facts, &mut strategy, &mut reasons);
    if transfer > overlap {
        strategy.set_fp16_allreduce(true);
        reasons.push(format!(
            "{} of each step would be exposed communication: gradients are sent in half precision",
            duration(transfer - overlap)
        ));
    } else {
        let reason =
            "communication overlaps the backward pass: gradients are sent in full precision";
        reasons.push(reason.into());
    }
    buckets(gradients.bytes, bandwidth, &mut strategy, &mut reasons);
    reasons.push("amp is not chosen: this processor computes 16-bit floats in 32 bits".into());
    (strategy, reasons)
}

/// Chooses how workers and servers exchange: GEO if workers may train alone and can hold the model,
/// else async. The choice depends on the program and the optimizers only, because workers and
/// servers decide each for itself.
fn choose_exchange(
    facts: &Facts<'_>,
    rows: Option<&OptimizerDesc>,
) -> (DistributedStrategy, Vec<String>) {
    let mut strategy = DistributedStrategy::new();
    strategy.set_a_sync(true);
    let parameters = facts.program.parameters();
    let elements = parameters.map(|(_, var)| var.shape.numel().map_or(f64::INFINITY, |n| n as f64));
    let bytes = 2.0 * size_of::<f32>() as f64 * elements.sum::<f64>();
    let is_sgd = matches!(facts.optimizer.rule, Rule::Sgd(_)) && facts.optimizer.rows.is_none();
    let set =
        |op: &Op, name: &str| op.spec.attr_index(name).is_some() && !op.attr_str(name).is_empty();
    let mut ops = facts.program.root_ops();
    let why = if !is_sgd || rows.is_some_and(|rows| rows != facts.optimizer) {
        Some("changes of workers can be added only with plain SGD for layers and rows".to_string())
    } else if let Some((_, op)) = ops.find(|(_, op)| set(op, "entry") || set(op, "table_class")) {
        Some(format!("{} sets the entry or the class of its table", op.name()))
    } else if bytes > GEO_BYTES_MAX {
        let (bytes, limit) = (text::bytes(bytes as u64), text::bytes(GEO_BYTES_MAX as u64));
        Some(format!("the parameters and their copy take {bytes}, more than {limit} of a worker"))
    } else {
        None
    };
    let reason = match why {
        Some(why) => format!("async, k_steps 0: {why}"),
        None => {
            strategy.a_sync_configs_mut().set_k_steps(GEO_STEPS);
            format!(
                "GEO, k_steps {GEO_STEPS}: plain SGD, and a worker can hold the parameters and \
                 their copy ({})",
                text::bytes(bytes as u64)
            )
        }
    };
    (strategy, vec![reason])
}

/// With several machines, uses parallel rings, and sums within machines first.
fn two_levels(facts: &Facts<'_>, strategy: &mut DistributedStrategy, reasons: &mut Vec<String>) {
    let ranks = facts.ranks;
    let nodes = ranks.nodes();
    if nodes == 1 {
        return;
    }
    strategy.set_nccl_comm_num(2);
    reasons.push(format!("{nodes} machines: two parallel communicators use the network better"));
    if ranks.per_node > 1 && ranks.count.is_multiple_of(ranks.per_node) {
        strategy.set_use_hierarchical_allreduce(true);
        strategy.set_hierarchical_allreduce_inter_nranks(ranks.per_node as i32);
        reasons.push(format!(
            "{} ranks per machine: gradients are summed within machines first, so each byte \
             crosses the network once per machine",
            ranks.per_node
        ));
    }
}

/// Chooses buckets that start early but are long enough to outweigh their latency.
fn buckets(
    bytes: f64,
    bandwidth: f64,
    strategy: &mut DistributedStrategy,
    reasons: &mut Vec<String>,
) {
    let default = strategy.fuse_grad_size_in_MB();
    let early = bytes / BUCKETS_MIN;
    let worthwhile = CALLS_HIDDEN * CALL_SECONDS * bandwidth;
    let size = (early.max(worthwhile) / MB).ceil().clamp(1.0, f64::from(default)) as i32;
    if size == default || bytes <= f64::from(size) * MB {
        reasons.push(format!("buckets of up to {default} MB (default)"));
        return;
    }
    strategy.set_fuse_grad_size_in_MB(size);
    let count = (bytes / (f64::from(size) * MB)).ceil();
    reasons.push(format!(
        "about {count} buckets of {size} MB: the first is sent while the others are computed"
    ));
}

/// The number of samples that a rank processes in a step, and its origin.
struct Batch {
    size: usize,
    origin: &'static str,
}

impl Batch {
    /// If the first dimension of every fed variable is known, the program is written for one batch
    /// size. This is the largest of these dimensions, because masks and weights shared by all
    /// samples are fed too.
    fn of(facts: &Facts<'_>) -> Batch {
        let fed = facts.program.vars().filter(|(_, var)| var.is_data);
        let sizes: Vec<i64> =
            fed.filter_map(|(_, var)| var.shape.dims().first().copied()).collect();
        let fixed = sizes.iter().copied().max().filter(|_| sizes.iter().all(|size| *size > 0));
        match (fixed, facts.rates.batch) {
            (Some(size), _) => Batch { size: size as usize, origin: "the program's" },
            (None, Some(size)) => Batch { size, origin: "given" },
            (None, None) => Batch { size: BATCH_ASSUMED, origin: "assumed" },
        }
    }
}

impl fmt::Display for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = if self.size == 1 { "" } else { "s" };
        write!(f, "{} sample{s} ({})", self.size, self.origin)
    }
}

/// The gradients that all ranks sum in a step.
struct Gradients {
    parameters: f64,
    bytes: f64,
}

/// Adds up all gradients. Dense ones are as large as their parameters; of sparse ones, only the
/// used rows are sent.
fn gradients(facts: &Facts<'_>, batch: usize) -> Gradients {
    let mut all = Gradients { parameters: 0.0, bytes: 0.0 };
    let mut sparse = Vec::new();
    for (_, op) in facts.program.root_ops() {
        if op.spec.attr_index("is_sparse").is_some() && op.attr_bool("is_sparse") {
            sparse.extend(op.input("W"));
            let rows =
                op.output("Out").iter().map(|var| sized(facts.program, *var, batch).bytes() as f64);
            all.bytes += rows.sum::<f64>() * facts.ranks.count as f64 / 2.0;
        }
    }
    for (id, var) in facts.program.parameters().filter(|(_, var)| !var.stop_gradient) {
        let elements = var.shape.numel().unwrap_or(0) as f64;
        all.parameters += elements;
        if !sparse.contains(&id) {
            all.bytes += elements * var.dtype.size() as f64;
        }
    }
    all
}

/// A training step of one rank.
#[derive(Default)]
struct Work {
    flops: f64,
    bytes: f64,
    seconds: f64,
}

/// Adds up the ops' own estimates.
fn work(facts: &Facts<'_>, batch: usize) -> Work {
    let mut total = Work::default();
    for (_, op) in facts.program.root_ops() {
        let Some(cost) = op_cost(facts.program, op, batch) else { continue };
        let (flops, bytes) = (PASSES * cost.flops, PASSES * cost.bytes);
        total.flops += flops;
        total.bytes += bytes;
        let rates = facts.rates;
        total.seconds +=
            (flops / rates.flops_per_second).max(bytes / rates.memory_bytes_per_second);
    }
    total
}

/// Returns an op's own estimate of its work for a batch size, if it has one.
pub(crate) fn op_cost(program: &Program, op: &Op, batch: usize) -> Option<Cost> {
    let def = Registry::standard().find(op.name())?;
    let outputs = def.shapes(op, |var| sized(program, var, batch)).ok()?;
    let of = |vars: &Vec<VarId>| vars.iter().map(|var| sized(program, *var, batch)).collect();
    let inputs: Vec<Vec<Meta>> = op.inputs.iter().map(of).collect();
    Some((def.traits.cost)(&CostCtx { op, inputs: &inputs, outputs: &outputs }))
}

/// Returns a variable's type and shape, with the batch size in place of the first unknown dimension
/// and 1 in place of the others.
fn sized(program: &Program, var: VarId, batch: usize) -> Meta {
    let mut meta = meta(program, var);
    let mut unknown = meta.shape.dims_mut().iter_mut().filter(|dim| **dim < 0);
    if let Some(first) = unknown.next() {
        *first = batch as i64;
    }
    unknown.for_each(|dim| *dim = 1);
    meta
}

/// Formats a time, for example `3.2 ms`.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.1} s"),
        s if s >= 1e-3 => format!("{:.1} ms", s * 1e3),
        s => format!("{:.0} us", s * 1e6),
    }
}
