//! Tensor parallelism: ranks divide layers, so that each has a part of their parameters and
//! computes a part of their results. `mp_degree` neighbouring ranks train one copy of the model,
//! with the same samples.
//!
//! Parameters that ranks may divide are marked by the model (`Var::division`). Without a degree
//! above 1, a mark has no effect.
//!
//! Rings: 0 connects the ranks that share layers. Copies of the model are connected as in data
//! parallelism, over ring 2.
//!
//! * forward: each op computes on its rank's part (see `tensor_layout.rs`). The ops of ring 0 run
//!   in the compute lane, because compute waits for each of them.
//! * backward, communicate: gradients of divided parameters stay with their ranks. Those of whole
//!   parameters are the same on all ranks of ring 0. Data parallelism and sharding sum both over
//!   the copies.
//! * unscale, update: norms of gradients and the check for finite ones include all parts, as do the
//!   norms of LARS and LAMB.
//! * finish: a step begins with a check that the ranks of ring 0 have the same samples.
//! * startup: a rank makes the first values of its parts only. They are those of the whole
//!   parameters. Whole parameters are those of the first rank.

use super::data_parallel::broadcast_parameters;
use super::tensor_layout;
use super::{Applies, Conflict, Facts, Named, Strategy, StrategyId, WithServers};
use crate::effective::Effective;
use crate::grid::{Axis, Grid};
use crate::job::{Job, Layers, prepend};
use fleet_base::{Error, Result};
use fleet_config::Problem;
use fleet_ir::{OpRole, Program, VarId};
use fleet_nn::optimizer::{DividedUpdate, OptimizerDesc};
use fleet_ops::comm::same_batch;
use fleet_ops::{OpDef, Registry};
use std::collections::HashSet;

pub struct TensorParallel;

impl Strategy for TensorParallel {
    fn wanted(&self, strategy: &Effective<'_>) -> bool {
        Grid::field(strategy, Axis::Tensor).is_some_and(|(_, degree)| degree > 1)
    }

    fn field(&self, strategy: &Effective<'_>) -> String {
        match Grid::field(strategy, Axis::Tensor) {
            Some((field, _)) => field,
            None => self.switch().to_string(),
        }
    }

