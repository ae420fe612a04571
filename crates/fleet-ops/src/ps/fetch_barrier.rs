//! `fetch_barrier`: marks that all parameters of the step are received. In a synchronous job, it
//! returns when all workers have received theirs.

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
