//! Programs, blocks and their ids.

use crate::names::{self, NAME_BYTES_MAX};
use crate::{Attr, Op, OpRole, Var};
use fleet_base::{EntityMap, Error, Result, entity_id, text};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;

entity_id! {
    /// A list of ops and the variables declared there. Block 0 is the root.
    pub struct BlockId("block");
}
entity_id! {
    /// An op of a program.
    pub struct OpId("op");
}
entity_id! {
    /// A variable of a program.
    pub struct VarId("var");
}

impl Default for BlockId {
    fn default() -> Self {
        Program::ROOT
    }
}

/// A list of ops, run in order.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// The block whose variables this block may also use; `None` for the root.
    pub parent: Option<BlockId>,
    ops: Vec<OpId>,
    vars: Vec<VarId>,
}

impl Block {
    /// Returns the ops in the order in which they run.
    pub fn ops(&self) -> &[OpId] {
        &self.ops
    }

    /// Returns the variables that the block lists, in order of creation.
    pub fn vars(&self) -> &[VarId] {
        &self.vars
    }
}

/// The counters of [`Program::unique_name`].
#[derive(Clone, Debug, Default)]
pub struct NameCounters(HashMap<String, u32>);

/// A network, or a rewrite of one: blocks of ops over variables.
///
/// Names are unique in the whole program. Removing an op or a variable takes it out of its block;
/// the ids of the others do not change.
#[derive(Clone, Debug, Default)]
pub struct Program {
    seed: u64,
    blocks: EntityMap<BlockId, Block>,
    ops: EntityMap<OpId, Op>,
    vars: EntityMap<VarId, Var>,
    by_name: HashMap<String, VarId>,
    streams: u64,
    name_counters: NameCounters,
    fingerprint: OnceLock<u128>,
}

impl Program {
    /// The block that runs.
    pub const ROOT: BlockId = root_id();

    /// Returns a program with an empty root block.
    pub fn new() -> Program {
        let mut program = Program::default();
        program.blocks.push(Block::default());
        program
    }

    /// Returns the seed of every random op of the program.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Sets the seed of every random op of the program.
    pub fn set_seed(&mut self, seed: u64) {
        self.invalidate_fingerprint();
        self.seed = seed;
    }

    /// Returns a new stream number for a random op, so that no two ops draw the same numbers.
    pub fn next_stream(&mut self) -> u64 {
        self.invalidate_fingerprint();
        self.streams += 1;
        self.streams
    }

    /// Returns the last number that [`Program::next_stream`] returned.
    pub fn streams(&self) -> u64 {
        self.streams
    }

    /// Sets the number of streams handed out, so that later ops get streams after those.
    pub fn set_streams(&mut self, streams: u64) {
        self.invalidate_fingerprint();
        self.streams = streams;
    }

    // Blocks

    /// Adds an empty block inside `parent`.
    pub fn add_block(&mut self, parent: BlockId) -> BlockId {
        self.invalidate_fingerprint();
        self.blocks.push(Block { parent: Some(parent), ..Block::default() })
    }

    /// Returns a block. Panics if the program has no block of this id.
    pub fn block(&self, id: BlockId) -> &Block {
        &self.blocks[id]
    }

    /// Returns the number of blocks, with the root.
    pub fn block_count(&self) -> usize {
        self.blocks.len()
    }

    /// Iterates over the ids of all blocks, the root first.
    pub fn block_ids(&self) -> impl DoubleEndedIterator<Item = BlockId> + use<> {
        self.blocks.ids()
    }

    /// Removes all but the first `count` blocks. No op may use them, and they have no variables.
    ///
    /// ```
    /// use fleet_ir::Program;
    /// let mut program = Program::new();
    /// let branch = program.add_block(Program::ROOT);
    /// program.truncate_blocks(1);
    /// assert!(!program.has_block(branch));
    /// ```
    pub fn truncate_blocks(&mut self, count: usize) {
        self.invalidate_fingerprint();
        // The root stays.
        self.blocks.truncate(count.max(1));
    }

    /// Returns whether the program has a block of this id.
    pub fn has_block(&self, id: BlockId) -> bool {
        self.blocks.contains(id)
    }

    // Variables

