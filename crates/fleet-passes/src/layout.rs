//! Chooses the memory layout of images and filters.
//!
//! Users write NCHW, but the convolution kernels need channels last and packed filters. Starting
//! from the image ops, the pass finds every four-dimensional variable connected to them by
//! elementwise ops. It gives each a channels-last twin and moves these ops to the twins. Where
//! another op reads or writes such a variable, it inserts a transpose (a view if the image is 1x1).
//! Filters are stored packed in the scope if they are used only by convolutions and elementwise ops
//! (gradient, optimizer state).

use fleet_base::Result;
use fleet_ir::{Attr, Op, OpId, Program, Var, VarId, VarKind};
use fleet_ops::nn::conv2d;
use fleet_ops::tensor::{reshape, transpose};
use fleet_ops::{Emit, Images, Registry};
use fleet_tensor::{DType, Layout, Shape};
use std::collections::{HashMap, HashSet};

pub(crate) fn run(program: &mut Program, registry: &Registry, keep: &[VarId]) -> Result<bool> {
    let mut images = seeds(program, registry);
    if images.is_empty() {
        return Ok(false);
    }
    spread(program, registry, &mut images);
    let nhwc_vars = make_nhwc_vars(program, &images)?;
    rewrite(program, registry, keep, &nhwc_vars)?;
    pack_filters(program, registry, keep);
    Ok(true)
}

/// Returns the images of an op, if it has any.
fn images_of(registry: &Registry, op: &Op) -> Option<Images> {
    registry.find(op.name()).and_then(|def| def.traits.images)
}

fn is_nchw_op(registry: &Registry, op: &Op) -> bool {
    images_of(registry, op).is_some_and(|images| op.attr_str(images.format) == "NCHW")
}

fn is_image(program: &Program, var: VarId) -> bool {
    let var = program.var(var);
    var.shape.rank() == 4 && !var.persistable && var.kind == VarKind::Dense
}

/// Returns the variables in the image slots of NCHW ops.
fn seeds(program: &Program, registry: &Registry) -> HashSet<VarId> {
    let mut images = HashSet::new();
    for (_, op) in program.root_ops().filter(|(_, op)| is_nchw_op(registry, op)) {
        images.extend(image_vars(registry, op).into_iter().filter(|var| is_image(program, *var)));
    }
    images
}

fn image_vars(registry: &Registry, op: &Op) -> Vec<VarId> {
    let Some(images) = images_of(registry, op) else { return Vec::new() };
    let (inputs, outputs) = (op.spec.inputs.iter(), op.spec.outputs.iter());
    let slots = inputs.zip(&op.inputs).chain(outputs.zip(&op.outputs));
    let images = slots.filter(|(slot, _)| images.slots.contains(&slot.name));
    images.flat_map(|(_, vars)| vars).copied().collect()
}

fn vars_of(op: &Op) -> impl Iterator<Item = VarId> {
    op.all_inputs().chain(op.all_outputs())
}

/// Returns whether the op is elementwise on images of one shape.
fn is_elementwise(program: &Program, registry: &Registry, op: &Op) -> bool {
    let traits = registry.find(op.name()).map(|def| &def.traits);
    if !traits.is_some_and(|traits| traits.elementwise || traits.elementwise_unpadded) {
        return false;
    }
    let mut vars = vars_of(op);
    let Some(first) = vars.next() else { return false };
    let shape = program.var(first).shape;
    is_image(program, first)
        && vars.all(|var| is_image(program, var) && program.var(var).shape == shape)
}

/// Adds the variables connected to the images by elementwise ops.
fn spread(program: &Program, registry: &Registry, images: &mut HashSet<VarId>) {
    let alike: Vec<&Op> = program
        .root_ops()
        .map(|(_, op)| op)
        .filter(|op| is_elementwise(program, registry, op))
        .collect();
    loop {
        let before = images.len();
        for op in &alike {
            let vars: Vec<VarId> = vars_of(op).collect();
            if vars.iter().any(|var| images.contains(var)) {
                images.extend(vars);
            }
        }
        if images.len() == before {
            return;
        }
    }
}

fn nhwc(shape: Shape) -> Shape {
    Shape::from([shape[0], shape[2], shape[3], shape[1]])
}

fn make_nhwc_vars(program: &mut Program, images: &HashSet<VarId>) -> Result<HashMap<VarId, VarId>> {
    let mut order: Vec<VarId> = images.iter().copied().collect();
    order.sort_unstable();
    let mut nhwc_vars = HashMap::new();
    for id in order {
        let var = program.var(id);
        let (dtype, shape) = (var.dtype, nhwc(var.shape));
        let name = format!("{}@NHWC", var.name);
        let name = program.fresh_name(&name);
        let twin = program.add_var(Program::ROOT, Var::new(name, dtype, shape))?;
        nhwc_vars.insert(id, twin);
    }
    Ok(nhwc_vars)
}

