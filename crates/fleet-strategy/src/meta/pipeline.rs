//! Pipeline parallelism: ranks run consecutive parts of the program, and several micro-batches at
//! once. Ranks are a grid: `dp_degree` pipelines of `pp_degree` consecutive ranks. Rank `r` runs
//! stage `r mod pp_degree`. Ranks that share layers or state are between those of two stages.
//!
//! Rings: 2 connects the ranks of equal stages, 4 the stages of one pipeline, and from 20 on each
//! connects two neighbours in one direction: `20 + 2 s` sends values from stage `s` to the next
//! one, `21 + 2 s` gradients back. Rings after these connect stages that share parameters.
//!
//! * forward: forward ops get the labels of their parts (`pipeline/stages.rs`).
//! * backward: the gradient of the loss is scaled by 1/M and, over all pipelines, by their number.
//!   The passes of this stage's ops are repeated for M micro-batches, in the order of the schedule
//!   (`pipeline/schedule.rs`, `pipeline/unroll.rs`), with sends and receives of what crosses parts
//!   (`pipeline/flow.rs`). Gradients are summed in `p@GRAD@MERGED`, in the order of micro-batches.
//!   Parameters of several stages are in `pipeline/shared.rs`. The user's names stand for the
//!   results of the whole batch (`pipeline/outputs.rs`).
//! * Later phases see the merged gradients of this stage's parameters. The global norm and the
//!   check for finite gradients include those of all stages.
//! * finish: state of other stages leaves both programs.

mod flow;
mod outputs;
mod schedule;
mod shared;
mod sizes;
pub(crate) mod stages;
mod unroll;
mod weights;

use super::data_parallel::scale_loss_gradient;
use super::{
    Applies, Conflict, Facts, Named, Strategy, StrategyId, WithServers, segments, sharding,
};
use crate::effective::Effective;
use crate::grid::{Axis, Grid};
use crate::job::Job;
use crate::pipeline::{Bubble, Pipeline, Size, StageInfo};
use fleet_base::{Error, Result};
use fleet_config::Problem;
use fleet_ir::{Program, VarId};
use fleet_nn::optimizer::SharedUpdate;
use flow::Flow;
use schedule::{Pass, Schedule};
use shared::Gradient;
use sizes::Sizes;
use stages::Place;
use std::collections::{BTreeSet, HashMap, HashSet};
use unroll::{Options, Stage, Unrolled};

pub struct PipelineParallel;

impl Strategy for PipelineParallel {
    fn wanted(&self, strategy: &Effective<'_>) -> bool {
        stages::is_on(strategy)
    }

    fn field(&self, strategy: &Effective<'_>) -> String {
        match Grid::field(strategy, Axis::Pipeline) {
            Some((field, _)) if !strategy.pipeline() => field,
            _ => self.switch().to_string(),
        }
    }

