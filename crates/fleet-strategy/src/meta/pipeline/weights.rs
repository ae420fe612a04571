//! The two halves of a backward pass: the gradients that other parts wait for, and the rest, which
//! are those of weights. The rest runs after the gradients are sent, so that other stages wait
//! less.
//!
//! A matrix product or a convolution computes gradients of both kinds. It is repeated, each time
//! with some of its outputs.

use super::flow::Flow;
use super::schedule::Pass;
use super::stages::Place;
use fleet_ir::{Op, OpId, Program, VarId};
use fleet_ops::Registry;
use std::collections::HashSet;

/// An op of a pass, with all or some of its outputs.
#[derive(Clone, Debug)]
pub struct Piece {
    /// Position of the op among all members.
    pub at: usize,
    /// The outputs to compute, if these are not all.
    only: Option<Vec<VarId>>,
}

impl Piece {
    pub fn whole(at: usize) -> Piece {
        Piece { at, only: None }
    }

    /// Returns the op without the other outputs.
    pub fn op(&self, main: &Program, id: OpId) -> Op {
        let mut op = main.op(id).clone();
        if let Some(only) = &self.only {
            op.outputs.iter_mut().for_each(|slot| slot.retain(|var| only.contains(var)));
        }
        op
    }
}

/// Divides the backward pass of a part, whose ops are `members`. Returns `None` if no other part
/// waits for it.
pub fn divide(
    flow: &Flow,
    main: &Program,
    registry: &Registry,
    part: usize,
    members: &[usize],
) -> Option<(Vec<Piece>, Vec<Piece>)> {
    let mut wanted: HashSet<VarId> = flow.sent(Pass::Backward, part).iter().copied().collect();
    let others = flow.members.iter().filter(|it| it.place != Place::Part(part));
    wanted.extend(others.flat_map(|it| main.op(it.id).all_inputs()));
    let op_at = |at: &usize| main.op(flow.members[*at].id);
    // Ops keep their order where a variable has several values, or is state.
    let mut written = HashSet::new();
    let results = members.iter().flat_map(|at| op_at(at).all_outputs());
    let changing: HashSet<VarId> =
        results.filter(|var| main.var(*var).persistable || !written.insert(*var)).collect();
    let (mut first, mut rest) = (Vec::new(), Vec::new());
    let mut is_early_wanted = false;
    for at in members.iter().rev() {
        let op = op_at(at);
        let (early, late): (Vec<VarId>, Vec<VarId>) =
            op.all_outputs().partition(|var| wanted.contains(var));
        is_early_wanted |= !early.is_empty();
        let traits = registry.find(op.name()).map(|def| &def.traits);
        let is_bound = op.sub_block().is_some()
            || traits.is_none_or(|traits| traits.effect)
            || op.all_inputs().chain(op.all_outputs()).any(|var| changing.contains(&var));
        if early.is_empty() && !is_bound {
            rest.push(Piece::whole(*at));
            continue;
        }
        wanted.extend(op.all_inputs());
        let is_separable = !is_bound && traits.is_some_and(|traits| traits.separable);
        if late.is_empty() || !is_separable {
            first.push(Piece::whole(*at));
        } else {
            first.push(Piece { at: *at, only: Some(early) });
            rest.push(Piece { at: *at, only: Some(late) });
        }
    }
    first.reverse();
    rest.reverse();
    is_early_wanted.then_some((first, rest))
}