/// Forms of an image that hold its value at some point of the program.
#[derive(Clone, Copy, Default)]
struct Valid {
    original: bool,
    twin: bool,
}

fn rewrite(
    program: &mut Program,
    registry: &Registry,
    keep: &[VarId],
    nhwc_vars: &HashMap<VarId, VarId>,
) -> Result<()> {
    let ops: Vec<OpId> = program.block(Program::ROOT).ops().to_vec();
    let mut valid: HashMap<VarId, Valid> = nhwc_vars
        .keys()
        .map(|id| (*id, Valid { original: program.var(*id).is_data, twin: false }))
        .collect();
    let mut out = Vec::with_capacity(ops.len());
    for id in ops {
        let op = program.op(id).clone();
        let has_twin = |var: &VarId| nhwc_vars.contains_key(var);
        let moved: Vec<VarId> = if is_nchw_op(registry, &op)
            && can_use_nhwc(registry, &op, has_twin)
        {
            image_vars(registry, &op)
        } else if is_elementwise(program, registry, &op) && vars_of(&op).all(|var| has_twin(&var)) {
            vars_of(&op).collect()
        } else {
            Vec::new()
        };
        let written = accesses(id, program, nhwc_vars, Program::writes_of);
        let mut wanted = accesses(id, program, nhwc_vars, Program::reads_of);
        if op.sub_block().is_some() {
            // A conditional block that does not run keeps the previous value.
            wanted.extend(&written);
        }
        for var in wanted {
            let wants_twin = moved.contains(&var);
            convert(
                program,
                registry,
                &op,
                var,
                nhwc_vars[&var],
                wants_twin,
                &mut valid,
                &mut out,
            )?;
        }
        if !moved.is_empty() {
            move_op(program, registry, id, &op, &moved, nhwc_vars)?;
        }
        for var in written {
            let twin = moved.contains(&var);
            valid.insert(var, Valid { original: !twin, twin });
        }
        out.push(id);
    }
    for var in keep.iter().filter(|var| nhwc_vars.contains_key(var)) {
        let Some(last) = out.last().map(|id| program.op(*id).clone()) else { continue };
        convert(program, registry, &last, *var, nhwc_vars[var], false, &mut valid, &mut out)?;
    }
    program.set_block_ops(Program::ROOT, out);
    Ok(())
}

/// Returns whether all images of an op have twins, and no image is also another operand, such as
/// the filter. One format applies to all images of an op.
fn can_use_nhwc(registry: &Registry, op: &Op, has_twin: impl Fn(&VarId) -> bool) -> bool {
    let images = image_vars(registry, op);
    let uses = vars_of(op).filter(|var| images.contains(var)).count();
    images.iter().all(has_twin) && uses == images.len()
}

/// Returns the images that an op reads or writes. For a conditional block, these are the images of
/// its ops, which stay unchanged.
fn accesses(
    id: OpId,
    program: &Program,
    nhwc_vars: &HashMap<VarId, VarId>,
    list: fn(&Program, OpId, &mut HashSet<VarId>),
) -> Vec<VarId> {
    let mut all = HashSet::new();
    list(program, id, &mut all);
    let mut images: Vec<VarId> =
        all.into_iter().filter(|var| nhwc_vars.contains_key(var)).collect();
    images.sort_unstable();
    images
}

/// Makes the requested form of an image if it does not exist yet.
#[allow(clippy::too_many_arguments, reason = "the program and the state of the walk over it")]
fn convert(
    program: &mut Program,
    registry: &Registry,
    like: &Op,
    original: VarId,
    twin: VarId,
    wants_twin: bool,
    valid: &mut HashMap<VarId, Valid>,
    out: &mut Vec<OpId>,
) -> Result<()> {
    let held = valid.get(&original).copied().unwrap_or_default();
    let (have, there) =
        if wants_twin { (held.twin, held.original) } else { (held.original, held.twin) };
    // Planning reports variables that have not been written.
    if have || !there {
        return Ok(());
    }
    let (from, to) = if wants_twin { (original, twin) } else { (twin, original) };
    let shape = program.var(original).shape;
    let axes: [i64; 4] = if wants_twin { [0, 2, 3, 1] } else { [0, 3, 1, 2] };
    let is_point = (shape[2], shape[3]) == (1, 1);
    let wanted = program.var(to).shape;
    let (source, device) = (like.source.clone(), like.device.clone());
    let mut emit = Emit { source, device, ..Emit::new(program, registry, like.role) };
    if is_point {
        let dims = vec![0, wanted[1], wanted[2], wanted[3]];
        emit.op(&reshape::RESHAPE).input("X", from).attr("shape", dims).output("Out", to).done()?;
    } else {
        let axes = axes.to_vec();
        emit.op(&transpose::DEF).input("X", from).attr("axis", axes).output("Out", to).done()?;
    }
    out.append(&mut emit.ops);
    valid.insert(original, Valid { original: true, twin: true });
    Ok(())
}

