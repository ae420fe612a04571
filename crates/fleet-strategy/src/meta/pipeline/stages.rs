//! The parts of a program: by the device labels of its ops, or cut by cost.
//!
//! `gpu:0`, `gpu:1` .. (`device_guard`) name the parts, and `gpu:all` is every part. A program
//! without such labels is cut into contiguous parts of its forward ops: the slowest part takes
//! about as little time as it can, and of such cuts, the one is used that sends the fewest bytes.
//! Cuts are between layers, because a cut inside a layer would prevent fusions. Ops that follow
//! from constants alone run in every part that needs them.
//!
//! The forward ops get these labels before the backward pass is appended, which copies them.

use crate::auto::op_cost;
use crate::effective::Effective;
use crate::grid::{Axis, Grid};
use crate::job::Job;
use crate::pipeline::{Layout, Size};
use crate::rates::{BATCH_ASSUMED, Rates};
use fleet_ir::{Op, OpId, Program, VarId};
use fleet_ops::{Registry, meta};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// Where an op runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Part(usize),
    All,
}

impl Place {
    /// Returns the place that an op's label names; `None` if it has no label or names no part.
    pub fn of(op: &Op) -> Option<Place> {
        match op.device.as_deref()?.strip_prefix("gpu:")? {
            "all" => Some(Place::All),
            number => Some(Place::Part(number.parse().ok()?)),
        }
    }

    fn label(self) -> Arc<str> {
        match self {
            Place::All => "gpu:all".into(),
            Place::Part(part) => format!("gpu:{part}").into(),
        }
    }
}

/// The field at fault, and the reason.
pub type Refusal = (String, String);

const PP_DEGREE: &str = "hybrid_configs.pp_degree";
const VIRTUAL_STAGES: &str = "pipeline_configs.virtual_stages";
const SCHEDULE_MODE: &str = "pipeline_configs.schedule_mode";
const ACCUMULATE_STEPS: &str = "pipeline_configs.accumulate_steps";

/// Limit of micro-batches: far more than shorten the wait of stages.
const MICROS_MAX: usize = 1024;

/// Returns whether a strategy asks for a pipeline.
pub fn is_on(strategy: &Effective<'_>) -> bool {
    strategy.pipeline() || degree(strategy, Axis::Pipeline).is_some_and(|stages| stages > 1)
}

/// Returns the degree that a strategy assigns to an axis.
fn degree(strategy: &Effective<'_>, axis: Axis) -> Option<usize> {
    Grid::field(strategy, axis).map(|(_, degree)| degree)
}

/// Returns the field that gives the number of stages.
fn field_of_stages(strategy: &Effective<'_>) -> String {
    Grid::field(strategy, Axis::Pipeline).map_or(PP_DEGREE.to_string(), |(field, _)| field)
}

/// Returns the grid that a strategy gives `ranks` ranks.
pub fn grid(strategy: &Effective<'_>, program: &Program, ranks: usize) -> Result<Grid, Refusal> {
    match is_on(strategy) {
        true => Ok(layout(strategy, program, ranks)?.grid),
        false => Grid::of(strategy, ranks, None),
    }
}

/// Returns the layout that a strategy gives `ranks` ranks.
pub fn layout(
    strategy: &Effective<'_>,
    program: &Program,
    ranks: usize,
) -> Result<Layout, Refusal> {
    let labelled = labelled(program).map_err(|reason| ("pipeline".to_string(), reason))?;
    let micros = strategy.pipeline_configs().accumulate_steps().max(1) as usize;
    if micros > MICROS_MAX {
        let reason = format!(
            "the program repeats both passes for each micro-batch: expected at most {MICROS_MAX} \
             accumulate_steps, got {micros}"
        );
        return Err((ACCUMULATE_STEPS.into(), reason));
    }
    let is_labelled = labelled.is_some();
    if ranks == 1 {
        let size = Size { stages: 1, parts: 1, micros };
        return Ok(Layout { grid: Grid::new([1; 4]), size, is_labelled });
    }
    let (stages, parts) = stages(strategy, labelled, ranks)?;
    let grid = Grid::of(strategy, ranks, Some(stages))?;
    let size = Size { stages, parts, micros };
    let forward = program.root_ops().filter(|(_, op)| op.role.is_forward()).count();
    if !is_labelled && forward < parts {
        let reason = format!(
            "the program has {forward} forward ops, which cannot form {parts} stages that \
                 each have ops"
        );
        return Err((field_of_stages(strategy), reason));
    }
    let schedule = strategy.pipeline_configs().schedule_mode();
    if parts > stages && schedule == "ZBH1" {
        let reason = format!(
            "ZBH1 runs one part of the program on each stage: expected {stages} parts, got {parts}"
        );
        return Err((SCHEDULE_MODE.into(), reason));
    }
    if parts > stages && !micros.is_multiple_of(stages) {
        let reason = format!(
            "with virtual stages, micro-batches run in groups of {stages}, one for each stage: \
                 expected accumulate_steps to be a multiple of {stages}, got {micros}"
        );
        return Err((ACCUMULATE_STEPS.into(), reason));
    }
    Ok(Layout { grid, size, is_labelled })
}

