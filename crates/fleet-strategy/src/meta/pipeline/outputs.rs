//! The results of a step under the names of the user's program, from those of its micro-batches.
//!
//! Values with rows are concatenated. Single numbers are means, integers sums. Of an op that also
//! changes state (a metric that counts over steps), the result is that of the last micro-batch.
//! Nothing is computed that no step fetches: the executor drops these ops.
//!
//! The stage of the loss sends it to all others, with the other numbers that no op reads.

use super::flow::{Flow, Origin};
use super::schedule::Pass;
use super::sizes::Sizes;
use super::stages::Place;
use super::unroll::{Unrolled, changes_state};
use crate::pipeline::Size;
use fleet_base::Result;
use fleet_ir::{OpId, OpRole, Program, VarId, VarKind};
use fleet_ops::{
    Emit, Registry,
    comm::broadcast,
    math::{scale, sum},
    tensor::{assign, concat, fill},
};
use fleet_tensor::DType;
use std::collections::{BTreeSet, HashSet};

/// Emits the results of the forward passes of a stage.
pub fn results(
    main: &mut Program,
    registry: &'static Registry,
    flow: &Flow,
    sizes: &Sizes,
    size: Size,
    stage: usize,
    unrolled: &Unrolled,
) -> Result<Vec<OpId>> {
    let mut ops = Vec::new();
    if size.micros == 1 {
        return Ok(ops);
    }
    let mut done: HashSet<VarId> = HashSet::new();
    for (at, member) in flow.members.iter().enumerate() {
        let is_own = match member.place {
            Place::Part(part) => size.stage_of(part) == stage,
            Place::All => true,
        };
        if member.pass != Pass::Forward || !is_own {
            continue;
        }
        for var in main.op(member.id).all_outputs().collect::<Vec<_>>() {
            let is_last = flow.origins.get(&var).is_some_and(|origin| origin.at == at);
            let copies: Option<Vec<VarId>> =
                unrolled.copies.iter().map(|copies| copies.get(&var).copied()).collect();
            let Some(copies) = copies.filter(|_| is_last && done.insert(var)) else { continue };
            let mut emit = Emit::new(main, registry, OpRole::FORWARD);
            emit.device.clone_from(&emit.program.op(member.id).device);
            let keeps_state = changes_state(emit.program, emit.program.op(member.id));
            result(&mut emit, sizes, var, &copies, keeps_state)?;
            ops.append(&mut emit.ops);
        }
    }
    Ok(ops)
}

/// Emits the result of one variable, if there is one.
fn result(
    emit: &mut Emit<'_>,
    sizes: &Sizes,
    var: VarId,
    copies: &[VarId],
    keeps_state: bool,
) -> Result<()> {
    let it = emit.program.var(var);
    let (kind, dtype, is_number) = (it.kind, it.dtype, it.shape.numel() == Some(1));
    if kind != VarKind::Dense {
        return Ok(());
    }
    if sizes.has_rows(emit.program, var) {
        let call = emit.op(&concat::CONCAT).inputs("X", copies).output("Out", var);
        return call.attr("axis", 0i64).done().map(drop);
    }
    if keeps_state && is_number {
        let last = copies[copies.len() - 1];
        return emit.op(&assign::DEF).input("X", last).output("Out", var).done().map(drop);
    }
    if is_number && dtype.is_float() {
        let total = emit.op(&sum::DEF).inputs("X", copies).one("Out")?;
        let call = emit.op(&scale::DEF).input("X", total).output("Out", var);
        return call.attr("scale", 1.0 / copies.len() as f64).done().map(drop);
    }
    if is_number && matches!(dtype, DType::I32 | DType::I64) {
        return emit.op(&sum::DEF).inputs("X", copies).output("Out", var).done().map(drop);
    }
    Ok(())
}

/// Returns the loss and the other numbers of its stage that no op reads, and the stage.
pub fn numbers(main: &Program, flow: &Flow, size: Size, loss: VarId) -> (Vec<VarId>, usize) {
    let stage_of = |origin: &Origin| match origin.place {
        Place::Part(part) => size.stage_of(part),
        Place::All => 0,
    };
    let Some(origin) = flow.origins.get(&loss) else { return (Vec::new(), 0) };
    let stage = stage_of(origin);
    let read: HashSet<VarId> =
        flow.members.iter().flat_map(|member| main.op(member.id).all_inputs()).collect();
    let is_number = |var: VarId| {
        let it = main.var(var);
        it.shape.numel() == Some(1) && it.dtype.is_float() && it.kind == VarKind::Dense
    };
    let leaves = flow.origins.iter().filter(|(var, origin)| {
        origin.pass == Pass::Forward
            && origin.place != Place::All
            && stage_of(origin) == stage
            && !read.contains(var)
            && is_number(**var)
    });
    let mut found: BTreeSet<VarId> = leaves.map(|(var, _)| *var).collect();
    found.insert(loss);
    (found.into_iter().collect(), stage)
}

/// Emits the broadcast of numbers from one stage to the others.
pub fn share(
    main: &mut Program,
    registry: &'static Registry,
    numbers: &[VarId],
    (root, stage): (usize, usize),
    (ring, nranks): (i64, usize),
) -> Result<Vec<OpId>> {
    let mut emit = Emit::new(main, registry, OpRole::FORWARD);
    if root != stage {
        for var in numbers {
            let it = emit.program.var(*var);
            let (shape, dtype) = (it.shape.to_vec(), it.dtype);
            let call = emit.op(&fill::EMPTY).attr("shape", shape).attr("dtype", dtype);
            call.output("Out", *var).done()?;
        }
    }
    let call = emit.op(&broadcast::DEF).inputs("X", numbers).outputs("Out", numbers);
    let call = call.attr("ring_id", ring).attr("nranks", nranks).attr("root", root);
    call.attr("label", format!("results of stage {root}")).done()?;
    Ok(emit.ops)
}
