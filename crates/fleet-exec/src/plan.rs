//! Plans: a program for known shapes, as a list of prepared kernels on planned memory.
//!
//! Planning walks the ops in order and
//! 1. infers every shape from the fed ones;
//! 2. joins variables that may share memory (views, in-place pairs) into *places*;
//! 3. packs the places in the arena by their lifetimes;
//! 4. prepares the kernels, and derives the waits between lanes from the ops' reads and writes.
//!
//! A plan guarantees to kernels that no two lanes access the same bytes at once unless both only
//! read. An output shares memory with an input only if the op's definition allows it.

use crate::flat::{self, Flat, LaneAssignment, LaneKey, only_communicates};
use crate::memory::{self, Block};
use crate::options::{Device, ExecOptions, Memory};
use crate::shapes::{KnownShapes, Shapes};
use fleet_base::{Error, Result, text};
use fleet_ir::{OpId, Program, VarId, VarKind};
use fleet_ops::{CostCtx, Kernel, KernelFn, Meta, OpDef, PrepareCtx, Registry, Services};
use fleet_tensor::{Arg, ArgList, DType, Layout, Shape};
use std::collections::HashMap;

/// Limit on the lanes of a plan. Ops name their lane by a small number.
pub(crate) const LANES_MAX: usize = 16;

/// Limit on the total size of all variables of a plan, in bytes: the 48-bit address space of
/// current processors.
const PLANNED_BYTES_MAX: usize = 1 << 48;

/// Statistics of a plan, for reports and tests.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PlanSummary {
    pub op_count: usize,
    /// Size of temporaries after packing.
    pub arena_bytes: usize,
    /// Maximum size of temporaries that are live at once, a lower bound for `arena_bytes`.
    pub arena_bytes_live: usize,
    /// Size of temporaries without any sharing.
    pub arena_bytes_unshared: usize,
    pub scratch_bytes: usize,
    /// Bytes that a run moves from the arena to the offload file.
    pub offload_bytes: usize,
    /// Size of the variables in the scope.
    pub persistable_bytes: usize,
    pub feed_bytes: usize,
    pub flops: f64,
    /// Bytes that the ops read and write.
    pub bytes_moved: f64,
}

/// A program planned for known shapes.
pub(crate) struct Plan {
    pub steps: Vec<Step>,
    pub places: Vec<Place>,
    pub feeds: Vec<FeedSlot>,
    pub scope_vars: Vec<ScopeVar>,
    pub fetches: Vec<Fetch>,
    pub lanes: Vec<LanePlan>,
    /// Size of the block that holds temporaries and scratch memory.
    pub block_bytes: usize,
    /// Size of each allocation of [`Memory::Separate`].
    pub separate_bytes: Vec<usize>,
    pub summary: PlanSummary,
    pub program: Program,
    /// Whether the plan communicates, so that other processes may wait for it.
    pub communicates: bool,
}

/// One entry of a plan: a kernel call or a jump.
pub(crate) struct Step {
    pub kind: StepKind,
    pub op: OpId,
    pub lane: usize,
    /// Whether the step only communicates with other ranks.
    pub only_communicates: bool,
    /// Other lanes to wait for, each with the number of its steps that must finish first.
    pub waits: Vec<(usize, usize)>,
}

pub(crate) enum StepKind {
    Run(Instr),
    /// Jumps to another position if the condition (a byte) is 0.
    JumpUnless {
        condition: usize,
        to: usize,
    },
}

/// A kernel and its arguments.
pub(crate) struct Instr {
    pub run: KernelFn,
    pub scratch_bytes: usize,
    pub scratch_place: Place,
    /// Address of the scratch memory, filled in by binding.
    pub scratch: usize,
    pub args: ArgList,
    /// By argument: the place of its values, and the place of its row numbers.
    pub arg_places: Vec<(usize, Option<usize>)>,
}

/// The location of a piece of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Arena {
        offset: usize,
    },
    /// A separate allocation, an index into [`Plan::separate_bytes`].
    Separate {
        index: usize,
    },
    Scope {
        index: usize,
    },
    Feed {
        index: usize,
    },
}