/// Returns the number of stages of a program without labels, if the strategy does not assign it:
/// that of the ranks that the other degrees leave.
fn stages_left(strategy: &Effective<'_>, ranks: usize) -> Result<usize, Refusal> {
    if strategy.sharding() && degree(strategy, Axis::Sharding).is_none() {
        let reason = format!(
            "{ranks} ranks could be stages, or share state: set {PP_DEGREE} or \
             sharding_configs.sharding_degree"
        );
        return Err((PP_DEGREE.into(), reason));
    }
    let others = [Axis::Tensor, Axis::Sharding, Axis::Data];
    let others = others.map(|axis| degree(strategy, axis).unwrap_or(1));
    Ok(others.into_iter().fold(ranks, |left, degree| left / degree).max(1))
}

/// Returns the number of stages and the number of parts.
fn stages(
    strategy: &Effective<'_>,
    labelled: Option<usize>,
    ranks: usize,
) -> Result<(usize, usize), Refusal> {
    let virtual_stages = strategy.pipeline_configs().virtual_stages.filter(|it| *it > 0);
    let virtual_stages = virtual_stages.map(|it| it as usize);
    let degree = degree(strategy, Axis::Pipeline);
    let Some(parts) = labelled else {
        let stages = match degree {
            Some(stages) => stages,
            None => stages_left(strategy, ranks)?,
        };
        return Ok((stages, stages * virtual_stages.unwrap_or(1)));
    };
    let stages = match degree {
        Some(degree) => degree,
        None => parts / virtual_stages.unwrap_or(1),
    };
    let several = virtual_stages.or(parts.checked_div(stages)).unwrap_or(0);
    if stages > 0 && stages * several == parts {
        return Ok((stages, parts));
    }
    let field = match degree {
        Some(_) => field_of_stages(strategy),
        None => VIRTUAL_STAGES.to_string(),
    };
    let by = match (degree, virtual_stages) {
        (Some(degree), Some(several)) => format!("{degree} stages of {several} parts"),
        (Some(degree), None) => format!("{degree} stages"),
        _ => format!("{} virtual stages", virtual_stages.unwrap_or(1)),
    };
    let reason = format!(
        "the labels gpu:0 to gpu:{} name {parts} parts, which {by} cannot divide evenly",
        parts - 1
    );
    Err((field, reason))
}

/// Returns the number of parts that the labels of the forward ops name; `None` if there are none.
/// Rejects labels that do not say where each op runs.
fn labelled(program: &Program) -> Result<Option<usize>, String> {
    let forward = || program.root_ops().filter(|(_, op)| op.role.is_forward());
    let named: HashSet<usize> = forward()
        .filter_map(|(_, op)| match Place::of(op)? {
            Place::Part(part) => Some(part),
            Place::All => None,
        })
        .collect();
    let Some(last) = named.iter().copied().max() else { return Ok(None) };
    if let Some((id, op)) = forward().find(|(_, op)| Place::of(op).is_none()) {
        let got = match &op.device {
            Some(label) => format!("the label '{label}', which names no stage"),
            None => "no device label".to_string(),
        };
        return Err(format!(
            "{} has {got}, but others have labels of stages: put it under \
             device_guard(\"gpu:<stage>\"), or \"gpu:all\" for all stages",
            program.describe_op(id)
        ));
    }
    if let Some(hole) = (0..last).find(|part| !named.contains(part)) {
        return Err(format!(
            "no op has the label gpu:{hole}, but gpu:{last} has ops: stages are numbered from 0 \
             without holes"
        ));
    }
    Ok(Some(last + 1))
}

/// Labels every forward op with its part.
pub fn assign(job: &mut Job<'_>, layout: &Layout) {
    let main = &job.programs.main;
    let places = match (layout.size.parts, layout.is_labelled) {
        (1, _) => forward_ops(main).into_iter().map(|id| (id, Place::Part(0))).collect(),
        (_, true) => completed(main),
        (parts, false) => {
            let batch = job.strategy.pipeline_configs().micro_batch_size;
            cut(main, job.registry, parts, batch.map_or(BATCH_ASSUMED, |it| it.max(1) as usize))
        }
    };
    let main = &mut job.programs.main;
    for (id, place) in places {
        main.op_mut(id).device = Some(place.label());
    }
}

