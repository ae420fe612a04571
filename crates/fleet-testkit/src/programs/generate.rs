//! Random programs, deterministic by seed.
//!
//! Ops are drawn from the whole registry. Inputs are drawn from the variables so far, and an op is
//! kept if its shape rule accepts them. An output is a new variable or one that was written before:
//! in this block or one around it, in place, dense or sparse rows. In a third of the programs, the
//! second write may have another size, hidden behind unknown dimensions in the declaration.
//!
//! Some programs communicate: over rings of one rank, over rings of two ranks that run the same
//! program, or with the tables of servers.

use fleet_base::EntityRef;
use fleet_base::rng::Sequence;
use fleet_exec::Scope;
use fleet_ir::{
    Arity, Attr, AttrKind, AttrSpec, BlockId, Op, OpRole, Param, Program, SlotSpec, Var, VarId,
    VarKind,
};
use fleet_ops::{Lane, Meta, OpDef, Registry, meta};
use fleet_passes::{BackwardOptions, append_backward};
use fleet_tensor::{DType, Shape, Tensor};
use std::collections::{HashMap, HashSet};

/// Limit on the elements of a variable, so that programs run in a millisecond.
const ELEMENTS_MAX: usize = 1 << 12;

/// Limit on the nesting of conditional blocks.
const DEPTH_MAX: usize = 3;

/// Limit on the draws of inputs and attributes for one op before another op is drawn.
const TRIES_MAX: usize = 6;

/// Number of rows of the embedding tables.
const TABLE_ROWS: i64 = 32;

/// Ops that rarely accept random inputs and attributes, and ops that matter most for memory.
const COMMON_OPS: [&str; 40] = [
    "relu",
    "tanh",
    "scale",
    "assign",
    "elementwise_add",
    "elementwise_mul",
    "elementwise_max",
    "sum",
    "reshape2",
    "flatten2",
    "unsqueeze2",
    "squeeze2",
    "transpose2",
    "concat",
    "split",
    "stack",
    "slice",
    "mul",
    "matmul_v2",
    "cast",
    "softmax",
    "layer_norm",
    "dropout",
    "lookup_table_v2",
    "lookup_table_v2_grad",
    "fill_constant",
    "fill_constant_batch_size_like",
    "fill_any_like",
    "sgd",
    "momentum",
    "increment",
    "gather",
    "reduce_sum",
    "mean",
    "relu_grad",
    "conv2d",
    "batch_norm",
    "pool2d",
    "offload_store",
    "offload_fetch",
];

/// Ops that communicate over a ring.
const RING_OPS: [&str; 19] = [
    "c_allreduce_sum",
    "c_allreduce_max",
    "c_allreduce_min",
    "c_allreduce_prod",
    "c_allreduce_avg",
    "c_reduce_sum",
    "c_broadcast",
    "c_allgather",
    "c_allgather_rows",
    "c_reducescatter",
    "c_concat",
    "c_split",
    "alltoall",
    "barrier",
    "c_sync_comm_stream",
    "dgc",
    "sync_batch_norm",
    "sum_then_sgd",
    "sum_then_momentum",
];

/// Ops that communicate with servers.
const TABLE_OPS: [&str; 7] = [
    "distributed_lookup_table",
    "distributed_push_sparse",
    "send",
    "recv",
    "send_barrier",
    "fetch_barrier",
    "fake_init",
];

/// Number of values in the dense table.
const DENSE_LEN: usize = 64;

/// The peers of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peers {
    /// No peers.
    Alone,
    /// Rings 0 and 1 with this number of ranks, which run the same program.
    Rings(usize),
    /// Tables of servers, with the row widths of tables 0 and 1. Table 2 is dense and has 64
    /// values.
    Tables([i64; 2]),
}

/// A program with its inputs, state and fetches.
pub struct Draft {
    /// The program.
    pub program: Program,
    /// The peers that it communicates with.
    pub peers: Peers,
    /// Number of executor threads.
    pub threads: usize,
    /// Values of the inputs, by name.
    pub feeds: Vec<(String, Tensor)>,
    /// Values of persistent variables before the first run, by name.
    pub state: Vec<(String, Tensor)>,
    /// Names of the variables to fetch.
    pub fetches: Vec<String>,
}

