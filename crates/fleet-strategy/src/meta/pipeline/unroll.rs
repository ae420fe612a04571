//! The main program of a stage: its passes for all micro-batches, in the order of the schedule.
//!
//! Each micro-batch has its own copy of every variable, `v@MICRO_<i>`. Parameters and other state
//! are not copied, so batch statistics change in the order of the micro-batches. Ops that follow
//! from parameters and constants alone run once in a step.
//!
//! A pass sends a value right after the op that computes it. What the next pass needs is received
//! while the one before it runs, so that transfers overlap compute. A backward pass first computes
//! what it sends, and then the rest (`pipeline/weights.rs`).

use super::flow::Flow;
use super::schedule::{Pass, Schedule, Unit};
use super::shared::Gradient;
use super::sizes::Sizes;
use super::stages::Place;
use super::weights::{Piece, divide};
use crate::grid::{Axis, Grid};
use crate::pipeline::Size;
use fleet_base::Result;
use fleet_ir::{Op, OpId, OpRole, Program, Var, VarId, VarKind};
use fleet_ops::{
    Emit, Registry,
    comm::send_recv,
    math::{cast, elementwise, sum},
    tensor::{fill, micro_batch_slice},
};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// A stage of a pipeline, before its program is repeated for micro-batches.
pub struct Stage<'a> {
    pub flow: &'a Flow,
    pub sizes: &'a Sizes,
    pub size: Size,
    /// Number of this stage.
    pub number: usize,
    pub grid: Grid,
    /// Rank of this process in the job.
    pub rank: usize,
}

/// A direction between two neighbouring parts.
struct Hop {
    ring: i64,
    /// The other rank in the ring of two.
    peer: usize,
}

/// Number of the first ring between two stages.
pub const FIRST_PAIR: i64 = 20;

/// Returns the ring from a part to the next one, or back.
fn pair_ring(size: Size, pass: Pass, lower_part: usize) -> i64 {
    let back = i64::from(pass == Pass::Backward);
    FIRST_PAIR + 2 * size.stage_of(lower_part) as i64 + back
}

/// Returns the first number after the rings between neighbours.
pub fn rings_end(size: Size) -> i64 {
    FIRST_PAIR + 2 * size.stages as i64
}

/// A ring of two ranks.
pub struct PairRing {
    pub id: i64,
    pub label: String,
    /// The lower and the higher rank.
    pub ranks: (usize, usize),
}