fn forward_ops(main: &Program) -> Vec<OpId> {
    main.root_ops().filter(|(_, op)| op.role.is_forward()).map(|(id, _)| id).collect()
}

/// Returns the labels of all forward ops. Those that strategies have added without a label run
/// where their inputs come from.
fn completed(main: &Program) -> Vec<(OpId, Place)> {
    let mut made: HashMap<VarId, usize> = HashMap::new();
    let mut places = Vec::new();
    for id in forward_ops(main) {
        let op = main.op(id);
        let from = op.all_inputs().filter_map(|var| made.get(&var)).copied().max();
        let place = Place::of(op).unwrap_or(Place::Part(from.unwrap_or(0)));
        if let Place::Part(part) = place {
            made.extend(op.all_outputs().map(|var| (var, part)));
        }
        places.push((id, place));
    }
    places
}

/// Cuts the forward ops into parts.
fn cut(main: &Program, registry: &Registry, parts: usize, batch: usize) -> Vec<(OpId, Place)> {
    let constant = constants(main, registry);
    let all = forward_ops(main);
    let (everywhere, ops): (Vec<OpId>, Vec<OpId>) =
        all.into_iter().partition(|id| constant.contains(id));
    let rates = Rates::default();
    let seconds = |id: &OpId| {
        let cost = op_cost(main, main.op(*id), batch).unwrap_or_default();
        let time = cost.flops / rates.flops_per_second;
        time.max(cost.bytes / rates.memory_bytes_per_second)
    };
    let costs: Vec<f64> = ops.iter().map(seconds).collect();
    let crossing = crossing_bytes(main, &ops, batch);
    let mut layers = layer_ends(main, &ops);
    if layers.len() < parts {
        layers = (1..=ops.len()).collect();
    }
    let begins = std::iter::once(0).chain(layers.iter().copied());
    let of_layers = begins.zip(&layers).map(|(from, to)| costs[from..*to].iter().sum());
    let of_layers: Vec<f64> = of_layers.collect();
    let at = std::iter::once(0).chain(layers.iter().copied()).map(|at| crossing[at]);
    let ends = balanced(&of_layers, &at.collect::<Vec<_>>(), parts);
    let ends: Vec<usize> = ends.into_iter().map(|end| layers[end - 1]).collect();
    let mut places: Vec<(OpId, Place)> =
        everywhere.into_iter().map(|id| (id, Place::All)).collect();
    let part = |at: usize| ends.partition_point(|end| *end <= at);
    places.extend(ops.iter().enumerate().map(|(at, id)| (*id, Place::Part(part(at)))));
    places
}

/// Returns the forward ops whose results follow from attributes alone.
fn constants(main: &Program, registry: &Registry) -> HashSet<OpId> {
    let mut writes: HashMap<VarId, usize> = HashMap::new();
    for (_, op) in main.root_ops() {
        op.all_outputs().for_each(|var| *writes.entry(var).or_default() += 1);
    }
    let mut known: HashSet<VarId> = HashSet::new();
    let mut found = HashSet::new();
    for id in forward_ops(main) {
        let op = main.op(id);
        let Some(def) = registry.find(op.name()) else { continue };
        let is_plain = !def.traits.random && !def.traits.effect && op.sub_block().is_none();
        let is_once = |var: VarId| writes[&var] == 1 && !main.var(var).persistable;
        if is_plain
            && op.all_inputs().all(|var| known.contains(&var))
            && op.all_outputs().all(is_once)
        {
            known.extend(op.all_outputs());
            found.insert(id);
        }
    }
    found
}

/// Returns the ends of the layers: consecutive ops whose results have a name in common, up to the
/// first dot.
fn layer_ends(main: &Program, ops: &[OpId]) -> Vec<usize> {
    let layer = |id: &OpId| {
        let made = main.op(*id).all_outputs().next();
        made.and_then(|var| main.var_name(var).split('.').next())
    };
    let is_end = |at: &usize| *at == ops.len() || layer(&ops[*at - 1]) != layer(&ops[*at]);
    (1..=ops.len()).filter(is_end).collect()
}