pub(crate) struct FeedSlot {
    pub name: String,
    pub meta: Meta,
}

pub(crate) struct ScopeVar {
    pub name: String,
    pub dtype: DType,
    pub shape: Shape,
    pub layout: Layout,
    /// Whether the program writes it before reading it. Such a variable is created if it is
    /// missing.
    pub created: bool,
}

pub(crate) struct Fetch {
    pub name: String,
    pub arg: Arg,
    pub places: (usize, Option<usize>),
}

/// The steps of one lane in order, as positions in [`Plan::steps`].
pub(crate) struct LanePlan {
    pub steps: Vec<usize>,
}

/// The input of planning.
pub(crate) struct PlanRequest<'a> {
    pub program: Program,
    pub registry: &'a Registry,
    pub feeds: &'a [(VarId, Meta)],
    pub fetches: &'a [VarId],
    pub scope_meta: &'a dyn Fn(&str) -> Option<(DType, Shape)>,
    pub options: &'a ExecOptions,
    pub services: &'a Services,
}

impl Plan {
    pub fn build(request: PlanRequest<'_>) -> Result<Plan> {
        let mut builder = Builder::new(&request)?;
        builder.check_fetches()?;
        builder.find_lifetimes();
        builder.check_size()?;
        builder.join_places();
        builder.finish()
    }
}

struct Builder<'a> {
    request: &'a PlanRequest<'a>,
    program: &'a Program,
    flat: Vec<Flat>,
    /// The source of all sizes: memory, arguments and kernels are made from these.
    shapes: Shapes<'a>,
    /// First definition and last use of each variable, as positions in `flat`.
    life: HashMap<VarId, (usize, usize)>,
    /// Positions at which each variable is written.
    writes: HashMap<VarId, Vec<usize>>,
    /// Union-find over variables. The representative of a group owns the memory.
    parent: HashMap<VarId, VarId>,
    /// Last use of any member of a group, by representative.
    group_end: HashMap<VarId, usize>,
    group_members: HashMap<VarId, Vec<VarId>>,
    lanes: LaneAssignment,
}

impl<'a> Builder<'a> {
    fn new(request: &'a PlanRequest<'a>) -> Result<Self> {
        let program = &request.program;
        let one_lane = request.options.build.enable_sequential_execution;
        let lanes = LaneAssignment::new(program, request.registry, one_lane)?;
        let flat = flat::flatten(program, request.registry, &lanes)?;
        let known = KnownShapes { feeds: request.feeds, scope_meta: request.scope_meta };
        let shapes = Shapes::infer(program, &flat, &known)?;
        Ok(Builder {
            request,
            program,
            flat,
            shapes,
            life: HashMap::new(),
            writes: HashMap::new(),
            parent: HashMap::new(),
            group_end: HashMap::new(),
            group_members: HashMap::new(),
            lanes,
        })
    }

    fn check_fetches(&self) -> Result<()> {
        self.request.fetches.iter().try_for_each(|var| {
            self.shapes.check_known(*var)?;
            self.check_always_written(*var)
        })
    }

    /// Rejects a fetch of a variable that only conditional parts write, because it has no value in
    /// steps in which they do not run. A persistable variable has the value of an earlier step
    /// then.
    fn check_always_written(&self, id: VarId) -> Result<()> {
        let var = self.program.var(id);
        let (mut behind, mut sometimes, mut always) = (0, false, var.persistable || var.is_data);
        for (at, flat) in self.flat.iter().enumerate() {
            match flat {
                Flat::Jump { to, .. } => behind = behind.max(*to),
                Flat::Op(op, _) if self.program.op(*op).all_outputs().any(|out| out == id) => {
                    sometimes |= at < behind;
                    always |= at >= behind;
                }
                Flat::Op(..) => {}
            }
        }
        if always || !sometimes {
            return Ok(());
        }
        Err(Error::invalid(format!("'{}' cannot be fetched", var.name))
            .expected("a variable that is written in every step")
            .got("a variable that only a conditional block writes")
            .help("fetch the result of cond, or a persistable variable"))
    }

