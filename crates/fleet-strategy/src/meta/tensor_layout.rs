//! Divides the layers of a forward pass among ranks, op by op (see `tensor_parallel.rs`).
//!
//! Each variable is whole or divided along an axis. The ops' rules (`fleet_ops::divide`) say which
//! parts they need and make. Communication is inserted where the two differ:
//!
//! * A whole variable of which ranks compute on different parts passes `c_identity`
//!   (`x@IDENTITY`), whose gradient is summed over ranks.
//! * A whole variable of which an op needs a part passes `c_take_part` (`x@SPLIT`), whose gradient
//!   is gathered.
//! * A result that is a sum over ranks is written to `y@PARTIAL`, and `mp_allreduce_sum` makes `y`.
//!   So the variable of the user's program is whole.
//!
//! With `mp_split_sequence`, a sum over ranks of [batch, length, width] is divided along the
//! sequence by `c_scatter_sum`. Norms, dropouts and sums then compute on parts of sequences. Where
//! an op cannot, `c_gather_parts` makes the whole value (`y@WHOLE`).
//!
//! The startup program then makes only the part of each parameter.

use crate::job::Layers;
use fleet_base::{Error, Result};
use fleet_ir::{Division, Op, OpId, OpRole, Program, Var, VarId};
use fleet_nn::Programs;
use fleet_ops::comm::{axis_parts, identity, sum_parts};
use fleet_ops::divide::{Along, Divide, Divided, Placement};
use fleet_ops::{Emit, Meta, OpDef, Registry};
use std::collections::{HashMap, HashSet};

/// The results of a division.
pub(super) struct Made {
    /// Number of parameters of which each rank has a part.
    pub divided: usize,
    /// Number of all parameters.
    pub params: usize,
    /// Number of sums over ranks in the forward pass.
    pub sums: usize,
}

/// Divides marked parameters, and the ops that read them.
pub(super) fn divide(
    programs: &mut Programs,
    registry: &'static Registry,
    layers: Layers,
    loss: VarId,
    by_sequence: bool,
) -> Result<Made> {
    let Programs { main, startup, .. } = programs;
    let whole = main.vars().map(|(id, _)| (id, fleet_ops::meta(main, id))).collect();
    let mut pass = Pass {
        registry,
        layers,
        whole,
        placed: HashMap::new(),
        identities: HashMap::new(),
        splits: HashMap::new(),
        by_sequence,
        sequences: HashSet::new(),
        gathered: HashMap::new(),
        ops: Vec::new(),
        sums: 0,
    };
    let marked: Vec<VarId> =
        main.parameters().filter(|(_, var)| var.division.is_some()).map(|(id, _)| id).collect();
    for param in &marked {
        let along = divide_var(main, *param, layers)?;
        pass.placed.insert(*param, along);
    }
    for id in main.block(Program::ROOT).ops().to_vec() {
        pass.op(main, id)?;
    }
    main.set_block_ops(Program::ROOT, std::mem::take(&mut pass.ops));
    if pass.placed.contains_key(&loss) {
        let name = main.var_name(loss);
        return Err(Error::unsupported(format!("the loss '{name}' is divided among ranks"))
            .help("end divided layers with one that is split by rows, or a sum"));
    }
    for param in &marked {
        if let Some(division) = main.var(*param).division {
            initialize_part(startup, registry, main.var_name(*param), division)?;
        }
    }
    let params = main.parameters().count();
    Ok(Made { divided: marked.len(), params, sums: pass.sums })
}

/// Gives a marked variable the shape of this rank's part.
fn divide_var(program: &mut Program, var: VarId, layers: Layers) -> Result<Along> {
    let Layers { part, parts, .. } = layers;
    let var = program.var_mut(var);
    let Some(mark) = var.division else {
        return Err(Error::internal(format!("'{}' is not divided", var.name)));
    };
    let mut along = Along::from(mark);
    // Without a remainder, this is no padding.
    if let Some(size) = var.shape.get(along.axis).filter(|_| along.groups == 1) {
        let size = usize::try_from(*size).unwrap_or_default();
        along.padding = Division::padded(along.axis, size, part, parts).padding;
    }
    let division = along.part(part, parts);
    let Some(shape) = division.of(&var.shape) else {
        let blocks = match along.groups {
            1 => String::new(),
            groups => format!(" (in {groups} blocks)"),
        };
        return Err(Error::invalid(format!(
            "{parts} ranks cannot divide parameter '{}'",
            var.name
        ))
        .expected(format!(
            "a multiple of {} in dimension {}{blocks}",
            along.groups * parts,
            along.axis
        ))
        .got(var.shape)
        .help("change the size of the layer, or mp_degree"));
    };
    var.shape = shape;
    var.division = Some(division);
    Ok(along)
}