impl Draft {
    /// Returns a scope with the state.
    pub fn scope(&self) -> Scope {
        let mut scope = Scope::new();
        for (name, tensor) in &self.state {
            scope.set(name, tensor.try_clone().expect("small"));
        }
        scope
    }

    /// Returns the inputs as an executor takes them.
    pub fn feed(&self) -> Vec<(&str, &Tensor)> {
        self.feeds.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect()
    }

    /// Returns the fetches as an executor takes them.
    pub fn fetch(&self) -> Vec<&str> {
        self.fetches.iter().map(String::as_str).collect()
    }

    /// Describes the program, its inputs and its fetches, for reports.
    pub fn describe(&self) -> String {
        let mut text = self.program.to_string();
        for (name, tensor) in &self.feeds {
            text += &format!("feed {name} {}{}\n", tensor.dtype(), tensor.shape());
        }
        let Draft { peers, threads, .. } = self;
        text + &format!("fetch {}\n{peers:?}, {threads} threads\n", self.fetches.join(" "))
    }

    /// Returns the program of one rank. With two ranks, each has the other as its peer.
    pub fn program_of(&self, rank: usize) -> Program {
        let mut program = self.program.clone();
        if rank == 0 {
            return program;
        }
        for block in program.block_ids() {
            for id in program.block(block).ops().to_vec() {
                let op = program.op_mut(id);
                if let Some(at) = op.spec.attr_index("peer") {
                    op.attrs[at] = Attr::Int(0);
                }
            }
        }
        program
    }

    /// Returns the number of ranks that run the program.
    pub fn ranks(&self) -> usize {
        match self.peers {
            Peers::Rings(ranks) => ranks,
            _ => 1,
        }
    }

    /// Whether two correct runs give the same results at every rank. Some ops do not define the
    /// values on ranks other than the root, or of gradient sums that an update has consumed.
    pub fn is_exact(&self) -> bool {
        let vague =
            |op: &Op| op.name() == "c_reduce_sum" || op.spec.output_index("GradOut").is_some();
        self.ranks() == 1 || !self.program.root_ops().any(|(_, op)| vague(op))
    }
}

/// Generates a program of any kind.
pub fn draft(seed: u64) -> Draft {
    let peers = match Sequence::new(seed, 1).below(8) {
        0 => Peers::Rings(1),
        1 => Peers::Rings(2),
        2 => Peers::Tables([8, 3]),
        _ => Peers::Alone,
    };
    draft_with_peers(seed, peers)
}

/// Like [`draft`], with given peers.
pub fn draft_with_peers(seed: u64, peers: Peers) -> Draft {
    let mut generator = Generator::new(seed, peers);
    generator.inputs();
    let count = 3 + generator.rng.below(20);
    generator.block(Program::ROOT, 0, count);
    if generator.rng.below(3) == 0 {
        generator.gradients();
    }
    if generator.attack {
        generator.redirect();
    }
    generator.finish()
}

/// Generates a program that ends in a loss, as input for a strategy, and returns both.
pub fn draft_with_loss(seed: u64) -> Option<(Draft, VarId)> {
    let mut generator = Generator::new(seed, Peers::Alone);
    generator.attack = false;
    generator.inputs();
    let count = 3 + generator.rng.below(12);
    generator.block(Program::ROOT, 0, count);
    let floats = generator.differentiable();
    let loss = (0..6).find_map(|_| {
        let input = (!floats.is_empty()).then(|| generator.of(&floats))?;
        // Check that the loss has gradients, but leave them out: strategies append their own.
        let mut forward = generator.program.clone();
        generator.backward_of(input)?;
        let loss = generator.loss_of(&mut forward, input);
        generator.program = forward;
        Some(loss)
    })?;
    Some((generator.finish(), loss))
}

struct Generator {
    rng: Sequence,
    program: Program,
    feeds: Vec<(String, Tensor)>,
    state: Vec<(String, Tensor)>,
    /// The actual type and shape of each variable at this point of the program, if it has a value.
    actual: HashMap<VarId, Meta>,
    /// Variables that an op has written, that are fed, or that are in the scope.
    written: HashSet<VarId>,
    /// Whether a variable may be written in two sizes.
    attack: bool,
    batches: [i64; 2],
    /// Upper bound of fed ids. The smallest table has 4 rows.
    ids_below: u64,
    /// The values stored in each slot of the offload file.
    stored: HashMap<i64, Meta>,
    names: u64,
    peers: Peers,
    /// The table of the current op.
    table: usize,
    /// Required length of the operands of the current op, if any.
    len: Option<usize>,
}

