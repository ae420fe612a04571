//! Classes divided among the ranks of data parallelism: each rank has the weights of some classes
//! of a `class_loss` layer, and computes their logits for the samples of all ranks.
//!
//! `class_cross_entropy` ops become `c_class_cross_entropy`, on a ring of their own, which the
//! compute lane uses. If ranks do not divide the classes, the last parts of the weights are padded.
//!
//! * forward: rank r of N has rows `r * ceil(classes / N)` and following. The op gathers features
//!   and labels, and gives each rank the losses of its own samples.
//! * backward, communicate: gradients of class weights stay with their ranks, because they already
//!   include the samples of all ranks. All other gradients are summed as in data parallelism.
//! * unscale, update: norms of gradients and the check for finite ones include all parts.
//! * startup: a rank makes the first values of its classes only. They are those of the whole
//!   parameters.

use super::tensor_layout::initialize_part;
use super::tensor_parallel::{NORMS, rule_of_norms};
use super::{Applies, Conflict, Facts, Strategy, StrategyId, WithServers};
use crate::effective::Effective;
use crate::job::{Job, Layers};
use fleet_base::{Error, Result};
use fleet_ir::{Division, Op, OpId, Program, VarId};
use fleet_nn::optimizer::DividedUpdate;
use fleet_ops::Emit;
use fleet_ops::loss::class_cross_entropy;
use std::collections::HashSet;

pub struct ClassParallel;

impl Strategy for ClassParallel {
    fn wanted(&self, strategy: &Effective<'_>) -> bool {
        strategy.hybrid_configs().split_classes()
    }

    fn field(&self, _: &Effective<'_>) -> String {
        FIELD.to_string()
    }

    fn conflicts(&self) -> &'static [Conflict] {
        &[
            (StrategyId::Sharding, "owners have whole parameters"),
            (StrategyId::Pipeline, "ranks with classes need the features of all samples"),
            (StrategyId::LocalSgd, "ranks that share class weights cannot train alone"),
            (StrategyId::AdaptiveLocalSgd, "ranks that share class weights cannot train alone"),
            (StrategyId::Dgc, "dgc sums the gradients of all parameters over ranks"),
            (StrategyId::TensorParallel, "parameters are divided over one ring of ranks"),
        ]
    }

    fn with_servers(&self) -> WithServers {
        WithServers::Refused("servers hold the parameters")
    }

    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        let program = facts.program;
        let refused = |reason: String| Applies::Refused(FIELD.to_string(), reason);
        let layers = class_ops(program);
        let all = program.block_ids().flat_map(|block| program.block_ops(block));
        if all.filter(|(_, op)| class_cross_entropy::DEF.is(op)).count() > layers.len() {
            let reason = "the branches of a cond do not divide classes: ranks may take different \
                          branches";
            return refused(reason.into());
        }
        if layers.is_empty() {
            return refused(
                "the program has no class_loss, whose classes ranks could divide".into(),
            );
        }
        if let Some(rule) = rule_of_norms(facts.optimizer) {
            return refused(format!("{rule} conflicts with divided classes: {NORMS}"));
        }
        if let Some(reason) = unfit_weight(program, &layers) {
            return refused(reason);
        }
        match facts.copies(strategy) {
            1 => Applies::Idle("one rank has all classes".into()),
            ranks => {
                let layers = match layers.len() {
                    1 => "1 class_loss".to_string(),
                    count => format!("{count} class_loss layers"),
                };
                Applies::Yes(format!("{ranks} ranks divide the classes of {layers}"))
            }
        }
    }

    fn optimizer(&self, job: &mut Job<'_>) -> Result<()> {
        let (first, stride, parts) = job.copy_ring()?;
        // Created first, so that ring 0 is always the gradients' ring.
        job.world_rings()?;
        let ring = job.ring(&format!("classes, {parts}"), first, stride, parts);
        let part = (job.ranks.rank - first) / stride;
        job.layers = Some(Layers { ring, part, parts });
        job.at.divided = Some(DividedUpdate { ring, nranks: parts });
        Ok(())
    }

    fn forward(&self, job: &mut Job<'_>) -> Result<()> {
        let layers = job.layers.ok_or_else(|| Error::internal("divided classes without a ring"))?;
        if job.updates.is_some() {
            return Err(Error::unsupported("divided classes of a program that has updates")
                .help("let the strategy's minimize add gradients and updates"));
        }
        job.whole = Some(job.programs.main.clone());
        for id in class_ops(&job.programs.main) {
            let weights = job.programs.main.op(id).input("W")[0];
            let classes = divide_weights(job, weights, layers)?;
            replace(job, id, layers, classes)?;
            let (name, Layers { part, parts, .. }) = (job.name(weights), layers);
            let rows = classes.div_ceil(parts);
            let first = (part * rows).min(classes);
            job.notes.push(format!(
                "'{name}': rank {part} of {parts} has classes {first} to {} of {classes}",
                (first + rows).min(classes)
            ));
        }
        Ok(())
    }
}

