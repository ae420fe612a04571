//! The verifier for the meaning of ops. It checks these rules and reports every violation with its
//! op:
//!
//! 1. The program passes all checks of [`Program::errors`]. If one fails, this file checks nothing
//!    else.
//! 2. Every op is in the registry, under the definition that the program holds.
//! 3. Every op's shape rule, run again on the declared types and shapes of its inputs, succeeds.
//!    Its results match the declared outputs in element type, in being dense or sparse, and in
//!    shape. An unknown dimension matches any.
//! 4. In execution order, every write of a variable has the size of the first write, where sizes
//!    are known. Memory and kernels are planned for one size per variable.

use crate::{Meta, Registry, meta};
use fleet_base::{Error, Result};
use fleet_ir::{BlockId, Op, OpId, Program, VarId};
use std::collections::HashMap;

/// Returns all errors of a program.
pub fn errors(program: &Program, registry: &Registry) -> Vec<Error> {
    let mut errors = program.errors();
    if errors.is_empty() {
        for block in program.block_ids() {
            for (id, op) in program.block_ops(block) {
                check_op(program, registry, id, op, &mut errors);
            }
        }
    }
    if errors.is_empty() {
        let mut sizes = Sizes { program, registry, first: HashMap::new(), errors: &mut errors };
        sizes.walk(Program::ROOT);
    }
    errors
}

/// Rejects a program that has [`errors`]. The message lists all of them.
pub fn verify(program: &Program, registry: &Registry) -> Result<()> {
    fleet_ir::all_in_one(errors(program, registry))
}

fn check_op(program: &Program, registry: &Registry, id: OpId, op: &Op, errors: &mut Vec<Error>) {
    let before = errors.len();
    match infer(program, registry, op) {
        Err(error) => errors.push(error),
        Ok(made) => {
            for (slot, metas) in made.iter().enumerate() {
                check_slot(program, op, slot, metas, errors);
            }
        }
    }
    if errors.len() > before {
        let place = program.describe_op(id);
        let blamed: Vec<Error> = errors.drain(before..).map(|error| error.at(&place)).collect();
        errors.extend(blamed);
    }
}

fn infer(program: &Program, registry: &Registry, op: &Op) -> Result<Vec<Vec<Meta>>> {
    let def = registry.get(op.name())?;
    if !std::ptr::eq(&def.spec, op.spec) {
        return Err(Error::invalid(format!("op '{}' comes from another registry", op.name()))
            .help("parse the program with the registry that runs it"));
    }
    def.shapes(op, |var| meta(program, var))
}

/// Known sizes of variables, updated op by op.
struct Sizes<'a> {
    program: &'a Program,
    registry: &'a Registry,
    /// For each variable, the merged size of all writes so far, and the op that wrote it first.
    first: HashMap<VarId, (Meta, OpId)>,
    errors: &'a mut Vec<Error>,
}

impl Sizes<'_> {
    fn walk(&mut self, block: BlockId) {
        for (id, op) in self.program.block_ops(block) {
            if let Some(inner) = op.sub_block() {
                self.walk(inner);
            }
            self.add(id, op);
        }
    }

    fn add(&mut self, id: OpId, op: &Op) {
        let Some(def) = self.registry.find(op.name()) else { return };
        let declared = |var| meta(self.program, var);
        let known = |var| self.first.get(&var).map_or_else(|| declared(var), |(held, _)| *held);
        // The known sizes may be ones that the rule rejects. Planning then reports the error.
        let made = def.shapes(op, known).or_else(|_| def.shapes(op, declared));
        for (vars, metas) in op.outputs.iter().zip(made.unwrap_or_default()) {
            for (var, made) in vars.iter().zip(metas) {
                self.write(*var, made, id);
            }
        }
    }

    fn write(&mut self, var: VarId, made: Meta, id: OpId) {
        let Some((held, first)) = self.first.get_mut(&var) else {
            self.first.insert(var, (made, id));
            return;
        };
        let same_rows = held.rows == made.rows || held.rows == 0 || made.rows == 0;
        if held.shape.agrees(&made.shape) && same_rows {
            let pairs = held.shape.dims_mut().iter_mut().zip(made.shape.iter());
            pairs.filter(|(held, _)| **held < 0).for_each(|(held, made)| *held = *made);
            held.rows = held.rows.max(made.rows);
            return;
        }
        let error = two_sizes(self.program, var, (*held, *first), made);
        self.errors.push(error.at(self.program.describe_op(id)));
    }
}

/// Error for a variable whose second write has another size than the first.
pub fn two_sizes(program: &Program, var: VarId, (held, first): (Meta, OpId), made: Meta) -> Error {
    Error::invalid(format!("'{}' is written twice with different sizes", program.var_name(var)))
        .expected(held.describe())
        .got(made.describe())
        .help(format!(
            "use a separate variable for each result; the first is written by {}",
            program.describe_op(first)
        ))
}

fn check_slot(program: &Program, op: &Op, slot: usize, made: &[Meta], errors: &mut Vec<Error>) {
    let (given, name) = (&op.outputs[slot], op.spec.outputs[slot].name);
    if given.len() > made.len() {
        let error = Error::invalid(format!("too many variables for output '{name}'"));
        errors.push(error.expected(made.len()).got(given.len()));
    }
    for (var, made) in given.iter().zip(made) {
        let declared = meta(program, *var);
        let same = declared.dtype == made.dtype
            && declared.kind == made.kind
            && declared.shape.agrees(&made.shape);
        if !same {
            let var = program.var_name(*var);
            errors.push(
                Error::invalid(format!(
                    "output '{name}' does not match the declaration of '{var}'"
                ))
                .expected(declared.describe())
                .got(made.describe()),
            );
        }
    }
}
