//! Finds the persistent variables of a program that differ between the ranks of a job.
//!
//! Ranks run the same program with different data. Values computed from fed data differ; the result
//! of a collective is the same on all ranks. So these variables can be found in the program: values
//! flow from fed variables through ops, and stop at sums, broadcasts and gathers. In data parallel
//! training, only batch statistics remain. Gradient merge adds its accumulators, LocalSGD the
//! parameters between two averagings, and DGC the unsent parts of gradients. Sharding adds the
//! state that only one rank of a ring has: what follows from a sum that only its root receives.
//!
//! A stage of a pipeline exchanges messages with other stages, and owns all of its state.
//!
//! Of a variable that ranks divide, each has a part. Ranks that share layers have the same data,
//! and their ring makes no value the same on the other ranks. Ranks that divide classes have data
//! of their own.
//!
//! The definitions of ops state which outputs are the same on all ranks and how state passes to
//! another number of ranks ([`fleet_ops::OpTraits`]). Only state of which every op that writes it
//! says so is averaged.

use fleet_ir::{BlockId, Op, Program, Var, VarId};
use fleet_ops::{OpTraits, Registry, Spread};
use std::collections::{HashMap, HashSet};

/// A variable with a different value on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalVar {
    /// Name of the variable.
    pub name: String,
    /// How its values pass to another number of ranks.
    pub spread: Spread,
}

/// Returns the variables of a rank's main program that persist between steps and differ between
/// ranks.
///
/// ```
/// use fleet_nn::prelude::*;
/// use fleet_strategy::{DistributedStrategy, Ranks, Spread, local_state, minimize};
/// let net = Net::new();
/// let (x, y) = (net.data("x", [-1, 2], DType::F32), net.data("y", [-1, 1], DType::F32));
/// let loss = x.fc(1).batch_norm(BatchNorm::new()).mse_loss(y, Reduction::Mean).id();
/// let strategy = DistributedStrategy::new();
/// net.rewrite_with(|programs, registry| {
///     minimize(programs, registry, loss, &Sgd::new(0.1).into(), &strategy, Ranks::new(0, 4))
/// })?;
/// let local = local_state(&net.build()?.main);
/// let names: Vec<&str> = local.iter().map(|var| &*var.name).collect();
/// assert_eq!(names, ["batch_norm_0.w_1", "batch_norm_0.w_2"]); // mean and variance
/// assert_eq!(local[0].spread, Spread::Mean);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn local_state(main: &Program) -> Vec<LocalVar> {
    if is_stage(main) {
        let owned = |name: String| LocalVar { name, spread: Spread::Owner };
        let kept = main.vars().filter(|(_, var)| var.persistable);
        let mut names: Vec<String> = kept.map(|(_, var)| var.name.clone()).collect();
        names.sort();
        return names.into_iter().map(owned).collect();
    }
    let shares_layers = layer_ranks(main) > 1;
    let has_copies = !shares_layers || uses_other_rings(main);
    let fed = main.vars().filter(|(_, var)| var.is_data && has_copies);
    let fed: HashMap<VarId, Differs> = fed.map(|(id, _)| (id, Differs::ByData)).collect();
    let layers = shares_layers.then_some(LAYER_RING);
    let mut kept: HashMap<VarId, Differs> = HashMap::new();
    loop {
        let mut local = fed.clone();
        local.extend(&kept);
        flow(main, Program::ROOT, layers, &mut local);
        let before = kept.clone();
        for (var, differs) in local.into_iter().filter(|(var, _)| main.var(*var).persistable) {
            let known = kept.entry(var).or_insert(differs);
            *known = known.and(differs);
        }
        if kept == before {
            break;
        }
    }
    let local = |(var, differs)| LocalVar {
        name: main.var_name(var).to_string(),
        spread: match differs {
            Differs::ByOwner { .. } => Spread::Owner,
            Differs::ByData => spread(main, var),
        },
    };
    let parts = main.vars().filter(|(id, var)| divided(var) && !kept.contains_key(id));
    let mut found: Vec<LocalVar> = parts
        .map(|(_, var)| LocalVar { name: var.name.clone(), spread: Spread::Owner })
        .chain(kept.iter().map(|(var, differs)| local((*var, *differs))))
        .collect();
    found.sort_by(|a, b| a.name.cmp(&b.name));
    found
}

/// Returns the number of neighbouring ranks that share layers and have the same samples; 1 if each
/// rank has its own.
///
/// Ranks that divide classes have parts of parameters, but samples of their own.
pub fn layer_ranks(main: &Program) -> usize {
    let mut ops = main.block_ids().flat_map(|block| main.block_ops(block));
    if ops.any(|(_, op)| traits(op).gathers_samples) {
        return 1;
    }
    let parts = main.vars().filter(|(_, var)| divided(var)).filter_map(|(_, var)| var.division);
    parts.map(|division| division.parts).max().unwrap_or(1)
}

/// Returns whether ranks have parts of a variable that persists between steps.
fn divided(var: &Var) -> bool {
    var.persistable && var.division.is_some_and(|it| it.is_part())
}

/// Returns whether a program is a stage of a pipeline: whether it sends messages to single ranks.
fn is_stage(main: &Program) -> bool {
    main.root_ops().any(|(_, op)| op.attr("peer").is_some())
}

/// The ring of ranks that share layers, in programs with divided variables.
pub(crate) const LAYER_RING: i64 = 0;

/// Returns whether ranks communicate that do not share layers.
fn uses_other_rings(main: &Program) -> bool {
    let ops = main.block_ids().flat_map(|block| main.block_ops(block));
    ops.map(|(_, op)| op)
        .filter(|op| op.spec.attr_index("ring_id").is_some())
        .any(|op| op.attr_int("ring_id") != LAYER_RING)
}