/// The state of a division.
struct Pass {
    registry: &'static Registry,
    layers: Layers,
    /// Types and shapes before the division.
    whole: HashMap<VarId, Meta>,
    /// The divided variables.
    placed: HashMap<VarId, Along>,
    /// Whole variables, and their copies whose gradients are summed.
    identities: HashMap<VarId, VarId>,
    /// Whole variables, and this rank's part along an axis.
    splits: HashMap<(VarId, usize), VarId>,
    /// Whether sums over ranks are divided along sequences.
    by_sequence: bool,
    /// The variables that are divided along sequences.
    sequences: HashSet<VarId>,
    /// Variables that are divided along sequences, and the whole ones gathered from them; the
    /// gradients are summed over ranks or not.
    gathered: HashMap<(VarId, bool), VarId>,
    /// The ops of the new program.
    ops: Vec<OpId>,
    sums: usize,
}

impl Pass {
    /// Adds an op of the program, divided if it reads a divided variable.
    fn op(&mut self, main: &mut Program, id: OpId) -> Result<()> {
        let op = main.op(id).clone();
        let mut read = HashSet::new();
        main.reads_of(id, &mut read);
        for var in op.all_outputs() {
            // Copies of a variable that is written again are out of date.
            self.identities.remove(&var);
            self.splits.retain(|(of, _), _| *of != var);
        }
        let Some(divided) = read.into_iter().filter(|var| self.placed.contains_key(var)).min()
        else {
            if let Some(var) = op.all_outputs().find(|var| self.placed.contains_key(var)) {
                let error = Error::unsupported("an op writes a divided variable again");
                return Err(self.blamed(main, id, var, error));
            }
            self.ops.push(id);
            return Ok(());
        };
        let made = match op.sub_block() {
            Some(_) => Err(Error::unsupported("branches do not read divided variables")),
            None => self.divide(main, id, &op),
        };
        made.map_err(|error| self.blamed(main, id, divided, error))
    }

    /// Adds to an error the op, the divided variable, and a remedy.
    fn blamed(&self, main: &Program, id: OpId, var: VarId, error: Error) -> Error {
        let name = main.var_name(var);
        let parts = self.layers.parts;
        error.at(main.describe_op(id)).at(format!("'{name}', divided among {parts} ranks")).help(
            "take the split off the layer that makes this variable, or end the divided part with \
             a layer that is split by rows (Split::Rows)",
        )
    }

    /// Divides an op that reads a divided variable.
    fn divide(&mut self, main: &mut Program, id: OpId, op: &Op) -> Result<()> {
        let (divided, gathers) = match self.rule(op, false) {
            Ok(divided) => (divided, false),
            Err(error) if op.all_inputs().any(|var| self.sequences.contains(&var)) => {
                (self.rule(op, true).map_err(|_| error)?, true)
            }
            Err(error) => return Err(error),
        };
        let mut new = with_attrs(self.registry, op, &divided)?;
        if divided.replacement.is_some() && new.spec.attr_index("ring_id").is_some() {
            new.set_attr("ring_id", self.layers.ring)?;
            new.set_attr("nranks", self.layers.parts)?;
        }
        self.take_inputs(main, &mut new, op, &divided)?;
        let id = match divided.replacement {
            None => {
                *main.op_mut(id) = new;
                id
            }
            Some(_) => main.make_op(new),
        };
        self.ops.push(id);
        self.make_outputs(main, id, op, &divided)?;
        let parts = op.all_inputs().filter(|var| self.placed.contains_key(var));
        if !gathers && parts.into_iter().all(|var| self.sequences.contains(&var)) {
            self.sequences.extend(op.all_outputs().filter(|var| self.placed.contains_key(var)));
        }
        Ok(())
    }

