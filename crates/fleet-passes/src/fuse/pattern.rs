//! Patterns of fusions: lines of a program to find, and the lines that they become.
//!
//! A line has the form of a program's text, with a label, and with names instead of variables:
//!
//! ```text
//! add: (Out: sum) = elementwise_add(X: x, Y: y)
//! act: (Out: out) = relu|tanh(X: sum)
//! ```
//!
//! * The first line may match any op. The op of a further line is the first other op of its form
//!   that reads a variable of the lines before. If ops of its name read several such variables, the
//!   one in the last slot counts.
//! * A slot lists the names of all its variables, separated by blanks. The same name means the same
//!   variable. `name?` is one variable or none, `name*` any number, and `-` none. Slots that are
//!   not listed may hold anything.
//! * `relu|tanh` is one of these ops, and `$act_grad` the gradient of the op labelled `act`.
//!
//! A line of a replacement starts with the label of the op from which it takes its role and source
//! location. It takes the position of that op too, or of the op after `@`. `..act` copies the slots
//! and attributes of the op labelled `act` that are not given, and `$act` is the name of that op.

use super::graph::Graph;
use fleet_base::{Error, Result};
use fleet_ir::{Attr, Op, OpId, Program, VarId};

/// A slot, and the names of its variables.
pub(super) type Slot = (&'static str, Vec<&'static str>);

/// A parsed line.
pub(super) struct Line {
    pub label: &'static str,
    /// Label of the op whose position a new op takes.
    pub place: &'static str,
    /// Names of ops, separated by `|`.
    pub ops: &'static str,
    pub inputs: Vec<Slot>,
    pub outputs: Vec<Slot>,
    /// Label of the op from which the rest of a new op is copied.
    pub base: Option<&'static str>,
}

impl Line {
    fn parse(text: &'static str) -> Result<Line> {
        let parsed = || {
            let (head, rest) = text.split_once(": (")?;
            let (outputs, rest) = rest.split_once(") = ")?;
            let (ops, rest) = rest.split_once('(')?;
            let inputs = rest.strip_suffix(')')?;
            let (inputs, base) = match inputs.split_once("..") {
                Some((inputs, base)) => (inputs.trim_end_matches(", "), Some(base)),
                None => (inputs, None),
            };
            let (label, place) = head.split_once(" @ ").unwrap_or((head, head));
            Some(Line {
                label,
                place,
                ops,
                inputs: parse_slots(inputs)?,
                outputs: parse_slots(outputs)?,
                base,
            })
        };
        parsed().ok_or_else(|| Error::internal(format!("cannot parse the pattern '{text}'")))
    }

    pub fn parse_all(lines: &[&'static str]) -> Result<Vec<Line>> {
        lines.iter().map(|line| Line::parse(line)).collect()
    }
}

fn parse_slots(list: &'static str) -> Option<Vec<Slot>> {
    let slots = list.split(", ").filter(|slot| !slot.is_empty());
    slots
        .map(|slot| slot.split_once(": ").map(|(slot, vars)| (slot, vars.split(' ').collect())))
        .collect()
}

/// Ops and variables by their names in the pattern.
#[derive(Clone)]
pub(crate) struct Match<'p> {
    pub program: &'p Program,
    pub graph: &'p Graph,
    ops: Vec<(&'static str, OpId)>,
    vars: Vec<(&'static str, Vec<VarId>)>,
    /// Attributes of all new ops.
    pub attrs: Vec<(&'static str, Attr)>,
}

impl<'p> Match<'p> {
    /// Returns a match without ops.
    pub fn new(program: &'p Program, graph: &'p Graph) -> Match<'p> {
        Match { program, graph, ops: Vec::new(), vars: Vec::new(), attrs: Vec::new() }
    }

    /// Returns the op of a label.
    pub fn op(&self, label: &str) -> Option<&Op> {
        self.op_id(label).map(|id| self.program.op(id))
    }

    pub fn op_id(&self, label: &str) -> Option<OpId> {
        self.ops.iter().find(|(other, _)| *other == label).map(|(_, id)| *id)
    }

    pub fn op_ids(&self) -> Vec<OpId> {
        self.ops.iter().map(|(_, id)| *id).collect()
    }

    /// Returns the variables of a name; none if it is optional and absent.
    pub fn vars(&self, name: &str) -> &[VarId] {
        self.vars.iter().find(|(other, _)| *other == name).map_or(&[], |(_, vars)| vars)
    }

    /// Returns the variable of a name, unless it is absent.
    pub fn var(&self, name: &str) -> Option<VarId> {
        self.vars(name).first().copied()
    }

    /// Names variables, or renames them.
    pub fn bind(&mut self, name: &'static str, vars: Vec<VarId>) {
        self.vars.retain(|(other, _)| *other != name);
        self.vars.push((name, vars));
    }

    /// Sets an attribute of the new ops.
    pub fn set(&mut self, attr: &'static str, value: impl Into<Attr>) {
        self.attrs.push((attr, value.into()));
    }

    /// Returns the match extended by the op of a line.
    pub(super) fn next(&self, line: &Line) -> Option<Self> {
        let slots = line.inputs.iter().rev();
        let known =
            slots.filter_map(|(_, names)| names.iter().find_map(|name| self.var(bare(name))));
        let is_named =
            |id: &&OpId| self.is_new(**id) && self.is_named(self.program.op(**id), line.ops);
        let readers = |var: VarId| self.graph.readers(var).iter().filter(is_named);
        let known = known.into_iter().find(|var| readers(*var).next().is_some())?;
        readers(known).find_map(|id| self.fit(line, *id))
    }

    /// Returns the match extended by an op, if the op has the form of the line.
    pub(super) fn fit(&self, line: &Line, id: OpId) -> Option<Self> {
        let op = self.program.op(id);
        if !self.is_new(id) || !self.is_named(op, line.ops) {
            return None;
        }
        let mut extended = self.clone();
        extended.ops.push((line.label, id));
        for (slot, names) in &line.inputs {
            extended.unify(names, op.input(slot))?;
        }
        for (slot, names) in &line.outputs {
            extended.unify(names, op.output(slot))?;
        }
        Some(extended)
    }

    /// Returns whether no line has this op.
    fn is_new(&self, id: OpId) -> bool {
        self.ops.iter().all(|(_, other)| *other != id)
    }

    fn is_named(&self, op: &Op, names: &str) -> bool {
        match names.strip_prefix('$').and_then(|label| label.strip_suffix("_grad")) {
            Some(forward) => self.op(forward).is_some_and(|forward| {
                op.name().strip_suffix("_grad").is_some_and(|name| name == forward.name())
            }),
            None => names.split('|').any(|name| name == op.name()),
        }
    }

    fn unify(&mut self, names: &[&'static str], mut vars: &[VarId]) -> Option<()> {
        for name in names {
            let count = match name.as_bytes().last()? {
                b'-' => 0,
                b'?' => vars.len().min(1),
                b'*' => vars.len(),
                _ => 1,
            };
            let (these, rest) = vars.split_at_checked(count)?;
            vars = rest;
            let name = bare(name);
            match self.vars.iter().find(|(other, _)| *other == name) {
                Some((_, known)) if known != these && count > 0 => return None,
                None if count > 0 => self.vars.push((name, these.to_vec())),
                _ => {}
            }
        }
        vars.is_empty().then_some(())
    }
}

/// Returns the name of a variable without its count.
pub(super) fn bare(name: &'static str) -> &'static str {
    name.trim_end_matches(['?', '*'])
}
