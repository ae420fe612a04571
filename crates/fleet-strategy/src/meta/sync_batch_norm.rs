//! Synchronous batch norm: computes statistics over the whole batch of all ranks. `batch_norm` ops
//! become `sync_batch_norm`, on their own ring.

use super::{Applies, Facts, Named, Strategy, WithServers};
use crate::effective::Effective;
use crate::job::Job;
use fleet_base::Result;
use fleet_ir::{Op, OpId, Program};
use fleet_ops::Emit;
use fleet_ops::nn::{batch_norm, sync_batch_norm};

pub struct SyncBatchNorm;

impl Strategy for SyncBatchNorm {
    fn with_servers(&self) -> WithServers {
        WithServers::Refused("workers do not communicate with each other")
    }

    fn applies(&self, strategy: &Effective<'_>, facts: &Facts<'_>) -> Applies {
        let count = norms(facts.program).len();
        let program = facts.program;
        let all = program.block_ids().flat_map(|block| program.block_ops(block));
        let in_branches = all.filter(|(_, op)| measures(op)).count() - count;
        match (facts.copies(strategy), count) {
            (1, _) if facts.ranks.count > 1 => {
                Applies::Idle("one copy of the model: its batch is the whole batch".into())
            }
            (1, _) => Applies::Idle("one rank: its batch is the whole batch".into()),
            _ if in_branches > 0 => Applies::Refused(
                self.switch().into(),
                "sync_batch_norm does not support the branches of a cond: ranks may take different \
                 branches"
                    .into(),
            ),
            (_, 0) => Applies::Idle("the program has no batch norm".into()),
            _ if facts.grid(strategy).is_ok_and(|grid| grid.copies(0).is_none()) => {
                let reason = "sync_batch_norm does not support copies of a model whose state and \
                              stages are both divided: no ring connects all of them";
                Applies::Refused(self.switch().into(), reason.into())
            }
            (ranks, _) => {
                Applies::Yes(format!("{count} batch norms compute statistics over {ranks} ranks"))
            }
        }
    }

    fn forward(&self, job: &mut Job<'_>) -> Result<()> {
        let (first, stride, nranks) = job.copy_ring()?;
        if nranks == 1 {
            return Ok(());
        }
        // Created first, so that ring 0 is always the gradients' ring.
        job.world_rings()?;
        let label = match nranks == job.ranks.count {
            true => "batch norm".to_string(),
            false => format!("batch norm of {nranks} copies"),
        };
        let ring = job.ring(&label, first, stride, nranks);
        let found = norms(&job.programs.main);
        let main = &mut job.programs.main;
        let mut ops = main.block(Program::ROOT).ops().to_vec();
        for (index, id) in found.into_iter().enumerate() {
            let old = main.op(id).clone();
            let mut emit = Emit::new(main, job.registry, old.role);
            emit.device.clone_from(&old.device);
            emit.source.clone_from(&old.source);
            let mut call = emit.op(&sync_batch_norm::DEF);
            for (slot, vars) in old.spec.inputs.iter().zip(&old.inputs) {
                call = call.inputs(slot.name, vars);
            }
            for (slot, vars) in old.spec.outputs.iter().zip(&old.outputs) {
                call = call.outputs(slot.name, vars);
            }
            for (attr, value) in old.spec.attrs.iter().zip(&old.attrs) {
                call = call.attr(attr.name, value.clone());
            }
            call = call.attr("ring_id", ring).attr("nranks", nranks);
            let new = call.attr("label", format!("batch norm {index}")).done()?;
            ops.iter_mut().filter(|op| **op == id).for_each(|op| *op = new);
        }
        main.set_block_ops(Program::ROOT, ops);
        Ok(())
    }
}

/// Returns the batch norms that compute statistics of their batch.
fn norms(program: &Program) -> Vec<OpId> {
    program.root_ops().filter(|(_, op)| measures(op)).map(|(id, _)| id).collect()
}

fn measures(op: &Op) -> bool {
    batch_norm::DEF.is(op) && !op.attr_bool("is_test") && !op.attr_bool("use_global_stats")
}