impl Stage<'_> {
    /// Returns the rank of another stage of this pipeline.
    pub fn rank_of(&self, stage: usize) -> usize {
        let grid = &self.grid;
        grid.first(Axis::Pipeline, self.rank) + stage * grid.stride(Axis::Pipeline)
    }

    /// Returns the rings of this stage with its neighbours over which the program sends.
    pub fn rings(&self) -> Vec<PairRing> {
        let mut rings: BTreeMap<i64, PairRing> = BTreeMap::new();
        for part in 1..self.size.parts {
            let stages = (self.size.stage_of(part - 1), self.size.stage_of(part));
            if stages.0 == stages.1 || (stages.0 != self.number && stages.1 != self.number) {
                continue;
            }
            for pass in [Pass::Forward, Pass::Backward] {
                let from = if pass == Pass::Forward { part - 1 } else { part };
                if self.flow.sent(pass, from).is_empty() {
                    continue;
                }
                let id = pair_ring(self.size, pass, part - 1);
                let count = self.size.stages;
                let (low, high) = stages;
                let label = match pass {
                    Pass::Forward => format!("stage {low} to {high} of {count}"),
                    _ => format!("gradients of stage {high} to {low} of {count}"),
                };
                let (one, other) = (self.rank_of(low), self.rank_of(high));
                let ranks = (one.min(other), one.max(other));
                rings.insert(id, PairRing { id, label, ranks });
            }
        }
        rings.into_values().collect()
    }

    /// Returns how a pass of a part talks to the part from which it receives, or to which it sends.
    fn hop(&self, pass: Pass, from: usize, to: usize) -> Hop {
        let ring = pair_ring(self.size, pass, from.min(to));
        let (from, to) = (self.size.stage_of(from), self.size.stage_of(to));
        let other = if from == self.number { to } else { from };
        Hop { ring, peer: usize::from(other > self.number) }
    }

    fn is_own(&self, part: usize) -> bool {
        self.size.stage_of(part) == self.number
    }

    /// Returns the values that a pass of a part receives from another stage, and that stage's hop.
    fn receives(&self, pass: Pass, part: usize) -> Option<(&[VarId], Hop)> {
        let (vars, from) = self.flow.received(pass, part)?;
        let is_far = !vars.is_empty() && !self.is_own(from);
        is_far.then(|| (vars, self.hop(pass, from, part)))
    }

    /// Returns the values that a pass of a part sends to another stage, and the hop.
    fn sends(&self, pass: Pass, part: usize) -> Option<(&[VarId], Hop)> {
        let to = match pass {
            Pass::Forward => part + 1,
            Pass::Backward => part.checked_sub(1)?,
            Pass::Weights => return None,
        };
        let vars = self.flow.sent(pass, part);
        let is_far = !vars.is_empty() && !self.is_own(to);
        is_far.then(|| (vars, self.hop(pass, part, to)))
    }

    /// Returns the ops of each pass of each own part, as positions among all members. Ops of all
    /// stages come with the first own part, if this stage needs them.
    pub fn units(&self, main: &Program) -> HashMap<(Pass, usize), Vec<usize>> {
        let everywhere = self.needed_everywhere(main);
        let mut units: HashMap<(Pass, usize), Vec<usize>> = HashMap::new();
        for (at, member) in self.flow.members.iter().enumerate() {
            let part = match member.place {
                Place::Part(part) if self.is_own(part) => part,
                Place::All if everywhere.contains(&at) => self.number,
                _ => continue,
            };
            units.entry((member.pass, part)).or_default().push(at);
        }
        units
    }

    /// Returns the ops of all stages that this stage needs.
    fn needed_everywhere(&self, main: &Program) -> HashSet<usize> {
        let mut read: HashSet<VarId> = HashSet::new();
        let mut needed = HashSet::new();
        for (at, member) in self.flow.members.iter().enumerate().rev() {
            let op = main.op(member.id);
            let is_needed = match member.place {
                Place::Part(part) => self.is_own(part),
                Place::All => {
                    op.all_outputs().any(|var| read.contains(&var) || main.var(var).persistable)
                }
            };
            if is_needed {
                read.extend(op.all_inputs());
                if member.place == Place::All {
                    needed.insert(at);
                }
            }
        }
        needed
    }

    /// Emits what the forward passes of all own parts need for a whole batch: for evaluation.
    pub fn forward_once(
        &self,
        main: &mut Program,
        registry: &'static Registry,
    ) -> Result<Vec<OpId>> {
        let units = self.units(main);
        let mut ops = Vec::new();
        for part in self.size.parts_of(self.number) {
            if let Some((vars, hop)) = self.receives(Pass::Forward, part) {
                for var in vars {
                    let received = self.sizes.received(main, *var, true);
                    let label = main.var_name(*var).to_string();
                    let mut emit = Emit::new(main, registry, OpRole::FORWARD);
                    receive(&mut emit, *var, &received.shape, received.rows_of, 1, &hop, label)?;
                    ops.append(&mut emit.ops);
                }
            }
            ops.extend(
                units
                    .get(&(Pass::Forward, part))
                    .into_iter()
                    .flatten()
                    .map(|at| self.flow.members[*at].id),
            );
            if let Some((vars, hop)) = self.sends(Pass::Forward, part) {
                for var in vars {
                    let label = main.var_name(*var).to_string();
                    let mut emit = Emit::new(main, registry, OpRole::FORWARD);
                    send(&mut emit, *var, &hop, label)?;
                    ops.append(&mut emit.ops);
                }
            }
        }
        Ok(ops)
    }
}