fn move_op(
    program: &mut Program,
    registry: &Registry,
    id: OpId,
    op: &Op,
    moved: &[VarId],
    nhwc_vars: &HashMap<VarId, VarId>,
) -> Result<()> {
    let images = images_of(registry, op);
    let target = program.op_mut(id);
    let (inputs, outputs) = (op.spec.inputs.iter(), op.spec.outputs.iter());
    let slots = inputs.zip(&mut target.inputs).chain(outputs.zip(&mut target.outputs));
    for (spec, vars) in slots {
        if images.is_none_or(|images| images.slots.contains(&spec.name)) {
            vars.iter_mut().filter(|var| moved.contains(var)).for_each(|var| *var = nhwc_vars[var]);
        }
    }
    if let Some(images) = images {
        target.set_attr(images.format, Attr::Str("NHWC".to_string()))?;
    }
    Ok(())
}

/// Marks filters, their gradients and their optimizer state as packed if every op that uses them
/// allows it.
fn pack_filters(program: &mut Program, registry: &Registry, keep: &[VarId]) {
    let kept: HashSet<VarId> = keep.iter().copied().collect();
    let filters: Vec<VarId> = program
        .root_ops()
        .filter(|(_, op)| conv2d::DEF.is(op) && op.attr_str("data_format") == "NHWC")
        .filter(|(_, op)| op.attr_int("groups") == 1)
        .flat_map(|(_, op)| op.input("Filter").to_vec())
        .filter(|var| program.var(*var).persistable && program.var(*var).dtype == DType::F32)
        .collect();
    for filter in filters {
        if program.var(filter).layout == Layout::RowMajor
            && let Some(group) = packable_group(program, registry, &kept, filter)
        {
            for var in group {
                program.var_mut(var).layout = Layout::Filter64;
            }
        }
    }
}

/// Returns the filter and all variables of its shape that ops connect to it, or `None` if an op
/// does not allow packing.
fn packable_group(
    program: &Program,
    registry: &Registry,
    kept: &HashSet<VarId>,
    filter: VarId,
) -> Option<Vec<VarId>> {
    let shape = program.var(filter).shape;
    let mut group: Vec<VarId> = vec![filter];
    let mut done = 0;
    while done < group.len() {
        let var = group[done];
        done += 1;
        let it = program.var(var);
        if (kept.contains(&var) && !it.persistable) || it.is_data || it.kind != VarKind::Dense {
            return None;
        }
        for block in program.block_ids() {
            for (_, op) in program.block_ops(block) {
                if !vars_of(op).any(|other| other == var) {
                    continue;
                }
                let is_conv = (conv2d::DEF.is(op) || conv2d::GRAD.is(op))
                    && op.attr_str("data_format") == "NHWC"
                    && op.attr_int("groups") == 1;
                let slots = [op.input("Filter"), op.output("Filter@GRAD")];
                let of = |vars: &mut dyn Iterator<Item = VarId>| vars.filter(|v| *v == var).count();
                let uses = of(&mut vars_of(op));
                // The variable must be the filter only, and not also the image.
                if is_conv && of(&mut slots.into_iter().flatten().copied()) == uses {
                    add_new(&mut group, slots.into_iter().flatten().copied());
                    continue;
                }
                let traits = &registry.find(op.name())?.traits;
                let fine = traits.elementwise || traits.order_independent;
                if is_conv || !fine || block != Program::ROOT {
                    return None;
                }
                for other in vars_of(op) {
                    let found = program.var(other).shape;
                    if found == shape {
                        add_new(&mut group, [other].into_iter());
                    } else if traits.broadcasts || found.agrees(&shape) {
                        // The variable is broadcast along the filter, or its unknown dimensions may
                        // match the filter's.
                        return None;
                    }
                }
            }
        }
    }
    Some(group)
}

fn add_new(group: &mut Vec<VarId>, vars: impl Iterator<Item = VarId>) {
    for var in vars {
        if !group.contains(&var) {
            group.push(var);
        }
    }
}