    /// Adds a variable to a block. Fails if the name is taken or not allowed.
    pub fn add_var(&mut self, block: BlockId, mut var: Var) -> Result<VarId> {
        if self.by_name.contains_key(&var.name) {
            return Err(Error::invalid(format!("duplicate variable name '{}'", var.name))
                .help("choose another name; names are unique in a program"));
        }
        check_name(&var.name)?;
        self.invalidate_fingerprint();
        var.block = block;
        let name = var.name.clone();
        let id = self.vars.push(var);
        self.by_name.insert(name, id);
        self.blocks[block].vars.push(id);
        Ok(id)
    }

    /// Returns a variable. Panics if the program never had a variable of this id.
    pub fn var(&self, id: VarId) -> &Var {
        &self.vars[id]
    }

    /// Returns the variable for changes to anything but its name and block.
    pub fn var_mut(&mut self, id: VarId) -> &mut Var {
        self.invalidate_fingerprint();
        &mut self.vars[id]
    }

    /// Returns the name of a variable. Panics like [`Program::var`].
    pub fn var_name(&self, id: VarId) -> &str {
        &self.vars[id].name
    }

    /// Returns the variable of a name, in any block.
    pub fn find_var(&self, name: &str) -> Option<VarId> {
        self.by_name.get(name).copied()
    }

    /// Like [`Program::find_var`], but returns an error that suggests the nearest name.
    pub fn var_named(&self, name: &str) -> Result<VarId> {
        self.find_var(name).ok_or_else(|| {
            let hint = text::did_you_mean(name, self.by_name.keys().map(String::as_str));
            Error::invalid(format!("the program has no variable '{name}'{hint}"))
        })
    }

    /// Renames a variable. Fails if another variable has the name or it is not allowed.
    pub fn rename_var(&mut self, id: VarId, name: impl Into<String>) -> Result<()> {
        let name = name.into();
        if self.vars[id].name == name {
            return Ok(());
        }
        check_name(&name)?;
        if self.by_name.contains_key(&name) {
            return Err(Error::invalid(format!("cannot rename a variable to '{name}'"))
                .expected("an unused name"));
        }
        self.invalidate_fingerprint();
        self.by_name.remove(&self.vars[id].name);
        self.by_name.insert(name.clone(), id);
        self.vars[id].name = name;
        Ok(())
    }

    /// Removes a variable from the program. No op may use it afterwards.
    pub fn remove_var(&mut self, id: VarId) {
        self.invalidate_fingerprint();
        let Var { name, block, .. } = &self.vars[id];
        self.by_name.remove(name);
        self.blocks[*block].vars.retain(|var| *var != id);
    }

    /// Returns the first of `key_0`, `key_1`, .. that is not in use: the documented unique names.
    pub fn unique_name(&mut self, key: &str) -> String {
        self.invalidate_fingerprint();
        let next = self.name_counters.0.entry(key.to_string()).or_insert(0);
        loop {
            let name = format!("{key}_{next}");
            *next += 1;
            if !self.by_name.contains_key(&name) {
                return name;
            }
        }
    }

    /// Swaps the counters of [`Program::unique_name`] for others. Several programs that share a
    /// scope count with the same ones, so that their variables have different names.
    ///
    /// ```
    /// use fleet_ir::{NameCounters, Program};
    /// let (mut train, mut other) = (Program::new(), Program::new());
    /// let mut shared = NameCounters::default();
    /// for (program, name) in [(&mut train, "fc_0"), (&mut other, "fc_1")] {
    ///     program.swap_name_counters(&mut shared);
    ///     assert_eq!(program.unique_name("fc"), name);
    ///     program.swap_name_counters(&mut shared);
    /// }
    /// assert_eq!(train.unique_name("fc"), "fc_0"); // its own counters
    /// ```
    pub fn swap_name_counters(&mut self, counters: &mut NameCounters) {
        std::mem::swap(&mut self.name_counters, counters);
    }

    /// Returns `base` if no variable has that name, else a unique name made from it.
    pub fn fresh_name(&mut self, base: &str) -> String {
        if self.by_name.contains_key(base) { self.unique_name(base) } else { base.to_string() }
    }

    /// Iterates over the variables of all blocks, in order of creation within each block.
    pub fn vars(&self) -> impl Iterator<Item = (VarId, &Var)> {
        self.blocks.values().flat_map(|block| &block.vars).map(|id| (*id, &self.vars[*id]))
    }

