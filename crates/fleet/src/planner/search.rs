//! The search for the fastest layout that fits.

use super::layout::{Layout, micro_batches};
use super::predict::{Machines, Network, Prediction, fixed_batch, predict};
use fleet_base::Error;
use fleet_base::sync::lock;
use fleet_base::text::{bytes, counted};
use fleet_strategy::DistributedStrategy;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Instant;

/// The samples of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Batch {
    /// A number for all ranks together, which copies of the model divide.
    Whole(usize),
    /// A number for each copy of the model.
    EachCopy(usize),
}

/// The layouts that a search compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// All layouts.
    Any,
    /// Layouts in which every rank has samples of its own. The others count only if none of these
    /// fits.
    KeepSamples,
    /// Only layouts in which every rank has samples of its own.
    OnlyKeepSamples,
}

/// A search for layouts.
pub struct LayoutSearch<'a> {
    /// The network.
    pub network: Network<'a>,
    /// The machines.
    pub machines: &'a Machines,
    /// The strategy without its layout.
    pub base: &'a DistributedStrategy,
    /// Memory of a rank in bytes; none if it is unlimited.
    pub memory: Option<u64>,
    /// The samples of a step.
    pub batch: Batch,
    /// The layouts that are compared.
    pub goal: Goal,
    /// Threads that compare layouts.
    pub threads: usize,
    /// Time after which no more layouts are predicted, but for the simplest.
    pub deadline: Option<Instant>,
}

/// A layout that fits, with its prediction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The layout.
    pub layout: Layout,
    /// The samples of a step in each copy of the model.
    pub batch: usize,
    /// Its prediction.
    pub prediction: Prediction,
}

/// A layout that is left out, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Left {
    /// The layout.
    pub layout: Layout,
    /// Why it is left out.
    pub reason: String,
    /// The memory of a rank, if that is the reason.
    pub need: Option<u64>,
}

/// The result of a search.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The layouts that fit, the best first.
    pub candidates: Vec<Candidate>,
    /// The layouts that are left out.
    pub left: Vec<Left>,
}

/// A layout replaces a simpler one only if it is this much faster: predictions are less exact.
const GAIN_MIN: f64 = 1.05;
/// Number of pipelines for which other schedules are tried.
const PIPELINES_REFINED: usize = 3;

/// Compares the layouts of a job.
pub fn search(it: &LayoutSearch<'_>) -> Found {
    let ranks = it.machines.ranks;
    let micros = |stages: usize, copies: usize| {
        it.batch_of(copies).map_or(1, |batch| micro_batches(batch, 4 * stages))
    };
    let tensor_max = ranks.per_node.min(ranks.count);
    let has_stage_2 = it.base.gradient_merge();
    let layouts = Layout::list(ranks.count, tensor_max, has_stage_2, micros);
    let (keep, others): (Vec<Layout>, Vec<Layout>) = match it.goal {
        Goal::Any => (layouts, Vec::new()),
        Goal::KeepSamples => layouts.into_iter().partition(Layout::keeps_samples),
        Goal::OnlyKeepSamples => {
            (layouts.into_iter().filter(Layout::keeps_samples).collect(), Vec::new())
        }
    };
    let mut found = Found::default();
    it.compare(&keep, &mut found);
    if found.candidates.is_empty() && !others.is_empty() {
        it.compare(&others, &mut found);
    }
    // Owners would send the parameters of a stage for each pass of each micro-batch. That is only
    // of use where the other layouts of these stages do not fit.
    let too_large = found.left.iter().filter(|it| it.need.is_some());
    let smaller = too_large.filter_map(|it| it.layout.with_divided_parameters());
    it.compare(&smaller.collect::<Vec<_>>(), &mut found);
    let mut pipelines: Vec<Candidate> = found.candidates.clone();
    pipelines.retain(|candidate| candidate.layout.stages() > 1);
    sort(&mut pipelines);
    pipelines.truncate(PIPELINES_REFINED);
    let refined =
        pipelines.iter().flat_map(|candidate| candidate.layout.schedules(candidate.batch));
    it.compare(&refined.collect::<Vec<_>>(), &mut found);
    order(&mut found.candidates);
    found
}

fn sort(candidates: &mut [Candidate]) {
    let speed = |it: &Candidate| it.prediction.samples_per_second();
    candidates.sort_by(|a, b| speed(b).total_cmp(&speed(a)));
}

