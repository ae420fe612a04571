//! The predicted step of a layout: its time and the memory of a rank.
//!
//! The prediction uses the program that the layout's strategy makes for a rank, planned by the
//! executor as in a run: with its fusions, its memory, and its lanes. The stages of a pipeline are
//! simulated together. With the other layouts, all ranks do about the same work: one rank is
//! simulated, and under sharding also the one that owns most. Of sharded stages, the owners of most
//! count for the memory only.

use super::layout::Layout;
use super::simulate::{RankTimes, Simulation, TimedRank, TimedStep};
use super::speeds::Speeds;
use fleet_base::{Error, Result};
use fleet_exec::{Device, ExecOptions, Executor, Outline, PlanSummary, Scope};
use fleet_ir::{Program, VarId};
use fleet_nn::Programs;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_ops::Registry;
use fleet_strategy::{Axis, Cluster, DistributedStrategy, Plan, Ranks, RingSpec, minimize};
use fleet_tensor::{DType, Shape};
use std::cmp::Reverse;
use std::collections::HashSet;

/// A network to train, and its optimizer.
#[derive(Clone, Copy)]
pub struct Network<'a> {
    /// The programs before any rewrite.
    pub programs: &'a Programs,
    /// The loss.
    pub loss: VarId,
    /// The optimizer.
    pub optimizer: &'a OptimizerDesc,
}

/// The machines of a job.
#[derive(Clone, Debug)]
pub struct Machines {
    /// The ranks; the number of this process is not used.
    pub ranks: Ranks,
    /// Their speeds.
    pub speeds: Speeds,
    /// Threads that compute, of a rank.
    pub threads: usize,
}

/// The predicted step of a job.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Duration of a step, in seconds.
    pub step_seconds: f64,
    /// Number of samples that all ranks train in a step.
    pub samples: usize,
    /// Compute of the rank that computes longest, in seconds.
    pub compute_seconds: f64,
    /// Time in which that rank waits for messages of other stages, in seconds.
    pub wait_seconds: f64,
    /// Memory of the rank that needs most: variables, temporaries and fed tensors, in bytes.
    pub memory_bytes: u64,
}

impl Prediction {
    /// Returns the samples per second of all ranks.
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.step_seconds.max(1e-12)
    }

    /// Returns the communication that neither compute nor the wait for other stages hides.
    pub fn exposed_seconds(&self) -> f64 {
        (self.step_seconds - self.compute_seconds - self.wait_seconds).max(0.0)
    }
}

/// Predicts the step of a layout for batches of `batch` rows in each copy. An error says why the
/// layout is refused.
pub fn predict(
    network: Network<'_>,
    machines: &Machines,
    base: &DistributedStrategy,
    layout: &Layout,
    batch: usize,
) -> Result<Prediction> {
    let strategy = layout.strategy(base, batch);
    let samples = layout.copies() * batch;
    let mut found = Prediction { samples, ..Prediction::default() };
    let compiled = |rank: usize| compile(network, machines, &strategy, rank, batch);
    let stride = layout.grid.stride(Axis::Pipeline);
    let first = (0..layout.stages()).map(|stage| compiled(stage * stride));
    let first: Vec<Compiled> = first.collect::<Result<_>>()?;
    let others = owners_of_most(&first, layout).map(compiled);
    let others: Vec<Compiled> = others.collect::<Result<_>>()?;
    let memory = first.iter().chain(&others).map(|it| memory_of(&it.outline.summary));
    found.memory_bytes = memory.max().unwrap_or(0);
    let also_simulated = if layout.stages() > 1 { &[][..] } else { &others };
    for ranks in [&first[..], also_simulated].into_iter().filter(|ranks| !ranks.is_empty()) {
        let times = simulation(ranks, machines)?.run()?;
        let beside_ops = machines.speeds.factors.seconds_beside_ops;
        let step = step_seconds(&times, machines.speeds.has_spare_cores) + beside_ops;
        let busiest = times.iter().max_by(|a, b| a.computes.total_cmp(&b.computes));
        if let Some(busiest) = busiest.filter(|_| step > found.step_seconds) {
            found.step_seconds = step;
            found.compute_seconds = busiest.computes + beside_ops;
            // A stage that ends early waits for the others.
            let is_pipeline = times.len() > 1;
            let idle = if is_pipeline { step - beside_ops - busiest.compute_end } else { 0.0 };
            found.wait_seconds = busiest.waits + idle;
        }
    }
    Ok(found)
}

