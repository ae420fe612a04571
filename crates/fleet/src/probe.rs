//! Quick measurement of a job's machines for `auto`: some milliseconds of arithmetic, memory copies
//! and all-reduces.
//!
//! Ranks must decide alike, so all use the slowest rank's numbers.

use crate::{Fleet, Session};
#[cfg(feature = "app")]
use fleet_base::Error;
use fleet_base::Result;
use fleet_comm::ReduceOp;
#[cfg(feature = "app")]
use fleet_comm::{GroupOptions, World};
use fleet_exec::ExecOptions;
use fleet_nn::Net;
use fleet_strategy::{Origin, Rates};
use fleet_tensor::{DType, Tensor};
use std::time::Instant;

/// Rows and columns of the matrices of the product: large enough for full speed, done in
/// milliseconds.
const PRODUCT_SIDE: i64 = 512;
/// Number of floats to copy: more than caches hold.
const COPIED: usize = 16 << 20;
/// Number of doubles to sum over ranks: enough to outweigh the latency of a call.
const SUMMED: usize = 1 << 20;
/// Number of measurements, of which the fastest counts: the first ones also get memory from the
/// system.
const ROUNDS: usize = 3;
/// Arithmetic is measured for this long, so that ranks that begin a little later measure at the
/// same time. The median counts: a job gets the usual speed.
const SECONDS_MEASURED: f64 = 0.06;

/// Measures together with all other ranks. `batch` is the user's number of samples per rank and
/// step; the smallest of all ranks applies. A single rank has nothing to choose, and measures
/// nothing.
pub(crate) fn rates(fleet: &Fleet, batch: Option<usize>) -> Result<Rates> {
    let ranks = fleet.worker_num();
    if ranks == 1 {
        return Ok(Rates { batch, ..Rates::default() });
    }
    // All ranks compute at the same time, as they do in training.
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

/// Measures this process alone, with this number of threads.
pub(crate) fn alone(threads: usize) -> Result<Rates> {
    Ok(Rates {
        flops_per_second: flops_per_second(threads)?,
        memory_bytes_per_second: memory_bytes_per_second(),
        origin: Origin::Measured,
        ..Rates::default()
    })
}

/// Returns the compute rate of each of `ranks` ranks of `threads` threads on this machine, if all
/// compute.
#[cfg(feature = "app")]
pub(crate) fn shared_flops(ranks: usize, threads: usize) -> Result<f64> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let used = (ranks * threads).min(cores);
    Ok(flops_per_second(used)? / ranks as f64)
}

/// Returns the memory bandwidth of each of `ranks` ranks on this machine, if all copy.
#[cfg(feature = "app")]
pub(crate) fn shared_memory_bandwidth(ranks: usize) -> f64 {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = ranks.min(cores);
    let all: f64 = std::thread::scope(|scope| {
        let copies: Vec<_> = (0..threads).map(|_| scope.spawn(memory_bytes_per_second)).collect();
        copies.into_iter().filter_map(|copy| copy.join().ok()).sum()
    });
    all / ranks as f64
}

/// Returns the rate at which one of two ranks on this machine sends in an all-reduce.
#[cfg(feature = "app")]
pub(crate) fn bandwidth_between_threads() -> Result<f64> {
    let ranks = World::threads(2);
    let measure = |world: World| -> Result<f64> {
        let group = world.group("bandwidth", &[0, 1], &GroupOptions::default())?;
        let mut values = vec![1.0f32; 2 * SUMMED];
        group.all_reduce("warm-up", &mut values, ReduceOp::Max)?;
        let seconds = best(|| group.all_reduce("bandwidth", &mut values, ReduceOp::Max))?;
        Ok(size_of_val(&values[..]) as f64 / seconds)
    };
    std::thread::scope(|scope| {
        let ranks: Vec<_> =
            ranks.into_iter().map(|world| scope.spawn(move || measure(world))).collect();
        let mut slowest = f64::INFINITY;
        for rank in ranks {
            let rate = rank.join().map_err(|_| Error::internal("a measurement panicked"))?;
            slowest = slowest.min(rate?);
        }
        Ok(slowest)
    })
}

/// Returns the seconds that work takes.
pub(crate) fn seconds_of(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let begin = Instant::now();
    work()?;
    Ok(begin.elapsed().as_secs_f64().max(1e-9))
}

/// Returns the seconds of the fastest round.
fn best(mut round: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        best = best.min(seconds_of(&mut round)?);
    }
    Ok(best)
}

/// Returns the median of the seconds of rounds, which take [`SECONDS_MEASURED`] together.
fn usual(mut round: impl FnMut() -> Result<()>) -> Result<f64> {
    let (mut seconds, mut sum) = (Vec::new(), 0.0);
    while sum < SECONDS_MEASURED {
        let took = seconds_of(&mut round)?;
        sum += took;
        seconds.push(took);
    }
    Ok(median(seconds))
}

/// Returns the median of numbers; 0 if there are none.
pub(crate) fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
}

fn flops_per_second(threads: usize) -> Result<f64> {
    let net = Net::new();
    let side = [PRODUCT_SIDE, PRODUCT_SIDE];
    let (a, b) = (net.data("a", side, DType::F32), net.data("b", side, DType::F32));
    let product = a.matmul(b).name();
    let mut session = Session::new(net.build()?, ExecOptions::threads(threads))?;
    let ones = Tensor::from_slice(&vec![1.0f32; (PRODUCT_SIDE * PRODUCT_SIDE) as usize], side)?;
    let feed = [("a", &ones), ("b", &ones)];
    // The first run includes planning.
    session.run(&feed, &[&product])?;
    let seconds = usual(|| session.run(&feed, &[&product]).map(drop))?;
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

/// Returns the rate at which one rank sends: an all-reduce of S bytes among n ranks sends 2 S
/// (n-1)/n.
fn network_bytes_per_second(fleet: &Fleet) -> Result<f64> {
    let input = vec![1.0; SUMMED];
    fleet.util().all_reduce(&input, ReduceOp::Sum)?;
    let seconds = best(|| fleet.util().all_reduce(&input, ReduceOp::Sum).map(drop))?;
    let ranks = fleet.worker_num() as f64;
    Ok(2.0 * size_of_val(&input[..]) as f64 * (ranks - 1.0) / ranks / seconds)
}
