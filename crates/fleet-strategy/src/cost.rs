//! Communication cost of a rewritten program: calls, messages and bytes per rank and step, as the
//! definitions of its ops state them.
//!
//! Bytes are those that one rank sends with the algorithm that sends the fewest. An all-reduce of S
//! bytes over n ranks sends 2 S (n-1)/n in 2 (n-1) messages around a ring. Gathers, scatters and
//! rooted collectives send half of that or less.

use fleet_ir::{Op, Program, VarId, VarKind};
use fleet_ops::{CostCtx, Meta, Registry, Traffic};
use std::collections::BTreeMap;
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