    /// Iterates over the parameters of all blocks, trainable or frozen.
    pub fn parameters(&self) -> impl Iterator<Item = (VarId, &Var)> {
        self.vars().filter(|(_, var)| var.is_parameter())
    }

    /// Returns an upper bound of variable indices, for side tables.
    pub fn var_capacity(&self) -> usize {
        self.vars.len()
    }

    /// Returns whether the id is one of this program, even if the variable has been removed.
    pub fn has_var(&self, id: VarId) -> bool {
        self.vars.contains(id)
    }

    // Ops

    /// Adds an op at the end of a block, and returns its id.
    pub fn append_op(&mut self, block: BlockId, op: Op) -> OpId {
        let at = self.blocks[block].ops.len();
        self.insert_op(block, at, op)
    }

    /// Inserts an op before the op at position `at`.
    pub fn insert_op(&mut self, block: BlockId, at: usize, op: Op) -> OpId {
        self.invalidate_fingerprint();
        let id = self.ops.push(op);
        self.blocks[block].ops.insert(at, id);
        id
    }

    /// Returns an op. Panics if the program never had an op of this id.
    pub fn op(&self, id: OpId) -> &Op {
        &self.ops[id]
    }

    /// Like [`Program::op`], for changes.
    pub fn op_mut(&mut self, id: OpId) -> &mut Op {
        self.invalidate_fingerprint();
        &mut self.ops[id]
    }

    /// Returns whether the id is one of this program, even if the op has been removed.
    pub fn has_op(&self, id: OpId) -> bool {
        self.ops.contains(id)
    }

    /// Iterates over the ops of the root block.
    pub fn root_ops(&self) -> impl DoubleEndedIterator<Item = (OpId, &Op)> + ExactSizeIterator {
        self.block_ops(Program::ROOT)
    }

    /// Iterates over the ops of a block, in the order in which they run.
    pub fn block_ops(
        &self,
        block: BlockId,
    ) -> impl DoubleEndedIterator<Item = (OpId, &Op)> + ExactSizeIterator {
        self.blocks[block].ops.iter().map(|id| (*id, &self.ops[*id]))
    }

    /// Replaces a block's list of ops, to reorder or drop ops, or to insert ops created with
    /// [`Program::make_op`].
    pub fn set_block_ops(&mut self, block: BlockId, ops: Vec<OpId>) {
        self.invalidate_fingerprint();
        self.blocks[block].ops = ops;
    }

    /// Creates an op that is in no block.
    pub fn make_op(&mut self, op: Op) -> OpId {
        self.invalidate_fingerprint();
        self.ops.push(op)
    }

    /// Keeps only the ops for which `keep` returns true.
    pub fn retain_ops(&mut self, block: BlockId, mut keep: impl FnMut(OpId, &Op) -> bool) {
        self.invalidate_fingerprint();
        let ops = &self.ops;
        self.blocks[block].ops.retain(|id| keep(*id, &ops[*id]));
    }

    /// Returns an upper bound of op indices, for side tables.
    pub fn op_capacity(&self) -> usize {
        self.ops.len()
    }

    // Whole programs

    /// Returns the program for evaluation: forward ops only, with `is_test` set on every op that
    /// has that attribute.
    pub fn clone_for_test(&self) -> Result<Program> {
        let mut test = self.clone();
        for block in test.block_ids().collect::<Vec<_>>() {
            test.retain_ops(block, |_, op| op.role.is_forward());
            for id in test.blocks[block].ops.clone() {
                if test.ops[id].spec.attr_index("is_test").is_some() {
                    test.op_mut(id).set_attr("is_test", true)?;
                }
            }
        }
        test.drop_unused_vars();
        Ok(test)
    }

    /// Returns a copy that keeps only the ops of the root block that `targets` depend on, and the
    /// variables in use. The blocks of removed ops are gone, so that the others get new ids.
    pub fn prune(&self, targets: &[VarId]) -> Program {
        let mut pruned = self.clone();
        let mut needed: HashSet<VarId> = targets.iter().copied().collect();
        let mut kept = Vec::new();
        let mut writes = HashSet::new();
        for id in self.blocks[Program::ROOT].ops.iter().rev() {
            writes.clear();
            self.writes_of(*id, &mut writes);
            if writes.iter().any(|var| needed.contains(var)) {
                kept.push(*id);
                self.reads_of(*id, &mut needed);
            }
        }
        kept.reverse();
        pruned.set_block_ops(Program::ROOT, kept);
        pruned.drop_unreachable_blocks();
        let keep: HashSet<VarId> = targets.iter().copied().collect();
        pruned.drop_vars_unless(|id, used| used || keep.contains(&id));
        pruned
    }