/// Returns the memory of a plan, in bytes: variables, temporaries and fed tensors.
pub fn memory_of(plan: &PlanSummary) -> u64 {
    (plan.persistable_bytes + plan.arena_bytes + plan.scratch_bytes + plan.feed_bytes) as u64
}

/// Returns the duration of a step: that of the slowest rank.
fn step_seconds(times: &[RankTimes], has_spare_cores: bool) -> f64 {
    let of_rank = |it: &RankTimes| match has_spare_cores {
        true => it.end,
        false => it.end.max(it.computes + it.communicates),
    };
    times.iter().map(of_rank).fold(0.0, f64::max)
}

/// Returns the ranks that own the most elements of each stage, of which `stages` are the first
/// owners, where they are others.
fn owners_of_most(stages: &[Compiled], layout: &Layout) -> impl Iterator<Item = usize> {
    let grid = layout.grid;
    let numbered = stages.iter().enumerate();
    let owners = numbered.map(|(stage, it)| (stage, largest(&it.owned_elements)));
    let others = owners.filter(|(_, owner)| *owner > 0);
    others.map(move |(stage, owner)| {
        stage * grid.stride(Axis::Pipeline) + owner * grid.stride(Axis::Sharding)
    })
}

/// Returns the position of the first of the largest numbers.
fn largest(numbers: &[u64]) -> usize {
    let most = numbers.iter().enumerate().max_by_key(|(at, count)| (**count, Reverse(*at)));
    most.map_or(0, |(at, _)| at)
}

/// The programs of a rank, and their plan.
pub struct Compiled {
    pub programs: Programs,
    pub outline: Outline,
    rings: Vec<RingSpec>,
    /// By rank of the sharding group: the elements of the parameters that it owns.
    owned_elements: Vec<u64>,
}

/// Compiles a network for a rank of a job, and plans it for batches of `batch` rows.
pub fn compile(
    network: Network<'_>,
    machines: &Machines,
    strategy: &DistributedStrategy,
    rank: usize,
    batch: usize,
) -> Result<Compiled> {
    let Network { programs, loss, optimizer } = network;
    let Machines { ranks, speeds, threads } = machines;
    let mut programs = programs.clone();
    let loss_name = programs.main.var_name(loss).to_string();
    let on = Cluster { rates: speeds.rates.clone(), ..Cluster::from(Ranks { rank, ..*ranks }) };
    let registry = Registry::standard();
    let plan = minimize(&mut programs, registry, loss, optimizer, strategy, on)?;
    let feeds = feeds(&programs.main, batch);
    let options = ExecOptions { device: Device::Null, ..ExecOptions::threads(*threads) };
    let executor = Executor::new(options);
    let outline = executor.outline(&programs.main, &Scope::new(), &feeds, &[&loss_name])?;
    let Plan { rings, owned_elements, .. } = plan;
    Ok(Compiled { programs, outline, rings, owned_elements })
}

/// Name, type and shape of a fed tensor.
pub type Feed<'p> = (&'p str, DType, Shape);

/// Returns the feeds of a program whose unknown dimensions are `batch`.
pub fn feeds(program: &Program, batch: usize) -> Vec<Feed<'_>> {
    let mut used = HashSet::new();
    program.root_ops().for_each(|(id, _)| program.reads_of(id, &mut used));
    let fed = program.vars().filter(|(id, var)| var.is_data && used.contains(id));
    fed.map(|(_, var)| {
        let mut shape = var.shape;
        shape.dims_mut().iter_mut().filter(|dim| **dim < 0).for_each(|dim| *dim = batch as i64);
        (var.name.as_str(), var.dtype, shape)
    })
    .collect()
}

