//! All-reduce on two levels: each lower group reduces to its leader, the leaders reduce among
//! themselves, and each leader broadcasts the result to its group. A lower group is a host, whose
//! ranks share memory, or a number of ranks set by the user
//! (`hierarchical_allreduce_inter_nranks`).
//!
//! Only leaders use the network: S bytes per host instead of S per rank.

use super::{OverMesh, finish, with_f32};
use crate::backend::{Backend, Bounds};
use crate::call::{Call, Kind, Pieces, Signature, Work};
use fleet_base::{Error, ReduceOp, Result};
use fleet_tensor::DType;

pub(crate) struct Hierarchical {
    /// Backend for everything but all-reduce.
    pub whole: OverMesh,
    /// The ranks of this lower group; rank 0 is the leader.
    pub lower: Box<dyn Backend>,
    /// Present on leaders only.
    pub leaders: Option<OverMesh>,
    pub size: usize,
}

impl Backend for Hierarchical {
    fn name(&self) -> String {
        format!("{} inside, mesh across", self.lower.name())
    }

    fn run(&mut self, call: &mut Call<'_>, bounds: &Bounds) -> Result<()> {
        let Work::AllReduce { data, .. } = call.work else {
            return self.whole.run(call, bounds);
        };
        let op =
            call.signature.op.ok_or_else(|| Error::internal("a reduction without an operation"))?;
        let signature = call.signature;
        with_f32(data, signature.dtype, |data, dtype| {
            self.all_reduce(data, dtype, op, signature, bounds)
        })
    }

    fn reject_call(&mut self, error: &Error, bounds: &Bounds) {
        // The lower group is notified through the token, whose hook marks the shared memory.
        self.lower.reject_call(error, bounds);
        if let Some(leaders) = &mut self.leaders {
            leaders.reject_call(error, bounds);
        }
    }
}

impl Hierarchical {
    fn all_reduce(
        &mut self,
        data: Pieces<'_>,
        dtype: DType,
        op: ReduceOp,
        signature: Signature,
        bounds: &Bounds,
    ) -> Result<()> {
        // Averages are divided once, at the end.
        let inner = if op == ReduceOp::Avg { ReduceOp::Sum } else { op };
        let sign = |kind| Signature { kind, root: 0, op: Some(inner), dtype, ..signature };
        let mut up =
            Call { signature: sign(Kind::Reduce), work: Work::Reduce { data, done: None } };
        self.lower.run(&mut up, bounds)?;
        if let Some(leaders) = &mut self.leaders {
            let (signature, work) = (sign(Kind::AllReduce), Work::AllReduce { data, done: None });
            let mut across = Call { signature, work };
            leaders.run(&mut across, bounds)?;
            finish(data, 0..data.bytes, dtype, op, self.size);
        }
        let mut down = Call { signature: sign(Kind::Broadcast), work: Work::Broadcast { data } };
        self.lower.run(&mut down, bounds)
    }
}
