//! Large-scale classification: 10 million classes of dimension 128, which four ranks of one thread
//! divide. The batch of all ranks is 32 samples, and a step uses a tenth of the classes.
//!
//! `mp/plsc` is the time of a step. The line also has the peak memory of each rank, which is that
//! of a quarter of the weights (1,221 MB) and of the rows in use, with their gradients (122 MB).

use crate::ddp::{is_rank, job};
use crate::measure::{Options, peak_rss_mb, print_times_of_ranks};
use fleet::prelude::*;
use fleet::strategy::HybridConfig;
use fleet::{DistributedStrategy, Fleet};
use std::time::Instant;

const CLASSES: u64 = 10_000_000;
const WIDTH: usize = 128;
const RANKS: usize = 4;
/// Samples of all ranks.
const BATCH: usize = 32;

pub fn step(options: &Options) -> Result<()> {
    if is_rank() {
        return rank(options);
    }
    print!("{}", job(options, "plsc", RANKS)?);
    Ok(())
}

fn rank(options: &Options) -> Result<()> {
    let (fleet, net) = (Fleet::collective()?, Net::new());
    let x = net.data("x", [-1, WIDTH as i64], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    let loss = x.fc(WIDTH).class_loss(label, ClassLoss::arcface(CLASSES).sample(0.1));
    let hybrid = HybridConfig::default().with_split_classes(true);
    let strategy = DistributedStrategy::new().with_hybrid_configs(hybrid);
    let job = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).minimize(&net, loss)?;
    let exec = ExecOptions { num_threads: 1, ..options.exec() };
    let mut session = fleet.session(net.build()?, &job, exec)?;
    let (steps, warmup) = options.counts(10, 3);
    let mut times = Vec::with_capacity(steps);
    let mut rng = fleet::rng::Sequence::new(1, fleet.worker_index() as u64);
    let own = BATCH / fleet.worker_num();
    for step in 0..warmup + steps {
        let x: Vec<f32> = (0..own * WIDTH).map(|_| rng.normal() as f32).collect();
        let label: Vec<i64> = (0..own).map(|_| rng.below(CLASSES) as i64).collect();
        let x = Tensor::from_slice(&x, [own as i64, WIDTH as i64])?;
        let label = Tensor::from_slice(&label, [own as i64, 1])?;
        let begin = Instant::now();
        session.run(&[("x", &x), ("label", &label)], &[])?;
        if step >= warmup {
            times.push(begin.elapsed().as_secs_f64() * 1e3);
        }
    }
    if options.profile {
        let shares = session.executor.trace().shares();
        eprintln!("rank {}: the last step took {shares}", fleet.worker_index());
        for (op, seconds) in session.executor.profile_ops().iter().take(10) {
            let all = (warmup + steps) as f64;
            eprintln!("{:>10.3} ms  {op}", seconds / all * 1e3);
        }
    }
    let mut memory = vec![0.0; fleet.worker_num()];
    memory[fleet.worker_index()] = peak_rss_mb();
    let memory = fleet.util().all_reduce(&memory, ReduceOp::Sum)?;
    let options = Options { threads: 1, ..options.clone() };
    print_times_of_ranks(&options, times, &memory);
    fleet.finish()
}