    fn conflicts(&self) -> &'static [Conflict] {
        &[
            (StrategyId::LocalSgd, "ranks that share layers cannot train alone"),
            (StrategyId::AdaptiveLocalSgd, "ranks that share layers cannot train alone"),
            (StrategyId::Dgc, "dgc selects the largest elements of whole gradients"),
        ]
    }

    fn check(&self, strategy: &Effective<'_>, problems: &mut Vec<Problem>) {
        let configs = strategy.tensor_parallel_configs();
        let degree = configs.tensor_parallel_degree();
        let path = "tensor_parallel_configs.tensor_parallel_degree";
        if degree > 1 && !strategy.tensor_parallel() {
            let problem = Problem::error(path, format!("{degree} ranks share no layers"))
                .why("tensor_parallel is off")
                .help("set tensor_parallel to true, or use hybrid_configs.mp_degree");
            problems.push(problem);
        }
        if strategy.hybrid_configs().mp_split_sequence() && !self.wanted(strategy) {
            let path = "hybrid_configs.mp_split_sequence";
            let problem = Problem::warning(path, "has no effect without mp_degree")
                .why("ranks share no layers")
                .help("set mp_degree to the number of ranks that share layers, or remove it");
            problems.push(problem);
        }
        if strategy.tensor_parallel() && Grid::field(strategy, Axis::Tensor).is_none() {
            let problem = Problem::warning("tensor_parallel", "has no effect without a degree")
                .why("one rank has all of a layer")
                .help(format!("set {path} to the number of ranks that share layers"));
            problems.push(problem);
        }
    }

    fn with_servers(&self) -> WithServers {
        WithServers::Refused("servers hold the parameters")
    }

    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        let field = self.field(strategy);
        let parts = match facts.grid(strategy) {
            Ok(grid) => grid.degree(Axis::Tensor),
            Err((field, reason)) => return Applies::Refused(field, reason),
        };
        let divided = marked(facts.program);
        if divided.is_empty() {
            let reason = format!(
                "{parts} ranks share layers, but no parameter of the program may be divided: mark \
                 layers with Fc::split, Embedding::split_vocabulary, TransformerLayer::split"
            );
            return Applies::Refused(field, reason);
        }
        if let Some(rule) = rule_of_norms(facts.optimizer) {
            return Applies::Refused(
                field,
                format!("{rule} conflicts with {parts} ranks that share layers: {NORMS}"),
            );
        }
        Applies::Yes(format!("{parts} ranks share layers, and divide {} parameters", divided.len()))
    }

    fn optimizer(&self, job: &mut Job<'_>) -> Result<()> {
        let parts = job.grid.degree(Axis::Tensor);
        let ring = job.ring_along(&format!("parts of layers, {parts}"), Axis::Tensor);
        let part = job.grid.place(Axis::Tensor, job.ranks.rank);
        job.layers = Some(Layers { ring, part, parts });
        job.at.divided = Some(DividedUpdate { ring, nranks: parts });
        // Rings of copies have the documented number.
        job.reserve_rings(if job.strategy.sharding() { 1 } else { FIRST_COPIES_RING });
        Ok(())
    }

    fn forward(&self, job: &mut Job<'_>) -> Result<()> {
        let layers = layers(job)?;
        if job.updates.is_some() {
            return Err(Error::unsupported("tensor parallelism of a program that has updates")
                .help("let the strategy's minimize add gradients and updates"));
        }
        job.whole = Some(job.programs.main.clone());
        let by_sequence = job.strategy.hybrid_configs().mp_split_sequence();
        let loss = job.loss;
        let made = tensor_layout::divide(job.programs, job.registry, layers, loss, by_sequence)?;
        job.notes.push(format!(
            "tensor parallelism: rank {} of {} has a part of {} of {} parameters; the forward pass \
             sums {} values over ranks",
            layers.part, layers.parts, made.divided, made.params, made.sums
        ));
        Ok(())
    }

    fn finish(&self, job: &mut Job<'_>) -> Result<()> {
        let (Layers { ring, parts, .. }, main) = (layers(job)?, &job.programs.main);
        let mut read = HashSet::new();
        main.root_ops().for_each(|(id, _)| main.reads_of(id, &mut read));
        let fed = main.vars().filter(|(id, var)| var.is_data && read.contains(id));
        let (fed, names): (Vec<VarId>, Vec<String>) =
            fed.map(|(id, var)| (id, var.name.clone())).unzip();
        if fed.is_empty() {
            return Ok(());
        }
        // Not a part of the forward pass, so evaluations feed what they need.
        let mut emit = job.emit_into(Program::ROOT, OpRole::DIST);
        let call = emit.op(&same_batch::DEF).inputs("X", &fed).attr("names", names);
        let call = call.attr("ring_id", ring).attr("nranks", parts);
        call.attr("use_calc_stream", true).attr("label", "samples").done()?;
        let ops = std::mem::take(&mut emit.ops);
        prepend(&mut job.programs.main, ops);
        Ok(())
    }

    fn startup(&self, job: &mut Job<'_>) -> Result<()> {
        let layers = layers(job)?;
        let startup = &job.programs.startup;
        let whole =
            startup.parameters().filter(|(_, var)| var.division.is_none_or(|it| !it.is_part()));
        let whole: Vec<VarId> = whole.map(|(id, _)| id).collect();
        broadcast_parameters(job, &whole, (layers.ring, layers.parts))
    }
}

pub(super) const NORMS: &str = "it needs norms of whole parameters, of which each rank has a part";

/// The documented number of the first ring of copies; 1 is that of sharding.
const FIRST_COPIES_RING: i64 = 2;

fn layers(job: &Job<'_>) -> Result<Layers> {
    job.layers.ok_or_else(|| Error::internal("tensor parallelism has no ring"))
}

/// Returns the parameters that ranks may divide.
fn marked(program: &Program) -> Vec<VarId> {
    program.parameters().filter(|(_, var)| var.division.is_some()).map(|(id, _)| id).collect()
}

/// Returns the rule of an optimizer that needs more of a parameter than single elements, and cannot
/// get it from the ranks that have the other parts.
pub(super) fn rule_of_norms(optimizer: &OptimizerDesc) -> Option<&'static str> {
    let rules = [Some(optimizer), optimizer.rows.as_deref()].into_iter().flatten();
    let is_elementwise = |name: &&str| {
        let def = Registry::standard().find(name);
        def.is_some_and(|OpDef { traits, .. }| {
            (traits.elementwise || traits.elementwise_unpadded) && !traits.norms
        })
    };
    let alone = rules.filter(|it| it.rule.op_of_parts().is_none());
    alone.map(|it| it.rule.op()).find(|name| !is_elementwise(name))
}
