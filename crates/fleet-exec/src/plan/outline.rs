//! The outline of a plan: the work of each step and the steps that it waits for. It is enough to
//! predict how long a run takes on other machines.

use super::steps::is_message;
use super::{Plan, PlanSummary, StepKind};
use fleet_ops::{Cost, Traffic};

/// The steps of a plan with their work, and its memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outline {
    /// The needs of the plan. Scratch memory includes that of all kernels that do not communicate.
    pub summary: PlanSummary,
    /// Number of lanes. Lane 0 computes; every other lane is a thread beside it.
    pub lane_count: usize,
    /// The steps, in the order of the program. Those of a lane run in this order.
    pub steps: Vec<OutlineStep>,
}

/// A step of an [`Outline`]. Those of a conditional block are listed as if its condition held.
#[derive(Clone, Debug, PartialEq)]
pub struct OutlineStep {
    /// Name of the op.
    pub op: String,
    /// The lane that runs the step.
    pub lane: usize,
    /// Other lanes to wait for, each with the number of its steps that must finish first.
    pub waits: Vec<(usize, usize)>,
    /// The work of the op, as its definition estimates it.
    pub cost: Cost,
    /// Whether the step only communicates; its cost is then that of copies.
    pub only_communicates: bool,
    /// The communication of the step, if it communicates.
    pub call: Option<OutlineCall>,
}

/// The communication of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OutlineCall {
    /// The ring.
    pub ring: i64,
    /// Messages that this rank sends. A receiver sends none.
    pub sends: Traffic,
    /// Whether it is a message between two ranks rather than a collective.
    pub is_message: bool,
}

impl Plan {
    pub(crate) fn outline(&self) -> Outline {
        let steps = self.steps.iter().map(|step| {
            let op = self.program.op(step.op);
            let is_jump = matches!(step.kind, StepKind::JumpUnless { .. });
            let has_ring = !is_jump && op.spec.attr_index("ring_id").is_some();
            let communicates = has_ring && (step.traffic.is_some() || step.only_communicates);
            let call = communicates.then(|| OutlineCall {
                ring: op.attr_int("ring_id"),
                sends: step.traffic.unwrap_or_default(),
                is_message: is_message(op.spec),
            });
            OutlineStep {
                op: op.name().to_string(),
                lane: step.lane,
                waits: step.waits.clone(),
                cost: step.cost,
                only_communicates: step.only_communicates,
                call,
            }
        });
        let (summary, lane_count) = (self.summary.clone(), self.lanes.len());
        Outline { summary, lane_count, steps: steps.collect() }
    }
}
