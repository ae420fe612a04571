//! The writer of the text form of programs. [`crate::parse`] reads the form back without loss.
//!
//! ```text
//! fleet program 1
//! seed 7
//! streams 2
//!
//! block0 {
//!   %x: f32[-1, 13] data
//!   %fc_0.w_0: f32[13, 400] param lr=0.1 l2=0.0001
//!   %fc_0.tmp_0: f32[-1, 400]
//!   %loss: f32[]
//!
//!   (Out: %fc_0.tmp_0) = mul(X: %x, Y: %fc_0.w_0) device="cpu" at="src/model.rs:12"
//!   (Out: %loss) = mean(X: %fc_0.tmp_0) !loss
//! }
//! ```
//!
//! * A variable has a name, an element type and a shape, followed by its differences from a plain
//!   temporary: `sparse_rows`, `tensor_array`, `layout=`, `data`, `persistable`, `param` with
//!   `frozen`, `lr=`, `l1=`, `l2=`, `no_clip`, `distributed`; `split=` with the axis that
//!   ranks may divide, `split_groups=` with the number of blocks along it, `part=` and `parts=`
//!   where the variable is a part, `padding=` where the last parts are padded; `lod=`; and
//!   `stop_gradient` or `stop_gradient=false` where it differs from the implied value. Fed
//!   variables, persistable variables and frozen parameters stop gradients unless stated otherwise.
//! * An op has its outputs by slot, its name, its inputs by slot, the attributes that differ from
//!   their defaults, its role (`!backward`, `!optimize`, `!loss` ...; none for forward), its device
//!   label, `fp16_guard` in such a region, and its source location.
//! * A nested block names its parent: `block1 in block0 { .. }`. The op that owns it has it as an
//!   attribute: `{sub_block: block1}`.
//! * Names with unusual characters are quoted: `%"a b"`. A `#` starts a comment.
//!
//! Removed variables and ops are not written, so a program that is read back has consecutive ids.

use crate::names::{name, quoted, word};
use crate::{
    Attr, AttrConst, Block, BlockId, Division, Op, OpRole, Program, Regularizer, Var, VarId,
    VarKind,
};
use fleet_tensor::Layout;
use std::fmt::{self, Write};

/// The version of the format, for writer and reader.
pub(crate) const VERSION: u32 = 1;

/// Names of roles in the text form, without the loss bit.
pub(crate) const ROLES: [(&str, OpRole); 6] = [
    ("forward", OpRole::FORWARD),
    ("backward", OpRole::BACKWARD),
    ("optimize", OpRole::OPTIMIZE),
    ("rpc", OpRole::RPC),
    ("dist", OpRole::DIST),
    ("lr_sched", OpRole::LR_SCHED),
];

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "fleet program {VERSION}\nseed {}", self.seed())?;
        if self.streams() != 0 {
            writeln!(f, "streams {}", self.streams())?;
        }
        for id in self.block_ids() {
            write_block(f, self, id, self.block(id))?;
        }
        Ok(())
    }
}

/// Compares printed forms, so that gaps in the ids left by removed items do not matter.
impl PartialEq for Program {
    fn eq(&self, other: &Program) -> bool {
        self.to_string() == other.to_string()
    }
}

fn write_block(
    f: &mut fmt::Formatter<'_>,
    program: &Program,
    id: BlockId,
    block: &Block,
) -> fmt::Result {
    write!(f, "\n{id} ")?;
    if let Some(parent) = block.parent {
        write!(f, "in {parent} ")?;
    }
    f.write_str("{\n")?;
    for var in block.vars() {
        f.write_str("  ")?;
        write_var(f, program.var(*var))?;
        f.write_char('\n')?;
    }
    if !block.vars().is_empty() && !block.ops().is_empty() {
        f.write_char('\n')?;
    }
    for (_, op) in program.block_ops(id) {
        f.write_str("  ")?;
        write_op(f, program, op)?;
        f.write_char('\n')?;
    }
    f.write_str("}\n")
}

fn write_var(f: &mut fmt::Formatter<'_>, var: &Var) -> fmt::Result {
    write!(f, "%{}: {}{}", name(&var.name), var.dtype, var.shape)?;
    match var.kind {
        VarKind::Dense => {}
        VarKind::SparseRows => f.write_str(" sparse_rows")?,
        VarKind::TensorArray => f.write_str(" tensor_array")?,
    }
    if var.layout != Layout::RowMajor {
        write!(f, " layout={}", var.layout)?;
    }
    if var.is_data {
        f.write_str(" data")?;
    }
    match &var.param {
        None if var.persistable => f.write_str(" persistable")?,
        None => {}
        Some(param) => {
            f.write_str(" param")?;
            if !var.persistable {
                f.write_str(" persistable=false")?;
            }
            if !param.trainable {
                f.write_str(" frozen")?;
            }
            if param.learning_rate != 1.0 {
                write!(f, " lr={}", float(param.learning_rate))?;
            }
            match param.regularizer {
                None => {}
                Some(Regularizer::L1(coeff)) => write!(f, " l1={}", float(coeff))?,
                Some(Regularizer::L2(coeff)) => write!(f, " l2={}", float(coeff))?,
            }
            if !param.need_clip {
                f.write_str(" no_clip")?;
            }
            if param.is_distributed {
                f.write_str(" distributed")?;
            }
        }
    }
    if let Some(Division { axis, groups, part, parts, padding }) = var.division {
        write!(f, " split={axis}")?;
        if groups != 1 {
            write!(f, " split_groups={groups}")?;
        }
        if parts != 1 {
            write!(f, " part={part} parts={parts}")?;
        }
        if padding != 0 {
            write!(f, " padding={padding}")?;
        }
    }
    if var.lod_level != 0 {
        write!(f, " lod={}", var.lod_level)?;
    }
    match (var.stop_gradient, implied_stop_gradient(var)) {
        (true, false) => f.write_str(" stop_gradient"),
        (false, true) => f.write_str(" stop_gradient=false"),
        _ => Ok(()),
    }
}