/// Returns the bytes that cross each position between two ops: those of values that are written
/// before it and read after it.
fn crossing_bytes(main: &Program, ops: &[OpId], batch: usize) -> Vec<f64> {
    // By variable: the first op that writes it and the last that reads it. In order, so that sums
    // have the same rounding on all ranks.
    let mut spans: BTreeMap<VarId, (usize, usize)> = BTreeMap::new();
    for (at, id) in ops.iter().enumerate() {
        for var in main.op(*id).all_inputs() {
            if let Some(span) = spans.get_mut(&var) {
                span.1 = at;
            }
        }
        for var in main.op(*id).all_outputs().filter(|var| !main.var(*var).persistable) {
            spans.entry(var).or_insert((at, at));
        }
    }
    let mut changes = vec![0.0; ops.len() + 1];
    for (var, (from, to)) in spans {
        let mut meta = meta(main, var);
        meta.shape
            .dims_mut()
            .iter_mut()
            .filter(|dim| **dim < 0)
            .for_each(|dim| *dim = batch as i64);
        changes[from + 1] += meta.bytes() as f64;
        changes[to + 1] -= meta.bytes() as f64;
    }
    let mut crossing = 0.0;
    changes
        .iter()
        .map(|change| {
            crossing += change;
            crossing
        })
        .collect()
}

/// Cuts a list into `parts` contiguous parts that all have items. Returns the end of each. No part
/// costs more than [`SLACK`] times as much as the most expensive part must. Of these cuts, it
/// returns the one with the smallest sum of `crossing` at the ends.
fn balanced(costs: &[f64], crossing: &[f64], parts: usize) -> Vec<usize> {
    let mut sums = vec![0.0];
    for cost in costs {
        sums.push(sums[sums.len() - 1] + cost);
    }
    let limit = bottleneck(&sums, parts) * SLACK;
    let count = costs.len();
    // By part and end: the least that crosses, and the end of the part before.
    let mut best = vec![vec![(f64::INFINITY, 0); count + 1]; parts + 1];
    best[0][0].0 = 0.0;
    for part in 1..=parts {
        for end in part..=count - (parts - part) {
            let here = if end < count { crossing[end] } else { 0.0 };
            for before in (part - 1..end).rev() {
                if sums[end] - sums[before] > limit {
                    break;
                }
                let total = best[part - 1][before].0 + here;
                if total < best[part][end].0 {
                    best[part][end] = (total, before);
                }
            }
        }
    }
    let mut ends = vec![count];
    for part in (2..=parts).rev() {
        let end = ends[ends.len() - 1];
        ends.push(best[part][end].1);
    }
    ends.reverse();
    ends
}

/// How much longer the slowest part may take than it must, if less is sent then.
const SLACK: f64 = 1.05;

/// Returns the least cost of the most expensive of `parts` parts that all have items.
fn bottleneck(sums: &[f64], parts: usize) -> f64 {
    let count = sums.len() - 1;
    let fits = |limit: f64| {
        let (mut begin, mut left) = (0, parts);
        while left > 0 {
            // As many items as fit, at least one, and one is left for each later part.
            let most = count - (left - 1);
            let fit = sums.partition_point(|sum| *sum - sums[begin] <= limit).saturating_sub(1);
            if fit <= begin {
                return false;
            }
            begin = fit.min(most);
            left -= 1;
        }
        begin == count
    };
    let total = sums[count];
    let (mut low, mut high) = (0.0, total);
    // Enough to make the difference smaller than any op.
    for _ in 0..50 {
        let middle = (low + high) / 2.0;
        if fits(middle) { high = middle } else { low = middle }
    }
    high
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(costs: &[f64], crossing: &[f64], parts: usize) -> Vec<usize> {
        let mut at: Vec<f64> = vec![0.0];
        at.extend(crossing);
        at.resize(costs.len() + 1, 0.0);
        balanced(costs, &at, parts)
    }

    #[test]
    fn parts_are_balanced() {
        assert_eq!(ends(&[1.0; 6], &[1.0; 5], 2), [3, 6]);
        assert_eq!(ends(&[1.0; 6], &[1.0; 5], 3), [2, 4, 6]);
        assert_eq!(ends(&[5.0, 1.0, 1.0, 1.0, 1.0, 1.0], &[1.0; 5], 2), [1, 6]);
        assert_eq!(ends(&[1.0; 3], &[1.0; 2], 3), [1, 2, 3]);
        // Every part has an op, even if ops cost nothing.
        assert_eq!(ends(&[0.0, 0.0, 8.0], &[1.0; 2], 3), [1, 2, 3]);
        assert_eq!(ends(&[0.0; 4], &[1.0, 0.0, 1.0], 2), [2, 4]);
    }

    #[test]
    fn of_balanced_cuts_the_one_that_sends_least_is_used() {
        let costs = [10.0, 0.1, 0.1, 10.0];
        assert_eq!(ends(&costs, &[5.0, 1.0, 5.0], 2), [2, 4]);
        assert_eq!(ends(&costs, &[5.0, 5.0, 1.0], 2), [3, 4]);
    }
}