fn send(emit: &mut Emit<'_>, var: VarId, hop: &Hop, label: String) -> Result<OpId> {
    let call = emit.op(&send_recv::SEND).input("X", var).attr("ring_id", hop.ring);
    call.attr("nranks", 2).attr("peer", hop.peer).attr("label", label).done()
}

fn receive(
    emit: &mut Emit<'_>,
    var: VarId,
    shape: &[i64],
    rows_of: Option<VarId>,
    micros: usize,
    hop: &Hop,
    label: String,
) -> Result<OpId> {
    let dtype = emit.program.var(var).dtype;
    let call = emit.op(&send_recv::RECV).maybe("Rows", rows_of).output("Out", var);
    let call = call.attr("ring_id", hop.ring).attr("nranks", 2).attr("peer", hop.peer);
    let call = call.attr("out_shape", shape.to_vec()).attr("dtype", dtype);
    call.attr("micro_batches", micros).attr("label", label).done()
}

/// The merged gradient of a parameter on this stage.
pub struct Merged {
    /// Position among the gradients.
    pub at: usize,
    pub var: VarId,
}

/// How a stage is unrolled.
#[derive(Clone, Copy)]
pub struct Options {
    pub schedule: Schedule,
    /// Whether owners send parameters before each pass. Casts of them then run for each
    /// micro-batch, so that no step keeps their results, and the passes are not divided, so that
    /// they are sent once.
    pub divides_params: bool,
}

/// The unrolled program of a stage.
pub struct Unrolled {
    pub ops: Vec<OpId>,
    pub merged: Vec<Merged>,
    /// By micro-batch: the copies of variables.
    pub copies: Vec<HashMap<VarId, VarId>>,
}

/// Emits the passes of a stage.
pub fn unroll(
    stage: &Stage<'_>,
    main: &mut Program,
    registry: &'static Registry,
    options: Options,
    gradients: &[Gradient],
) -> Result<Unrolled> {
    let units = stage.units(main);
    let micros = stage.size.micros;
    let mut unroller = Unroller {
        once: HashSet::new(),
        copies: vec![HashMap::new(); micros],
        accumulated: HashMap::new(),
        streams: main.streams(),
        ops: Vec::new(),
        stage,
        registry,
        main,
        options,
    };
    let once = unroller.find_once(&units);
    for at in &once {
        unroller.ops.push(stage.flow.members[*at].id);
    }
    let merged = unroller.begin_gradients(gradients)?;
    let mut pieces: HashMap<(Pass, usize), Vec<Piece>> = HashMap::new();
    for ((pass, part), members) in units {
        let rest = match pass == Pass::Backward && !options.divides_params {
            true => divide(stage.flow, unroller.main, registry, part, &members),
            false => None,
        };
        let (first, rest) = match rest {
            Some(halves) => halves,
            None => (members.iter().copied().map(Piece::whole).collect(), Vec::new()),
        };
        pieces.insert((pass, part), first);
        if pass == Pass::Backward {
            pieces.insert((Pass::Weights, part), rest);
        }
    }
    let order = options.schedule.units(stage.size, stage.number);
    unroller.receive(order[0])?;
    for (index, unit) in order.iter().enumerate() {
        if unit.pass != Pass::Weights {
            let next = order[index + 1..].iter().find(|it| it.pass != Pass::Weights);
            next.map_or(Ok(()), |next| unroller.receive(*next))?;
        }
        let members = pieces.get(&(unit.pass, unit.part)).map_or(&[][..], Vec::as_slice);
        unroller.run(*unit, members, &once)?;
    }
    let last = micros as u64 * unroller.streams;
    unroller.main.set_streams(last);
    Ok(Unrolled { ops: unroller.ops, merged, copies: unroller.copies })
}