/// Sorts by speed. The first is the simplest of those that are about as fast as the fastest.
fn order(candidates: &mut Vec<Candidate>) {
    let fastest = candidates.iter().map(|it| it.prediction.samples_per_second());
    let fastest = fastest.fold(0.0, f64::max);
    // The simplest come first. More schedules of a layout were added after all layouts.
    candidates.sort_by_key(|it| it.layout.complexity());
    let is_near = |it: &Candidate| it.prediction.samples_per_second() * GAIN_MIN >= fastest;
    let Some(at) = candidates.iter().position(is_near) else { return };
    let best = candidates.remove(at);
    sort(candidates);
    candidates.insert(0, best);
}

impl LayoutSearch<'_> {
    /// Returns the samples of a step in each of `copies` copies, or why they cannot be divided.
    fn batch_of(&self, copies: usize) -> Result<usize, String> {
        if let Some(batch) = fixed_batch(&self.network.programs.main) {
            return Ok(batch);
        }
        match self.batch {
            Batch::EachCopy(batch) => Ok(batch),
            Batch::Whole(samples) if samples.is_multiple_of(copies) => Ok(samples / copies),
            Batch::Whole(samples) => {
                let samples = counted(samples, "sample");
                Err(format!("{samples} cannot be divided among {copies} copies"))
            }
        }
    }

    /// Predicts layouts on several threads, and adds the results in their order.
    fn compare(&self, layouts: &[Layout], found: &mut Found) {
        let next = AtomicUsize::new(0);
        let results = Mutex::new(vec![None; layouts.len()]);
        std::thread::scope(|scope| {
            for _ in 0..self.threads.clamp(1, layouts.len().max(1)) {
                scope.spawn(|| {
                    loop {
                        let at = next.fetch_add(1, Relaxed);
                        let Some(layout) = layouts.get(at) else { return };
                        let result = self.judge(layout);
                        lock(&results)[at] = Some(result);
                    }
                });
            }
        });
        let results = std::mem::take(&mut *lock(&results));
        for (layout, result) in layouts.iter().zip(results.into_iter().flatten()) {
            match result {
                Ok(candidate) => found.candidates.push(candidate),
                Err((reason, need)) => {
                    found.left.push(Left { layout: *layout, reason, need });
                }
            }
        }
    }

    /// Returns a layout with its prediction, or why it is left out.
    fn judge(&self, layout: &Layout) -> Result<Candidate, (String, Option<u64>)> {
        let batch = self.batch_of(layout.copies()).map_err(|reason| (reason, None))?;
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() > deadline);
        if is_late && !layout.is_data_parallel() {
            let reason = "not compared: the search takes too long; see fleet plan";
            return Err((reason.into(), None));
        }
        let predicted = predict(self.network, self.machines, self.base, layout, batch);
        let prediction = predicted.map_err(|error| (refusal(&error), None))?;
        let need = prediction.memory_bytes;
        match self.memory.filter(|memory| need > *memory) {
            Some(memory) => {
                let reason =
                    format!("does not fit: a rank needs {} of {}", bytes(need), bytes(memory));
                Err((reason, Some(need)))
            }
            None => Ok(Candidate { layout: *layout, batch, prediction }),
        }
    }
}