    fn conflicts(&self) -> &'static [Conflict] {
        &[
            (
                StrategyId::GradientMerge,
                "a pipeline merges the gradients of its micro-batches; set \
                 pipeline_configs.accumulate_steps",
            ),
            (StrategyId::LocalSgd, "ranks that train alone need the whole model"),
            (StrategyId::AdaptiveLocalSgd, "ranks that train alone need the whole model"),
            (StrategyId::Dgc, "dgc compresses the gradient of one batch, not of micro-batches"),
        ]
    }

    fn check(&self, strategy: &Effective<'_>, problems: &mut Vec<Problem>) {
        let Some((path, degree)) = Grid::field(strategy, Axis::Pipeline) else { return };
        if strategy.pipeline == Some(false) && degree > 1 {
            let problem = Problem::error(path, format!("{degree} stages, but pipeline is false"))
                .why("pp_degree cuts the program into stages")
                .help("remove pp_degree, or set pipeline to true");
            problems.push(problem);
        }
    }

    fn with_servers(&self) -> WithServers {
        WithServers::Refused("every worker computes the whole program for its own samples")
    }

    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        if facts.program.root_ops().any(|(_, op)| op.sub_block().is_some()) {
            let reason = "pipeline does not support the branches of a cond or loops";
            return Applies::Refused("pipeline".into(), reason.into());
        }
        if strategy.recompute() && strategy.recompute_configs().enable_offload() {
            let field = "recompute_configs.enable_offload";
            let reason = format!(
                "{field} conflicts with pipeline: the micro-batches in flight would need a file \
                 each; recompute alone is supported"
            );
            return Applies::Refused(field.into(), reason);
        }
        let layout = match stages::layout(strategy, facts.program, facts.ranks.count) {
            Ok(layout) => layout,
            Err((field, reason)) => return Applies::Refused(field, reason),
        };
        if schedule(strategy) == Schedule::ZeroBubble
            && strategy.sharding()
            && sharding::divides_params(strategy)
        {
            let reason = "ZBH1 divides backward passes, and owners would send the parameters to \
                          both halves: use 1F1B, or sharding_configs.stage 1 or 2";
            return Applies::Refused("pipeline_configs.schedule_mode".into(), reason.into());
        }
        let Size { stages, micros, .. } = layout.size;
        let s = |count: usize| if count == 1 { "" } else { "s" };
        let micro = format!("{micros} micro-batch{}", if micros == 1 { "" } else { "es" });
        let order = strategy.pipeline_configs().schedule_mode();
        Applies::Yes(match (stages, layout.copies()) {
            (1, _) if micros == 1 => {
                return Applies::Idle("one rank and one micro-batch: nothing to divide".into());
            }
            (1, 1) => format!("one rank runs all stages, with {micro} ({order})"),
            (_, 1) => format!("{stages} stages run {micro} ({order})"),
            (_, copies) => {
                format!("{copies} pipelines of {stages} stage{} run {micro} ({order})", s(stages))
            }
        })
    }

    fn optimizer(&self, job: &mut Job<'_>) -> Result<()> {
        let (rank, count) = (job.ranks.rank, job.ranks.count);
        let layout = stages::layout(job.strategy, &job.programs.main, count)
            .map_err(|(field, reason)| Error::invalid(reason).at(field))?;
        let grid = job.grid;
        let (copy, copies) = grid.copy(rank);
        job.reserve_rings(FIRST_RING);
        // Sharding has rings of its own.
        if copies > 1 && !job.strategy.sharding() {
            job.world_rings()?;
        }
        job.reserve_rings(STAGES_RING);
        let ring = (layout.size.stages > 1).then(|| {
            let label = format!("{} stages", layout.size.stages);
            job.ring_along(&label, Axis::Pipeline)
        });
        let info = StageInfo {
            number: grid.place(Axis::Pipeline, rank),
            count: layout.size.stages,
            copy,
            copies,
            grid,
            micro_batches: layout.size.micros,
            virtual_stages: layout.size.virtual_stages(),
            defers_weights: schedule(job.strategy) == Schedule::ZeroBubble,
            elsewhere: HashMap::new(),
        };
        let (shared, pairs, state) = Default::default();
        job.pipeline = Some(Pipeline { layout, ring, shared, pairs, state, info });
        Ok(())
    }

    fn forward(&self, job: &mut Job<'_>) -> Result<()> {
        let layout = of(job)?.layout;
        if job.whole.is_none() {
            job.whole = Some(job.programs.main.clone());
        }
        stages::assign(job, &layout);
        Ok(())
    }

    fn backward(&self, job: &mut Job<'_>) -> Result<()> {
        if job.updates.is_some() {
            return Err(Error::unsupported("pipeline does not support programs with updates")
                .expected("a network and its optimizer")
                .help(
                    "call minimize with this strategy instead of transpiling a trained program",
                ));
        }
        let mut pipeline = take(job)?;
        if job.copies() > 1 {
            scale_loss_gradient(job)?;
        }
        scale_by_micro_batches(job, pipeline.layout.size.micros)?;
        if divides_params(job) {
            let params: Vec<VarId> = job.grads.iter().map(|(param, _)| *param).collect();
            segments::repeat_casts(job, &params)?;
        }
        cut(job, &mut pipeline)?;
        job.pipeline = Some(pipeline);
        Ok(())
    }

    fn finish(&self, job: &mut Job<'_>) -> Result<()> {
        remove_state_of_others(job)
    }

    fn startup(&self, job: &mut Job<'_>) -> Result<()> {
        let pipeline = take(job)?;
        let Pipeline { shared, pairs, info, .. } = &pipeline;
        shared::broadcast_parameters(job, shared, pairs, info.number)?;
        job.pipeline = Some(pipeline);
        Ok(())
    }
}