/// Returns the batch size for which a program is written, if it is fixed: the largest first
/// dimension of its inputs.
pub fn fixed_batch(main: &Program) -> Option<usize> {
    let fed = main.vars().filter(|(_, var)| var.is_data);
    let sizes: Vec<i64> = fed.filter_map(|(_, var)| var.shape.first().copied()).collect();
    let most = sizes.iter().copied().max()?;
    sizes.iter().all(|size| *size > 0).then_some(most as usize)
}

/// Returns a simulation of ranks of one copy of the model.
fn simulation(ranks: &[Compiled], machines: &Machines) -> Result<Simulation> {
    // Rings of the same members are one ring.
    let mut known: Vec<&RingSpec> = Vec::new();
    let mut rings: Vec<Vec<usize>> = Vec::new();
    let mut timed = Vec::with_capacity(ranks.len());
    for (member, rank) in ranks.iter().enumerate() {
        let mut steps = Vec::with_capacity(rank.outline.steps.len());
        for step in &rank.outline.steps {
            let mut seconds = machines.speeds.compute_seconds(step);
            let mut ring = None;
            if let Some(call) = &step.call {
                let own = rank.rings.iter().find(|it| it.id == call.ring);
                let own = own.ok_or_else(|| Error::internal("a call on an unknown ring"))?;
                let same = |it: &&RingSpec| {
                    let key = |ring: &RingSpec| (ring.id, ring.first, ring.stride, ring.nranks);
                    key(it) == key(own)
                };
                let at = known.iter().position(same).unwrap_or_else(|| {
                    known.push(own);
                    rings.push(Vec::new());
                    known.len() - 1
                });
                if !rings[at].contains(&member) {
                    rings[at].push(member);
                }
                seconds += machines.speeds.call_seconds(call, own, &machines.ranks);
                ring = Some(at);
            }
            let is_message = step.call.is_some_and(|call| call.is_message);
            let (lane, waits) = (step.lane, step.waits.clone());
            steps.push(TimedStep { lane, waits, seconds, ring, is_message });
        }
        timed.push(TimedRank { lane_count: rank.outline.lane_count, steps });
    }
    Ok(Simulation { ranks: timed, rings })
}

#[cfg(test)]
mod tests {
    use super::super::layout::{Order, Schedule};
    use super::*;
    use fleet_nn::prelude::*;
    use fleet_strategy::{Grid, Rates};

    /// Layers of equal cost, one for each label; several labels make stages of virtual ones.
    fn layers(count: usize) -> (Programs, VarId) {
        let net = Net::new();
        let mut x = net.data("x", [-1, 256], DType::F32);
        for at in 0..count {
            let _guard = net.device_guard(&format!("gpu:{at}"));
            x = x.fc(Fc::new(256).act(Act::Relu));
        }
        let _guard = net.device_guard(&format!("gpu:{}", count - 1));
        let loss = x.mean().id();
        drop(_guard);
        (net.build().unwrap(), loss)
    }

    /// Machines on which only arithmetic takes time.
    fn machines(ranks: usize) -> Machines {
        let rates = Rates {
            flops_per_second: 1e9,
            memory_bytes_per_second: 1e15,
            network_bytes_per_second: Some(1e15),
            ..Rates::default()
        };
        let speeds = Speeds { rates, has_spare_cores: true, ..Speeds::default() };
        Machines { ranks: Ranks::new(0, ranks), speeds, threads: 1 }
    }

    fn predicted(programs: &(Programs, VarId), layout: Layout, batch: usize) -> Prediction {
        let optimizer: OptimizerDesc = Sgd::new(0.1).into();
        let network = Network { programs: &programs.0, loss: programs.1, optimizer: &optimizer };
        let base = DistributedStrategy::new();
        predict(network, &machines(layout.grid.ranks()), &base, &layout, batch).unwrap()
    }