/// Why a value is not the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Differs {
    /// Each rank computes its own from its data.
    ByData,
    /// One rank of this ring has the value.
    ByOwner { ring: i64 },
}

impl Differs {
    /// Returns why a value differs that follows from two values.
    fn and(self, other: Differs) -> Differs {
        if self == other { self } else { Differs::ByData }
    }
}

/// Follows local values through the ops of a block.
fn flow(main: &Program, block: BlockId, layers: Option<i64>, local: &mut HashMap<VarId, Differs>) {
    for (id, op) in main.block_ops(block) {
        if let Some(inner) = op.sub_block() {
            let mut taken = local.clone();
            flow(main, inner, layers, &mut taken);
            let condition = op.all_inputs().filter_map(|var| local.get(&var).copied());
            if let Some(differs) = condition.reduce(Differs::and) {
                // Ranks may differ in whether the block runs, so everything it writes differs.
                let mut written = HashSet::new();
                main.writes_of(id, &mut written);
                taken.extend(written.into_iter().map(|var| (var, differs)));
            }
            // The block may run or not, so the variables of both cases are local.
            for (var, differs) in taken {
                let known = local.entry(var).or_insert(differs);
                *known = known.and(differs);
            }
            continue;
        }
        for (at, vars) in op.outputs.iter().enumerate() {
            let differs = differs(op, at, layers, local);
            for var in vars {
                match differs {
                    Some(differs) => local.insert(*var, differs),
                    None => local.remove(var),
                };
            }
        }
    }
}

/// Returns why the output slot at an index differs between ranks; `None` if it does not.
fn differs(
    op: &Op,
    output: usize,
    layers: Option<i64>,
    local: &HashMap<VarId, Differs>,
) -> Option<Differs> {
    let (slot, traits) = (op.spec.outputs[output].name, traits(op));
    let inputs = op.spec.inputs.iter().zip(&op.inputs);
    let inputs = inputs.filter(|(input, _)| !traits.independent.contains(&(slot, input.name)));
    let read = inputs.flat_map(|(_, vars)| vars);
    let differs = read.filter_map(|var| local.get(var).copied()).reduce(Differs::and)?;
    let ring = op.spec.attr_index("ring_id").map(|_| op.attr_int("ring_id"));
    match (differs, ring) {
        (_, Some(_)) if ring == layers => Some(differs),
        (_, Some(ring)) if traits.owned.contains(&slot) => Some(Differs::ByOwner { ring }),
        // Sums of owners of several rings do not pass the value to the other ranks of a ring.
        (Differs::ByOwner { ring: of }, ring) if ring != Some(of) => Some(differs),
        _ if traits.common.contains(&slot) => None,
        _ => Some(differs),
    }
}

/// Returns the traits of an op; those of an op that states nothing if it is unknown.
fn traits(op: &Op) -> &'static OpTraits {
    static PLAIN: OpTraits = OpTraits::plain();
    Registry::standard().find(op.name()).map_or(&PLAIN, |def| &def.traits)
}

/// Combines what the ops that write a variable state about it.
fn spread(main: &Program, var: VarId) -> Spread {
    let mut spread = match main.var(var).dtype.is_float() {
        true => Spread::Mean,
        false => Spread::First,
    };
    for block in main.block_ids() {
        for (_, op) in main.block_ops(block) {
            let Some(slot) = slot_of(op, var) else { continue };
            let traits = traits(op);
            let adds = traits.accumulates && op.all_inputs().any(|input| input == var);
            if adds || traits.spread == Spread::Share {
                return Spread::Share;
            }
            // A write of one value on all ranks does not restrict how others are combined.
            let is_common = traits.common.contains(&slot) || op.all_inputs().next().is_none();
            if traits.spread == Spread::First && !is_common {
                spread = Spread::First;
            }
        }
    }
    spread
}

/// Returns the output slot of an op that holds a variable.
fn slot_of(op: &Op, var: VarId) -> Option<&'static str> {
    let mut slots = op.spec.outputs.iter().zip(&op.outputs);
    slots.find(|(_, vars)| vars.contains(&var)).map(|(slot, _)| slot.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_state_of_ops_that_say_so_is_averaged() {
        let text = "fleet program 1
            block0 {
            %x: f32[1] data
            %highest: f32[1] persistable
            %mean: f32[1] persistable
            %total: f32[1] persistable
            %same: f32[1] persistable
            %sum: f32[1]
            %replicas: f32[1]
            %velocity: f32[1] persistable
            %parameter: f32[1] persistable
            (Out: %highest) = elementwise_max(X: %highest, Y: %x)
            (Out: %mean) = scale(X: %x) {scale: 0.5}
            (Out: %total) = elementwise_add(X: %total, Y: %x)
            (Out: %same) = c_allreduce_max(X: %x)
            (Out: %sum) = c_reduce_sum(X: %x) {nranks: 4}
            (Out: %replicas) = c_allreduce_sum(X: %sum) {ring_id: 1, nranks: 2}
            (Out: %velocity) = elementwise_add(X: %velocity, Y: %replicas)
            (Out: %parameter) = elementwise_add(X: %parameter, Y: %velocity)
            (Out: %parameter) = c_broadcast(X: %parameter) {nranks: 4}
            }";
        let program = Program::parse(text, Registry::standard()).unwrap();
        let found: Vec<(String, Spread)> =
            local_state(&program).into_iter().map(|var| (var.name, var.spread)).collect();
        let expected = [
            ("highest", Spread::First),
            ("mean", Spread::Mean),
            ("total", Spread::Share),
            ("velocity", Spread::Owner),
        ];
        assert_eq!(found, expected.map(|(name, spread)| (name.to_string(), spread)));
    }
}