impl Generator {
    fn new(seed: u64, peers: Peers) -> Generator {
        const BATCHES: [i64; 10] = [0, 1, 2, 3, 5, 16, 32, 64, 100, 512];
        let mut rng = Sequence::new(seed, 0);
        let mut batch = || BATCHES[rng.below(BATCHES.len() as u64) as usize];
        let batches = [batch(), batch()];
        let attack = rng.below(3) == 0;
        let ids_below = if rng.below(10) == 0 { TABLE_ROWS as u64 } else { 4 };
        let mut program = Program::new();
        program.set_seed(seed);
        Generator {
            rng,
            program,
            feeds: Vec::new(),
            state: Vec::new(),
            actual: HashMap::new(),
            written: HashSet::new(),
            attack,
            batches,
            ids_below,
            stored: HashMap::new(),
            names: 0,
            peers,
            table: 0,
            len: None,
        }
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.rng.below(count) == 0
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.rng.below(choices.len() as u64) as usize].clone()
    }

    fn name(&mut self, kind: &str) -> String {
        self.names += 1;
        format!("{kind}{}", self.names)
    }

    /// Adds feeds and variables of the scope.
    fn inputs(&mut self) {
        for index in 0..2 {
            let batch = self.batches[index];
            for tail in [vec![], vec![8], vec![3, 8, 8]] {
                if tail.len() == 3 && self.one_in(2) {
                    continue;
                }
                let mut dims = vec![-1];
                dims.extend(&tail);
                let batch = if tail.len() == 3 { batch.min(3) } else { batch };
                self.data(DType::F32, &dims, batch);
            }
            self.data(DType::I64, &[-1], batch);
        }
        for _ in 0..3 {
            self.data(DType::Bool, &[1], 1);
        }
        self.data(DType::F32, &[4, 8], 4);
        for dims in [&[8, 8][..], &[8, 16], &[TABLE_ROWS, 8], &[8], &[3], &[1], &[4, 3, 3, 3]] {
            self.parameter(dims);
        }
        self.parameter(&[8, 8]);
    }

    fn data(&mut self, dtype: DType, dims: &[i64], batch: i64) {
        let name = self.name("in");
        let var = Var { stop_gradient: true, ..Var::data(&name, dtype, Shape::of(dims)) };
        let id = self.program.add_var(Program::ROOT, var).expect("a new name");
        let mut known = dims.to_vec();
        known[0] = batch;
        let tensor = self.tensor(dtype, Shape::of(&known));
        self.actual.insert(id, Meta::dense(dtype, *tensor.shape()));
        self.feeds.push((name, tensor));
    }

    fn parameter(&mut self, dims: &[i64]) {
        let name = self.name("w");
        let shape = Shape::of(dims);
        let var = match self.rng.below(4) {
            0 => Var::persistable(&name, DType::F32, shape),
            _ => Var::parameter(&name, DType::F32, shape, Param::default()),
        };
        let id = self.program.add_var(Program::ROOT, var).expect("a new name");
        let tensor = self.tensor(DType::F32, shape);
        self.actual.insert(id, Meta::dense(DType::F32, shape));
        self.written.insert(id);
        self.state.push((name, tensor));
    }

    fn tensor(&mut self, dtype: DType, shape: Shape) -> Tensor {
        let len = shape.len();
        let (rng, ids_below) = (&mut self.rng, self.ids_below);
        let tensor = match dtype {
            DType::I64 => {
                let ids: Vec<i64> = (0..len).map(|_| rng.below(ids_below) as i64).collect();
                Tensor::from_slice(&ids, shape)
            }
            DType::Bool => {
                let bools: Vec<bool> = (0..len).map(|_| rng.below(2) == 0).collect();
                Tensor::from_bools(&bools, shape)
            }
            _ => {
                let values: Vec<f32> = (0..len).map(|_| rng.unit() as f32 * 2.0 - 1.0).collect();
                Tensor::from_slice(&values, shape)
            }
        };
        tensor.expect("the shape fits")
    }

    fn block(&mut self, block: BlockId, depth: usize, count: u64) {
        for _ in 0..count {
            if depth < DEPTH_MAX && self.one_in(9) {
                self.conditional(block, depth);
            } else {
                self.op(block);
            }
        }
    }

    fn conditional(&mut self, block: BlockId, depth: usize) {
        let bools: Vec<VarId> = self
            .visible(block)
            .into_iter()
            .filter(|var| {
                let held = self.actual.get(var);
                held.is_some_and(|held| held.dtype == DType::Bool && held.numel() == 1)
                    && self.program.var(*var).shape.numel() == Some(1)
            })
            .collect();
        if bools.is_empty() {
            return;
        }
        let condition = self.of(&bools);
        let inner = self.program.add_block(block);
        let count = 1 + self.rng.below(5);
        self.block(inner, depth + 1, count);
        let spec = &Registry::standard().get("conditional_block").expect("a known op").spec;
        let op = Op::build(spec).input("Cond", condition).attr("sub_block", inner);
        self.program.append_op(block, op.finish().expect("well formed"));
    }

    /// Returns the variables of the block and of the blocks around it.
    fn visible(&self, block: BlockId) -> Vec<VarId> {
        let program = &self.program;
        let around = std::iter::successors(Some(block), |block| program.block(*block).parent);
        let blocks: Vec<BlockId> = around.collect();
        let mut vars: Vec<VarId> =
            blocks.iter().flat_map(|block| program.block(*block).vars().iter().copied()).collect();
        vars.sort_unstable();
        vars
    }

    fn op(&mut self, block: BlockId) {
        let readable: Vec<VarId> =
            self.visible(block).into_iter().filter(|var| self.actual.contains_key(var)).collect();
        // Two ranks communicate in the root block only, because conditions may differ between
        // ranks.
        let may_communicate = block == Program::ROOT || self.peers != Peers::Rings(2);
        if self.peers == Peers::Rings(2) && may_communicate && self.one_in(12) {
            self.exchange(block, &readable);
        }
        for _ in 0..40 {
            let ops = Registry::standard().defs();
            let known = |name| Registry::standard().get(name).expect("a known op");
            let def = match (self.rng.below(4), self.peers) {
                (0, _) => ops[self.rng.below(ops.len() as u64) as usize],
                (1, Peers::Rings(_)) => known(self.of(&RING_OPS)),
                (1, Peers::Tables(_)) => known(self.of(&TABLE_OPS)),
                _ => known(self.of(&COMMON_OPS)),
            };
            if self.is_left_out(def) || communicates(def) && !may_communicate {
                continue;
            }
            for _ in 0..TRIES_MAX {
                if self.try_op(block, def, &readable) {
                    return;
                }
            }
        }
    }

    /// Sends a variable to the other rank, and receives the other rank's variable.
    fn exchange(&mut self, block: BlockId, readable: &[VarId]) {
        let dense: Vec<VarId> = readable
            .iter()
            .copied()
            .filter(|var| self.actual[var].kind == VarKind::Dense)
            .collect();
        if dense.is_empty() {
            return;
        }
        let from = self.of(&dense);
        let mut held = self.actual[&from];
        if self.one_in(10) {
            // The receiver rejects a wrong size.
            held.shape = Shape::of(&[1 + self.rng.below(40) as i64]);
        }
        let ring = self.rng.below(2) as i64;
        let known = |name| &Registry::standard().get(name).expect("a known op").spec;
        let common = |op: fleet_ir::OpBuilder| {
            op.attr("ring_id", ring).attr("nranks", 2i64).attr("peer", 1i64)
        };
        let send = common(Op::build(known("send_v2")).input("X", from));
        let name = self.name("v");
        let var = Var::new(name, held.dtype, held.shape);
        let to = self.program.add_var(block, var).expect("a new name");
        let recv = common(Op::build(known("recv_v2")).output("Out", to));
        let recv = recv.attr("out_shape", held.shape.to_vec()).attr("dtype", held.dtype);
        for op in [send, recv] {
            self.program.append_op(block, op.finish().expect("well formed"));
        }
        self.actual.insert(to, held);
        self.written.insert(to);
    }

    /// Whether an op is left out: it needs peers that this program does not have, the executor runs
    /// it itself, or it is drawn elsewhere.
    fn is_left_out(&self, def: &OpDef) -> bool {
        let name = def.spec.name;
        // The last two have no values to compare.
        let alone = [
            "conditional_block",
            "listen_and_serv",
            "send_v2",
            "recv_v2",
            "empty",
            "c_check_batch",
        ];
        let (rings, tables) = (communicates(def), TABLE_OPS.contains(&name));
        alone.contains(&name)
            || rings && !matches!(self.peers, Peers::Rings(_))
            || tables && !matches!(self.peers, Peers::Tables(_))
    }

    /// Draws the inputs and attributes of an op, and which outputs are wanted.
    fn draw_op(&mut self, def: &'static OpDef, readable: &[VarId]) -> Option<(Op, Vec<bool>)> {
        let mut builder = Op::build(&def.spec);
        let is_dense = matches!(def.spec.name, "send" | "recv");
        self.table = match self.one_in(20) {
            true => self.rng.below(3) as usize,
            false if is_dense => 2,
            false => self.rng.below(2) as usize,
        };
        self.len = (is_dense && !self.one_in(10)).then_some(DENSE_LEN);
        let is_gradient = def.spec.name.ends_with("_grad");
        let mut first = None;
        for slot in def.spec.inputs {
            let count = match slot.arity {
                Arity::One => 1,
                Arity::Optional if is_gradient => u64::from(!self.one_in(8)),
                Arity::Optional => self.rng.below(2),
                Arity::Many if is_dense => 1,
                Arity::Many => 1 + self.rng.below(3),
            };
            for _ in 0..count {
                let var = self.operand(slot, first, readable)?;
                first.get_or_insert(var);
                builder = builder.input(slot.name, var);
            }
        }
        for spec in def.spec.attrs {
            let always = ["nranks", "table_id"].contains(&spec.name);
            if spec.default.is_none() || always || self.one_in(3) {
                let value = self.attr(spec);
                builder = builder.attr(spec.name, value);
            }
        }
        let mut is_wanted = |slot: &SlotSpec| slot.arity != Arity::Optional || self.one_in(2);
        let wanted = def.spec.outputs.iter().map(&mut is_wanted).collect();
        Some((builder.role(OpRole::FORWARD).finish_open().ok()?, wanted))
    }

    /// Appends an op if its shape rule accepts the drawn inputs. Returns whether it did.
    fn try_op(&mut self, block: BlockId, def: &'static OpDef, readable: &[VarId]) -> bool {
        let Some((mut op, wanted)) = self.draw_op(def, readable) else { return false };
        // Shape rules depend on which outputs are present, and gradient rules on their number.
        let mut probe = op.clone();
        let mut marks = (1_000_000..).map(VarId::from_index);
        for (at, slot) in def.spec.outputs.iter().enumerate().filter(|(at, _)| wanted[*at]) {
            let like = slot.name.strip_suffix("@GRAD").and_then(|name| def.spec.input_index(name));
            let count = like.map_or(1, |like| op.inputs[like].len());
            probe.outputs[at] = marks.by_ref().take(count).collect();
        }
        let Ok(actual) = def.shapes(&probe, |var| self.actual[&var]) else { return false };
        let Ok(declared) = def.shapes(&probe, |var| meta(&self.program, var)) else {
            return false;
        };
        let small = |meta: &Meta| meta.shape.is_known() && meta.numel() <= ELEMENTS_MAX;
        if !actual.iter().flatten().all(small) {
            return false;
        }
        if !self.offloads(&op) {
            return false;
        }
        let arity = |at: usize| def.spec.outputs[at].arity;
        for (at, wanted) in wanted.iter().enumerate() {
            let fits = match arity(at) {
                Arity::Many => true,
                _ => !wanted || actual[at].len() == 1,
            };
            if !fits || actual[at].len() != declared[at].len() {
                return false;
            }
        }
        for at in (0..wanted.len()).filter(|at| wanted[*at]) {
            for (actual, declared) in actual[at].iter().zip(&declared[at]) {
                let var = self.target(block, def, &op, at, *actual, *declared);
                op.outputs[at].push(var);
            }
        }
        // An output may be an input where the op allows it, which the shape rule checks.
        let checked = op.check().and_then(|()| def.shapes(&op, |var| self.actual[&var]));
        if checked.is_err() {
            // Forget the variables created for this op, since they are not written.
            let unwritten = |var: &VarId| !self.written.contains(var);
            for var in op.all_outputs().filter(unwritten) {
                self.actual.remove(&var);
            }
            return false;
        }
        self.written.extend(op.all_outputs());
        for (vars, metas) in op.outputs.iter().zip(&actual) {
            self.actual.extend(vars.iter().copied().zip(metas.iter().copied()));
        }
        self.program.append_op(block, op);
        true
    }

    /// Whether the op keeps the offload file consistent. A fetch must find a value of its size,
    /// except in one of 20 cases.
    fn offloads(&mut self, op: &Op) -> bool {
        let Some(held) = op.input("X").first().map(|var| self.actual[var]) else { return true };
        match op.name() {
            "offload_store" => {
                self.stored.insert(op.attr_int("slot"), held);
                true
            }
            "offload_fetch" => {
                let stored = self.stored.get(&op.attr_int("slot"));
                stored.is_some_and(|stored| stored.bytes() == held.bytes()) || self.one_in(20)
            }
            _ => true,
        }
    }

    /// Picks a variable for a slot, of the type that the slot's name suggests, and often with the
    /// shape of the first operand.
    fn operand(&mut self, slot: &SlotSpec, first: Option<VarId>, from: &[VarId]) -> Option<VarId> {
        let dtype = match slot.name {
            "Ids" | "Index" | "Label" => Some(DType::I64),
            "Cond" | "Condition" => Some(DType::Bool),
            _ if self.one_in(4) => None,
            _ => Some(DType::F32),
        };
        let like = first.map(|var| self.actual[&var]).filter(|_| !self.one_in(3));
        let rank = match slot.name {
            "Filter" | "Input" if self.one_in(2) => Some(4),
            "LearningRate" => Some(1),
            _ => None,
        };
        let len = self.len;
        let fits = |var: &VarId, strict: bool| {
            let held = self.actual[var];
            len.is_none_or(|len| held.numel() == len)
                && dtype.is_none_or(|dtype| dtype == held.dtype)
                && rank.is_none_or(|rank| rank == held.shape.rank())
                && (!strict || like.is_none_or(|like| like.shape == held.shape))
        };
        let strict: Vec<VarId> = from.iter().copied().filter(|var| fits(var, true)).collect();
        let loose: Vec<VarId> = from.iter().copied().filter(|var| fits(var, false)).collect();
        let choices = if strict.is_empty() { loose } else { strict };
        (!choices.is_empty()).then(|| self.of(&choices))
    }

    /// Picks or creates the variable for an output.
    fn target(
        &mut self,
        block: BlockId,
        def: &OpDef,
        op: &Op,
        slot: usize,
        actual: Meta,
        declared: Meta,
    ) -> VarId {
        let name = def.spec.outputs[slot].name;
        // State is usually written back to its input.
        if let Some(input) = name.strip_suffix("Out").filter(|name| !name.is_empty())
            && let Some(var) = op.input(input).first()
            && !self.one_in(4)
            && !self.program.var(*var).is_data
        {
            return *var;
        }
        if self.one_in(2) {
            let attack = self.attack;
            let choices: Vec<VarId> = self
                .visible(block)
                .into_iter()
                .filter(|id| {
                    let var = self.program.var(*id);
                    let held = self.actual.get(id);
                    let same = held.is_none_or(|held| *held == actual);
                    !var.is_data
                        && var.dtype == actual.dtype
                        && var.kind == actual.kind
                        && var.shape.agrees(&actual.shape)
                        && (attack && !var.persistable || same)
                        && !op.all_outputs().any(|out| out == *id)
                })
                .collect();
            if !choices.is_empty() {
                return self.of(&choices);
            }
        }
        let mut shape = declared.shape;
        if self.one_in(2) {
            for dim in shape.dims_mut() {
                if self.rng.below(2) == 0 {
                    *dim = -1;
                }
            }
        }
        let name = self.name("v");
        let var = Var { kind: actual.kind, ..Var::new(name, actual.dtype, shape) };
        let id = self.program.add_var(block, var).expect("a new name");
        // The shape rule needs it when the whole op is checked.
        self.actual.insert(id, actual);
        id
    }

    fn attr(&mut self, spec: &AttrSpec) -> Attr {
        let rank = 1 + self.rng.below(3) as usize;
        match (spec.name, self.peers) {
            ("ring_id", Peers::Rings(_)) => return Attr::Int(self.rng.below(2) as i64),
            ("nranks", Peers::Rings(ranks)) if !self.one_in(30) => return Attr::Int(ranks as i64),
            ("root" | "root_id" | "rank", Peers::Rings(ranks)) => {
                return Attr::Int(self.rng.below(ranks as u64) as i64);
            }
            ("table_id", _) => return Attr::Int(self.table as i64),
            ("width" | "size", Peers::Tables(widths)) if !self.one_in(20) => {
                return Attr::Int(widths[self.table.min(1)]);
            }
            ("counter_columns", _) => return Attr::Int(self.of(&[0, 0, 1, 2])),
            _ => {}
        }
        match (spec.name, spec.kind) {
            ("shape", AttrKind::Ints) => {
                let shapes: [&[i64]; 8] =
                    [&[-1], &[8], &[16], &[-1, 8], &[4, -1], &[2, 4], &[0, -1], &[-1, 4, 2]];
                Attr::Ints(self.of(&shapes).to_vec())
            }
            ("axis", AttrKind::Ints) => {
                let mut order: Vec<i64> = (0..rank as i64 + 1).collect();
                self.rng.shuffle(&mut order);
                Attr::Ints(order)
            }
            ("axes" | "dim", AttrKind::Ints) => Attr::Ints(vec![self.rng.below(2) as i64]),
            ("starts", AttrKind::Ints) => Attr::Ints(vec![self.rng.below(4) as i64 - 1]),
            ("ends", AttrKind::Ints) => {
                let end = self.of(&[1, 2, 4, -1, 100]);
                Attr::Ints(vec![end])
            }
            ("strides", AttrKind::Ints) if spec.default.is_none() => {
                let stride = self.of(&[1, 2, -1]);
                Attr::Ints(vec![stride])
            }
            ("strides" | "ksize" | "dilations", _) => {
                let size = self.of(&[1, 2, 3]);
                Attr::Ints(vec![size, size])
            }
            ("paddings", AttrKind::Ints) => {
                let size = self.of(&[0, 1]);
                let count = if spec.default.is_none() { 4 } else { 2 };
                Attr::Ints(vec![size; count])
            }
            ("num", _) => Attr::Int(self.of(&[1, 2, 3, 4])),
            ("slot", _) => Attr::Int(self.rng.below(3) as i64),
            ("depth", _) => Attr::Int(self.of(&[1, 8, 40])),
            ("data_format" | "data_layout", _) => {
                let format = self.of(&["NCHW", "NHWC"]);
                Attr::Str(format.into())
            }
            ("padding_idx", _) => Attr::Int(self.of(&[-1, 0, 5])),
            (_, AttrKind::Int) => Attr::Int(self.of(&[0, 1, 2, 3, -1])),
            (_, AttrKind::Float) => Attr::Float(self.of(&[0.0, 0.5, 1.0, 2.0, 4.0])),
            (_, AttrKind::Bool) => Attr::Bool(self.one_in(2)),
            (_, AttrKind::Str) => match spec.default {
                Some(default) => default.to_attr(),
                None => Attr::Str(String::new()),
            },
            (_, AttrKind::Ints) => Attr::Ints((0..rank).map(|_| self.of(&[1, 2, 0])).collect()),
            (_, AttrKind::Floats) => Attr::Floats(vec![1.0; rank]),
            (_, AttrKind::Strs) => Attr::Strs(Vec::new()),
            (_, AttrKind::DType) => {
                let types = [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I64];
                Attr::DType(self.of(&types))
            }
            (_, AttrKind::Block) => Attr::Block(Program::ROOT),
        }
    }

    /// Returns the variables from which a loss can be built.
    fn differentiable(&self) -> Vec<VarId> {
        self.visible(Program::ROOT)
            .into_iter()
            .filter(|var| {
                let it = self.program.var(*var);
                let held = self.actual.get(var);
                held.is_some_and(|held| held.kind == VarKind::Dense && held.numel() > 0)
                    && it.dtype == DType::F32
                    && !it.is_data
                    && !it.persistable
            })
            .collect()
    }

    /// Appends a loss with its gradients and parameter updates.
    fn gradients(&mut self) {
        let root = Program::ROOT;
        let floats = self.differentiable();
        if floats.is_empty() {
            return;
        }
        // Not every variable leads to gradients, so try several.
        let found = (0..6).find_map(|_| {
            let input = self.of(&floats);
            self.backward_of(input)
        });
        let Some(pairs) = found else { return };
        let sgd = &Registry::standard().get("sgd").expect("a known op").spec;
        let rate = self.name("rate");
        let var = Var::persistable(&rate, DType::F32, [1]);
        let rate_var = self.program.add_var(root, var).expect("a new name");
        self.state.push((rate, Tensor::from_slice(&[0.1f32], [1]).expect("fits")));
        for (param, grad) in pairs {
            let op = Op::build(sgd).input("Param", param).input("Grad", grad);
            let op = op.input("LearningRate", rate_var).output("ParamOut", param);
            self.program.append_op(root, op.role(OpRole::OPTIMIZE).finish().expect("formed"));
        }
    }

    /// Appends the mean of a variable as a loss, and its gradients. Returns each parameter with its
    /// gradient.
    fn backward_of(&mut self, input: VarId) -> Option<Vec<(VarId, VarId)>> {
        let mut program = self.program.clone();
        let loss = self.loss_of(&mut program, input);
        let options = BackwardOptions::default();
        let pairs = append_backward(&mut program, Registry::standard(), loss, &options).ok()?;
        self.program = program;
        Some(pairs)
    }

    /// Appends the mean of a variable.
    fn loss_of(&mut self, program: &mut Program, input: VarId) -> VarId {
        let mean = &Registry::standard().get("mean").expect("a known op").spec;
        let var = Var::new(self.name("loss"), DType::F32, [1]);
        let loss = program.add_var(Program::ROOT, var).expect("a new name");
        let op = Op::build(mean).input("X", input).output("Out", loss).finish().expect("formed");
        program.append_op(Program::ROOT, op);
        loss
    }

    /// Redirects outputs of some ops to another variable with a matching declaration, of any actual
    /// size.
    fn redirect(&mut self) {
        for block in self.program.block_ids() {
            for id in self.program.block(block).ops().to_vec() {
                if !self.one_in(20) {
                    continue;
                }
                let Some(out) = self.program.op(id).all_outputs().next() else { continue };
                let held = self.program.var(out).clone();
                let choices: Vec<VarId> = self
                    .visible(block)
                    .into_iter()
                    .filter(|id| {
                        let var = self.program.var(*id);
                        let fits = var.shape.agrees(&held.shape) || held.shape.rank() > 3;
                        var.dtype == held.dtype && var.kind == held.kind && !var.is_data && fits
                    })
                    .collect();
                if choices.is_empty() {
                    continue;
                }
                let other = self.of(&choices);
                let op = self.program.op_mut(id);
                let slot = op.outputs.iter_mut().flatten().find(|var| **var == out);
                slot.into_iter().for_each(|var| *var = other);
            }
        }
    }

    fn finish(mut self) -> Draft {
        let written: Vec<VarId> = self
            .program
            .root_ops()
            .flat_map(|(_, op)| op.all_outputs().collect::<Vec<_>>())
            .collect();
        let mut fetches = Vec::new();
        for _ in 0..6 {
            if !written.is_empty() {
                let var = self.of(&written);
                let name = self.program.var_name(var).to_string();
                if !fetches.contains(&name) {
                    fetches.push(name);
                }
            }
        }
        let threads = if self.one_in(4) { 3 } else { 1 };
        let Generator { program, feeds, state, peers, .. } = self;
        Draft { program, peers, threads, feeds, state, fetches }
    }
}

/// Whether an op communicates over a ring.
fn communicates(def: &OpDef) -> bool {
    def.traits.lane == Lane::Ring || def.spec.attr_index("ring_id").is_some()
}