    fn lane_key(&self, flat: &Flat) -> LaneKey {
        match flat {
            Flat::Op(id, def) => self.lanes.lane(self.program.op(*id), def),
            Flat::Jump { lane, .. } => *lane,
        }
    }

    fn find_lifetimes(&mut self) {
        for (at, flat) in self.flat.iter().enumerate() {
            let (reads, writes) = self.accesses(flat);
            for var in reads.iter().chain(&writes) {
                let life = self.life.entry(*var).or_insert((at, at));
                life.1 = at;
            }
            for var in writes {
                self.writes.entry(var).or_default().push(at);
            }
        }
        let end = self.flat.len();
        for var in self.request.fetches {
            self.life.entry(*var).or_insert((0, end)).1 = end;
        }
        self.extend_for_rings(end);
        self.extend_over_jumps();
        let vars: Vec<(VarId, usize)> =
            self.life.iter().map(|(var, life)| (*var, life.1)).collect();
        for (var, last) in vars {
            self.parent.insert(var, var);
            self.group_end.insert(var, last);
            self.group_members.insert(var, vec![var]);
        }
    }

    /// Returns the variables whose bytes a step reads and writes. A variable that is read only for
    /// its shape counts only if no earlier step touches it.
    fn accesses(&self, flat: &Flat) -> (Vec<VarId>, Vec<VarId>) {
        let (id, def) = match flat {
            Flat::Op(id, def) => (*id, *def),
            Flat::Jump { condition, .. } => return (vec![*condition], Vec::new()),
        };
        let op = self.program.op(id);
        let mut reads = Vec::new();
        for (slot, vars) in op.spec.inputs.iter().zip(&op.inputs) {
            let shape_only = def.traits.shape_only.contains(&slot.name);
            reads.extend(
                vars.iter().filter(|var| !shape_only || !self.life.contains_key(var)).copied(),
            );
        }
        (reads, op.all_outputs().collect())
    }

    /// Extends the lifetime of every variable in a ring's lane to the end of the run, because that
    /// lane may lag behind. Offload lanes are left out, because offloading is meant to free memory
    /// early. A step that reuses the memory of an offloaded value waits for the store instead.
    fn extend_for_rings(&mut self, end: usize) {
        for at in 0..self.flat.len() {
            if !matches!(self.lane_key(&self.flat[at]), LaneKey::Ring(_)) {
                continue;
            }
            let accessed: Vec<VarId> = match &self.flat[at] {
                Flat::Op(id, _) => {
                    let op = self.program.op(*id);
                    op.all_inputs().chain(op.all_outputs()).collect()
                }
                Flat::Jump { condition, .. } => vec![*condition],
            };
            for var in accessed {
                if let Some(life) = self.life.get_mut(&var) {
                    life.1 = end;
                }
            }
        }
    }

    /// Keeps the memory of a variable that is used both inside and outside a conditional part for
    /// the whole part, whether it runs or not.
    fn extend_over_jumps(&mut self) {
        for (at, flat) in self.flat.iter().enumerate() {
            let Flat::Jump { to, .. } = flat else { continue };
            for life in self.life.values_mut() {
                let inside = |position: usize| position > at && position < *to;
                if inside(life.0) && !inside(life.1) {
                    life.0 = at;
                }
                if inside(life.1) && !inside(life.0) {
                    life.1 = *to;
                }
            }
        }
    }

    fn root(&self, var: VarId) -> VarId {
        let mut at = var;
        while self.parent[&at] != at {
            at = self.parent[&at];
        }
        at
    }