    /// Applies the rule of an op; with `gathers`, to whole sequences.
    fn rule(&self, op: &Op, gathers: bool) -> Result<Divided> {
        let def = self.registry.get(op.name())?;
        let placement = |var: &VarId| match self.placed.get(var) {
            Some(_) if gathers && self.sequences.contains(var) => Placement::Whole,
            Some(along) => Placement::Part(*along),
            None => Placement::Whole,
        };
        let metas = |vars: &Vec<VarId>| vars.iter().map(|var| self.whole[var]).collect();
        let placed = |vars: &Vec<VarId>| -> Vec<(Meta, Placement)> {
            vars.iter().map(|var| (self.whole[var], placement(var))).collect()
        };
        let inputs: Vec<_> = op.inputs.iter().map(placed).collect();
        let is_whole = |(_, placement): &(Meta, Placement)| *placement == Placement::Whole;
        if inputs.iter().flatten().all(is_whole) {
            let whole = |vars: &Vec<VarId>| vec![Placement::Whole; vars.len()];
            return Ok(Divided {
                inputs: op.inputs.iter().map(whole).collect(),
                outputs: op.outputs.iter().map(whole).collect(),
                attrs: Vec::new(),
                replacement: None,
            });
        }
        let outputs = op.outputs.iter().map(metas).collect();
        let place = (self.layers.part, self.layers.parts);
        let context = Divide::new(is_elementwise(def), op, place, inputs, outputs);
        context.apply(def.traits.divide)
    }

    /// Gives an op the parts that it needs, and whole variables whose gradients are summed.
    fn take_inputs(
        &mut self,
        main: &mut Program,
        new: &mut Op,
        op: &Op,
        divided: &Divided,
    ) -> Result<()> {
        let is_whole = |placement: &Placement| *placement == Placement::Whole;
        let differs = divided.outputs.iter().flatten().any(|placement| !is_whole(placement));
        for (slot, vars) in op.inputs.iter().enumerate() {
            for (index, var) in vars.iter().enumerate() {
                let wanted = divided.inputs[slot][index];
                let taken = match (self.placed.get(var).copied(), wanted) {
                    (None, Placement::Whole) if differs && takes_gradient(main.var(*var)) => {
                        self.identity(main, op, *var)?
                    }
                    (None, Placement::Whole) => *var,
                    (None, Placement::Part(along)) => self.split(main, op, *var, along)?,
                    (Some(held), Placement::Part(along)) if held == along => *var,
                    (Some(held), Placement::Whole) if self.sequences.contains(var) => {
                        self.gather(main, op, *var, held.axis, differs)?
                    }
                    _ => return Err(Error::unsupported("parts are not exchanged among ranks")),
                };
                let name = op.spec.inputs[slot].name;
                if let Some(slot) = new.spec.input_index(name) {
                    new.inputs[slot][index] = taken;
                }
            }
        }
        Ok(())
    }

    /// Gives the outputs of an op their shapes, and adds the sums over ranks.
    fn make_outputs(
        &mut self,
        main: &mut Program,
        id: OpId,
        op: &Op,
        divided: &Divided,
    ) -> Result<()> {
        let def = self.registry.get(main.op(id).name())?;
        let made = def.shapes(main.op(id), |var| fleet_ops::meta(main, var))?;
        for (slot, vars) in op.outputs.iter().enumerate() {
            let name = op.spec.outputs[slot].name;
            let Some(new_slot) = def.spec.output_index(name) else { continue };
            for (index, var) in vars.iter().enumerate() {
                let meta = made[new_slot][index];
                match divided.outputs[slot][index] {
                    Placement::Whole => {}
                    Placement::Part(along) => self.make_part(main, *var, along, meta)?,
                    Placement::Sum => {
                        let partial = self.sum_into(main, op, *var, meta)?;
                        main.op_mut(id).outputs[new_slot][index] = partial;
                    }
                }
            }
        }
        Ok(())
    }

    /// Gives a variable the shape of its part.
    fn make_part(&mut self, main: &mut Program, id: VarId, along: Along, meta: Meta) -> Result<()> {
        let Layers { part, parts, .. } = self.layers;
        let var = main.var(id);
        if var.persistable || self.placed.contains_key(&id) {
            let name = &var.name;
            return Err(Error::unsupported(format!("'{name}' cannot be divided"))
                .expected("a variable that one op writes, and that is not kept between steps"));
        }
        let whole = along.part(part, parts).whole(&meta.shape);
        if whole.is_none_or(|whole| !whole.agrees(&var.shape)) {
            return Err(Error::internal(format!("wrong shape of a part of '{}'", var.name))
                .expected(format!("1/{parts} of {} in dimension {}", var.shape, along.axis))
                .got(meta.shape));
        }
        main.var_mut(id).shape = meta.shape;
        self.placed.insert(id, along);
        Ok(())
    }

