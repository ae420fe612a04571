//! `listen_and_serv`: a server of dense parameters, described as a program. It listens at
//! `endpoint` for `Fanin` workers. `optimize_blocks` are the blocks that update its parameters.
//! `grad_to_block_id` maps gradients to these blocks (`GRAD:BLOCK`). `distributed_mode` is 0 for
//! synchronous, 1 for asynchronous, 2 for half-asynchronous and 3 for GEO jobs. `dc_asgd` enables
//! the correction of stale gradients.
//!
//! The program documents the server for inspection and comparison. Tables implement it
//! (`fleet.init_server`), and an executor rejects the op.

use super::TRAITS;
use crate::prelude::*;

/// The op `listen_and_serv`.
pub static DEF: OpDef = OpDef {
    spec: OpSpec {
        name: "listen_and_serv",
        inputs: &[],
        outputs: &[],
        attrs: &[
            required("endpoint", AttrKind::Str),
            attr("optimize_blocks", Ints(&[])),
            attr("grad_to_block_id", Strs(&[])),
            attr("Fanin", Int(1)),
            attr("distributed_mode", Int(0)),
            attr("dc_asgd", Bool(false)),
        ],
    },
    infer,
    grad: Grad::None,
    cpu: |p| {
        Err(Error::unsupported("executors do not support listen_and_serv")
            .got(format!("listen_and_serv at {}", p.op.attr_str("endpoint")))
            .help("call fleet.init_server(&job)?.run()?, which serves the same parameters"))
    },
    traits: TRAITS,
};

fn infer(i: &mut InferCtx<'_>) -> Result<()> {
    let mode = i.op.attr_int("distributed_mode");
    if !(0..=3).contains(&mode) || i.op.attr_int("Fanin") < 1 {
        return Err(Error::invalid("attributes of listen_and_serv are out of range")
            .expected("distributed_mode 0 to 3, and Fanin at least 1")
            .got(format!("{mode} and {}", i.op.attr_int("Fanin"))));
    }
    Ok(())
}