    /// Lets outputs share the memory of inputs. A view shares it unless the memory is overwritten
    /// during the view's lifetime. An in-place pair shares it if the input's lifetime ends here.
    fn join_places(&mut self) {
        if !self.request.options.build.enable_inplace {
            return;
        }
        for at in 0..self.flat.len() {
            let Flat::Op(id, def) = &self.flat[at] else { continue };
            let (id, def) = (*id, *def);
            let op = self.program.op(id);
            if let Some((out, input)) = def.traits.view
                && let (Some(out), Some(input)) = (op.output(out).first(), op.input(input).first())
                && self.may_view(at, *out, *input)
            {
                self.join(*input, *out);
                continue;
            }
            // An output shares memory with at most one input, and an input with at most one output.
            let mut taken: Vec<VarId> = Vec::new();
            let pairs = def.traits.inplace.iter().map(|pair| (pair, VarKind::Dense));
            let rows = def.traits.inplace_rows.iter().map(|pair| (pair, VarKind::SparseRows));
            for ((out, input), kind) in pairs.chain(rows) {
                if let (Some(out), Some(input)) = (op.output(out).first(), op.input(input).first())
                    && self.shapes.of(*out).kind == kind
                    && !taken.contains(&self.root(*input))
                    && !taken.contains(&self.root(*out))
                    && self.is_read_once(id, def, *input)
                    && !op.all_outputs().any(|var| self.root(var) == self.root(*input))
                    && self.may_overwrite(at, *out, *input)
                {
                    taken.push(self.root(*input));
                    self.join(*input, *out);
                }
            }
        }
    }

    fn join(&mut self, owner: VarId, member: VarId) {
        let (owner, member) = (self.root(owner), self.root(member));
        if owner == member {
            return;
        }
        let end = self.group_end[&owner].max(self.group_end[&member]);
        let members = self.group_members.remove(&member).unwrap_or_default();
        self.parent.insert(member, owner);
        self.group_end.insert(owner, end);
        self.group_members.entry(owner).or_default().extend(members);
    }

    fn may_view(&self, at: usize, out: VarId, input: VarId) -> bool {
        let plain = |var: VarId| self.shapes.of(var).kind == VarKind::Dense;
        let fits = plain(input) && plain(out) && self.bytes(input) == self.bytes(out);
        if !fits || self.program.var(out).persistable || self.written_twice(out) {
            return false;
        }
        // No op may write the shared memory while either variable is in use.
        let until = self.group_end[&self.root(out)].max(self.group_end[&self.root(input)]);
        self.group_members[&self.root(input)].iter().all(|member| {
            self.writes.get(member).is_none_or(|list| !list.iter().any(|w| *w > at && *w <= until))
        })
    }

    fn may_overwrite(&self, at: usize, out: VarId, input: VarId) -> bool {
        if out == input {
            return false;
        }
        let (a, b) = (self.program.var(out), self.program.var(input));
        let root = self.root(input);
        let owner = self.program.var(root);
        let in_arena = !owner.persistable && !owner.is_data && !a.persistable;
        let fits = self.shapes.of(input).kind == VarKind::Dense
            && self.bytes(out) == self.bytes(input)
            && a.layout == b.layout;
        let ends_here = self.group_end[&root] == at;
        in_arena && fits && ends_here && !self.written_twice(out)
    }

    /// Whether the op reads the input's memory through one variable only. With a second one (a
    /// repeated name or a view), the memory could be overwritten before it is read.
    fn is_read_once(&self, id: OpId, def: &OpDef, input: VarId) -> bool {
        let op = self.program.op(id);
        let slots = op.spec.inputs.iter().zip(&op.inputs);
        let read = slots.filter(|(slot, _)| !def.traits.shape_only.contains(&slot.name));
        let root = self.root(input);
        read.flat_map(|(_, vars)| vars).filter(|var| self.root(**var) == root).count() == 1
    }

    fn written_twice(&self, var: VarId) -> bool {
        self.writes.get(&var).is_some_and(|list| list.len() > 1)
    }

    fn layout(&self, var: VarId) -> Layout {
        self.program.var(var).layout
    }

    fn bytes(&self, var: VarId) -> usize {
        let meta = self.shapes.of(var);
        match meta.kind {
            VarKind::SparseRows => meta.bytes(),
            _ => self.layout(var).physical_len(&meta.shape) * meta.dtype.size(),
        }
    }

