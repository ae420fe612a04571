//! Third phase: groups of variables that share memory.
//!
//! A view shares the memory of its input unless the memory is overwritten during the view's
//! lifetime. The output of an in-place pair shares it if the input's lifetime ends at the op.

use super::infer::Inferred;
use super::lifetimes::Lifetimes;
use crate::flat::Flat;
use fleet_base::SecondaryMap;
use fleet_ir::{OpId, VarId, VarKind};
use fleet_ops::OpDef;

/// A union-find of variables. The representative of a group owns its memory.
pub(super) struct Groups {
    parent: SecondaryMap<VarId, VarId>,
    by_root: SecondaryMap<VarId, Group>,
}

/// Variables in the same memory.
pub(super) struct Group {
    /// First and last use of any member.
    pub first: usize,
    pub last: usize,
    members: Vec<VarId>,
}

impl Groups {
    /// Returns a group for each variable.
    pub fn apart(lifetimes: &Lifetimes) -> Groups {
        let group = |(var, life): (VarId, &super::lifetimes::Life)| {
            (var, Group { first: life.first, last: life.last, members: vec![var] })
        };
        Groups {
            parent: lifetimes.iter().map(|(var, _)| (var, var)).collect(),
            by_root: lifetimes.iter().map(group).collect(),
        }
    }

    /// Lets outputs share the memory of inputs where their ops allow it.
    pub fn join(inferred: &Inferred<'_>, lifetimes: &Lifetimes) -> Groups {
        let groups = Groups::apart(lifetimes);
        let mut sharing = Sharing { inferred, lifetimes, groups };
        for (at, step) in inferred.flat.iter().enumerate() {
            if let Flat::Op(id, def) = step
                && !sharing.join_view(at, *id, def)
            {
                sharing.join_pairs(at, *id, def);
            }
        }
        sharing.groups
    }

    /// Returns the representative of a variable's group.
    pub fn root(&self, var: VarId) -> VarId {
        let mut at = var;
        while self.parent[at] != at {
            at = self.parent[at];
        }
        at
    }

    /// Returns the group of a variable.
    pub fn of(&self, var: VarId) -> &Group {
        &self.by_root[self.root(var)]
    }

    fn merge(&mut self, owner: VarId, member: VarId) {
        let (owner, member) = (self.root(owner), self.root(member));
        if owner == member {
            return;
        }
        self.parent.insert(member, owner);
        if let Some(joined) = self.by_root.remove(member)
            && let Some(group) = self.by_root.get_mut(owner)
        {
            group.first = group.first.min(joined.first);
            group.last = group.last.max(joined.last);
            group.members.extend(joined.members);
        }
    }
}

struct Sharing<'a> {
    inferred: &'a Inferred<'a>,
    lifetimes: &'a Lifetimes,
    groups: Groups,
}

