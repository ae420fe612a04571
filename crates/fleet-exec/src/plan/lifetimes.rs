//! Second phase: the steps that use each variable.

use super::infer::Inferred;
use crate::flat::{Flat, LaneKey};
use fleet_base::SecondaryMap;
use fleet_ir::VarId;
use std::collections::HashMap;

/// The lifetimes of the variables that the program uses.
pub(super) struct Lifetimes(SecondaryMap<VarId, Life>);

/// Uses of a variable, as positions in the flat order.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Life {
    pub first: usize,
    /// The end of the flat order if the value is used after the last step.
    pub last: usize,
    /// Positions of the ops that write the variable, in order.
    writes: Vec<usize>,
    /// Whether the first op that uses the variable writes it; `None` if no op uses it.
    written_first: Option<bool>,
}

impl Lifetimes {
    pub fn find(inferred: &Inferred<'_>, fetches: &[VarId]) -> Lifetimes {
        let mut lifetimes = Lifetimes(SecondaryMap::new());
        for (at, step) in inferred.flat.iter().enumerate() {
            lifetimes.add(inferred, at, step);
        }
        let end = inferred.flat.len();
        for var in fetches {
            lifetimes.0.get_or_insert_with(*var, Life::default).last = end;
        }
        lifetimes.extend_for_rings(inferred);
        lifetimes.extend_over_jumps(inferred);
        lifetimes
    }

    pub fn of(&self, var: VarId) -> &Life {
        &self.0[var]
    }

    /// Returns all used variables, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = (VarId, &Life)> {
        self.0.iter()
    }

    /// Adds the uses of a step. A variable that is read only for its shape counts only if no
    /// earlier step touches it.
    fn add(&mut self, inferred: &Inferred<'_>, at: usize, step: &Flat) {
        let (id, def) = match step {
            Flat::Op(id, def) => (*id, *def),
            Flat::Jump { condition, .. } => {
                self.touch(*condition, at).last = at;
                return;
            }
        };
        let op = inferred.program.op(id);
        for (slot, vars) in op.spec.inputs.iter().zip(&op.inputs) {
            let shape_only = def.traits.shape_only.contains(&slot.name);
            for var in vars {
                let life = self.touch(*var, at);
                life.written_first.get_or_insert(false);
                if !shape_only {
                    life.last = at;
                }
            }
        }
        for var in op.all_outputs() {
            let life = self.touch(var, at);
            life.written_first.get_or_insert(true);
            life.last = at;
            life.writes.push(at);
        }
    }

    fn touch(&mut self, var: VarId, at: usize) -> &mut Life {
        self.0.get_or_insert_with(var, || Life { first: at, last: at, ..Life::default() })
    }

    /// Extends the lifetime of variables that a ring's lane uses to the end of the run, because
    /// that lane may lag behind. A variable that the lane writes and compute then uses is left
    /// out: that use has waited for the lane.
    ///
    /// Sends, and sums that only their root needs, are meant to free memory early: their variables
    /// live until the lane's next calls begin, so that compute waits for at most one earlier call.
    /// Offload lanes are left out for the same reason.
    fn extend_for_rings(&mut self, inferred: &Inferred<'_>) {
        let end = inferred.flat.len();
        // The first position at which each lane of a ring has later calls.
        let mut next: HashMap<LaneKey, (usize, usize)> = HashMap::new();
        for (at, (step, lane)) in inferred.flat.iter().zip(&inferred.lanes).enumerate().rev() {
            if !matches!(lane, LaneKey::Ring(_)) {
                continue;
            }
            let (mut extend, until) = (Vec::new(), next.get(lane).copied());
            let (later, first) = match until {
                // Calls that follow each other directly begin together.
                Some((later, first)) if first == at + 1 => (later, at),
                Some((_, first)) => (first, at),
                None => (end, at),
            };
            next.insert(*lane, (later, first));
            let mut is_freed = false;
            let mut writes = Vec::new();
            match step {
                Flat::Jump { condition, .. } => extend.push(*condition),
                Flat::Op(id, def) => {
                    let op = inferred.program.op(*id);
                    extend.extend(op.all_inputs().chain(op.all_outputs()));
                    writes.extend(op.all_outputs());
                    is_freed = def.traits.frees_early;
                }
            }
            for var in extend {
                let Some(life) = self.0.get_mut(var) else { continue };
                life.last = match life.last > at {
                    true if writes.contains(&var) => life.last,
                    _ if is_freed => life.last.max(later),
                    _ => end,
                };
            }
        }
    }

    /// Keeps the memory of a variable that is used both inside and outside a conditional part for
    /// the whole part, whether it runs or not.
    fn extend_over_jumps(&mut self, inferred: &Inferred<'_>) {
        for (at, step) in inferred.flat.iter().enumerate() {
            let Flat::Jump { to, .. } = step else { continue };
            let inside = |position: usize| position > at && position < *to;
            for life in self.0.values_mut() {
                if inside(life.first) && !inside(life.last) {
                    life.first = at;
                }
                if inside(life.last) && !inside(life.first) {
                    life.last = *to;
                }
            }
        }
    }
}