    fn finish(self) -> Result<Plan> {
        let mut places = Places::default();
        let mut blocks: Vec<Block> = Vec::new();
        let mut block_place: Vec<usize> = Vec::new();
        let mut scope_vars = Vec::new();
        let mut feeds = Vec::new();
        let mut used: Vec<VarId> = self.life.keys().copied().collect();
        used.sort_unstable();
        let mut unshared = 0;
        for var in &used {
            let root = self.root(*var);
            let it = self.program.var(*var);
            if !it.persistable && !it.is_data {
                unshared += self.bytes(*var);
            }
            if self.shapes.of(*var).kind == VarKind::SparseRows {
                let (start, _) = self.life[var];
                let bytes = ROWS_HEADER_BYTES + self.shapes.of(*var).rows * size_of::<i64>();
                let place = places.add_rows(*var, bytes);
                blocks.push(Block { bytes, start, end: self.group_end[&root] });
                block_place.push(place);
            }
            if root != *var {
                continue;
            }
            let place = places.add(root, self.bytes(root));
            if it.persistable {
                let meta = self.shapes.of(*var);
                if !meta.shape.is_known() {
                    self.shapes.check_known(*var)?;
                }
                places.list[place] = Place::Scope { index: scope_vars.len() };
                scope_vars.push(ScopeVar {
                    name: it.name.clone(),
                    dtype: meta.dtype,
                    shape: meta.shape,
                    layout: it.layout,
                    created: self.written_before_read(*var),
                });
            } else if it.is_data {
                places.list[place] = Place::Feed { index: feeds.len() };
                feeds.push(FeedSlot { name: it.name.clone(), meta: self.shapes.of(*var) });
            } else {
                let members = &self.group_members[&root];
                let start = members.iter().map(|m| self.life[m].0).min().unwrap_or(0);
                blocks.push(Block { bytes: self.bytes(root), start, end: self.group_end[&root] });
                block_place.push(place);
            }
        }
        let (offsets, arena_bytes) = memory::pack(&blocks);
        let mut separate_bytes = Vec::new();
        for ((place, offset), block) in block_place.iter().zip(&offsets).zip(&blocks) {
            places.list[*place] = match self.request.options.memory {
                Memory::Packed => Place::Arena { offset: *offset },
                Memory::Separate => separate(&mut separate_bytes, block.bytes),
            };
        }
        let mut plan = Plan {
            steps: Vec::with_capacity(self.flat.len()),
            places: Vec::new(),
            feeds,
            scope_vars,
            fetches: Vec::new(),
            lanes: Vec::new(),
            block_bytes: 0,
            separate_bytes,
            summary: PlanSummary {
                op_count: self.flat.len(),
                arena_bytes,
                arena_bytes_live: memory::max_live_bytes(&blocks),
                arena_bytes_unshared: unshared,
                ..PlanSummary::default()
            },
            program: Program::new(),
            communicates: self.lanes.communicates,
        };
        self.make_steps(&mut plan, &places)?;
        self.make_lanes(&mut plan, arena_bytes);
        make_waits(&mut plan, &places);
        for var in self.request.fetches {
            let (arg, at) = (self.arg(*var), self.places_of(&places, *var));
            let name = self.program.var(*var).name.clone();
            places.check(&arg, at).map_err(|error| error.at(format!("fetching '{name}'")))?;
            plan.fetches.push(Fetch { name, arg, places: at });
        }
        plan.summary.persistable_bytes = plan
            .scope_vars
            .iter()
            .map(|var| var.layout.physical_len(&var.shape) * var.dtype.size())
            .sum();
        plan.summary.feed_bytes = plan.feeds.iter().map(|feed| feed.meta.bytes()).sum();
        plan.places = places.list;
        plan.program = self.program.clone();
        Ok(plan)
    }