    /// Adds the sum over ranks that makes a variable. Returns the variable of this rank's summand.
    fn sum_into(&mut self, main: &mut Program, op: &Op, var: VarId, meta: Meta) -> Result<VarId> {
        let it = main.var(var);
        let (name, stop_gradient) = (it.name.clone(), it.stop_gradient);
        let partial = main.fresh_name(&format!("{name}@PARTIAL"));
        let partial = Var { stop_gradient, ..Var::new(partial, meta.dtype, meta.shape) };
        let partial = main.add_var(Program::ROOT, partial)?;
        let label = format!("sum of {name}");
        self.sums += 1;
        let sequence = Along::axis(SEQUENCE_AXIS);
        let Layers { part, parts, .. } = self.layers;
        let shape = sequence.part(part, parts).of(&meta.shape);
        match shape.filter(|_| self.by_sequence && meta.shape.rank() == SEQUENCE_RANK) {
            Some(shape) => {
                self.make_part(main, var, sequence, Meta { shape, ..meta })?;
                self.sequences.insert(var);
                let axis = Some(SEQUENCE_AXIS);
                self.emit(main, op, &axis_parts::SCATTER_SUM, (partial, var), axis, &label)?;
            }
            None => self.emit(main, op, &sum_parts::DEF, (partial, var), None, &label)?,
        }
        Ok(partial)
    }

    /// Returns the whole value of a variable that is divided along sequences. Its gradient is
    /// summed over ranks if each computes on it for its part of a layer.
    fn gather(
        &mut self,
        main: &mut Program,
        op: &Op,
        var: VarId,
        axis: usize,
        sums: bool,
    ) -> Result<VarId> {
        if let Some(made) = self.gathered.get(&(var, sums)) {
            return Ok(*made);
        }
        let name = main.var_name(var).to_string();
        let made = like(main, var, &format!("{name}@WHOLE"))?;
        main.var_mut(made).shape = self.whole[&var].shape;
        let label = format!("sequences of {name}");
        self.emit(main, op, &axis_parts::GATHER, (var, made), Some(axis), &label)?;
        if let Some(last) = self.ops.last() {
            main.op_mut(*last).set_attr("sum_gradient", sums)?;
        }
        self.gathered.insert((var, sums), made);
        Ok(made)
    }

    /// Returns a copy of a whole variable whose gradient is summed over ranks.
    fn identity(&mut self, main: &mut Program, op: &Op, var: VarId) -> Result<VarId> {
        if let Some(made) = self.identities.get(&var) {
            return Ok(*made);
        }
        let name = main.var_name(var).to_string();
        let made = like(main, var, &format!("{name}@IDENTITY"))?;
        let label = format!("gradient of {name}");
        self.emit(main, op, &identity::DEF, (var, made), None, &label)?;
        self.identities.insert(var, made);
        Ok(made)
    }

    /// Returns this rank's part of a whole variable.
    fn split(&mut self, main: &mut Program, op: &Op, var: VarId, along: Along) -> Result<VarId> {
        if let Some(made) = self.splits.get(&(var, along.axis)) {
            return Ok(*made);
        }
        let (name, shape) = (main.var_name(var).to_string(), main.var(var).shape);
        if along.padding > 0 {
            return Err(Error::unsupported(format!("'{name}' is whole on every rank"))
                .expected(format!(
                    "a multiple of {} in dimension {}",
                    self.layers.parts, along.axis
                ))
                .got(shape)
                .help("if it is a parameter, let ranks divide it (ParamAttr::split)"));
        }
        let part = along.part(self.layers.part, self.layers.parts).of(&shape);
        let Some(part) = part.filter(|_| along.groups == 1) else {
            return Err(Error::unsupported(format!("'{name}' is whole on every rank"))
                .expected("parts of a single block of known size")
                .got(format!("dimension {} of {shape} in {} blocks", along.axis, along.groups)));
        };
        let made = like(main, var, &format!("{name}@SPLIT"))?;
        main.var_mut(made).shape = part;
        let label = format!("gradient of {name}");
        self.emit(main, op, &axis_parts::TAKE, (var, made), Some(along.axis), &label)?;
        self.splits.insert((var, along.axis), made);
        Ok(made)
    }

