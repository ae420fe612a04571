//! Communication cost of a rewritten program: calls, messages and bytes per rank and step, as the
//! definitions of its ops state them.
//!
//! Bytes are those that one rank sends with the algorithm that sends the fewest. An all-reduce of S
//! bytes over n ranks sends 2 S (n-1)/n in 2 (n-1) messages around a ring. Gathers, scatters and
//! rooted collectives send half of that or less.

use fleet_ir::{Op, Program, VarId, VarKind};
use fleet_ops::{CostCtx, Meta, Registry, Traffic};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The communication of a program.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cost {
    /// Traffic of every step, by ring.
    pub always: BTreeMap<i64, Traffic>,
    /// Additional traffic of steps in which the conditional blocks run, by ring.
    pub sometimes: BTreeMap<i64, Traffic>,
    /// Number of calls that send sparse rows. Their bytes are unknown before the step and not
    /// counted.
    pub unknown: usize,
}

/// Computes the cost of a program.
pub fn cost(program: &Program) -> Cost {
    let mut cost = Cost::default();
    for block in program.block_ids() {
        for (_, op) in program.block_ops(block) {
            let Some(traffic) = traffic(program, op) else { continue };
            let into = match block {
                Program::ROOT => &mut cost.always,
                _ => &mut cost.sometimes,
            };
            into.entry(op.attr_int("ring_id")).or_default().add(traffic);
            if op.all_inputs().any(|var| program.var(var).kind == VarKind::SparseRows) {
                cost.unknown += 1;
            }
        }
    }
    cost
}

/// Returns the bytes of the gradients that this rank passes to collectives in a step. Sparse rows,
/// whose number is unknown before the step, are not counted.
///
/// ```
/// use fleet_nn::prelude::*;
/// use fleet_strategy::{DistributedStrategy, Ranks, cost, minimize};
/// let net = Net::new();
/// let loss = net.data("x", [-1, 8], DType::F32).fc(4).mean();
/// let (mut programs, loss) = (net.build()?, loss.id());
/// let registry = fleet_ops::Registry::standard();
/// let strategy = DistributedStrategy::new();
/// minimize(&mut programs, registry, loss, &Sgd::new(0.1).into(), &strategy, Ranks::new(0, 2))?;
/// assert_eq!(cost::gradient_bytes(&programs.main), (8 * 4 + 4) * 4);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn gradient_bytes(program: &Program) -> u64 {
    let mut sent = BTreeSet::new();
    for block in program.block_ids() {
        let ops = program.block_ops(block).filter(|(_, op)| op.role.is_backward());
        for (_, op) in ops.filter(|(_, op)| traffic(program, op).is_some()) {
            sent.extend(op.all_inputs());
        }
    }
    let dense = sent.into_iter().map(|id| program.var(id)).filter(|var| var.kind == VarKind::Dense);
    let bytes = |var: &fleet_ir::Var| var.shape.numel().unwrap_or(0) * var.dtype.size();
    dense.map(|var| bytes(var) as u64).sum()
}

/// Returns what one rank sends for an op, as its definition states.
fn traffic(program: &Program, op: &Op) -> Option<Traffic> {
    let def = Registry::standard().find(op.name())?;
    let metas = |slots: &[Vec<VarId>]| -> Vec<Vec<Meta>> {
        let of =
            |vars: &Vec<VarId>| vars.iter().map(|var| fleet_ops::meta(program, *var)).collect();
        slots.iter().map(of).collect()
    };
    let (inputs, outputs) = (metas(&op.inputs), metas(&op.outputs));
    (def.traits.traffic)(&CostCtx { op, inputs: &inputs, outputs: &outputs })
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts =
            [("every step", &self.always), ("steps with averaging or update", &self.sometimes)];
        for (when, rings) in parts {
            let mut total = Traffic::default();
            rings.values().for_each(|traffic| total.add(*traffic));
            if rings.is_empty() && when != "every step" {
                continue;
            }
            writeln!(f, "{when}: {}", shown(&total))?;
            if rings.len() > 1 {
                for (ring, traffic) in rings {
                    writeln!(f, "  ring {ring}: {}", shown(traffic))?;
                }
            }
        }
        if self.unknown > 0 {
            let calls = self.unknown;
            writeln!(f, "plus the rows of {calls} sparse gradients (size unknown)")?;
        }
        Ok(())
    }
}

fn shown(traffic: &Traffic) -> String {
    let s = |count: usize| if count == 1 { "" } else { "s" };
    let (calls, messages) = (traffic.calls, traffic.messages.round() as usize);
    format!(
        "{calls} collective call{}, {messages} message{}, {} sent by this rank",
        s(calls),
        s(messages),
        fleet_base::text::bytes(traffic.bytes as u64)
    )
}