    /// Returns an error if the total size is too large. The code that follows adds and multiplies
    /// sizes without overflow checks.
    fn check_size(&self) -> Result<()> {
        let mut used: Vec<VarId> = self.life.keys().copied().collect();
        used.sort_unstable();
        let mut total = 0usize;
        for var in used {
            let meta = self.shapes.of(var);
            let dims = meta.shape.iter().map(|dim| dim.unsigned_abs().max(1) as usize);
            let bytes = dims.fold(meta.dtype.size(), usize::saturating_mul);
            total = total.saturating_add(bytes);
            if total > PLANNED_BYTES_MAX {
                return Err(Error::exhausted("the variables of the program are too large to plan")
                    .expected(format!("at most {}", text::bytes(PLANNED_BYTES_MAX as u64)))
                    .got(format!(
                        "more, starting with '{}' {}{}",
                        self.program.var(var).name,
                        meta.dtype,
                        meta.shape
                    )));
            }
        }
        Ok(())
    }

    fn written_before_read(&self, var: VarId) -> bool {
        for flat in &self.flat {
            if let Flat::Op(id, _) = flat {
                let op = self.program.op(*id);
                if op.all_inputs().any(|other| other == var) {
                    return false;
                }
                if op.all_outputs().any(|other| other == var) {
                    return true;
                }
            }
        }
        false
    }

    fn make_steps(&self, plan: &mut Plan, places: &Places) -> Result<()> {
        let mut lane_of: HashMap<LaneKey, usize> = HashMap::from([(LaneKey::Compute, 0)]);
        for flat in &self.flat {
            let lane = self.lane(self.lane_key(flat), &mut lane_of)?;
            let (op, kind) = match flat {
                Flat::Jump { op, condition, to, .. } => {
                    let condition = places.place_of(self.root(*condition));
                    (*op, StepKind::JumpUnless { condition, to: *to })
                }
                Flat::Op(id, def) => (*id, StepKind::Run(self.make_instr(plan, places, *id, def)?)),
            };
            let only_communicates =
                matches!(flat, Flat::Op(id, def) if only_communicates(self.program.op(*id), def));
            plan.steps.push(Step { kind, op, lane, only_communicates, waits: Vec::new() });
        }
        Ok(())
    }

    fn lane(&self, key: LaneKey, lane_of: &mut HashMap<LaneKey, usize>) -> Result<usize> {
        let next = lane_of.len();
        let lane = *lane_of.entry(key).or_insert(next);
        if lane >= LANES_MAX {
            return Err(Error::exhausted("too many lanes").expected(LANES_MAX).got(lane + 1));
        }
        Ok(lane)
    }

    fn make_instr(&self, plan: &mut Plan, places: &Places, id: OpId, def: &OpDef) -> Result<Instr> {
        let op = self.program.op(id);
        let (inputs, outputs) =
            (self.shapes.of_slots(&op.inputs), self.shapes.of_slots(&op.outputs));
        let layouts = |slots: &[Vec<VarId>]| -> Vec<Vec<Layout>> {
            slots.iter().map(|vars| vars.iter().map(|var| self.layout(*var)).collect()).collect()
        };
        let (input_layouts, output_layouts) = (layouts(&op.inputs), layouts(&op.outputs));
        self.check_layouts(id, def)?;
        let cost = (def.traits.cost)(&CostCtx { op, inputs: &inputs, outputs: &outputs });
        plan.summary.flops += cost.flops;
        plan.summary.bytes_moved += cost.bytes;
        if def.traits.offloads {
            plan.summary.offload_bytes += inputs.iter().flatten().map(Meta::bytes).sum::<usize>();
        }
        let prepare = PrepareCtx {
            op,
            inputs: &inputs,
            outputs: &outputs,
            input_layouts: &input_layouts,
            output_layouts: &output_layouts,
            threads: self.request.options.thread_count(),
            seed: self.program.seed(),
            services: self.request.services,
        };
        let kernel = match self.request.options.device {
            Device::Cpu => {
                (def.cpu)(&prepare).map_err(|error| error.at(self.program.describe_op(id)))?
            }
            Device::Null => Kernel::new(|_| Ok(())),
        };
        // A view of memory is there already, and its memory may be in use by other lanes.
        let is_shared_view = def.traits.view.is_some_and(|(out, input)| {
            let (out, input) = (op.output(out).first(), op.input(input).first());
            out.zip(input).is_some_and(|(out, input)| self.root(*out) == self.root(*input))
        });
        let kernel = if is_shared_view { Kernel::new(|_| Ok(())) } else { kernel };
        let mut arg_places = Vec::new();
        let mut args = |slots: &[Vec<VarId>]| -> Result<Vec<Vec<Arg>>> {
            let mut arg = |var: &VarId| {
                let (arg, at) = (self.arg(*var), self.places_of(places, *var));
                places.check(&arg, at).map_err(|error| error.at(self.program.var_name(*var)))?;
                arg_places.push(at);
                Ok(arg)
            };
            slots.iter().map(|vars| vars.iter().map(&mut arg).collect()).collect()
        };
        let inputs = args(&op.inputs)?;
        let args = ArgList::new(inputs, args(&op.outputs)?);
        Ok(Instr {
            run: kernel.run,
            scratch_bytes: kernel.scratch_bytes,
            scratch_place: Place::Arena { offset: 0 },
            scratch: 0,
            args,
            arg_places,
        })
    }

