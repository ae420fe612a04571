//! Communication cost of a rewritten program: calls, messages and bytes per rank and step, computed
//! from its ops.
//!
//! Bytes are those that one rank sends with the algorithm that sends the fewest. An all-reduce of S
//! bytes over n ranks sends 2 S (n-1)/n in 2 (n-1) messages around a ring. Gathers, scatters and
//! rooted collectives send half of that or less.

use fleet_ir::{Op, Program, VarId, VarKind};
use std::collections::BTreeMap;
use std::fmt;

/// Communication of one ring, or of all rings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    pub calls: usize,
    pub messages: f64,
    pub bytes: f64,
}

impl Traffic {
    fn add(&mut self, other: Traffic) {
        self.calls += other.calls;
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

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
            if op.name() == "c_allgather_rows" {
                cost.unknown += 1;
            }
        }
    }
    cost
}

fn traffic(program: &Program, op: &Op) -> Option<Traffic> {
    op.spec.attr_index("nranks")?;
    let ranks = op.attr_usize("nranks") as f64;
    let others = ranks - 1.0;
    if op.name().starts_with("sync_batch_norm") {
        return Some(all_reduce(statistics_bytes(program, op)?, ranks));
    }
    let bytes: f64 = op.input("X").iter().map(|var| bytes(program, *var)).sum();
    let (messages, bytes) = match op.name() {
        name if name.starts_with("c_allreduce") => return Some(all_reduce(bytes, ranks)),
        "c_reduce_sum" | "c_broadcast" => (others, bytes * others / ranks),
        "c_reducescatter" | "alltoall" => (others, bytes * others / ranks),
        "dgc" => {
            let sent = compressed_bytes(program, op);
            (others, sent * others)
        }
        "c_allgather" | "c_concat" | "c_allgather_rows" => (others, bytes * others),
        "send_v2" => (1.0, bytes),
        "barrier" => (2.0 * others / ranks, 0.0),
        _ => return None,
    };
    Some(Traffic { calls: 1, messages, bytes })
}

fn all_reduce(bytes: f64, ranks: f64) -> Traffic {
    let others = ranks - 1.0;
    Traffic { calls: 1, messages: 2.0 * others, bytes: 2.0 * bytes * others / ranks }
}

/// Returns the bytes of compressed gradients: pairs of index and value, at the final sparsity.
fn compressed_bytes(program: &Program, op: &Op) -> f64 {
    const PAIR: f64 = 8.0;
    let elements: f64 = op.input("Grad").iter().map(|var| bytes(program, *var) / 4.0).sum();
    let sparsity = op.attr_floats("sparsity").last().copied().unwrap_or(0.999);
    (elements * (1.0 - sparsity)).max(1.0).floor() * PAIR
}

/// Returns the bytes that ranks sum for batch statistics: two doubles per channel, and a count.
/// `None` if the op computes no statistics.
fn statistics_bytes(program: &Program, op: &Op) -> Option<f64> {
    let measures = !op.attr_bool("is_test") && !op.attr_bool("use_global_stats");
    let scale = op.input("Scale").first().filter(|_| measures)?;
    let channels = bytes(program, *scale) / program.var(*scale).dtype.size() as f64;
    Some(8.0 * (1.0 + 2.0 * channels))
}

fn bytes(program: &Program, var: VarId) -> f64 {
    let var = program.var(var);
    if var.kind == VarKind::SparseRows {
        return 0.0;
    }
    let elements: f64 = var.shape.iter().map(|dim| dim.unsigned_abs() as f64).product();
    elements * var.dtype.size() as f64
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
