//! `fetch_barrier`: all parameters of the step are received; in a synchronous job returns when all
//! workers have theirs.

use super::TRAITS;
use crate::prelude::*;

pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "fetch_barrier",
        inputs: &[],
        outputs: &[],
        attrs: &[attr("half_async", Bool(true)), attr("trainer_id", Int(0))],
    },
    infer: |_| Ok(()),
    grad: Grad::None,
    cpu: |p| {
        let tables = p.services.tables_of(p.op)?;
        Ok(Kernel::new(move |_| tables.fetch_barrier()))
    },
    traits: TRAITS,
};
