//! The flat order of a program: its ops in sequence with the lane of each. Conditional parts are
//! inlined behind jumps.
//!
//! Each lane with ops in a conditional part skips the part by its own jump on the same condition. A
//! collective in a conditional part therefore still runs in its ring's lane, in parallel with
//! compute before and after that part.

use fleet_base::{Error, Result};
use fleet_ir::{BlockId, Op, OpId, Program, VarId};
use fleet_ops::control::conditional_block;
use fleet_ops::{Lane, OpDef, Registry};
use std::collections::HashSet;

/// The op that runs its sub-block if its condition holds. The planner handles it itself.
pub(crate) const CONDITIONAL: &str = conditional_block::DEF.spec.name;

/// One entry of the flat order.
pub(crate) enum Flat {
    Op(OpId, &'static OpDef),
    /// Makes its lane continue at position `to` if the condition does not hold.
    Jump {
        op: OpId,
        condition: VarId,
        to: usize,
        lane: LaneKey,
    },
}

/// A lane of a plan.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum LaneKey {
    Compute,
    Side(u8),
    Ring(i64),
}

/// Assigns each op to a lane.
pub(crate) struct LaneAssignment {
    /// Whether every op runs in the compute lane.
    one_lane: bool,
    /// Rings that the compute lane serves itself, which therefore have no lane of their own.
    inline_rings: HashSet<i64>,
    /// Whether the program communicates, so that other processes may wait for it.
    pub communicates: bool,
}

impl LaneAssignment {
    /// The calls on a ring have one order, so a single lane makes them all. This is the ring's own
    /// lane, or the compute lane if one of the ring's ops must run there.
    pub fn new(program: &Program, registry: &Registry, one_lane: bool) -> Result<LaneAssignment> {
        let mut assignment =
            LaneAssignment { one_lane, inline_rings: HashSet::new(), communicates: false };
        for block in program.block_ids() {
            for (_, op) in program.block_ops(block).filter(|(_, op)| op.name() != CONDITIONAL) {
                let def = registry.get(op.name())?;
                let Some(ring) = ring_id(op, def) else { continue };
                assignment.communicates = true;
                let has = op.spec.attr_index("use_calc_stream").is_some();
                if has && op.attr_bool("use_calc_stream") || def.traits.lane != Lane::Ring {
                    assignment.inline_rings.insert(ring);
                }
            }
        }
        Ok(assignment)
    }

    pub fn lane(&self, op: &Op, def: &OpDef) -> LaneKey {
        if self.one_lane {
            return LaneKey::Compute;
        }
        match def.traits.lane {
            Lane::Compute => LaneKey::Compute,
            Lane::Side(number) => LaneKey::Side(number),
            Lane::Ring => match ring_id(op, def) {
                Some(ring) if !self.inline_rings.contains(&ring) => LaneKey::Ring(ring),
                _ => LaneKey::Compute,
            },
        }
    }
}

/// Returns the ring on which an op communicates.
fn ring_id(op: &Op, def: &OpDef) -> Option<i64> {
    let communicates = def.traits.effect && op.spec.attr_index("ring_id").is_some();
    communicates.then(|| op.attr_int("ring_id"))
}

/// Whether an op only communicates. An op that also computes, such as synchronous batch norm, does
/// not count.
pub(crate) fn only_communicates(op: &Op, def: &OpDef) -> bool {
    def.traits.lane == Lane::Ring && ring_id(op, def).is_some()
}

/// Lists the ops of the root block, with sub-blocks inlined behind their jumps.
pub(crate) fn flatten(
    program: &Program,
    registry: &Registry,
    lanes: &LaneAssignment,
) -> Result<Vec<Flat>> {
    let mut flat = Vec::new();
    append(&mut flat, program, registry, lanes, Program::ROOT)?;
    Ok(flat)
}

fn append(
    flat: &mut Vec<Flat>,
    program: &Program,
    registry: &Registry,
    lanes: &LaneAssignment,
    block: BlockId,
) -> Result<()> {
    for (id, op) in program.block_ops(block) {
        if op.name() != CONDITIONAL {
            flat.push(Flat::Op(id, registry.get(op.name())?));
            continue;
        }
        let (Some(inner), Some(condition)) = (op.sub_block(), op.input("Cond").first()) else {
            return Err(Error::invalid("conditional_block without condition or block")
                .at(program.describe_op(id)));
        };
        let mut keys = Vec::new();
        lanes_of(program, registry, lanes, inner, &mut keys)?;
        let first = flat.len();
        let jump = |lane: LaneKey| Flat::Jump { op: id, condition: *condition, to: 0, lane };
        flat.extend(keys.iter().copied().map(jump));
        append(flat, program, registry, lanes, inner)?;
        let end = flat.len();
        for jump in &mut flat[first..first + keys.len()] {
            if let Flat::Jump { to, .. } = jump {
                *to = end;
            }
        }
    }
    Ok(())
}

/// Adds the lanes that have ops in a block or in blocks nested in it.
fn lanes_of(
    program: &Program,
    registry: &Registry,
    lanes: &LaneAssignment,
    block: BlockId,
    keys: &mut Vec<LaneKey>,
) -> Result<()> {
    for (_, op) in program.block_ops(block) {
        match op.sub_block().filter(|_| op.name() == CONDITIONAL) {
            Some(inner) => lanes_of(program, registry, lanes, inner, keys)?,
            None => {
                let key = lanes.lane(op, registry.get(op.name())?);
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
    }
    Ok(())
}
