//! Fusions as patterns: lines of a program to find, and the lines that they become.
//!
//! A line has the form of a program's text, with a label, and with names instead of variables:
//!
//! ```text
//! add: (Out: sum) = elementwise_add(X: x, Y: y)
//! act: (Out: out) = relu|tanh(X: sum)
//! ```
//!
//! * The first line may match any op. The op of a further line is the first op of its name that
//!   reads a variable of the lines before. If there are several such variables, the one in the last
//!   slot counts.
//! * A slot lists the names of all its variables, separated by blanks. The same name means the same
//!   variable. `name?` is one variable or none, `name*` any number, and `-` none. Slots that are not
//!   listed may hold anything.
//! * `relu|tanh` is one of these ops, and `$act_grad` the gradient of the op labelled `act`.
//!
//! A line of a replacement starts with the label of the op from which it takes its role and source
//! location. It takes the position of that op too, or of the op after `@`. `..act` copies the slots
//! and attributes of the op labelled `act` that are not given, and `$act` is the name of that op.
//!
//! The pattern says which ops compute the same as their replacement. The rest is checked for every
//! fusion: nothing else uses the results that are no longer stored, and no op in between sees that
//! ops move (`replacement.rs`).

use super::graph::{Edit, Graph};
use super::replacement::Replacement;
use fleet_base::{Error, Result};
use fleet_ir::{Attr, Op, OpId, Program, VarId};
use fleet_ops::Registry;

/// A rewrite of a pattern of ops.
pub(crate) struct Fusion {
    /// Alternatives. The first one that matches at an op is used there.
    pub variants: &'static [Variant],
    /// Checks the rest of a match, such as shapes, and adds to it the attributes of the new ops.
    pub accept: fn(&mut Match<'_>) -> Option<()>,
}

/// A forward part with the alternatives of its backward part. The forward part is replaced alone if
/// the program has no op for the first line of any alternative.
pub(crate) struct Variant {
    pub forward: Rule,
    pub backward: &'static [Rule],
}

/// Lines to find, and the lines that replace them.
pub(crate) struct Rule {
    pub find: &'static [&'static str],
    pub becomes: &'static [&'static str],
}

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

    fn parse_all(lines: &[&'static str]) -> Result<Vec<Line>> {
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

impl Match<'_> {
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
    fn next(&self, line: &Line) -> Option<Self> {
        let slots = line.inputs.iter().rev();
        let known =
            slots.filter_map(|(_, names)| names.iter().find_map(|name| self.var(bare(name))));
        let reader = |var: VarId| {
            let mut readers = self.graph.readers(var).iter().copied();
            readers.find(|id| self.is_named(self.program.op(*id), line.ops))
        };
        self.fit(line, known.into_iter().find_map(reader)?)
    }

    /// Returns the match extended by an op, if the op has the form of the line.
    fn fit(&self, line: &Line, id: OpId) -> Option<Self> {
        let op = self.program.op(id);
        let is_new = self.ops.iter().all(|(_, other)| *other != id);
        if !is_new || !self.is_named(op, line.ops) {
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

/// A [`Rule`] with its lines parsed.
struct Parsed {
    find: Vec<Line>,
    becomes: Vec<Line>,
}

impl Parsed {
    fn new(rule: &Rule) -> Result<Parsed> {
        Ok(Parsed { find: Line::parse_all(rule.find)?, becomes: Line::parse_all(rule.becomes)? })
    }
}

impl Fusion {
    /// Replaces all matches in the root block. Returns whether there are any.
    pub fn run(&self, program: &mut Program, registry: &Registry, keep: &[VarId]) -> Result<bool> {
        let mut variants = Vec::new();
        for Variant { forward, backward } in self.variants {
            let backward: Vec<Parsed> = backward.iter().map(Parsed::new).collect::<Result<_>>()?;
            variants.push((Parsed::new(forward)?, backward));
        }
        let graph = Graph::new(program, keep);
        let mut edit = Edit::default();
        let mut replacements = Vec::new();
        for (id, _) in program.root_ops() {
            let start = Match {
                program,
                graph: &graph,
                ops: Vec::new(),
                vars: Vec::new(),
                attrs: Vec::new(),
            };
            let Some((found, new)) = self.find(&variants, &start, id) else { continue };
            let replacement = Replacement::new(&found, &new, registry)?;
            if edit.is_free(&found.op_ids()) && replacement.is_safe(&found) {
                edit.remove(&found.op_ids());
                replacements.push(replacement);
            }
        }
        for replacement in replacements {
            replacement.emit(program, registry, &mut edit)?;
        }
        Ok(edit.apply(program))
    }

    /// Returns the match that starts at an op, and the lines that replace it.
    fn find<'m, 'v>(
        &self,
        variants: &'v [(Parsed, Vec<Parsed>)],
        start: &Match<'m>,
        id: OpId,
    ) -> Option<(Match<'m>, Vec<&'v Line>)> {
        let accepted = |found: &Match<'m>, lines: &[Line]| {
            let mut found = lines.iter().try_fold(found.clone(), |found, line| found.next(line))?;
            (self.accept)(&mut found).map(|()| found)
        };
        let forward = variants.iter().find_map(|(forward, backward)| {
            let (first, rest) = forward.find.split_first()?;
            let found = rest.iter().try_fold(start.fit(first, id)?, |it, line| it.next(line))?;
            Some((accepted(&found, &[])?, found, &forward.becomes, backward))
        });
        let (alone, found, becomes, backward) = forward?;
        let mut whole = backward.iter().filter_map(|it| Some((accepted(&found, &it.find)?, it)));
        if let Some((whole, rule)) = whole.next() {
            return Some((whole, becomes.iter().chain(&rule.becomes).collect()));
        }
        let begins = |rule: &Parsed| rule.find.first().is_some_and(|it| found.next(it).is_some());
        (!backward.iter().any(begins)).then(|| (alone, becomes.iter().collect()))
    }
}