/// The value of `stop_gradient` for a variable that does not state it.
pub(crate) fn implied_stop_gradient(var: &Var) -> bool {
    match &var.param {
        Some(param) => var.is_data || !param.trainable,
        None => var.is_data || var.persistable,
    }
}

fn write_op(f: &mut fmt::Formatter<'_>, program: &Program, op: &Op) -> fmt::Result {
    f.write_char('(')?;
    write_slots(f, program, op.spec.outputs.iter().map(|slot| slot.name), &op.outputs)?;
    write!(f, ") = {}(", word(op.name()))?;
    write_slots(f, program, op.spec.inputs.iter().map(|slot| slot.name), &op.inputs)?;
    f.write_char(')')?;
    let mut separator = " {";
    for (spec, value) in op.spec.attrs.iter().zip(&op.attrs) {
        if !spec.default.is_some_and(|default| is_default(value, &default)) {
            write!(f, "{separator}{}: ", word(spec.name))?;
            write_attr(f, value)?;
            separator = ", ";
        }
    }
    if separator == ", " {
        f.write_char('}')?;
    }
    write_role(f, op.role)?;
    if let Some(device) = &op.device {
        write!(f, " device={}", quoted(device))?;
    }
    if op.fp16_guard {
        f.write_str(" fp16_guard")?;
    }
    if let Some(source) = &op.source {
        write!(f, " at={}", quoted(source))?;
    }
    Ok(())
}

fn write_slots(
    f: &mut fmt::Formatter<'_>,
    program: &Program,
    names: impl Iterator<Item = &'static str>,
    slots: &[Vec<VarId>],
) -> fmt::Result {
    let mut separator = "";
    for (name, vars) in names.zip(slots).filter(|(_, vars)| !vars.is_empty()) {
        write!(f, "{separator}{}: ", word(name))?;
        separator = "";
        for var in vars {
            write!(f, "{separator}{}", program.var_label(*var))?;
            separator = ", ";
        }
    }
    Ok(())
}

fn write_role(f: &mut fmt::Formatter<'_>, role: OpRole) -> fmt::Result {
    match ROLES.iter().find(|(_, known)| *known == role.base()) {
        Some((_, OpRole::FORWARD)) => {}
        Some((name, _)) => write!(f, " !{name}")?,
        None => write!(f, " !role({})", role.base().0)?,
    }
    if role.is_loss() { f.write_str(" !loss") } else { Ok(()) }
}

fn write_attr(f: &mut fmt::Formatter<'_>, value: &Attr) -> fmt::Result {
    match value {
        Attr::Int(value) => write!(f, "{value}"),
        Attr::Float(value) => f.write_str(&float(*value)),
        Attr::Bool(value) => write!(f, "{value}"),
        Attr::Str(value) => f.write_str(&quoted(value)),
        Attr::Ints(values) => write_list(f, values, |value| value.to_string()),
        Attr::Floats(values) => write_list(f, values, |value| float(*value)),
        Attr::Strs(values) => write_list(f, values, |value| quoted(value)),
        Attr::DType(value) => write!(f, "{value}"),
        Attr::Block(value) => write!(f, "{value}"),
    }
}

fn write_list<T>(
    f: &mut fmt::Formatter<'_>,
    values: &[T],
    show: impl Fn(&T) -> String,
) -> fmt::Result {
    f.write_char('[')?;
    for (index, value) in values.iter().enumerate() {
        let separator = if index == 0 { "" } else { ", " };
        write!(f, "{separator}{}", show(value))?;
    }
    f.write_char(']')
}

/// Compares floats by bits, so that -0.0 differs from 0.0 and a NaN equals itself.
fn is_default(value: &Attr, default: &AttrConst) -> bool {
    match (value, default) {
        (Attr::Int(value), AttrConst::Int(default)) => value == default,
        (Attr::Float(value), AttrConst::Float(default)) => value.to_bits() == default.to_bits(),
        (Attr::Bool(value), AttrConst::Bool(default)) => value == default,
        (Attr::Str(value), AttrConst::Str(default)) => value == default,
        (Attr::Ints(values), AttrConst::Ints(defaults)) => values == defaults,
        (Attr::Floats(values), AttrConst::Floats(defaults)) => {
            values.iter().map(|v| v.to_bits()).eq(defaults.iter().map(|v| v.to_bits()))
        }
        (Attr::Strs(values), AttrConst::Strs(defaults)) => values == defaults,
        (Attr::DType(value), AttrConst::DType(default)) => value == default,
        _ => false,
    }
}

/// Returns the shortest text that parses to the same float. It never looks like an integer.
fn float(value: f64) -> String {
    if value.is_nan() { "nan".to_string() } else { format!("{value:?}") }
}
