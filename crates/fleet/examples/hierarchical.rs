//! Communication of gradients: in buckets of 16 MB, over two rings alternately, summed inside
//! groups of workers (those of a machine) first and then between the groups.
//! `fleetrun --nproc_per_node=4 target/release/examples/hierarchical [STEPS]`

mod digits;

use fleet::prelude::*;

/// Trains for this many steps.
pub fn train(steps: u64) -> Result<()> {
    let strategy = DistributedStrategy::new()
        .with_fuse_all_reduce_ops(true)
        .with_fuse_grad_size_in_MB(16)
        .with_last_comm_group_size_MB(0.1) // small, because nothing overlaps the last one
        .with_nccl_comm_num(2)
        .with_use_hierarchical_allreduce(true)
        .with_hierarchical_allreduce_inter_nranks(2); // workers of a group
    digits::train(steps, Momentum::new(0.02, 0.9), &strategy, digits::mlp)?;
    Ok(())
}

fn main() -> Result<()> {
    train(digits::steps()?)
}