    /// Checks that operands of one shape have one layout. Elementwise kernels take their length
    /// from one operand, and layouts differ in padding.
    fn check_layouts(&self, id: OpId, def: &OpDef) -> Result<()> {
        if !def.traits.elementwise {
            return Ok(());
        }
        let op = self.program.op(id);
        let mut of_shape: HashMap<Shape, Layout> = HashMap::new();
        for var in op.all_inputs().chain(op.all_outputs()) {
            let (shape, layout) = (self.shapes.of(var).shape, self.layout(var));
            let first = *of_shape.entry(shape).or_insert(layout);
            if first != layout {
                return Err(Error::internal("operands of one shape have two layouts")
                    .expected(first)
                    .got(format!("{layout} of '{}'", self.program.var_name(var)))
                    .at(self.program.describe_op(id)));
            }
        }
        Ok(())
    }

    /// Returns the place of a variable's values and the place of its row numbers.
    fn places_of(&self, places: &Places, var: VarId) -> (usize, Option<usize>) {
        (places.place_of(self.root(var)), places.rows.get(&var).copied())
    }

    /// Returns an argument without addresses; binding fills them in.
    fn arg(&self, var: VarId) -> Arg {
        self.shapes.of(var).arg(self.layout(var))
    }

    /// Lists the steps of each lane, and places each lane's scratch memory after the arena.
    fn make_lanes(&self, plan: &mut Plan, arena_bytes: usize) {
        let count = plan.steps.iter().map(|step| step.lane + 1).max().unwrap_or(1);
        let mut offset = arena_bytes;
        for lane in 0..count {
            let mut positions = Vec::new();
            let mut scratch_bytes = 0;
            for (position, step) in plan.steps.iter_mut().enumerate() {
                if step.lane != lane {
                    continue;
                }
                positions.push(position);
                let StepKind::Run(instr) = &mut step.kind else { continue };
                scratch_bytes = scratch_bytes.max(instr.scratch_bytes.next_multiple_of(64));
                instr.scratch_place = match self.request.options.memory {
                    Memory::Packed => Place::Arena { offset },
                    Memory::Separate => separate(&mut plan.separate_bytes, instr.scratch_bytes),
                };
            }
            plan.lanes.push(LanePlan { steps: positions });
            plan.summary.scratch_bytes += scratch_bytes;
            offset += scratch_bytes;
        }
        plan.block_bytes = match self.request.options.memory {
            Memory::Packed => offset,
            Memory::Separate => 0,
        };
    }
}

/// Adds a separate allocation of `bytes` bytes.
fn separate(all: &mut Vec<usize>, bytes: usize) -> Place {
    all.push(bytes);
    Place::Separate { index: all.len() - 1 }
}

/// Size of the header that holds the row count of sparse rows, in bytes. It has a cache line of its
/// own, followed by the row numbers.
pub(crate) const ROWS_HEADER_BYTES: usize = 64;