/// How the contribution of a micro-batch to a gradient is added.
struct Accumulated {
    merged: VarId,
    /// For sparse rows: the contributions so far, which are joined at the end.
    rows: Option<Vec<VarId>>,
    /// Whether the first micro-batch writes `merged` itself.
    is_first_direct: bool,
}

struct Unroller<'a, 'p> {
    stage: &'a Stage<'a>,
    options: Options,
    main: &'p mut Program,
    registry: &'static Registry,
    ops: Vec<OpId>,
    copies: Vec<HashMap<VarId, VarId>>,
    once: HashSet<VarId>,
    /// By variable of a contribution.
    accumulated: HashMap<VarId, Accumulated>,
    /// Number of random streams of one micro-batch.
    streams: u64,
}

impl Unroller<'_, '_> {
    /// Finds the ops that run once in a step: forward ops that follow from state and constants
    /// alone. Their results are not copied.
    fn find_once(&mut self, units: &HashMap<(Pass, usize), Vec<usize>>) -> BTreeSet<usize> {
        let flow = self.stage.flow;
        let mut found = BTreeSet::new();
        let mut writes: HashMap<VarId, usize> = HashMap::new();
        for member in &flow.members {
            let outputs = self.main.op(member.id).all_outputs();
            outputs.for_each(|var| *writes.entry(var).or_default() += 1);
        }
        let sent: HashSet<VarId> =
            flow.forward.iter().chain(&flow.backward).flatten().copied().collect();
        let mut own: Vec<usize> = units.values().flatten().copied().collect();
        own.sort_unstable();
        for at in own {
            let member = flow.members[at];
            let op = self.main.op(member.id);
            let Some(def) = self.registry.find(op.name()) else { continue };
            let is_fixed = |var: VarId| match self.main.var(var).persistable {
                true => member.place == Place::All || !writes.contains_key(&var),
                false => self.once.contains(&var),
            };
            let is_plain = !def.traits.random && !def.traits.effect && op.sub_block().is_none();
            let is_cast =
                cast::DEF.is(op) && op.all_inputs().all(|var| self.main.var(var).is_parameter());
            let is_repeated = is_cast && self.options.divides_params;
            let is_own_result = |var: VarId| {
                writes[&var] == 1 && !self.main.var(var).persistable && !sent.contains(&var)
            };
            let is_once = member.pass == Pass::Forward
                && !is_repeated
                && op.all_inputs().all(is_fixed)
                && (member.place == Place::All
                    || is_plain
                        && self.stage.size.micros > 1
                        && op.all_outputs().all(is_own_result));
            if is_once {
                let made = op.all_outputs().filter(|var| !self.main.var(*var).persistable);
                self.once.extend(made.collect::<Vec<_>>());
                found.insert(at);
            }
        }
        found
    }

    /// Makes the variables of the merged gradients of this stage.
    fn begin_gradients(&mut self, gradients: &[Gradient]) -> Result<Vec<Merged>> {
        let read: HashSet<VarId> = self
            .stage
            .flow
            .members
            .iter()
            .flat_map(|member| self.main.op(member.id).all_inputs())
            .collect();
        let micros = self.stage.size.micros;
        let mut merged = Vec::new();
        for (at, gradient) in gradients.iter().enumerate() {
            let Some(part) = gradient.of(self.stage.number) else { continue };
            let old = self.main.var(part);
            let is_sparse = old.kind == VarKind::SparseRows;
            let is_dense = gradient.is_shared() || !is_sparse;
            let kind = if is_dense { VarKind::Dense } else { VarKind::SparseRows };
            let (dtype, shape) = (old.dtype, old.shape);
            let name = format!("{}@GRAD@MERGED", self.main.var_name(gradient.param));
            let var = Var { kind, ..Var::new(name, dtype, shape) };
            let var = self.main.add_var(Program::ROOT, var)?;
            let is_direct =
                is_dense != is_sparse && !read.contains(&part) && (is_dense || micros == 1);
            if is_direct {
                self.copies[0].insert(part, var);
            } else if is_dense {
                let mut emit = Emit::new(self.main, self.registry, OpRole::BACKWARD);
                let call = emit.op(&fill::FILL_CONSTANT).attr("shape", shape.to_vec());
                call.attr("dtype", dtype).output("Out", var).done()?;
                self.ops.append(&mut emit.ops);
            }
            let rows = (!is_dense && !is_direct).then(Vec::new);
            let it = Accumulated { merged: var, rows, is_first_direct: is_direct };
            self.accumulated.insert(part, it);
            merged.push(Merged { at, var });
        }
        Ok(merged)
    }