    /// Drops the blocks that cannot be reached from the root through sub-blocks.
    fn drop_unreachable_blocks(&mut self) {
        let mut reached = BTreeSet::from([Program::ROOT]);
        let mut open = vec![Program::ROOT];
        while let Some(block) = open.pop() {
            // Blocks are reached through their parents, too: variables are declared there.
            let attrs = self.block_ops(block).flat_map(|(_, op)| &op.attrs);
            let inner = attrs.filter_map(|attr| match attr {
                Attr::Block(inner) => Some(*inner),
                _ => None,
            });
            for next in inner.chain(self.blocks[block].parent) {
                if reached.insert(next) {
                    open.push(next);
                }
            }
        }
        let mut blocks = EntityMap::new();
        let new_ids: HashMap<BlockId, BlockId> =
            reached.iter().map(|id| (*id, blocks.push(self.blocks[*id].clone()))).collect();
        for block in blocks.values_mut() {
            block.parent = block.parent.map(|parent| new_ids[&parent]);
        }
        let ops: BTreeSet<OpId> =
            blocks.values().flat_map(|block| block.ops.iter().copied()).collect();
        for id in ops {
            for attr in &mut self.ops[id].attrs {
                if let Attr::Block(inner) = attr {
                    *inner = new_ids[inner];
                }
            }
        }
        self.blocks = blocks;
    }

    /// Drops the variables that no op of any block uses.
    pub fn drop_unused_vars(&mut self) {
        self.drop_vars_unless(|_, used| used);
    }

    /// Keeps only the variables for which `keep` returns true. No op may use the others.
    pub fn retain_vars(&mut self, keep: impl Fn(VarId, &Var) -> bool) {
        self.invalidate_fingerprint();
        let vars = &self.vars;
        for block in self.blocks.values_mut() {
            block.vars.retain(|id| keep(*id, &vars[*id]));
        }
        self.by_name.retain(|_, id| keep(*id, &vars[*id]));
    }

    fn drop_vars_unless(&mut self, keep: impl Fn(VarId, bool) -> bool) {
        self.invalidate_fingerprint();
        let mut used = HashSet::new();
        for block in self.blocks.values() {
            for id in &block.ops {
                used.extend(self.ops[*id].all_inputs());
                used.extend(self.ops[*id].all_outputs());
            }
        }
        for block in self.blocks.values_mut() {
            block.vars.retain(|id| keep(*id, used.contains(id)));
        }
        let listed: HashSet<VarId> =
            self.blocks.values().flat_map(|block| block.vars.iter().copied()).collect();
        self.by_name.retain(|_, id| listed.contains(id));
    }

    /// Adds the variables that an op and the ops of its sub-block read.
    pub fn reads_of(&self, id: OpId, into: &mut HashSet<VarId>) {
        let op = &self.ops[id];
        into.extend(op.all_inputs());
        if let Some(block) = op.sub_block() {
            for inner in &self.blocks[block].ops {
                self.reads_of(*inner, into);
            }
        }
    }

    /// Adds the variables that an op and the ops of its sub-block write.
    pub fn writes_of(&self, id: OpId, into: &mut HashSet<VarId>) {
        let op = &self.ops[id];
        into.extend(op.all_outputs());
        if let Some(block) = op.sub_block() {
            for inner in &self.blocks[block].ops {
                self.writes_of(*inner, into);
            }
        }
    }

    /// Returns a hash of the content, so that equal programs share plans. It is cached until the
    /// next change.
    pub fn fingerprint(&self) -> u128 {
        *self.fingerprint.get_or_init(|| {
            let half = |salt: u64| {
                let mut hasher = DefaultHasher::new();
                salt.hash(&mut hasher);
                self.hash_content(&mut hasher);
                u128::from(hasher.finish())
            };
            half(1) << 64 | half(2)
        })
    }