#[derive(Default)]
struct Places {
    list: Vec<Place>,
    /// Size of each place.
    bytes: Vec<usize>,
    by_root: HashMap<VarId, usize>,
    rows: HashMap<VarId, usize>,
}

impl Places {
    fn add(&mut self, root: VarId, bytes: usize) -> usize {
        self.list.push(Place::Arena { offset: 0 });
        self.bytes.push(bytes);
        self.by_root.insert(root, self.list.len() - 1);
        self.list.len() - 1
    }

    fn add_rows(&mut self, var: VarId, bytes: usize) -> usize {
        self.list.push(Place::Arena { offset: 0 });
        self.bytes.push(bytes);
        self.rows.insert(var, self.list.len() - 1);
        self.list.len() - 1
    }

    fn place_of(&self, root: VarId) -> usize {
        self.by_root[&root]
    }

    /// Returns an error if an argument does not fit its places. Kernels access all of an argument.
    fn check(&self, arg: &Arg, (values, rows): (usize, Option<usize>)) -> Result<()> {
        let wanted = arg.bytes_len();
        let wanted_rows =
            arg.rows.map(|rows| ROWS_HEADER_BYTES + rows.capacity() * size_of::<i64>());
        if wanted <= self.bytes[values] && wanted_rows <= rows.map(|rows| self.bytes[rows]) {
            return Ok(());
        }
        Err(Error::internal("an argument is larger than its memory")
            .expected(text::bytes(self.bytes[values] as u64))
            .got(text::bytes(wanted as u64)))
    }
}

/// Sets the waits between lanes. A step waits for all earlier steps of another lane that access the
/// same bytes, if either of the two writes. Waiting for the last of them covers the others.
fn make_waits(plan: &mut Plan, places: &Places) {
    if plan.lanes.len() < 2 {
        return;
    }
    let place_bytes = &places.bytes;
    let touches: Vec<(Vec<usize>, Vec<usize>)> = plan.steps.iter().map(step_places).collect();
    let mut done_in_lane = vec![0usize; plan.lanes.len()];
    let mut position_in_lane = vec![0usize; plan.steps.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        done_in_lane[step.lane] += 1;
        position_in_lane[at] = done_in_lane[step.lane];
    }
    let clash = |a: usize, b: usize| {
        if a == b {
            return true;
        }
        match (places.list[a], places.list[b]) {
            (Place::Arena { offset: x }, Place::Arena { offset: y }) => {
                x < y + place_bytes[b] && y < x + place_bytes[a]
            }
            _ => false,
        }
    };
    let any_clash =
        |xs: &[usize], ys: &[usize]| xs.iter().any(|x| ys.iter().any(|y| clash(*x, *y)));
    for at in 0..plan.steps.len() {
        let lane = plan.steps[at].lane;
        for other_lane in 0..plan.lanes.len() {
            if other_lane == lane {
                continue;
            }
            let earlier = plan.lanes[other_lane].steps.iter().rev().find(|earlier| {
                **earlier < at && {
                    let ((r1, w1), (r2, w2)) = (&touches[at], &touches[**earlier]);
                    any_clash(w1, w2) || any_clash(w1, r2) || any_clash(r1, w2)
                }
            });
            if let Some(earlier) = earlier {
                let count = position_in_lane[*earlier];
                plan.steps[at].waits.push((other_lane, count));
            }
        }
    }
}

/// Returns the places that a step reads and those that it writes.
fn step_places(step: &Step) -> (Vec<usize>, Vec<usize>) {
    match &step.kind {
        StepKind::JumpUnless { condition, .. } => (vec![*condition], Vec::new()),
        StepKind::Run(instr) => {
            let list = |places: &[(usize, Option<usize>)]| {
                places.iter().flat_map(|(values, rows)| [Some(*values), *rows]).flatten().collect()
            };
            let (inputs, outputs) = instr.arg_places.split_at(instr.args.input_count());
            (list(inputs), list(outputs))
        }
    }
}
