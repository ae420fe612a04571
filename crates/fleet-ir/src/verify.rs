//! The verifier. It reports every violation of these rules, with the op that violates it:
//!
//! 1. Blocks: block 0 is the root and has no parent. Every other block has an existing parent,
//!    without cycles and at most 32 levels deep. A block belongs to at most one op, which is in the
//!    block's parent.
//! 2. Variables: each is listed once, in the block that it names. A name is not empty and is unique
//!    in the whole program, and [`Program::find_var`] finds the variable by it. Shapes have no
//!    dimension below -1, and variables in a filter layout have four dimensions. A parameter is
//!    persistable. No variable is both fed and kept between runs. A division fits the shape.
//! 3. Ops: each exists and is listed once, in one block. It has as many slots and attributes as its
//!    spec. Each slot has as many variables as it takes. Attributes have the spec's types.
//! 4. Uses: every variable exists and is listed in the op's block or a block around it. No op
//!    writes a fed variable.
//! 5. Order: an earlier op writes a variable before any op reads it, unless the variable is
//!    persistable, fed, or a tensor array (which starts empty). The error names the first op that
//!    reads it too early. An op with a sub-block writes whatever its sub-block writes, and the
//!    sub-block sees earlier writes. Blocks that no op uses do not run, so their order is not
//!    checked.
//!
//! The verifier does not know the meaning of ops. The op registry's verifier runs this one first,
//! and then compares declared types and shapes with the results of the ops.

use crate::limits::{BLOCK_DEPTH_MAX, BlockOwners, depth};
use crate::op::check_arity;
use crate::{Attr, BlockId, Op, OpId, Program, VarId, VarKind};
use fleet_base::{EntityRef, Error, Result};
use fleet_tensor::Layout;
use std::collections::HashSet;

impl Program {
    /// Returns every violation in the program, in order. The module's head lists the rules.
    pub fn errors(&self) -> Vec<Error> {
        let mut verifier = Verifier::new(self);
        verifier.blocks();
        verifier.vars();
        verifier.ops();
        // The walk follows ids, so they must all be valid.
        if verifier.walkable {
            verifier.walk(Program::ROOT);
        }
        verifier.errors
    }

    /// Returns an error that lists all [`Program::errors`], if there are any.
    pub fn verify(&self) -> Result<()> {
        all_in_one(self.errors())
    }
}

/// Merges errors into one, or returns `Ok` if there are none. The message holds every error in
/// full.
pub fn all_in_one(errors: Vec<Error>) -> Result<()> {
    let count = errors.len();
    let mut errors = errors.into_iter();
    match (errors.next(), count) {
        (None, _) => Ok(()),
        (Some(only), 1) => Err(only),
        (Some(first), _) => {
            let rest: String = errors.map(|error| format!("\n{error}")).collect();
            Err(Error::new(first.kind(), format!("the program has {count} errors\n{first}{rest}")))
        }
    }
}

struct Verifier<'p> {
    program: &'p Program,
    errors: Vec<Error>,
    /// Whether blocks form a tree and all ids exist.
    walkable: bool,
    /// By variable: the block that lists it.
    listed: Vec<Option<BlockId>>,
    /// By variable: whether it has a value.
    written: Vec<bool>,
}