    fn hash_content(&self, hasher: &mut impl Hasher) {
        self.seed.hash(hasher);
        for (_, block) in self.blocks.iter() {
            (block.parent, block.vars.len(), block.ops.len()).hash(hasher);
            for id in &block.vars {
                let var = &self.vars[*id];
                (id, &var.name, var.dtype, var.shape, var.kind, var.layout).hash(hasher);
                (var.persistable, var.is_data, var.lod_level, var.stop_gradient).hash(hasher);
            }
            for id in &block.ops {
                let op = &self.ops[*id];
                (op.spec.name, &op.inputs, &op.outputs, op.role).hash(hasher);
                op.device.hash(hasher);
                hash_attrs(op, hasher);
            }
        }
    }

    fn invalidate_fingerprint(&mut self) {
        self.fingerprint = OnceLock::new();
    }

    /// Describes an op for errors: `op 3 mul(X: %x, Y: %w) at src/model.rs:10`.
    pub fn describe_op(&self, id: OpId) -> String {
        let place = self.blocks.iter().find_map(|(block, content)| {
            content.ops.iter().position(|other| *other == id).map(|index| (block, index))
        });
        self.describe_op_at(id, place)
    }

    /// Like [`Program::describe_op`] for an op whose position is known. Accepts invalid programs.
    pub(crate) fn describe_op_at(&self, id: OpId, place: Option<(BlockId, usize)>) -> String {
        let position = match place {
            Some((Program::ROOT, index)) => format!("op {index}"),
            Some((block, index)) => format!("{block} op {index}"),
            None => "op".to_string(),
        };
        let Some(op) = self.ops.get(id) else {
            return format!("{position} ({id}, no such op)");
        };
        let slots: Vec<String> = op
            .spec
            .inputs
            .iter()
            .zip(&op.inputs)
            .filter(|(_, vars)| !vars.is_empty())
            .map(|(slot, vars)| {
                let shown: Vec<String> =
                    vars.iter().take(4).map(|var| self.var_label(*var)).collect();
                let more = if vars.len() > 4 { ", .." } else { "" };
                format!("{}: {}{more}", slot.name, shown.join(", "))
            })
            .collect();
        let slots = shortened(slots);
        let source = op.source.as_deref().map(|at| format!(" at {at}")).unwrap_or_default();
        let role = match op.role.base() {
            OpRole::BACKWARD => " (backward)",
            OpRole::OPTIMIZE => " (optimizer)",
            _ => "",
        };
        format!("{position} {}({slots}){role}{source}", op.name())
    }

    /// Returns `%name`, or a placeholder for an invalid id.
    pub(crate) fn var_label(&self, id: VarId) -> String {
        match self.vars.get(id) {
            Some(var) => format!("%{}", names::name(&var.name)),
            None => format!("%<no such variable: {id}>"),
        }
    }
}

/// Limit on the slots in an op's description, in characters. Fused ops have many slots, and the
/// description must fit a readable line.
const SLOTS_CHARS_MAX: usize = 200;

/// Joins as many slots as fit the limit, and always the first.
fn shortened(slots: Vec<String>) -> String {
    let mut text = String::new();
    for slot in slots {
        if !text.is_empty() && text.len() + slot.len() > SLOTS_CHARS_MAX {
            return text + ", ..";
        }
        if !text.is_empty() {
            text += ", ";
        }
        text += &slot;
    }
    text
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() {
        return Err(Error::invalid("empty variable name"));
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid("the name of a variable is too long")
            .expected(format!("at most {NAME_BYTES_MAX} bytes"))
            .got(name.len()));
    }
    Ok(())
}

const fn root_id() -> BlockId {
    BlockId(0)
}

fn hash_attrs(op: &Op, hasher: &mut impl Hasher) {
    use crate::Attr;
    for attr in &op.attrs {
        match attr {
            Attr::Int(value) => value.hash(hasher),
            Attr::Float(value) => value.to_bits().hash(hasher),
            Attr::Bool(value) => value.hash(hasher),
            Attr::Str(value) => value.hash(hasher),
            Attr::Ints(values) => values.hash(hasher),
            Attr::Floats(values) => {
                values.iter().for_each(|value| value.to_bits().hash(hasher));
                values.len().hash(hasher);
            }
            Attr::Strs(values) => values.hash(hasher),
            Attr::DType(value) => value.hash(hasher),
            Attr::Block(value) => value.hash(hasher),
        }
    }
}
