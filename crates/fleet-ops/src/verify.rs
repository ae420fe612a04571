//! The verifier that knows what ops mean. It checks, and reports every violation with the op:
//!
//! 1. Everything that [`Program::errors`] checks; where that finds something, this file adds nothing.
//! 2. Every op is in the registry, under the definition that the program holds.
//! 3. Every op's shape rule, run again over the declared types and shapes of its inputs, accepts them
//!    and makes what its outputs are declared to be: element type, dense or sparse, and a shape that
//!    agrees (an unknown dimension agrees with any).

use crate::{Meta, Registry, meta};
use fleet_base::{Error, Result};
use fleet_ir::{Op, OpId, Program};

/// Everything that is wrong with a program.
pub fn errors(program: &Program, registry: &Registry) -> Vec<Error> {
    let mut errors = program.errors();
    if errors.is_empty() {
        for block in program.block_ids() {
            for (id, op) in program.block_ops(block) {
                check_op(program, registry, id, op, &mut errors);
            }
        }
    }
    errors
}

/// Refuses a program that has [`errors`], with all of them in the message.
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
        return Err(Error::invalid(format!("op '{}' is not the one of this registry", op.name()))
            .help("read the program with the registry that it is run with"));
    }
    def.shapes(op, |var| meta(program, var))
}

fn check_slot(program: &Program, op: &Op, slot: usize, made: &[Meta], errors: &mut Vec<Error>) {
    let (given, name) = (&op.outputs[slot], op.spec.outputs[slot].name);
    if given.len() > made.len() {
        let error = Error::invalid(format!("output '{name}' has more variables than the op makes"));
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
                Error::invalid(format!("output '{name}' makes '{var}' other than declared"))
                    .expected(shown(&declared))
                    .got(shown(made)),
            );
        }
    }
}

/// `f32[2, 3]`, or `f32[2, 3] (SparseRows)`.
fn shown(meta: &Meta) -> String {
    match meta.kind {
        fleet_ir::VarKind::Dense => format!("{}{}", meta.dtype, meta.shape),
        kind => format!("{}{} ({kind:?})", meta.dtype, meta.shape),
    }
}
