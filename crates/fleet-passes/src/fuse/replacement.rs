//! The new ops of a fusion, and the checks that they can take the place of the old ones.

use super::graph::{Edit, Graph, emit_like};
use super::pattern::{Line, Match, Slot, bare};
use fleet_base::{Error, Result};
use fleet_ir::{Attr, OpId, Program, VarId};
use fleet_ops::{OpDef, Registry};
use std::collections::HashSet;

/// The new ops of a match.
pub(super) struct Replacement {
    ops: Vec<NewOp>,
}

struct NewOp {
    def: &'static OpDef,
    /// The op from which role and source location are taken.
    like: OpId,
    /// The op whose position is taken.
    place: OpId,
    inputs: Vec<(&'static str, Vec<VarId>)>,
    outputs: Vec<(&'static str, Vec<VarId>)>,
    attrs: Vec<(&'static str, Attr)>,
}

impl Replacement {
    pub fn new(found: &Match<'_>, lines: &[&Line], registry: &Registry) -> Result<Replacement> {
        let ops = lines.iter().map(|line| NewOp::new(found, line, registry));
        Ok(Replacement { ops: ops.collect::<Result<_>>()? })
    }

    /// Returns whether other ops cannot tell the new ops from the old ones.
    pub fn is_safe(&self, found: &Match<'_>) -> bool {
        let old = found.op_ids();
        is_one_value(found, &old)
            && self.stores_used_results(found, &old)
            && self.ops.iter().all(|op| op.can_move(found, &old))
    }

    /// Returns whether every result of the old ops that no new op computes is unused elsewhere.
    fn stores_used_results(&self, found: &Match<'_>, old: &[OpId]) -> bool {
        let stored: HashSet<VarId> = self.ops.iter().flat_map(|op| vars(&op.outputs)).collect();
        let results = old.iter().flat_map(|id| found.program.op(*id).all_outputs());
        let mut dropped = results.filter(|var| !stored.contains(var));
        dropped.all(|var| found.graph.is_only_read_by(found.program, var, old))
    }

    /// Emits the new ops and adds them to `edit`.
    pub fn emit(self, program: &mut Program, registry: &Registry, edit: &mut Edit) -> Result<()> {
        self.ops.into_iter().try_for_each(|op| op.emit(program, registry, edit))
    }
}

/// Returns whether each variable that connects two of the ops has one value.
fn is_one_value(found: &Match<'_>, ops: &[OpId]) -> bool {
    ops.iter().all(|writer| {
        found.program.op(*writer).all_outputs().all(|var| {
            let is_read = |id: &OpId| id != writer && found.graph.readers(var).contains(id);
            found.graph.writers(var).len() == 1 || !ops.iter().any(is_read)
        })
    })
}

fn vars(slots: &[(&'static str, Vec<VarId>)]) -> impl Iterator<Item = VarId> {
    slots.iter().flat_map(|(_, vars)| vars).copied()
}

impl NewOp {
    fn new(found: &Match<'_>, line: &Line, registry: &Registry) -> Result<NewOp> {
        let labelled = |label: &str| {
            found.op_id(label).ok_or_else(|| Error::internal(format!("no op labelled '{label}'")))
        };
        let name = match line.ops.strip_prefix('$') {
            Some(label) => found.program.op(labelled(label)?).name(),
            None => line.ops,
        };
        let def = registry.get(name)?;
        let given = |slots: &[Slot]| -> Vec<(&'static str, Vec<VarId>)> {
            let vars = |names: &[&'static str]| {
                names.iter().flat_map(|name| found.vars(bare(name))).copied().collect()
            };
            slots.iter().map(|(slot, names)| (*slot, vars(names))).collect()
        };
        let (mut inputs, mut outputs) = (given(&line.inputs), given(&line.outputs));
        let mut attrs = found.attrs.clone();
        if let Some(base) = line.base {
            let base = found.program.op(labelled(base)?);
            for slot in def.spec.inputs {
                add(&mut inputs, slot.name, base.input(slot.name).to_vec());
            }
            for slot in def.spec.outputs {
                add(&mut outputs, slot.name, base.output(slot.name).to_vec());
            }
            for attr in def.spec.attrs {
                if let Some(value) = base.attr(attr.name) {
                    add(&mut attrs, attr.name, value.clone());
                }
            }
        }
        let (like, place) = (labelled(line.label)?, labelled(line.place)?);
        Ok(NewOp { def, like, place, inputs, outputs, attrs })
    }

    /// Returns whether the op can run at its position: no remaining op between it and an old op
    /// changes a variable that both read, or uses a variable that both write. Old ops of the same
    /// pass count, if there are any: between the passes, sharding may send a parameter again.
    fn can_move(&self, found: &Match<'_>, old: &[OpId]) -> bool {
        let graph = found.graph;
        let to = graph.position(self.place);
        let is_backward = |id: OpId| found.program.op(id).role.is_backward();
        let is_of_pass = |id: &&OpId| is_backward(**id) == is_backward(self.place);
        let is_free = |var: VarId, uses: fn(&Graph, VarId) -> &[OpId], others: &[&[OpId]]| {
            let all = || uses(graph, var).iter().filter(|id| old.contains(id));
            let has_own = all().any(|id| is_of_pass(&id));
            let mut between = all().filter(|id| !has_own || is_of_pass(id)).map(|id| {
                let from = graph.position(*id);
                from.min(to) + 1..from.max(to)
            });
            between.all(|range| {
                let mut others = others.iter().flat_map(|ids| ids.iter());
                others.all(|id| old.contains(id) || !range.contains(&graph.position(*id)))
            })
        };
        vars(&self.inputs).all(|var| is_free(var, Graph::readers, &[graph.writers(var)]))
            && vars(&self.outputs)
                .all(|var| is_free(var, Graph::writers, &[graph.writers(var), graph.readers(var)]))
    }

    fn emit(self, program: &mut Program, registry: &Registry, edit: &mut Edit) -> Result<()> {
        let mut emit = emit_like(program, registry, self.like);
        let mut call = emit.op(self.def);
        for (slot, vars) in &self.inputs {
            call = call.inputs(slot, vars);
        }
        for (slot, vars) in &self.outputs {
            call = call.outputs(slot, vars);
        }
        for (name, value) in self.attrs {
            call = call.attr(name, value);
        }
        call.done()?;
        let new = std::mem::take(&mut emit.ops);
        edit.replace(&[self.place], self.place, new);
        Ok(())
    }
}

/// Adds an entry unless there is one of its name.
fn add<T>(list: &mut Vec<(&'static str, T)>, name: &'static str, value: T) {
    if list.iter().all(|(other, _)| *other != name) {
        list.push((name, value));
    }
}
