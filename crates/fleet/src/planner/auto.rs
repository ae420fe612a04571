//! The layout of a job whose strategy is `auto`.
//!
//! The first worker searches, and all workers get its choice, so that they agree. Layouts in which
//! every worker has samples of its own come first, because jobs feed them like data parallelism.
//! The others are chosen only if none of these fits.

use super::layout::{Layout, Order, Schedule};
use super::measure::op_factors;
use super::memory::{private_bytes, rank_memory};
use super::predict::{Machines, Network, Prediction, fixed_batch};
use super::search::{Batch, Candidate, Found, Goal, LayoutSearch, search};
use super::speeds::Speeds;
use crate::Fleet;
use fleet_base::{Result, text};
use fleet_comm::ReduceOp;
use fleet_strategy::auto::duration;
use fleet_strategy::{BATCH_ASSUMED, ChosenLayout, DistributedStrategy, Grid, Rates};
use fleet_topology::names;
use std::time::{Duration, Instant};

/// The layout of a job, with its prediction.
#[derive(Clone, Debug, Default)]
pub struct Planned {
    /// The layout for the compiler.
    pub choice: ChosenLayout,
    /// Its prediction; none if no layout fits.
    pub prediction: Option<Prediction>,
    /// Private memory of this process before the planning, in bytes.
    pub memory_before: Option<u64>,
}

/// Time after which a job starts with the best layout that was found.
const SEARCH_MAX: Duration = Duration::from_secs(5);

/// Chooses the layout of a job. All workers call it. `global_batch` and `memory` are the samples of
/// all ranks and the memory of a rank in bytes, if the user states them.
pub fn plan_job(
    fleet: &Fleet,
    network: Network<'_>,
    rates: &Rates,
    (global_batch, memory): (Option<usize>, Option<u64>),
) -> Result<Planned> {
    let memory_before = private_bytes();
    let ranks = fleet.ranks();
    let here = ranks.per_node.min(ranks.count);
    let memory = memory.or(fleet.env().size(names::FLEET_MEMORY)?).or_else(|| rank_memory(here));
    let memory = memory.map_or(f64::MAX, |bytes| bytes as f64);
    let memory = fleet.util().all_reduce(&[memory], ReduceOp::Min)?[0];
    let memory = (memory < f64::MAX).then_some(memory as u64);
    let fixed = fixed_batch(&network.programs.main);
    let known = fixed.or(rates.batch);
    let mut reasons = Vec::new();
    let mut own = [0.0; NUMBERS];
    if fleet.is_first_worker() {
        let threads = fleet.cores_share();
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let base = DistributedStrategy::new();
        let rows = known.unwrap_or(BATCH_ASSUMED);
        let factors = op_factors(network, &base, threads, rows, memory)?;
        let has_spare_cores = here * threads < cores;
        let speeds = Speeds { rates: rates.clone(), factors, has_spare_cores };
        let machines = Machines { ranks, speeds, threads };
        let found;
        let deadline = Some(Instant::now() + SEARCH_MAX);
        (found, reasons) = look(network, &machines, memory, (global_batch, known), deadline);
        if let Some(best) = found.candidates.first() {
            own = numbers(best);
        }
    }
    let chosen = fleet.util().all_reduce(&own, ReduceOp::Max)?;
    let Some(best) = candidate(&chosen) else {
        let choice = ChosenLayout { reasons, ..ChosenLayout::default() };
        return Ok(Planned { choice, ..Planned::default() });
    };
    if reasons.is_empty() {
        reasons.push(format!("layout {}, as the first worker has chosen", best.layout));
    }
    let strategy = best.layout.strategy(&DistributedStrategy::new(), best.batch);
    let choice = ChosenLayout { strategy, reasons };
    Ok(Planned { choice, prediction: Some(best.prediction), memory_before })
}

/// Chooses the layout of a job as [`plan_job`] does, for machines of the given speeds.
#[cfg(feature = "app")]
pub fn choose_layout(
    network: Network<'_>,
    machines: &Machines,
    memory: Option<u64>,
) -> ChosenLayout {
    let known = fixed_batch(&network.programs.main).or(machines.speeds.rates.batch);
    // The result must not depend on the load of the machine, so there is no deadline.
    let (found, reasons) = look(network, machines, memory, (None, known), None);
    let strategy = found.candidates.first().map_or_else(DistributedStrategy::new, |best| {
        best.layout.strategy(&DistributedStrategy::new(), best.batch)
    });
    ChosenLayout { strategy, reasons }
}

