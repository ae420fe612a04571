//! `fetch_barrier`: marks that all parameters of the step are received. In a synchronous job, it
//! returns when all workers have received theirs.

use super::send_barrier;
use crate::prelude::*;

/// The op `fetch_barrier`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec { name: "fetch_barrier", ..send_barrier::DEF.spec },
    cpu: |p| {
        let tables = p.services.tables_of(p.op)?;
        Ok(Kernel::new(move |_| tables.fetch_barrier()))
    },
    ..send_barrier::DEF
};