/// Returns the reason of a refusal as one line.
fn refusal(error: &Error) -> String {
    let text = error.to_string();
    let mut lines = text.lines().map(str::trim);
    let first = lines.next().unwrap_or_default();
    let first = first.strip_prefix("invalid strategy: ").unwrap_or(first);
    match lines.find_map(|line| line.strip_prefix("why: ")) {
        Some(why) => format!("refused: {first}: {why}"),
        None => format!("refused: {first}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::speeds::Speeds;
    use super::*;
    use fleet_nn::optimizer::OptimizerDesc;
    use fleet_nn::prelude::*;
    use fleet_strategy::{Ranks, Rates};

    fn found(ranks: usize, batch: usize, memory: Option<u64>, goal: Goal) -> Found {
        found_for((128, 2), ranks, batch, memory, goal)
    }

    /// Pairs of layers that may be divided, on ranks with a slow network.
    fn found_for(
        (width, pairs): (i64, usize),
        ranks: usize,
        batch: usize,
        memory: Option<u64>,
        goal: Goal,
    ) -> Found {
        let net = Net::new();
        let mut x = net.data("x", [-1, width], DType::F32);
        for _ in 0..pairs {
            x = x.fc(Fc::new(2 * width).act(Act::Relu).split(Split::Columns));
            x = x.fc(Fc::new(width).split(Split::Rows));
        }
        let loss = x.mean().id();
        let programs = net.build().unwrap();
        let optimizer: OptimizerDesc = Adam::new(0.1).into();
        let rates = Rates { network_bytes_per_second: Some(1e8), ..Rates::default() };
        let speeds = Speeds { rates, has_spare_cores: true, ..Speeds::default() };
        let machines = Machines { ranks: Ranks::new(0, ranks), speeds, threads: 1 };
        search(&LayoutSearch {
            network: Network { programs: &programs, loss, optimizer: &optimizer },
            machines: &machines,
            base: &DistributedStrategy::new(),
            memory,
            batch: Batch::Whole(batch),
            goal,
            threads: 2,
            deadline: None,
        })
    }

    #[test]
    fn all_layouts_are_compared_or_left_out_with_a_reason() {
        let found = found(4, 64, None, Goal::Any);
        let shown = |it: &Layout| it.to_string();
        let layouts: Vec<String> = found.candidates.iter().map(|it| shown(&it.layout)).collect();
        let parts = ["dp 4", "mp 4", "dp 2 x mp 2", "sharding 4 (stage 3)", "pp 2 x mp 2"];
        for part in parts.into_iter().chain(["pp 2 x sharding 2 (stage 1)"]) {
            assert!(layouts.iter().any(|layout| layout.starts_with(part)), "{part}: {layouts:?}");
        }
        let speeds = found.candidates[1..].iter().map(|it| it.prediction.samples_per_second());
        assert!(speeds.is_sorted_by(|a, b| a >= b));
        assert!(found.left.is_empty(), "{:?}", found.left);
    }

    #[test]
    fn layouts_that_do_not_fit_are_left_out() {
        let all = found(4, 64, None, Goal::Any);
        let need = |it: &Candidate| it.prediction.memory_bytes;
        let copies = all.candidates.iter().find(|it| it.layout.is_data_parallel()).unwrap();
        let memory = need(copies) - 1;
        let some = found(4, 64, Some(memory), Goal::Any);
        assert!(some.candidates.iter().all(|it| need(it) <= memory));
        let left = some.left.iter().find(|it| it.layout.is_data_parallel()).unwrap();
        assert!(left.reason.starts_with("does not fit: a rank needs "), "{}", left.reason);
        let none = found(4, 64, Some(1000), Goal::Any);
        assert!(none.candidates.is_empty() && none.left.len() > 8, "{}", none.left.len());
    }

    /// The parameters of stages are divided where their state alone is too large. A stage has six
    /// layers of 32 MiB, of which an owner of three receives two at a time.
    #[test]
    fn parameters_of_stages_are_divided_for_memory() {
        let search = |memory| found_for((2048, 6), 4, 64, memory, Goal::Any);
        let least = |found: &Found, text: &str| {
            let of = found.candidates.iter().filter(|it| it.layout.to_string().starts_with(text));
            of.map(|it| it.prediction.memory_bytes).min()
        };
        let (state, all) = ("pp 2 x sharding 2 (stage 1)", "pp 2 x sharding 2 (stage 3)");
        let free = search(None);
        let of_state = least(&free, state).unwrap();
        assert_eq!(least(&free, all), None);
        let tight = search(Some(of_state - 1));
        assert_eq!(least(&tight, state), None);
        let of_all = least(&tight, all);
        assert!(of_all.is_some_and(|it| it < of_state), "{of_state}: {:?}", tight.left);
    }

    /// Layouts in which ranks share samples are considered only if no other fits.
    #[test]
    fn samples_are_kept_if_possible() {
        let keep = found(2, 64, None, Goal::KeepSamples);
        assert!(keep.candidates.iter().all(|it| it.layout.keeps_samples()));
        let least = keep.candidates.iter().map(|it| it.prediction.memory_bytes).min().unwrap();
        let others = found(2, 64, Some(least - 1), Goal::KeepSamples);
        assert!(!others.candidates.is_empty(), "{:?}", others.left);
        assert!(others.candidates.iter().all(|it| !it.layout.keeps_samples()));
        let only = found(2, 64, Some(least - 1), Goal::OnlyKeepSamples);
        assert!(only.candidates.is_empty());
    }

    #[test]
    fn batches_are_divided() {
        let found = found(4, 6, None, Goal::Any);
        let reason = |copies: usize| {
            let left = found.left.iter().find(|it| it.layout.copies() == copies);
            left.map(|it| it.reason.clone())
        };
        let expected = "6 samples cannot be divided among 4 copies";
        assert_eq!(reason(4).as_deref(), Some(expected));
        assert!(found.candidates.iter().all(|it| it.prediction.samples == 6));
    }
}
