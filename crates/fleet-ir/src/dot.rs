//! The writer of programs as graphs in the DOT language of Graphviz, for people to look at.
//!
//! Ops are boxes, coloured by role; the values of variables are ellipses. A variable that is
//! written several times has one ellipse for each value, so that the graph has no cycles. A nested
//! block is a cluster.

use crate::{BlockId, Op, OpRole, Program, VarId};
use std::collections::HashMap;
use std::fmt::{self, Write};

impl Program {
    /// Returns the program as a graph in the DOT language of Graphviz (`dot -Tsvg program.dot`).
    ///
    /// ```
    /// use fleet_ir::{Op, OpSpec, Program, Var, one};
    /// use fleet_tensor::DType;
    /// static RELU: OpSpec =
    ///     OpSpec { name: "relu", inputs: &[one("X")], outputs: &[one("Out")], attrs: &[] };
    /// let mut program = Program::new();
    /// let x = program.add_var(Program::ROOT, Var::data("x", DType::F32, [2]))?;
    /// let op = Op::build(&RELU).input("X", x).output("Out", x).finish()?;
    /// program.append_op(Program::ROOT, op);
    /// let graph = program.to_dot();
    /// assert!(graph.contains("var0_1 -> op0 [label=\"X\"]"), "{graph}");
    /// assert!(graph.contains("op0 -> var0_2 [label=\"Out\"]"), "{graph}");
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn to_dot(&self) -> String {
        let mut graph = Graph { program: self, text: String::new(), values: HashMap::new() };
        graph.line("digraph program {\n  node [style=filled, fillcolor=white];");
        graph.block(Program::ROOT);
        graph.line("}");
        graph.text
    }
}

struct Graph<'a> {
    program: &'a Program,
    text: String,
    /// By variable, the number of its values that have an ellipse.
    values: HashMap<VarId, usize>,
}

impl Graph<'_> {
    fn line(&mut self, line: impl fmt::Display) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{line}");
    }

    fn block(&mut self, block: BlockId) {
        let program = self.program;
        for (id, op) in program.block_ops(block) {
            let (name, color) = (Quoted(op.name()), color(op.role));
            self.line(format_args!("  {id} [shape=box, label={name}, fillcolor={color}];"));
            for (slot, var) in slots(op, false) {
                let count = self.values.get(&var).copied().unwrap_or_else(|| self.value(var));
                self.line(format_args!("  {var}_{count} -> {id} [label={}];", Quoted(slot)));
            }
            let own = |inner: &BlockId| program.block(*inner).parent == Some(block);
            if let Some(inner) = op.sub_block().filter(own) {
                self.line(format_args!("  subgraph cluster_{inner} {{\n  label=\"{inner}\";"));
                self.block(inner);
                self.line("  }");
            }
            for (slot, var) in slots(op, true) {
                let count = self.value(var);
                self.line(format_args!("  {id} -> {var}_{count} [label={}];", Quoted(slot)));
            }
        }
    }

    /// Draws the next value of a variable, and returns its number.
    fn value(&mut self, id: VarId) -> usize {
        let count = self.values.entry(id).or_default();
        *count += 1;
        let (count, var) = (*count, self.program.var(id));
        let label = format!("{}\n{}{}", var.name, var.dtype, var.shape);
        let color = match (var.is_parameter(), var.is_data) {
            (true, _) => "lightgrey",
            (_, true) => "palegreen",
            _ => "white",
        };
        self.line(format_args!("  {id}_{count} [label={}, fillcolor={color}];", Quoted(&label)));
        count
    }
}

/// Returns the variables of an op with their slots.
fn slots(op: &Op, is_output: bool) -> impl Iterator<Item = (&'static str, VarId)> + '_ {
    let (specs, vars) = match is_output {
        true => (op.spec.outputs, &op.outputs),
        false => (op.spec.inputs, &op.inputs),
    };
    specs.iter().zip(vars).flat_map(|(spec, vars)| vars.iter().map(|var| (spec.name, *var)))
}

fn color(role: OpRole) -> &'static str {
    match role.base() {
        OpRole::FORWARD => "white",
        OpRole::BACKWARD => "lightblue",
        OpRole::OPTIMIZE => "khaki",
        _ => "plum",
    }
}

/// A text in quotes, as DOT has it.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                '\n' => f.write_str("\\n")?,
                _ => f.write_char(character)?,
            }
        }
        f.write_char('"')
    }
}
