//! How long the ops of a plan take on machines of given speeds.

use fleet_exec::{OutlineCall, OutlineStep};
use fleet_strategy::{Ranks, Rates, RingSpec};
use std::collections::BTreeMap;

/// Speeds of a rank.
#[derive(Clone, Debug, Default)]
pub struct Speeds {
    /// Arithmetic, memory and network.
    pub rates: Rates,
    /// Multiples of the time that the rates predict.
    pub factors: OpFactors,
    /// Whether threads that communicate have cores beside those that compute. Without them,
    /// communication takes time from compute.
    pub has_spare_cores: bool,
}

/// How long steps really take.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpFactors {
    /// For kinds of ops by name: how many times as long they take as arithmetic and memory predict.
    /// Other ops take as long as predicted.
    pub by_op: BTreeMap<String, f64>,
    /// Duration of a step beside its ops.
    pub seconds_beside_ops: f64,
}

/// Time to start an op.
const OP_SECONDS: f64 = 1e-6;
/// Latency of a message inside a machine, and between machines.
const MESSAGE_SECONDS: f64 = 10e-6;
const FAR_MESSAGE_SECONDS: f64 = 30e-6;
/// Bandwidth between ranks of one machine, if only that of the network is known.
const INSIDE_BYTES_PER_SECOND: f64 = 5e9;

impl Speeds {
    /// Returns how long a step computes.
    pub fn compute_seconds(&self, step: &OutlineStep) -> f64 {
        let cost = step.cost;
        if step.only_communicates || cost.flops == 0.0 && cost.bytes == 0.0 {
            return 0.0;
        }
        let arithmetic = cost.flops / self.rates.flops_per_second;
        let factor = self.factors.by_op.get(&step.op).copied().unwrap_or(1.0);
        let memory = cost.bytes / self.rates.memory_bytes_per_second;
        factor * (OP_SECONDS + arithmetic.max(memory))
    }

    /// Returns how long a call takes on a ring, from the time when all members have arrived.
    pub fn call_seconds(&self, call: &OutlineCall, ring: &RingSpec, ranks: &Ranks) -> f64 {
        let machine = |rank: usize| rank / ranks.per_node.max(1);
        let last = ring.first + (ring.nranks - 1) * ring.stride;
        let network = self.rates.network(ranks);
        let (latency, bandwidth) = match machine(ring.first) == machine(last) {
            true if ranks.nodes() == 1 => (MESSAGE_SECONDS, network),
            true => (MESSAGE_SECONDS, network.max(INSIDE_BYTES_PER_SECOND)),
            false => (FAR_MESSAGE_SECONDS, network),
        };
        call.sends.messages * latency + call.sends.bytes / bandwidth
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_ops::{Cost, Traffic};

    fn speeds() -> Speeds {
        let rates = Rates {
            flops_per_second: 1e9,
            memory_bytes_per_second: 1e8,
            network_bytes_per_second: Some(1e6),
            ..Rates::default()
        };
        Speeds { rates, has_spare_cores: true, ..Speeds::default() }
    }

    #[test]
    fn an_op_takes_the_longer_of_arithmetic_and_memory() {
        let seconds = |flops: f64, bytes: f64| {
            let step = OutlineStep {
                op: "mul".into(),
                lane: 0,
                waits: Vec::new(),
                cost: Cost { flops, bytes },
                only_communicates: false,
                call: None,
            };
            speeds().compute_seconds(&step)
        };
        assert_eq!(seconds(2e9, 1e8), 2.0 + OP_SECONDS);
        assert_eq!(seconds(1e9, 3e8), 3.0 + OP_SECONDS);
        assert_eq!(seconds(0.0, 0.0), 0.0);
    }

    #[test]
    fn a_measured_op_takes_a_multiple() {
        let step = |op: &str| OutlineStep {
            op: op.into(),
            lane: 0,
            waits: Vec::new(),
            cost: Cost { flops: 2e9, bytes: 0.0 },
            only_communicates: false,
            call: None,
        };
        let by_op = [("gelu".to_string(), 3.0)].into();
        let factors = OpFactors { by_op, ..OpFactors::default() };
        let speeds = Speeds { factors, ..speeds() };
        assert_eq!(speeds.compute_seconds(&step("gelu")), 3.0 * (2.0 + OP_SECONDS));
        assert_eq!(speeds.compute_seconds(&step("mul")), 2.0 + OP_SECONDS);
    }

    #[test]
    fn rings_inside_a_machine_are_faster() {
        let ranks = Ranks::new(0, 8).per_node(4);
        let seconds = |first: usize, stride: usize, nranks: usize| {
            let label = String::new();
            let ring = RingSpec { id: 0, label, first, stride, nranks, rank: 0 };
            let sends = Traffic { calls: 1, messages: 0.0, bytes: 1e6 };
            let call = OutlineCall { ring: 0, sends, is_message: false };
            speeds().call_seconds(&call, &ring, &ranks)
        };
        assert_eq!(seconds(0, 1, 8), 1.0);
        assert_eq!(seconds(3, 1, 2), 1.0);
        assert_eq!(seconds(4, 1, 4), 1e6 / INSIDE_BYTES_PER_SECOND);
    }
}