impl Sharing<'_> {
    /// Joins a view with its input. Returns whether it did.
    fn join_view(&mut self, at: usize, id: OpId, def: &OpDef) -> bool {
        let op = self.inferred.program.op(id);
        if let Some((out, input)) = def.traits.view
            && let (Some(out), Some(input)) = (op.output(out).first(), op.input(input).first())
            && self.may_view(at, *out, *input)
        {
            self.groups.merge(*input, *out);
            return true;
        }
        false
    }

    /// Joins in-place pairs. An output shares memory with at most one input, and an input with at
    /// most one output.
    fn join_pairs(&mut self, at: usize, id: OpId, def: &OpDef) {
        let op = self.inferred.program.op(id);
        let mut taken: Vec<VarId> = Vec::new();
        let pairs = def.traits.inplace.iter().map(|pair| (pair, VarKind::Dense));
        let rows = def.traits.inplace_rows.iter().map(|pair| (pair, VarKind::SparseRows));
        for ((out, input), kind) in pairs.chain(rows) {
            let (Some(out), Some(input)) = (op.output(out).first(), op.input(input).first()) else {
                continue;
            };
            let root = self.groups.root(*input);
            if self.inferred.meta(*out).kind == kind
                && !taken.contains(&root)
                && !taken.contains(&self.groups.root(*out))
                && self.is_read_once(id, def, *input)
                && !op.all_outputs().any(|var| self.groups.root(var) == root)
                && self.may_overwrite(at, *out, *input)
            {
                taken.push(root);
                self.groups.merge(*input, *out);
            }
        }
    }

    fn may_view(&self, at: usize, out: VarId, input: VarId) -> bool {
        let is_dense = |var: VarId| self.inferred.meta(var).kind == VarKind::Dense;
        let fits = is_dense(input)
            && is_dense(out)
            && self.inferred.bytes(input) == self.inferred.bytes(out);
        let persistable = self.inferred.program.var(out).persistable;
        if !fits || persistable || self.lifetimes.of(out).written_twice() {
            return false;
        }
        // No op may write the shared memory while either variable is in use.
        let group = self.groups.of(input);
        let until = group.last.max(self.groups.of(out).last);
        !group.members.iter().any(|member| self.lifetimes.of(*member).written_within(at, until))
    }

    fn may_overwrite(&self, at: usize, out: VarId, input: VarId) -> bool {
        if out == input {
            return false;
        }
        let program = self.inferred.program;
        let owner = program.var(self.groups.root(input));
        let in_arena = !owner.persistable && !owner.is_data && !program.var(out).persistable;
        let fits = self.inferred.meta(input).kind == VarKind::Dense
            && self.inferred.bytes(out) == self.inferred.bytes(input)
            && self.inferred.layout(out) == self.inferred.layout(input);
        let ends_here = self.groups.of(input).last == at;
        in_arena && fits && ends_here && !self.lifetimes.of(out).written_twice()
    }

    /// Whether the op reads the input's memory through one variable only. With a second one (a
    /// repeated name or a view), the memory could be overwritten before it is read.
    fn is_read_once(&self, id: OpId, def: &OpDef, input: VarId) -> bool {
        let op = self.inferred.program.op(id);
        let slots = op.spec.inputs.iter().zip(&op.inputs);
        let read = slots.filter(|(slot, _)| !def.traits.shape_only.contains(&slot.name));
        let root = self.groups.root(input);
        read.flat_map(|(_, vars)| vars).filter(|var| self.groups.root(**var) == root).count() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Planned;
    use super::*;

    /// Checks which variables are in one group, for ops after `%a = relu(%x)`.
    fn check(ops: &str, fetches: &[&str], together: &[(&str, &str)], apart: &[(&str, &str)]) {
        let planned = Planned::new(&format!(
            "fleet program 1
            block0 {{
              %x: f32[4] data
              %a: f32[4]
              %b: f32[2, 2]
              %c: f32[4]
              (Out: %a) = relu(X: %x)
              {ops}
            }}"
        ));
        planned.with(|inferred| {
            let fetches: Vec<VarId> = fetches.iter().map(|name| planned.var(name)).collect();
            let lifetimes = Lifetimes::find(inferred, &fetches);
            let groups = Groups::join(inferred, &lifetimes);
            let root = |name: &str| groups.root(planned.var(name));
            together.iter().for_each(|(a, b)| assert_eq!(root(a), root(b), "{ops}: {a}, {b}"));
            apart.iter().for_each(|(a, b)| assert_ne!(root(a), root(b), "{ops}: {a}, {b}"));
            let single = Groups::apart(&lifetimes);
            assert!(lifetimes.iter().all(|(var, life)| {
                single.root(var) == var && single.of(var).last == life.last
            }));
        });
    }

    #[test]
    fn an_op_overwrites_an_input_that_ends() {
        let tanh = "(Out: %c) = tanh(X: %a)";
        // A fed tensor belongs to the caller.
        check(tanh, &[], &[("c", "a")], &[("a", "x")]);
        check(tanh, &["a"], &[], &[("c", "a")]);
        let twice = "(Out: %c) = elementwise_add(X: %a, Y: %a)";
        check(twice, &[], &[], &[("c", "a")]);
    }

    #[test]
    fn a_view_shares_memory_that_stays_unchanged() {
        let view = "(Out: %b) = reshape2(X: %a) {shape: [2, 2]}";
        check(view, &["a", "b"], &[("b", "a")], &[]);
        let changed = format!("{view} (Out: %a) = relu(X: %x) (Out: %c) = relu(X: %a)");
        check(&changed, &["b"], &[], &[("b", "a")]);
        // An op that reads a variable and its view overwrites neither of them.
        let both = format!("{view} (Out: %c) = elementwise_add(X: %a, Y: %a)");
        check(&both, &["b"], &[("b", "a")], &[("c", "a")]);
    }
}