const FIELD: &str = "hybrid_configs.split_classes";

/// Returns the ops of the root block whose classes ranks may divide.
fn class_ops(program: &Program) -> Vec<OpId> {
    let ops = program.root_ops().filter(|(_, op)| class_cross_entropy::DEF.is(op));
    ops.map(|(id, _)| id).collect()
}

/// Returns why class weights cannot be divided, if that is so.
fn unfit_weight(program: &Program, layers: &[OpId]) -> Option<String> {
    let weights: HashSet<VarId> =
        layers.iter().flat_map(|id| program.op(*id).input("W")).copied().collect();
    let name = |var: VarId| program.var_name(var);
    if let Some(var) = weights.iter().find(|var| !program.var(**var).is_parameter()) {
        return Some(format!("the class weights '{}' are not a parameter", name(*var)));
    }
    let others = program.block_ids().flat_map(|block| program.block_ops(block));
    for (_, op) in others.filter(|(_, op)| !class_cross_entropy::DEF.is(op)) {
        let vars = op.all_inputs().chain(op.all_outputs());
        if let Some(var) = vars.into_iter().find(|var| weights.contains(var)) {
            return Some(format!("'{}' is also a variable of {}", name(var), op.name()));
        }
    }
    None
}

/// Gives class weights the shape of this rank's part, in both programs. Returns the number of
/// classes.
fn divide_weights(job: &mut Job<'_>, weights: VarId, layers: Layers) -> Result<usize> {
    let Layers { part, parts, .. } = layers;
    let var = job.programs.main.var_mut(weights);
    if let Some(division) = var.division.filter(|_| job.class_weights.contains(&weights)) {
        let whole = division.whole(&var.shape).map(|whole| whole.at(0));
        return whole.ok_or_else(|| Error::internal("wrong part of class weights"));
    }
    let classes = var.shape.at(0);
    let division = Division::padded(0, classes, part, parts);
    let shape = division.of(&var.shape);
    var.shape = shape.ok_or_else(|| Error::internal("class weights do not divide"))?;
    var.division = Some(division);
    job.class_weights.insert(weights);
    let name = job.name(weights);
    initialize_part(&mut job.programs.startup, job.registry, &name, division)?;
    Ok(classes)
}

/// Replaces an op by the one that computes on this rank's classes.
fn replace(job: &mut Job<'_>, id: OpId, layers: Layers, classes: usize) -> Result<()> {
    let main = &mut job.programs.main;
    let old: Op = main.op(id).clone();
    // Rows of all ranks' samples. Shapes are inferred again when the program is planned.
    for var in old.all_outputs().filter(|var| !old.output("Loss").contains(var)) {
        main.var_mut(var).shape.dims_mut().fill(-1);
    }
    let weights = main.var_name(old.input("W")[0]).to_string();
    let mut emit = Emit::new(main, job.registry, old.role);
    emit.device.clone_from(&old.device);
    emit.source.clone_from(&old.source);
    emit.fp16_guard = old.fp16_guard;
    let mut call = emit.op(&class_cross_entropy::OF_RANKS);
    for (slot, vars) in old.spec.inputs.iter().zip(&old.inputs) {
        call = call.inputs(slot.name, vars);
    }
    for (slot, vars) in old.spec.outputs.iter().zip(&old.outputs) {
        call = call.outputs(slot.name, vars);
    }
    for (attr, value) in old.spec.attrs.iter().zip(&old.attrs) {
        call = call.attr(attr.name, value.clone());
    }
    let call = call.attr("classes", classes).attr("ring_id", layers.ring);
    let new = call.attr("nranks", layers.parts).attr("label", weights).done()?;
    let mut ops = main.block(Program::ROOT).ops().to_vec();
    ops.iter_mut().filter(|op| **op == id).for_each(|op| *op = new);
    main.set_block_ops(Program::ROOT, ops);
    Ok(())
}