    /// Adds an op of the ring from one variable to another.
    fn emit(
        &mut self,
        main: &mut Program,
        like: &Op,
        def: &'static OpDef,
        (x, out): (VarId, VarId),
        axis: Option<usize>,
        label: &str,
    ) -> Result<()> {
        let mut emit = Emit::new(main, self.registry, OpRole::FORWARD);
        emit.device.clone_from(&like.device);
        emit.source.clone_from(&like.source);
        emit.fp16_guard = like.fp16_guard;
        let call = emit.op(def).input("X", x).output("Out", out);
        let call = call.attr("ring_id", self.layers.ring).attr("nranks", self.layers.parts);
        let call = match axis {
            Some(axis) => call.attr("axis", axis),
            None => call,
        };
        call.attr("use_calc_stream", true).attr("label", label).done()?;
        self.ops.append(&mut emit.ops);
        Ok(())
    }
}

fn is_elementwise(def: &OpDef) -> bool {
    def.traits.elementwise || def.traits.elementwise_unpadded
}

/// Returns the op with the attributes of a part, and as another op if the rule says so.
fn with_attrs(registry: &Registry, op: &Op, divided: &Divided) -> Result<Op> {
    let mut new = op.clone();
    if let Some(name) = divided.replacement {
        let def = registry.get(name)?;
        let mut built = Op::build(&def.spec)
            .role(op.role)
            .device(op.device.clone())
            .fp16_guard(op.fp16_guard)
            .source(op.source.clone());
        for (slot, vars) in op.spec.inputs.iter().zip(&op.inputs) {
            if def.spec.input_index(slot.name).is_some() {
                built = built.inputs(slot.name, vars);
            }
        }
        for (slot, vars) in op.spec.outputs.iter().zip(&op.outputs) {
            if def.spec.output_index(slot.name).is_some() {
                built = built.outputs(slot.name, vars);
            }
        }
        for (spec, value) in op.spec.attrs.iter().zip(&op.attrs) {
            if def.spec.attr_index(spec.name).is_some() {
                built = built.attr(spec.name, value.clone());
            }
        }
        new = built.finish()?;
    }
    for (name, value) in &divided.attrs {
        new.set_attr(name, value.clone())?;
    }
    Ok(new)
}

/// The axis of the sequence in [batch, length, width].
const SEQUENCE_AXIS: usize = 1;
const SEQUENCE_RANK: usize = 3;

/// Returns whether gradients flow to a variable.
fn takes_gradient(var: &Var) -> bool {
    var.dtype.is_float() && !var.stop_gradient
}

/// Adds a variable like another one.
fn like(main: &mut Program, var: VarId, name: &str) -> Result<VarId> {
    let name = main.fresh_name(name);
    let it = main.var(var);
    let made = Var { stop_gradient: it.stop_gradient, ..Var::new(name, it.dtype, it.shape) };
    main.add_var(Program::ROOT, made)
}

/// Makes the startup program fill only this rank's part of a parameter.
pub(super) fn initialize_part(
    startup: &mut Program,
    registry: &'static Registry,
    name: &str,
    part: Division,
) -> Result<()> {
    let Some(var) = startup.find_var(name) else { return Ok(()) };
    let (whole, division) = (fleet_ops::meta(startup, var), startup.var(var).division);
    // Networks that share a startup program divide a parameter once.
    if division.is_some_and(|division| division.is_part()) {
        return Ok(());
    }
    let writers = startup.root_ops().filter(|(_, op)| op.all_outputs().any(|out| out == var));
    let writers: Vec<OpId> = writers.map(|(id, _)| id).collect();
    let shape = part
        .of(&whole.shape)
        .ok_or_else(|| Error::internal(format!("the programs have other shapes of '{name}'")))?;
    startup.var_mut(var).shape = shape;
    startup.var_mut(var).division = Some(part);
    let along = Along::from(part);
    for id in writers {
        let op = startup.op(id).clone();
        let blame = |error: Error| {
            error
                .at(startup.describe_op(id))
                .at(format!("the first value of '{name}'"))
                .help("use an initializer of Fleet: a constant, a distribution or given values")
        };
        if op.all_inputs().next().is_some() || op.all_outputs().count() != 1 {
            return Err(blame(Error::unsupported("no part of this initial value can be made")));
        }
        let def = registry.get(op.name())?;
        let outputs = op.outputs.iter().map(|vars| vec![whole; vars.len()]).collect();
        let place = (part.part, part.parts);
        let inputs = op.inputs.iter().map(|_| Vec::new()).collect();
        let context = Divide::new(is_elementwise(def), &op, place, inputs, outputs);
        let divided = context.request(along).apply(def.traits.divide);
        let new = divided.and_then(|divided| with_attrs(registry, &op, &divided));
        let new = new.map_err(blame)?;
        *startup.op_mut(id) = new;
    }
    Ok(())
}