impl<'p> Verifier<'p> {
    fn new(program: &'p Program) -> Verifier<'p> {
        Verifier {
            program,
            errors: Vec::new(),
            walkable: true,
            listed: vec![None; program.var_capacity()],
            written: vec![false; program.var_capacity()],
        }
    }

    fn blocks(&mut self) {
        let program = self.program;
        if program.block_count() == 0 {
            self.fatal(Error::invalid("the program has no root block"));
            return;
        }
        for id in program.block_ids() {
            let parent = program.block(id).parent;
            let error = match parent {
                None if id == Program::ROOT => continue,
                Some(_) if id == Program::ROOT => Error::invalid("the root block has a parent"),
                None => Error::invalid("a block has no parent").expected("only the root"),
                Some(parent) if !program.has_block(parent) => {
                    Error::invalid("a block's parent does not exist").got(parent)
                }
                Some(_) if depth(program, id) > BLOCK_DEPTH_MAX => {
                    Error::invalid("a block is in a cycle of parents, or nested too deeply")
                        .expected(format!("at most {BLOCK_DEPTH_MAX} levels"))
                }
                Some(_) => continue,
            };
            self.fatal(error.at(id));
        }
    }

    fn vars(&mut self) {
        let program = self.program;
        let mut names = HashSet::new();
        for block in program.block_ids() {
            for &id in program.block(block).vars() {
                if !program.has_var(id) {
                    self.fatal(
                        Error::invalid(format!("the block lists {id}, which does not exist"))
                            .at(block),
                    );
                    continue;
                }
                let var = program.var(id);
                let mut report = |error: Error| {
                    self.errors.push(error.at(format!("variable '{}' of {block}", var.name)));
                };
                if self.listed[id.index()].replace(block).is_some() {
                    report(Error::invalid("a variable is listed twice"));
                }
                if var.block != block {
                    report(
                        Error::invalid("a variable is listed in the wrong block")
                            .expected(var.block),
                    );
                }
                if var.name.is_empty() {
                    report(Error::invalid("a variable has no name"));
                }
                if !names.insert(&var.name) {
                    report(Error::invalid("duplicate variable name"));
                } else if program.find_var(&var.name) != Some(id) {
                    report(Error::invalid("the name index does not list the variable"));
                }
                if var.shape.iter().any(|dim| *dim < -1) {
                    report(
                        Error::invalid("a dimension is negative")
                            .expected("-1 (unknown) or more")
                            .got(var.shape),
                    );
                }
                if var.layout == Layout::Filter64 && var.shape.rank() != 4 {
                    report(
                        Error::invalid("wrong number of dimensions for layout filter64")
                            .expected("4 dimensions")
                            .got(var.shape),
                    );
                }
                if let Some(division) = var.division.filter(|it| !it.fits(&var.shape)) {
                    report(
                        Error::invalid("the division of a variable does not fit its shape")
                            .expected("an axis that divides into the groups and parts")
                            .got(format!("{division:?} of {}", var.shape)),
                    );
                }
                if var.is_parameter() && !var.persistable {
                    report(Error::invalid("a parameter is not persistable"));
                }
                if (var.persistable || var.is_parameter()) && var.is_data {
                    report(Error::invalid("a variable is both fed and kept between runs"));
                }
            }
        }
    }

    fn ops(&mut self) {
        let program = self.program;
        let mut seen = vec![false; program.op_capacity()];
        let mut owners = BlockOwners::default();
        for block in program.block_ids() {
            for (index, &id) in program.block(block).ops().iter().enumerate() {
                let place = Some((block, index));
                if !program.has_op(id) {
                    let error = Error::invalid("a block lists an op that does not exist");
                    self.fatal(error.at(program.describe_op_at(id, place)));
                    continue;
                }
                let before = self.errors.len();
                if std::mem::replace(&mut seen[id.index()], true) {
                    self.errors.push(Error::invalid("an op is listed twice"));
                }
                self.slots(program.op(id));
                self.attrs(program.op(id), block, &mut owners);
                self.uses(program.op(id), block);
                self.add_op_context(before, id, block, index);
            }
        }
    }

    fn slots(&mut self, op: &Op) {
        let spec = op.spec;
        let sides = [("input", spec.inputs, &op.inputs), ("output", spec.outputs, &op.outputs)];
        for (side, slots, vars) in sides {
            if slots.len() != vars.len() {
                let error = Error::invalid(format!("the op has the wrong number of {side} slots"));
                self.errors.push(error.expected(slots.len()).got(vars.len()));
            }
            for (slot, vars) in slots.iter().zip(vars) {
                self.errors
                    .extend(check_arity(spec, side, slot.name, slot.arity, vars.len()).err());
            }
        }
    }

    fn attrs(&mut self, op: &Op, block: BlockId, owners: &mut BlockOwners) {
        let specs = op.spec.attrs;
        if specs.len() != op.attrs.len() {
            let error = Error::invalid("the op has the wrong number of attributes");
            self.errors.push(error.expected(specs.len()).got(op.attrs.len()));
        }
        for (spec, value) in specs.iter().zip(&op.attrs) {
            if spec.kind != value.kind() {
                let error = Error::invalid(format!("attribute '{}' has the wrong type", spec.name));
                self.errors.push(error.expected(spec.kind).got(value.kind()));
            }
            if let Attr::Block(inner) = value
                && let Err(error) = owners.claim(self.program, block, *inner)
            {
                self.fatal(error);
            }
        }
    }

    fn uses(&mut self, op: &Op, block: BlockId) {
        let program = self.program;
        let fed = |var: &VarId| program.has_var(*var) && program.var(*var).is_data;
        for var in op.all_outputs().filter(fed) {
            let name = program.var_label(var);
            self.errors.push(
                Error::invalid(format!("the op writes {name}, a fed variable"))
                    .help("write to another variable"),
            );
        }
        for var in op.all_inputs().chain(op.all_outputs()) {
            if !program.has_var(var) {
                self.fatal(Error::invalid(format!("the op uses {var}, which does not exist")));
                continue;
            }
            let name = program.var_label(var);
            match self.listed[var.index()] {
                None => self.errors.push(Error::invalid(format!(
                    "the op uses {name}, which is in no block (was it removed?)"
                ))),
                Some(home) if !self.sees(block, home) => self.errors.push(Error::invalid(format!(
                    "the op uses {name} of {home}, which is not visible in {block}"
                ))),
                Some(_) => {}
            }
        }
    }

    /// Whether `home` is `block` or one of the blocks around it.
    fn sees(&self, block: BlockId, home: BlockId) -> bool {
        let parents = std::iter::successors(Some(block), |block| {
            self.program.block(*block).parent.filter(|parent| self.program.has_block(*parent))
        });
        parents.take(BLOCK_DEPTH_MAX + 2).any(|block| block == home)
    }

    /// Checks reads and writes in the order in which ops run.
    fn walk(&mut self, block: BlockId) {
        let program = self.program;
        for (index, (id, op)) in program.block_ops(block).enumerate() {
            let before = self.errors.len();
            for var in op.all_inputs() {
                self.read(var);
            }
            self.add_op_context(before, id, block, index);
            if let Some(inner) = op.sub_block() {
                self.walk(inner);
            }
            for var in op.all_outputs() {
                self.written[var.index()] = true;
            }
        }
    }

    fn read(&mut self, id: VarId) {
        let var = self.program.var(id);
        let ready = var.persistable || var.is_data || var.kind == VarKind::TensorArray;
        if ready || std::mem::replace(&mut self.written[id.index()], true) {
            return;
        }
        let name = self.program.var_label(id);
        self.errors.push(
            Error::invalid(format!("{name} is read before any op writes it"))
                .help("feed it (data), keep it between runs (persistable), or write it earlier"),
        );
    }

    /// Adds the op's description and source location to the errors since `before`.
    fn add_op_context(&mut self, before: usize, id: OpId, block: BlockId, index: usize) {
        if self.errors.len() > before {
            let place = self.program.describe_op_at(id, Some((block, index)));
            let errors = self.errors.split_off(before);
            let line = self.program.op(id).source.as_deref();
            let add_context = |error: Error| match line {
                Some(line) => error.at(&place).naming(line),
                None => error.at(&place),
            };
            self.errors.extend(errors.into_iter().map(add_context));
        }
    }

    fn fatal(&mut self, error: Error) {
        self.walkable = false;
        self.errors.push(error);
    }
}