    /// The simulated step of four equal stages takes as long as the documented formula says, but
    /// for gradients of weights. They are computed after the others are sent, so stages wait for
    /// two thirds of the passes only. With ZBH1, they also fill the time of half of that.
    #[test]
    fn four_stages_wait_as_long_as_the_formula() {
        let whole = layers(4);
        let one = predicted(&whole, Layout::new(Grid::new([1; 4])), 4096);
        let check = |labels: usize, schedule: Schedule| {
            let (stages, micros) = (4.0, schedule.micro_batches as f64);
            let network = if labels == 4 { whole.clone() } else { layers(labels) };
            let layout = Layout { schedule, ..Layout::new(Grid::new([1, 1, 4, 1])) };
            let found = predicted(&network, layout, 4096);
            let units = schedule.virtual_stages as f64 * micros;
            let work = one.step_seconds * labels as f64 / 4.0;
            let thirds = if schedule.order == Order::ZeroBubble { 1.0 } else { 2.0 };
            let waited = (stages - 1.0) * thirds / 3.0;
            let formula = work / stages * (units + waited) / units;
            let ratio = found.step_seconds / formula;
            assert!((0.9..1.1).contains(&ratio), "{layout}: {ratio} of the formula");
            let bubble = waited / (units + waited);
            let waits = found.wait_seconds / found.step_seconds;
            assert!((waits - bubble).abs() < 0.05, "{layout}: waits {waits}, formula {bubble}");
        };
        check(4, Schedule::new(8));
        check(4, Schedule { order: Order::ForwardThenBackward, ..Schedule::new(8) });
        check(4, Schedule { order: Order::ZeroBubble, ..Schedule::new(8) });
        check(8, Schedule { virtual_stages: 2, ..Schedule::new(8) });
    }

    /// With one flop rate and free communication, a copy of the model on each of N ranks makes N
    /// times the samples in the same time, and shards need less memory.
    #[test]
    fn copies_and_shards() {
        let network = layers(1);
        let one = predicted(&network, Layout::new(Grid::new([1; 4])), 64);
        let four = predicted(&network, Layout::new(Grid::new([1, 1, 1, 4])), 64);
        assert_eq!((one.samples, four.samples), (64, 256));
        assert!(four.step_seconds < 1.2 * one.step_seconds, "{one:?} {four:?}");
        let shards = Layout { sharding_stage: 3, ..Layout::new(Grid::new([1, 4, 1, 1])) };
        let network = layers(8);
        let copies = predicted(&network, Layout::new(Grid::new([1, 1, 1, 4])), 64);
        let shards = predicted(&network, shards, 64);
        assert!(shards.memory_bytes < copies.memory_bytes, "{shards:?} {copies:?}");
    }

    /// Of sharded stages, the owner of most counts.
    #[test]
    fn sharded_stages() {
        let network = layers(8);
        let schedule = Schedule::new(4);
        let need = |degrees: [usize; 4], sharding_stage: i32| {
            let grid = Grid::new(degrees);
            let layout = Layout { schedule, sharding_stage, ..Layout::new(grid) };
            let optimizer: OptimizerDesc = Adam::new(0.1).into();
            let it = Network { programs: &network.0, loss: network.1, optimizer: &optimizer };
            let base = DistributedStrategy::new();
            let found = predict(it, &machines(4), &base, &layout, 64).unwrap();
            assert_eq!(found.samples, 128);
            found.memory_bytes
        };
        let (copies, shards) = (need([1, 1, 2, 2], 1), need([1, 2, 2, 1], 1));
        // Of a stage of four layers of 257 KiB, the owner of most has the moments of three.
        let moments = 2 * 257 * 1024;
        assert!(shards + moments / 2 < copies, "{shards} {copies}");
    }

    #[test]
    fn the_first_of_the_largest_is_found() {
        assert_eq!([&[][..], &[3], &[3, 5, 4, 5], &[5, 5]].map(largest), [0, 0, 1, 0]);
    }
}