impl Life {
    pub fn written_twice(&self) -> bool {
        self.writes.len() > 1
    }

    /// Whether an op writes the variable after `from`, and at `until` at the latest.
    pub fn written_within(&self, from: usize, until: usize) -> bool {
        let next = self.writes.partition_point(|at| *at <= from);
        self.writes.get(next).is_some_and(|at| *at <= until)
    }

    /// Whether the first op that uses the variable writes it.
    pub fn written_before_read(&self) -> bool {
        self.written_first == Some(true)
    }

    /// Whether an op writes the variable.
    pub fn is_written(&self) -> bool {
        !self.writes.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::Planned;
    use super::*;

    fn check(text: &str, fetches: &[&str], expected: &[(&str, usize, usize)]) {
        let planned = Planned::new(text);
        planned.with(|inferred| {
            let fetches: Vec<VarId> = fetches.iter().map(|name| planned.var(name)).collect();
            let lifetimes = Lifetimes::find(inferred, &fetches);
            for (name, first, last) in expected {
                let life = lifetimes.of(planned.var(name));
                assert_eq!((life.first, life.last), (*first, *last), "{name}");
            }
        });
    }

    #[test]
    fn a_variable_lives_from_its_first_to_its_last_use() {
        let text = "fleet program 1
            block0 {
              %x: f32[4] data
              %a: f32[4]
              %b: f32[4]
              %c: f32[4]
              (Out: %a) = relu(X: %x)
              (Out: %b) = relu(X: %a)
              (Out: %c) = elementwise_add(X: %a, Y: %b)
            }";
        check(text, &["b"], &[("x", 0, 0), ("a", 0, 2), ("b", 1, 3), ("c", 2, 2)]);
    }

    /// The gradient of a mean needs only the shape of its input.
    #[test]
    fn a_read_of_the_shape_keeps_no_values() {
        let text = "fleet program 1
            block0 {
              %x: f32[4] data
              %a: f32[4]
              %m: f32[1]
              %da: f32[4]
              (Out: %a) = relu(X: %x)
              (Out: %m) = mean(X: %a)
              (X@GRAD: %da) = mean_grad(X: %a, Out@GRAD: %m)
            }";
        check(text, &[], &[("a", 0, 1), ("m", 1, 2), ("da", 2, 2)]);
    }

    /// A part that is skipped must not leave memory that others wrote in the meantime.
    #[test]
    fn memory_is_kept_over_a_conditional_part() {
        let text = "fleet program 1
            block0 {
              %x: f32[4] data
              %go: bool[1] data
              %y: f32[4]
              %t: f32[4]
              %z: f32[4]
              (Out: %y) = relu(X: %x)
              () = conditional_block(Cond: %go) {sub_block: block1}
              (Out: %z) = relu(X: %x)
            }
            block1 in block0 {
              (Out: %t) = tanh(X: %y)
              (Out: %y) = tanh(X: %t)
              (Out: %z) = tanh(X: %y)
            }";
        check(text, &[], &[("y", 0, 5), ("t", 2, 3), ("z", 1, 5), ("go", 1, 1)]);
    }

    /// Two sums at owners begin together; their memory is free when the lane's next call begins.
    /// Other variables that a ring uses last are kept.
    #[test]
    fn a_sum_at_an_owner_frees_its_memory() {
        let text = "fleet program 1
            block0 {
              %x: f32[4] data
              %a: f32[4]
              %b: f32[4]
              %c: f32[4]
              %d: f32[4]
              %e: f32[4]
              (Out: %a) = relu(X: %x)
              (Out: %b) = relu(X: %x)
              (Out: %a) = c_reduce_sum(X: %a)
              (Out: %b) = c_reduce_sum(X: %b)
              (Out: %c) = relu(X: %x)
              (Out: %d) = relu(X: %x)
              (Out: %c) = c_reduce_sum(X: %c)
              (Out: %d) = c_allreduce_sum(X: %d)
              (Out: %e) = relu(X: %x)
            }";
        check(text, &[], &[("a", 0, 6), ("b", 1, 6), ("c", 4, 9), ("d", 5, 9), ("e", 8, 8)]);
    }

    #[test]
    fn writes_are_found_by_position() {
        let life = Life { writes: vec![2, 5, 9], ..Life::default() };
        let within = |from, until| life.written_within(from, until);
        assert!(within(1, 2) && within(2, 5) && within(5, 20) && !within(2, 4) && !within(9, 20));
        assert!(life.written_twice() && !life.written_before_read());
    }

    #[test]
    fn a_variable_is_created_if_an_op_writes_it_first() {
        let planned = Planned::new(
            "fleet program 1
            block0 {
              %x: f32[1] data
              %made: f32[1] persistable
              %kept: f32[1] persistable
              (Out: %made) = relu(X: %x)
              (Out: %kept) = relu(X: %kept)
            }",
        );
        let created = |lifetimes: &Lifetimes, name: &str| {
            lifetimes.of(planned.var(name)).written_before_read()
        };
        planned.with(|inferred| {
            let lifetimes = Lifetimes::find(inferred, &[]);
            assert!(created(&lifetimes, "made") && !created(&lifetimes, "kept"));
        });
    }
}