    /// Returns the variable that holds a value in a micro-batch.
    fn copy(&mut self, var: VarId, micro: usize) -> Result<VarId> {
        if let Some(copy) = self.copies[micro].get(&var) {
            return Ok(*copy);
        }
        let it = self.main.var(var);
        let is_divided = it.is_data && self.stage.sizes.divided.contains(&var);
        if it.persistable || it.is_data && !is_divided || self.once.contains(&var) {
            return Ok(var);
        }
        if is_divided {
            return self.piece(var, micro);
        }
        if self.stage.size.micros == 1 {
            return Ok(var);
        }
        let old = it.clone();
        let shape = self.stage.sizes.shape(self.main, var);
        let name = format!("{}@MICRO_{micro}", old.name);
        let copy = self.main.add_var(Program::ROOT, Var { name, shape, ..old })?;
        self.copies[micro].insert(var, copy);
        Ok(copy)
    }

    /// Emits the rows of a micro-batch of a fed variable.
    fn piece(&mut self, var: VarId, micro: usize) -> Result<VarId> {
        let (sizes, micros) = (self.stage.sizes, self.stage.size.micros);
        if micros == 1 && sizes.rows.is_none() {
            return Ok(var);
        }
        let old = self.main.var(var).clone();
        let shape = sizes.shape(self.main, var);
        let name = format!("{}@MICRO_{micro}", old.name);
        let piece = Var { shape, stop_gradient: true, ..Var::new(name, old.dtype, old.shape) };
        let piece = self.main.add_var(Program::ROOT, piece)?;
        let mut emit = Emit::new(self.main, self.registry, OpRole::FORWARD);
        let call = emit.op(&micro_batch_slice::DEF).input("X", var).output("Out", piece);
        let call = call.attr("index", micro).attr("count", micros);
        call.attr("rows", sizes.rows.unwrap_or(-1)).done()?;
        self.ops.append(&mut emit.ops);
        self.copies[micro].insert(var, piece);
        Ok(piece)
    }

    /// Emits the receives of a pass.
    fn receive(&mut self, unit: Unit) -> Result<()> {
        let Some((vars, hop)) = self.stage.receives(unit.pass, unit.part) else { return Ok(()) };
        for var in vars {
            let received = self.stage.sizes.received(self.main, *var, false);
            let copy = self.copy(*var, unit.micro)?;
            let label = self.label(*var, unit);
            let mut emit = Emit::new(self.main, self.registry, role(unit.pass));
            let (shape, rows) = (&received.shape, received.rows_of);
            receive(&mut emit, copy, shape, rows, self.stage.size.micros, &hop, label)?;
            self.ops.append(&mut emit.ops);
        }
        Ok(())
    }

    /// Returns the label of a message, which is the same on both ranks.
    fn label(&self, var: VarId, unit: Unit) -> String {
        format!("{}@MICRO_{}", self.main.var_name(var), unit.micro)
    }

