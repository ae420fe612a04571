//! Ops of rings that move no tensor.
//!
//! * `c_comm_init` declares a ring: its number and its members. These are `nranks` ranks of the
//!   job, starting with `first`, `stride` apart. The caller that runs the program creates the rings
//!   from these ops beforehand. The op itself checks that its ring has this size and this `rank`.
//! * `barrier` waits for all ranks. `X`, if given, is copied to `Out`, which orders the barrier
//!   among the ops that use it.
//! * `c_sync_calc_stream` and `c_sync_comm_stream` mark the start and end of communication, as in
//!   the documented programs. They do nothing, because execution order follows from inputs and
//!   outputs.

use super::{ATTRS, LABEL, NRANKS, RING_ID, TRAITS, copy, label, nranks};
use crate::prelude::*;

/// The op `c_comm_init`.
pub static COMM_INIT: OpDef = OpDef {
    spec: OpSpec {
        name: "c_comm_init",
        inputs: &[],
        outputs: &[],
        attrs: &[
            RING_ID,
            NRANKS,
            attr("rank", Int(0)),
            attr("first", Int(0)),
            attr("stride", Int(1)),
            LABEL,
        ],
    },
    infer: |i| super::rank_attr(i, "rank"),
    grad: Grad::None,
    cpu: |p| {
        let ring = p.services.ring_of(p.op)?;
        let rank = p.op.attr_usize("rank");
        if ring.rank() != rank {
            return Err(Error::invalid(format!(
                "program is for another rank of ring {}",
                p.op.attr_int("ring_id")
            ))
            .expected(format!("rank {rank}"))
            .got(format!("rank {}", ring.rank())));
        }
        Ok(Kernel::infallible(|_| {}))
    },
    traits: TRAITS,
};

/// The op `barrier`.
pub static BARRIER: OpDef = OpDef {
    spec: OpSpec {
        name: "barrier",
        inputs: &[optional("X")],
        outputs: &[optional("Out")],
        attrs: ATTRS,
    },
    infer: |i| {
        nranks(i)?;
        if let Some(x) = i.optional("X") {
            i.push("Out", x);
        }
        Ok(())
    },
    grad: Grad::None,
    cpu: |p| {
        let ring = p.services.ring_of(p.op)?;
        let label = label(p.op);
        Ok(Kernel::new(move |k| {
            copy(k, 0, 0);
            ring.barrier(&label)
        }))
    },
    traits: OpTraits {
        elementwise: true,
        traffic: |c| {
            let ranks = c.ranks();
            Some(Traffic { calls: 1, messages: 2.0 * (ranks - 1.0) / ranks, bytes: 0.0 })
        },
        ..TRAITS
    },
};

/// The op `c_sync_calc_stream`.
pub static SYNC_CALC: OpDef = marker("c_sync_calc_stream");
/// The op `c_sync_comm_stream`.
pub static SYNC_COMM: OpDef = marker("c_sync_comm_stream");

const fn marker(name: &'static str) -> OpDef {
    OpDef {
        spec: OpSpec {
            name,
            inputs: const { &[many("X")] },
            outputs: const { &[many("Out")] },
            attrs: const { &[RING_ID] },
        },
        infer: |i| {
            for meta in i.inputs("X").to_vec() {
                i.push("Out", meta);
            }
            Ok(())
        },
        grad: Grad::None,
        cpu: |_| Ok(Kernel::infallible(|k| copy(k, 0, 0))),
        traits: OpTraits { sparse: const { &["X"] }, elementwise: true, ..OpTraits::plain() },
    }
}