/// The documented numbers of the rings of equal stages and of the stages of a pipeline.
const FIRST_RING: i64 = 2;
const STAGES_RING: i64 = 4;

fn of<'a>(job: &'a Job<'_>) -> Result<&'a Pipeline> {
    job.pipeline.as_ref().ok_or_else(missing)
}

fn take(job: &mut Job<'_>) -> Result<Pipeline> {
    job.pipeline.take().ok_or_else(missing)
}

fn missing() -> Error {
    Error::internal("the job has no pipeline")
}

/// Returns whether the ranks of equal stages divide the stage's parameters.
fn divides_params(job: &Job<'_>) -> bool {
    job.shards.as_ref().is_some_and(|shards| shards.divides_params)
}

fn schedule(strategy: &Effective<'_>) -> Schedule {
    match strategy.pipeline_configs().schedule_mode() {
        "F-then-B" => Schedule::ForwardThenBackward,
        "ZBH1" => Schedule::ZeroBubble,
        _ => Schedule::OneForwardOneBackward,
    }
}

/// Divides the gradient of the loss by the number of micro-batches, so that the sum of their
/// gradients is the mean.
fn scale_by_micro_batches(job: &mut Job<'_>, micros: usize) -> Result<()> {
    let main = &mut job.programs.main;
    let seed = main.root_ops().find_map(|(id, op)| {
        let fills = op.role.is_backward() && op.role.is_loss() && op.attr("value").is_some();
        fills.then_some(id)
    });
    let Some(seed) = seed else {
        return Err(Error::internal("no op fills the gradient of the loss"));
    };
    let value = main.op(seed).attr_float("value");
    main.op_mut(seed).set_attr("value", value / micros as f64)
}

/// Replaces the main program by that of this rank's stage.
fn cut(job: &mut Job<'_>, pipeline: &mut Pipeline) -> Result<()> {
    let (size, number) = (pipeline.layout.size, pipeline.info.number);
    let registry = job.registry;
    let tables = job.optimizer.tables(&job.programs.main);
    let gradients = shared::gradients(job, size)?;
    let flow = Flow::of(&job.programs.main, size)?;
    let sent: BTreeSet<VarId> =
        flow.forward.iter().chain(&flow.backward).flatten().copied().collect();
    let main = &job.programs.main;
    let sizes = Sizes::of(main, registry, job.strategy, &flow.members, &sent)?;
    let (numbers, root) = outputs::numbers(main, &flow, size, job.user_loss);
    pipeline.state = state(main, &flow);
    let (grid, rank) = (job.grid, job.ranks.rank);
    let stage = Stage { flow: &flow, sizes: &sizes, size, number, grid, rank };
    let ring = pipeline.ring.map(|ring| (ring, size.stages));
    let share = |main: &mut Program| match ring {
        Some(ring) => outputs::share(main, registry, &numbers, (root, number), ring),
        None => Ok(Vec::new()),
    };
    job.programs.test = Some(test_program(&job.programs.main, &stage, registry, share)?);
    let options = Options { schedule: schedule(job.strategy), divides_params: divides_params(job) };
    let main = &mut job.programs.main;
    let unrolled = unroll::unroll(&stage, main, registry, options, &gradients)?;
    let mut ops = unrolled.ops.clone();
    ops.extend(outputs::results(main, registry, &flow, &sizes, size, number, &unrolled)?);
    ops.extend(share(main)?);
    let all: Vec<VarId> = job.grads.iter().map(|(param, _)| *param).collect();
    join_rings(job, pipeline, &stage, &gradients);
    merge(job, pipeline, &gradients, &unrolled, &mut ops)?;
    let main = &mut job.programs.main;
    main.set_block_ops(Program::ROOT, ops);
    let used = used(main);
    main.retain_vars(|id, var| used.contains(&id) || var.is_data || var.persistable);
    job.at.shared = ring.map(|(ring, nranks)| SharedUpdate {
        ring,
        nranks,
        elsewhere: counted_elsewhere(&gradients, number),
        tables: all.iter().copied().filter(|param| tables.contains(param)).collect(),
        params: all,
    });
    pipeline.info.elsewhere = elsewhere(main, &flow, size, number);
    describe(job, pipeline, &stage, &gradients);
    Ok(())
}