    /// Emits a pass.
    fn run(&mut self, unit: Unit, members: &[Piece], once: &BTreeSet<usize>) -> Result<()> {
        let flow = self.stage.flow;
        let (sent, hop) = match self.stage.sends(unit.pass, unit.part) {
            Some((vars, hop)) => (vars, Some(hop)),
            None => (&[][..], None),
        };
        let mut left = sent.iter().copied().peekable();
        let last_write = |var: VarId| match flow.origins.get(&var) {
            Some(origin) if origin.pass == unit.pass && origin.place == Place::Part(unit.part) => {
                Some(origin.at)
            }
            _ => None,
        };
        // First the values that the stage has already.
        while let Some(var) = left.next_if(|var| last_write(*var).is_none()) {
            self.send(var, unit, &hop)?;
        }
        for piece in members {
            let at = piece.at;
            if once.contains(&at) {
                continue;
            }
            let op = piece.op(self.main, flow.members[at].id);
            let outputs: Vec<VarId> = op.all_outputs().collect();
            let id = self.copy_op(op, unit.micro)?;
            self.ops.push(id);
            for var in outputs {
                if flow.origins.get(&var).is_some_and(|origin| origin.at == at) {
                    self.accumulate(var, unit.micro, id)?;
                }
            }
            while let Some(var) = left.next_if(|var| last_write(*var) == Some(at)) {
                self.send(var, unit, &hop)?;
            }
        }
        Ok(())
    }

    fn send(&mut self, var: VarId, unit: Unit, hop: &Option<Hop>) -> Result<()> {
        let Some(hop) = hop else { return Ok(()) };
        let copy = self.copy(var, unit.micro)?;
        let label = self.label(var, unit);
        let mut emit = Emit::new(self.main, self.registry, role(unit.pass));
        send(&mut emit, copy, hop, label)?;
        self.ops.append(&mut emit.ops);
        Ok(())
    }

    /// Copies an op for a micro-batch. Random ops of different micro-batches draw different
    /// numbers.
    fn copy_op(&mut self, mut op: Op, micro: usize) -> Result<OpId> {
        for var in op.inputs.iter_mut().chain(&mut op.outputs).flatten() {
            *var = self.copy(*var, micro)?;
        }
        if micro > 0 && op.spec.attr_index("stream").is_some() {
            let stream = op.attr_int("stream") + (micro as u64 * self.streams) as i64;
            op.set_attr("stream", stream)?;
        }
        Ok(self.main.make_op(op))
    }

    /// Adds a contribution to a gradient, after the op that completes it.
    fn accumulate(&mut self, var: VarId, micro: usize, after: OpId) -> Result<()> {
        let Some(mut it) = self.accumulated.remove(&var) else { return Ok(()) };
        let is_done = it.is_first_direct && micro == 0;
        if !is_done {
            let part = self.copy(var, micro)?;
            let is_sparse = self.main.var(part).kind == VarKind::SparseRows;
            let is_last = micro + 1 == self.stage.size.micros;
            let device = self.main.op(after).device.clone();
            let mut emit = Emit::new(self.main, self.registry, OpRole::BACKWARD);
            emit.device = device;
            match &mut it.rows {
                Some(rows) => {
                    rows.push(part);
                    if is_last {
                        emit.op(&sum::DEF).inputs("X", rows).output("Out", it.merged).done()?;
                    }
                }
                None if is_sparse => {
                    let call = emit.op(&sum::DEF).inputs("X", &[it.merged, part]);
                    call.output("Out", it.merged).done()?;
                }
                None => {
                    let call = emit.op(&elementwise::ADD).input("X", it.merged).input("Y", part);
                    call.output("Out", it.merged).done()?;
                }
            }
            self.ops.append(&mut emit.ops);
        }
        self.accumulated.insert(var, it);
        Ok(())
    }
}

fn role(pass: Pass) -> OpRole {
    match pass {
        Pass::Forward => OpRole::FORWARD,
        Pass::Backward | Pass::Weights => OpRole::BACKWARD,
    }
}

/// Returns whether an op also writes variables that steps keep.
pub fn changes_state(main: &Program, op: &Op) -> bool {
    op.all_outputs().any(|var| main.var(var).persistable)
}
