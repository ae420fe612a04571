//! Single precision for programs that mixed precision has rewritten.
//!
//! Casts to 16-bit floats are removed, and the values between casts become f32. A model that was
//! trained in 16 bits is exported like this: its parameters are f32 already, and any program can
//! read f32 results.

use fleet_base::{Error, Result};
use fleet_ir::{Attr, BlockId, Op, OpId, Program, VarId};
use fleet_ops::math::cast;
use fleet_ops::{Registry, meta};
use fleet_tensor::DType;
use std::collections::{HashMap, HashSet};

/// Returns the part of a forward program that computes `targets`, in single precision.
///
/// A program that is fed 16-bit values or keeps 16-bit variables stays in that precision.
///
/// ```
/// use fleet_ops::Registry;
/// let text = "fleet program 1
///     block0 {
///     %x: f32[2] data
///     %half: bf16[2]
///     %y: bf16[2]
///     (Out: %half) = cast(X: %x) {out_dtype: bf16}
///     (Out: %y) = tanh(X: %half)
///     }";
/// let program = fleet_ir::Program::parse(text, Registry::standard())?;
/// let target = program.var_named("y")?;
/// let single = fleet_passes::in_single_precision(&program, &[target], Registry::standard())?;
/// assert_eq!(single.var(target).dtype, fleet_tensor::DType::F32);
/// let ops: Vec<&str> = single.root_ops().map(|(_, op)| op.name()).collect();
/// assert_eq!(ops, ["tanh"]);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn in_single_precision(
    program: &Program,
    targets: &[VarId],
    registry: &Registry,
) -> Result<Program> {
    let pruned = program.prune(targets);
    let half = pruned.vars().filter(|(_, var)| is_half(var.dtype));
    let is_fixed: Vec<bool> = half.map(|(_, var)| var.persistable || var.is_data).collect();
    if is_fixed.is_empty() || is_fixed.contains(&true) {
        return Ok(pruned);
    }
    let mut writes: HashMap<VarId, usize> = HashMap::new();
    for (_, op) in pruned.block_ids().flat_map(|block| pruned.block_ops(block)) {
        op.all_outputs().for_each(|var| *writes.entry(var).or_default() += 1);
    }
    let targets_set = targets.iter().copied().collect();
    let renamed = HashMap::new();
    let mut widening =
        Widening { program: pruned, registry, targets: targets_set, writes, renamed };
    widening.block(Program::ROOT)?;
    Ok(widening.program.prune(targets))
}

fn is_half(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

/// A program that is being widened, op by op.
struct Widening<'a> {
    program: Program,
    registry: &'a Registry,
    targets: HashSet<VarId>,
    /// Number of ops that write each variable.
    writes: HashMap<VarId, usize>,
    /// Results of removed casts, and the variables that replace them.
    renamed: HashMap<VarId, VarId>,
}

impl Widening<'_> {
    fn block(&mut self, block: BlockId) -> Result<()> {
        let mut kept = Vec::new();
        for id in self.program.block(block).ops().to_vec() {
            let op = self.program.op_mut(id);
            for var in op.inputs.iter_mut().flatten() {
                *var = self.renamed.get(var).copied().unwrap_or(*var);
            }
            for attr in &mut op.attrs {
                if matches!(attr, Attr::DType(dtype) if is_half(*dtype)) {
                    *attr = Attr::DType(DType::F32);
                }
            }
            if let Some(inner) = op.sub_block() {
                self.block(inner)?;
            }
            match self.unneeded_cast(self.program.op(id)) {
                Some((from, to)) => {
                    self.renamed.insert(to, from);
                }
                None => {
                    self.retype(id)?;
                    kept.push(id);
                }
            }
        }
        self.program.set_block_ops(block, kept);
        Ok(())
    }

    /// Returns the operands of a cast that changes nothing, if its input can replace its result
    /// everywhere.
    fn unneeded_cast(&self, op: &Op) -> Option<(VarId, VarId)> {
        let ([from], [to]) = (op.input("X"), op.output("Out")) else { return None };
        let source = self.program.var(*from);
        let written = |var: &VarId| self.writes.get(var).copied().unwrap_or(0);
        let is_constant = match written(from) {
            0 => true,
            1 => !source.persistable && !source.is_data,
            _ => false,
        };
        let is_needed = self.targets.contains(to) || self.program.var(*to).persistable;
        let changes_nothing = cast::DEF.is(op) && source.dtype == op.attr_dtype("out_dtype");
        (changes_nothing && is_constant && written(to) == 1 && !is_needed).then_some((*from, *to))
    }

    /// Sets the types of an op's outputs by its shape rule.
    fn retype(&mut self, id: OpId) -> Result<()> {
        let op = self.program.op(id);
        let made = self.registry.get(op.name())?.shapes(op, |var| meta(&self.program, var));
        let made = made.map_err(|error| error.at(self.program.describe_op(id)))?;
        let outputs = op.outputs.clone();
        for (vars, metas) in outputs.iter().zip(made) {
            for (var, meta) in vars.iter().zip(metas) {
                let var = self.program.var_mut(*var);
                if var.persistable && var.dtype != meta.dtype {
                    return Err(Error::unsupported(format!(
                        "'{}' cannot be computed in single precision",
                        var.name
                    ))
                    .expected(var.dtype)
                    .got(meta.dtype));
                }
                var.dtype = meta.dtype;
            }
        }
        Ok(())
    }
}
