//! `send_barrier`: marks that all gradients of the step are sent. In a synchronous job, it returns
//! when the gradients of all workers are applied.

use super::TRAITS;
use crate::prelude::*;

/// The op `send_barrier`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "send_barrier",
        inputs: &[],
        outputs: &[],
        attrs: &[attr("half_async", Bool(true)), attr("trainer_id", Int(0))],
    },
    infer: |_| Ok(()),
    grad: Grad::None,
    cpu: |p| {
        let tables = p.services.tables_of(p.op)?;
        Ok(Kernel::new(move |_| tables.send_barrier()))
    },
    traits: TRAITS,
};
