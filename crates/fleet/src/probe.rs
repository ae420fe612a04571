//! A quick look at what the machines of a job can do, for `auto`: some milliseconds of arithmetic,
//! of copying and of all-reduces.
//!
//! Ranks must decide alike, so all take the numbers of the slowest.

use crate::{Fleet, Session};
use fleet_base::Result;
use fleet_comm::ReduceOp;
use fleet_exec::ExecOptions;
use fleet_nn::Net;
use fleet_strategy::{Origin, Rates};
use fleet_tensor::{DType, Tensor};
use std::time::Instant;

/// A side of the matrices of the product: large enough for full speed, done in milliseconds.
const PRODUCT_SIDE: i64 = 512;
/// Floats that are copied: more than caches hold.
const COPIED: usize = 16 << 20;
/// Doubles that are summed over ranks: more than what starting a call costs.
const SUMMED: usize = 1 << 20;
/// The best of so many counts.
const ROUNDS: usize = 3;

/// Measures, together with all other ranks; `batch` is what the user says of samples, and the
/// smallest counts. One rank alone has nothing to choose, and measures nothing.
pub(crate) fn rates(fleet: &Fleet, batch: Option<usize>) -> Result<Rates> {
    let ranks = fleet.worker_num();
    if ranks == 1 {
        return Ok(Rates { batch, ..Rates::default() });
    }
    // All compute at the same time, as they will.
    fleet.barrier_worker()?;
    let flops = flops_per_second(fleet.cores_share())?;
    let memory = memory_bytes_per_second();
    let network = network_bytes_per_second(fleet)?;
    let samples = batch.map_or(f64::MAX, |batch| batch as f64);
    let slowest = fleet.util().all_reduce(&[flops, memory, network, samples], ReduceOp::Min)?;
    Ok(Rates {
        flops_per_second: slowest[0],
        memory_bytes_per_second: slowest[1],
        network_bytes_per_second: Some(slowest[2]),
        batch: (slowest[3] < f64::MAX).then_some(slowest[3] as usize),
        origin: Origin::Measured,
    })
}

/// Seconds of the fastest round.
fn best(mut round: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        round()?;
        best = best.min(begin.elapsed().as_secs_f64());
    }
    Ok(best.max(1e-9))
}

fn flops_per_second(threads: usize) -> Result<f64> {
    let net = Net::new();
    let side = [PRODUCT_SIDE, PRODUCT_SIDE];
    let (a, b) = (net.data("a", side, DType::F32), net.data("b", side, DType::F32));
    let product = a.matmul(b).name();
    let mut session = Session::new(net.build()?, ExecOptions::threads(threads))?;
    let ones = Tensor::from_slice(&vec![1.0f32; (PRODUCT_SIDE * PRODUCT_SIDE) as usize], side)?;
    let feed = [("a", &ones), ("b", &ones)];
    // The first run plans.
    session.run(&feed, &[&product])?;
    let seconds = best(|| session.run(&feed, &[&product]).map(drop))?;
    Ok(2.0 * (PRODUCT_SIDE as f64).powi(3) / seconds)
}

fn memory_bytes_per_second() -> f64 {
    let from = vec![1.0f32; COPIED];
    let mut to = vec![0.0f32; COPIED];
    let copied = best(|| {
        to.copy_from_slice(std::hint::black_box(&from));
        std::hint::black_box(&mut to);
        Ok(())
    });
    let bytes = 2.0 * size_of_val(&from[..]) as f64;
    copied.map_or(f64::INFINITY, |seconds| bytes / seconds)
}

/// As one rank sends: an all-reduce of S bytes among n ranks is 2 S (n-1)/n.
fn network_bytes_per_second(fleet: &Fleet) -> Result<f64> {
    let input = vec![1.0; SUMMED];
    fleet.util().all_reduce(&input, ReduceOp::Sum)?;
    let seconds = best(|| fleet.util().all_reduce(&input, ReduceOp::Sum).map(drop))?;
    let ranks = fleet.worker_num() as f64;
    Ok(2.0 * size_of_val(&input[..]) as f64 * (ranks - 1.0) / ranks / seconds)
}