/// Searches for the layout of a job, and describes the result. `known` is the number of samples of
/// a rank, if it is known, and `whole` that of all ranks.
fn look(
    network: Network<'_>,
    machines: &Machines,
    memory: Option<u64>,
    (whole, known): (Option<usize>, Option<usize>),
    deadline: Option<Instant>,
) -> (Found, Vec<String>) {
    let found = search(&LayoutSearch {
        network,
        machines,
        base: &DistributedStrategy::new(),
        memory,
        batch: match whole {
            Some(samples) => Batch::Whole(samples),
            None => Batch::EachCopy(known.unwrap_or(BATCH_ASSUMED)),
        },
        goal: if known.is_some() { Goal::KeepSamples } else { Goal::OnlyKeepSamples },
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        deadline,
    });
    let mut reasons = describe(&found, memory, known.is_some());
    if known.is_none() {
        reasons.push(format!(
            "the batch size is not known: predictions are for {BATCH_ASSUMED} samples of a rank"
        ));
    }
    (found, reasons)
}

/// Returns what a search has found, in lines for the job's log.
fn describe(found: &Found, memory: Option<u64>, is_batch_known: bool) -> Vec<String> {
    let limit = memory
        .map_or("unlimited memory".into(), |memory| format!("{} of memory", text::bytes(memory)));
    let compared = found.candidates.len() + found.left.len();
    let Some(best) = found.candidates.first() else {
        let help = match is_batch_known {
            true => "",
            false => {
                "; state the samples of a rank (DistributedOptimizer::batch) to consider \
                      pipelines and tensor parallelism"
            }
        };
        return vec![format!("none of {compared} layouts fits a rank with {limit}{help}")];
    };
    let Candidate { layout, prediction, .. } = best;
    let mut lines = vec![format!(
        "layout {layout}, the best of {compared} for ranks with {limit}: predicted {} a step, of \
         which {} is exposed communication, and {} of memory",
        duration(prediction.step_seconds),
        duration(prediction.exposed_seconds()),
        text::bytes(prediction.memory_bytes)
    )];
    let others = found.candidates.iter().skip(1).take(OTHERS_SHOWN);
    let others = others.map(|it| {
        let step = duration(it.prediction.step_seconds);
        format!("{} ({step}, {})", it.layout, text::bytes(it.prediction.memory_bytes))
    });
    let others: Vec<String> = others.collect();
    if !others.is_empty() {
        lines.push(format!("next: {}", others.join("; ")));
    }
    let left = found.left.iter().take(OTHERS_SHOWN);
    lines.extend(left.map(|it| format!("left out: {}: {}", it.layout, it.reason)));
    if !layout.keeps_samples() {
        lines.push(
            "all ranks that share a copy of the model feed the same batch: job.plan.copy".into(),
        );
    }
    lines
}

/// Number of other layouts to print.
const OTHERS_SHOWN: usize = 2;

/// Number of numbers that describe a candidate.
const NUMBERS: usize = 14;

fn numbers(it: &Candidate) -> [f64; NUMBERS] {
    let Layout { grid, sharding_stage, schedule } = it.layout;
    let degrees = fleet_strategy::Axis::ALL.map(|axis| grid.degree(axis) as f64);
    let [tensor, shards, stages, copies] = degrees;
    let Prediction { step_seconds, samples, compute_seconds, wait_seconds, memory_bytes } =
        it.prediction;
    [
        tensor,
        shards,
        stages,
        copies,
        f64::from(sharding_stage),
        schedule.micro_batches as f64,
        Order::ALL.iter().position(|it| *it == schedule.order).unwrap_or(0) as f64,
        schedule.virtual_stages as f64,
        it.batch as f64,
        samples as f64,
        step_seconds,
        compute_seconds,
        wait_seconds,
        memory_bytes as f64,
    ]
}

/// Returns the candidate that [`numbers`] describe; none if all are zero.
fn candidate(numbers: &[f64]) -> Option<Candidate> {
    let at = |index: usize| numbers.get(index).copied().unwrap_or(0.0);
    let count = |index: usize| at(index) as usize;
    if count(0) == 0 {
        return None;
    }
    let order = Order::ALL.get(count(6)).copied().unwrap_or(Order::OneForwardOneBackward);
    let schedule = Schedule { micro_batches: count(5), order, virtual_stages: count(7) };
    let grid = Grid::new([count(0), count(1), count(2), count(3)]);
    let layout = Layout { grid, sharding_stage: at(4) as i32, schedule };
    let prediction = Prediction {
        samples: count(9),
        step_seconds: at(10),
        compute_seconds: at(11),
        wait_seconds: at(12),
        memory_bytes: at(13) as u64,
    };
    Some(Candidate { layout, batch: count(8), prediction })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_describe_a_candidate() {
        let order = Order::ZeroBubble;
        let schedule = Schedule { micro_batches: 8, order, virtual_stages: 2 };
        let layout = Layout { grid: Grid::new([2, 1, 4, 3]), sharding_stage: 3, schedule };
        let prediction = Prediction {
            step_seconds: 0.25,
            samples: 96,
            compute_seconds: 0.2,
            wait_seconds: 0.03,
            memory_bytes: 1 << 33,
        };
        let it = Candidate { layout, batch: 32, prediction };
        assert_eq!(candidate(&numbers(&it)), Some(it));
        assert_eq!(candidate(&[0.0; NUMBERS]), None);
    }
}