/// Returns the program that evaluates a whole batch on the forward parts of this stage.
fn test_program(
    main: &Program,
    stage: &Stage<'_>,
    registry: &'static fleet_ops::Registry,
    share: impl Fn(&mut Program) -> Result<Vec<fleet_ir::OpId>>,
) -> Result<Program> {
    let mut test = main.clone();
    let mut ops = stage.forward_once(&mut test, registry)?;
    ops.extend(share(&mut test)?);
    test.set_block_ops(Program::ROOT, ops);
    let mut test = test.clone_for_test()?;
    // All ranks are fed the same variables, whether they use them or not.
    for (_, var) in main.vars().filter(|(_, var)| var.is_data) {
        if test.find_var(&var.name).is_none() {
            test.add_var(Program::ROOT, var.clone())?;
        }
    }
    Ok(test)
}

/// Makes the rings between this stage and others.
fn join_rings(job: &mut Job<'_>, pipeline: &mut Pipeline, stage: &Stage<'_>, all: &[Gradient]) {
    for ring in stage.rings() {
        let (low, high) = ring.ranks;
        job.ring_at(ring.id, &ring.label, low, high - low, 2);
    }
    let end = unroll::rings_end(stage.size);
    job.reserve_rings(end);
    pipeline.pairs = shared::pairs(all, end);
    for pair in &pipeline.pairs {
        if pair.first == stage.number || pair.other == stage.number {
            let (low, high) = (stage.rank_of(pair.first), stage.rank_of(pair.other));
            let (first, other, count) = (pair.first, pair.other, stage.size.stages);
            let label = format!("parameters of stages {first} and {other} of {count}");
            job.ring_at(pair.ring, &label, low, high - low, 2);
        }
    }
    pipeline.shared = all
        .iter()
        .filter(|gradient| gradient.is_shared())
        .map(|it| (job.programs.main.var_name(it.param).to_string(), it.holders.clone()))
        .collect();
}

/// Makes the merged gradients the gradients of the job, with those of shared parameters added up.
fn merge(
    job: &mut Job<'_>,
    pipeline: &Pipeline,
    gradients: &[Gradient],
    unrolled: &Unrolled,
    ops: &mut Vec<fleet_ir::OpId>,
) -> Result<()> {
    let number = pipeline.info.number;
    let mut own = Vec::new();
    for (at, gradient) in gradients.iter().enumerate() {
        if !gradient.holders.contains(&number) {
            continue;
        }
        let merged = unrolled.merged.iter().find(|it| it.at == at).map(|it| it.var);
        if gradient.is_shared() {
            let (new, total) = shared::exchange(job, gradient, &pipeline.pairs, number, merged)?;
            ops.extend(new);
            own.push((gradient.param, total));
        } else if let Some(merged) = merged {
            own.push((gradient.param, merged));
        }
    }
    job.grads = own;
    Ok(())
}

/// Returns the shared parameters whose gradients another stage counts in a global norm.
fn counted_elsewhere(gradients: &[Gradient], stage: usize) -> Vec<VarId> {
    let others = gradients.iter().filter(|it| it.is_shared() && it.first() != stage);
    others.map(|gradient| gradient.param).collect()
}

fn used(program: &Program) -> HashSet<VarId> {
    let ops = program.block_ids().flat_map(|block| program.block_ops(block));
    ops.flat_map(|(_, op)| op.all_inputs().chain(op.all_outputs())).collect()
}

/// Returns the variables that steps keep and that ops of any stage use.
fn state(main: &Program, flow: &Flow) -> Vec<VarId> {
    let ops = flow.members.iter().map(|member| main.op(member.id));
    let all: BTreeSet<VarId> = ops.flat_map(|op| op.all_inputs().chain(op.all_outputs())).collect();
    all.into_iter().filter(|var| main.var(*var).persistable).collect()
}

/// Returns the names of variables that only other stages have, each with such a stage.
fn elsewhere(main: &Program, flow: &Flow, size: Size, number: usize) -> HashMap<String, usize> {
    let mut found = HashMap::new();
    for member in flow.members.iter().filter(|member| member.pass == Pass::Forward) {
        let Place::Part(part) = member.place else { continue };
        let stage = size.stage_of(part);
        let op = main.op(member.id);
        for var in op.all_inputs().chain(op.all_outputs()) {
            let is_made = op.all_outputs().any(|made| made == var) || main.var(var).persistable;
            let name = main.var_name(var);
            if stage != number && is_made && main.find_var(name) != Some(var) {
                found.entry(name.to_string()).or_insert(stage);
            }
        }
    }
    found
}

/// Removes the state that only other stages use from both programs.
fn remove_state_of_others(job: &mut Job<'_>) -> Result<()> {
    let pipeline = take(job)?;
    let main = &mut job.programs.main;
    let used = used(main);
    let others: HashSet<VarId> =
        pipeline.state.iter().copied().filter(|var| !used.contains(var)).collect();
    let names = others.iter().map(|var| main.var_name(*var).to_string()).collect();
    main.retain_vars(|id, _| !others.contains(&id));
    segments::remove_others(&mut job.programs.startup, &names);
    job.pipeline = Some(pipeline);
    if let Some(pipeline) = &mut job.pipeline {
        let number = pipeline.info.number;
        let is_other = |name: &&String| !pipeline.info.elsewhere.contains_key(*name);
        let other = if number == 0 { pipeline.info.count - 1 } else { 0 };
        let more: Vec<String> = names.iter().filter(is_other).cloned().collect();
        pipeline.info.elsewhere.extend(more.into_iter().map(|name| (name, other)));
    }
    Ok(())
}

/// Adds notes about the stage and the schedule.
fn describe(job: &mut Job<'_>, pipeline: &Pipeline, stage: &Stage<'_>, gradients: &[Gradient]) {
    let size = stage.size;
    let forward = |own: bool| {
        let members = stage.flow.members.iter().filter(|member| member.pass == Pass::Forward);
        let is_counted = |place: Place| match place {
            Place::Part(part) => !own || size.stage_of(part) == stage.number,
            Place::All => !own,
        };
        members.filter(|member| is_counted(member.place)).count()
    };
    let held = gradients.iter().filter(|it| it.holders.contains(&stage.number)).count();
    let parts = size.virtual_stages();
    let of_parts = if parts > 1 { format!(" in {parts} parts") } else { String::new() };
    job.notes.push(format!(
        "pipeline: stage {} of {} has {} of {} forward ops{of_parts} and {held} of {} parameters",
        stage.number,
        size.stages,
        forward(true),
        forward(false),
        gradients.len()
    ));
    let shared = pipeline.shared.len();
    if shared > 0 {
        let names: Vec<&str> = pipeline.shared.iter().map(|(name, _)| name.as_str()).collect();
        let names = names.join(", ");
        job.notes.push(format!("pipeline: several stages use {names}, and each updates its copy"));
    }
    if size.stages > 1 {
        let Bubble { formula, sizes, .. } = pipeline.info.bubble();
        job.notes.push(format!(
            "pipeline: if all parts take the same time, a stage waits for {formula} of a step \
             ({sizes})"
        ));
    }
}
