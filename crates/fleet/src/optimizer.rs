//! The optimizer of a job: `fleet.distributed_optimizer`.

use crate::agree::NetworkText;
use crate::fit::{Budget, fit};
use crate::planner::{self, Network, Saved};
use crate::servers::{Place, ServerJob};
use crate::{Distributed, Fleet, probe};
use fleet_base::Result;
use fleet_base::output::note;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_nn::{Net, Programs, Var};
use fleet_ops::Registry;
use fleet_strategy::{
    Cluster, Decision, DistributedStrategy, Outcome, Problem, Rates, StrategyId, StrategySource,
    Verdict, Written,
};
use fleet_tensor::{DType, Shape};
use fleet_topology::names;

impl Fleet {
    /// Returns an optimizer that trains on all ranks of the job under `strategy`.
    pub fn distributed_optimizer(
        &self,
        optimizer: impl Into<OptimizerDesc>,
        strategy: &DistributedStrategy,
    ) -> DistributedOptimizer<'_> {
        DistributedOptimizer {
            fleet: self,
            optimizer: optimizer.into(),
            half_async: false,
            batch: None,
            global_batch: None,
            memory: None,
            strategy: strategy.clone(),
            source: None,
        }
    }
}

/// An optimizer and the strategy that distributes it.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::{DistributedStrategy, Fleet};
/// let fleet = Fleet::parameter_server()?;
/// let net = Net::new();
/// let loss = net.data("ids", [-1, 2], DType::I64).sparse_embedding([1000, 8]).mean();
/// let strategy = DistributedStrategy::new().with_a_sync(false);
/// let optimizer = fleet.distributed_optimizer(Adam::new(1e-3), &strategy);
/// let optimizer = optimizer.rows(Adagrad::new(0.1)).half_async(true).batch(256);
/// let job = optimizer.minimize_on_servers(&net, loss)?;
/// assert_eq!(job.plan.exchange.name(), "half-async");
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct DistributedOptimizer<'f> {
    fleet: &'f Fleet,
    optimizer: OptimizerDesc,
    half_async: bool,
    batch: Option<usize>,
    global_batch: Option<usize>,
    memory: Option<u64>,
    strategy: DistributedStrategy,
    source: Option<StrategySource>,
}

impl DistributedOptimizer<'_> {
    /// Sets the optimizer for the rows of embedding tables, on parameter servers and in collective
    /// jobs: see [`OptimizerDesc::rows`].
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// # use fleet::{DistributedStrategy, Fleet};
    /// let (fleet, net) = (Fleet::collective()?, Net::new());
    /// let rows = net.data("ids", [-1, 2], DType::I64).embedding(Embedding::new(1000, 8).sparse());
    /// let loss = rows.flatten(1).fc(1).mean();
    /// // LARS applies to the layers; rows keep their rule.
    /// let strategy = DistributedStrategy::new().with_lars(true);
    /// let optimizer = fleet.distributed_optimizer(Momentum::new(0.1, 0.9), &strategy);
    /// let job = optimizer.rows(Sgd::new(5.0)).minimize(&net, loss)?;
    /// assert_eq!(job.plan.chain_text(), "Lars -> lars_momentum");
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn rows(mut self, optimizer: impl Into<OptimizerDesc>) -> Self {
        self.optimizer.rows = Some(Box::new(optimizer.into()));
        self
    }

    /// Selects half-async mode on parameter servers when `a_sync` is off: workers do not wait for
    /// each other.
    pub fn half_async(mut self, on: bool) -> Self {
        self.half_async = on;
        self
    }

    /// Sets the samples per rank and step for the cost model of `auto`, for programs that leave the
    /// batch size open.
    pub fn batch(mut self, samples: usize) -> Self {
        self.batch = Some(samples);
        self
    }

    /// Sets the samples of a step, of all ranks together, for the cost model of `auto`. Copies of
    /// the model divide them: `job.plan.copy` has their number.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// # use fleet::{DistributedStrategy, Fleet};
    /// let (fleet, net) = (Fleet::collective()?, Net::new());
    /// let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
    /// let auto = DistributedStrategy::new().with_auto(true);
    /// let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &auto).global_batch(256);
    /// let (copy, copies) = optimizer.minimize(&net, loss)?.plan.copy;
    /// let rows = 256 / copies; // this rank feeds the rows from copy * rows on
    /// # assert_eq!((copy, rows), (0, 256));
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn global_batch(mut self, samples: usize) -> Self {
        self.global_batch = Some(samples);
        self
    }

    /// Sets the memory of a rank in bytes, for the layouts that `auto` considers. By default it is
    /// this rank's share of the machine or of its container, or the limit of the process.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// # use fleet::{DistributedStrategy, Fleet};
    /// let (fleet, net) = (Fleet::collective()?, Net::new());
    /// let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
    /// let auto = DistributedStrategy::new().with_auto(true);
    /// let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &auto).memory(2 << 30);
    /// let job = optimizer.minimize(&net, loss)?;
    /// assert_eq!(job.plan.chain_text(), "sgd"); // one rank: nothing to choose
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn memory(mut self, bytes: u64) -> Self {
        self.memory = Some(bytes);
        self
    }

    /// Sets the file that the strategy was read from ([`DistributedStrategy::load_with_source`]).
    /// An error in the strategy then names the line of the file instead of the caller's.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// # use fleet::{DistributedStrategy, Fleet};
    /// # let name = format!("fleet-source-{}.prototxt", std::process::id());
    /// # let file = std::env::temp_dir().join(name);
    /// std::fs::write(&file, "hybrid_configs { sep_degree: 2 }\n")?;
    /// let (fleet, net) = (Fleet::collective()?, Net::new());
    /// let mut strategy = DistributedStrategy::new();
    /// let (source, _) = strategy.load_with_source(&file)?;
    /// # std::fs::remove_file(&file)?;
    /// let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
    /// let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).read_from(source);
    /// let error = optimizer.minimize(&net, loss).unwrap_err().to_string();
    /// assert!(error.contains(":1:30: hybrid_configs.sep_degree: 2 is not supported"), "{error}");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn read_from(mut self, source: StrategySource) -> Self {
        self.source = Some(source);
        self
    }

    fn strategy_ref<'a>(&'a self, strategy: &'a DistributedStrategy) -> Written<'a> {
        Written { strategy, source: self.source.as_ref() }
    }

    /// Rewrites the network to train with parameter servers. `Fleet::init_worker` runs it, and
    /// `Fleet::init_server` holds its tables.
    #[track_caller]
    pub fn minimize_on_servers(&self, net: &Net, loss: Var<'_>) -> Result<ServerJob> {
        let place = Place { half_async: self.half_async, ..self.fleet.place()? };
        // The optimizer of the tables' rows is passed separately.
        let mut optimizer = self.optimizer.clone();
        let rows = optimizer.rows.take();
        let rows = rows.as_deref();
        let written = self.strategy_ref(&self.strategy);
        let job = ServerJob::minimize(net, loss, &optimizer, rows, written, place)?;
        // No field that a flag sets has an effect with servers.
        let (_, flags) = self.strategy.with_flags(|name| self.flag(name))?;
        if self.fleet.is_first_worker() {
            let unused = flags
                .iter()
                .map(|(_, flag)| format!("{flag} has no effect in a job with parameter servers"));
            let plan = &job.plan;
            let report = Printed {
                strategy: &self.strategy,
                is_alone: self.fleet.topology().is_non_distributed(),
                overview: self.fleet.env().text(names::FLEET_OVERVIEW),
                flags: unused.collect(),
                warnings: &plan.warnings,
                decisions: &plan.decisions,
                outcomes: &plan.outcomes,
                notes: &plan.notes,
            };
            let (workers, servers) = (place.worker_count, place.server_count);
            let (workers, servers) = (counted(workers, "worker"), counted(servers, "server"));
            report.print(format_args!("{workers}, {servers}, {}", plan.chain_text()));
        }
        Ok(job)
    }

    /// Returns the value of a flag in the environment.
    fn flag(&self, name: &str) -> Option<String> {
        self.fleet.env().text(name).map(str::to_string)
    }

    /// Rewrites the network to train on all ranks: backward pass, communication, update.
    /// [`Fleet::session`] runs it.
    #[track_caller]
    pub fn minimize(&self, net: &Net, loss: Var<'_>) -> Result<Distributed> {
        self.minimize_as(net, loss, None)
    }

    /// As [`minimize`](Self::minimize), with the least recompute for which the temporaries of a
    /// step fit in `bytes`, for batches of these shapes: none, recompute, or recompute with
    /// offload. The strategy's own recompute settings are ignored. A note of the plan gives the
    /// choice.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// # use fleet::{DistributedStrategy, Fleet};
    /// let fleet = Fleet::collective()?;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 64], DType::F32);
    /// let hidden = (0..12).fold(x, |x, _| x.fc(Fc::new(64).act(Act::Tanh)).dropout(0.1));
    /// let loss = hidden.fc(1).mean();
    /// let batch = [("x", DType::F32, Shape::from([1024, 64]))];
    /// let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &DistributedStrategy::new());
    /// let job = optimizer.minimize_within(&net, loss, 4 << 20, &batch)?;
    /// assert!(job.strategy.recompute());
    /// let note = job.plan.notes.iter().find(|note| note.starts_with("memory: recompute"));
    /// assert!(note.is_some());
    /// # Ok::<(), fleet::Error>(())
    /// ```
    #[track_caller]
    pub fn minimize_within(
        &self,
        net: &Net,
        loss: Var<'_>,
        bytes: usize,
        feed: &[(&str, DType, Shape)],
    ) -> Result<Distributed> {
        self.minimize_as(net, loss, Some(Budget { bytes, feed }))
    }

    #[track_caller]
    fn minimize_as(
        &self,
        net: &Net,
        loss: Var<'_>,
        budget: Option<Budget<'_>>,
    ) -> Result<Distributed> {
        let ranks = self.fleet.ranks();
        let (flagged, flags) = self.strategy.with_flags(|name| self.flag(name))?;
        let rates = match self.strategy.auto() {
            true => {
                let share = self.global_batch.map(|samples| (samples / ranks.count).max(1));
                probe::rates(self.fleet, self.batch.or(share))?
            }
            false => Rates::default(),
        };
        let loss = loss.id();
        let mut strategy = flagged.clone();
        let mut network = NetworkText::default();
        let (mut prediction, mut memory_before) = (None, None);
        let rewrite = |programs: &mut Programs, registry: &'static Registry| {
            let optimizer = &self.optimizer;
            if ranks.count > 1 {
                network = NetworkText::new(programs, optimizer);
            }
            let mut note = None;
            if let Some(budget) = budget {
                let written = (optimizer, &flagged);
                let (fitting, line) = fit(programs, registry, loss, written, ranks, &budget)?;
                (strategy, note) = (fitting, Some(line));
            }
            let mut layout = None;
            if ranks.count > 1 && fleet_strategy::auto::chooses(&strategy) {
                let network = Network { programs, loss, optimizer };
                let global = self.global_batch.filter(|_| self.batch.is_none());
                let (fleet, memory) = (self.fleet, self.memory);
                let planned = planner::plan_job(fleet, network, &rates, (global, memory))?;
                (layout, prediction) = (Some(planned.choice), planned.prediction);
                memory_before = planned.memory_before;
            }
            let mut off = None;
            if ranks.count > 1 && prediction.is_none() {
                (prediction, off) = self.saved_prediction(ranks.count);
            }
            let on = Cluster { ranks, rates, layout };
            let written = self.strategy_ref(&strategy);
            let mut plan =
                fleet_strategy::minimize(programs, registry, loss, optimizer, written, on)?;
            plan.notes.extend(note.into_iter().chain(off));
            Ok(plan)
        };
        let plan = match &self.source {
            Some(source) => net.rewrite_for(&source.file().display().to_string(), rewrite)?,
            None => net.rewrite_with(rewrite)?,
        };
        if self.fleet.is_first_worker() {
            let flags = flags.iter().map(|(field, flag)| {
                let value = strategy.get(field).unwrap_or_default();
                format!("{field}: {value}, from {flag}")
            });
            self.report(&strategy, flags.collect(), &plan);
        }
        let is_of_file = self.source.is_some() && ranks.count > 1;
        Ok(Distributed { plan, strategy, network, prediction, memory_before, is_of_file })
    }

    /// Returns the prediction that `fleet plan` wrote into the strategy file, or the reason why it
    /// is not compared.
    fn saved_prediction(&self, ranks: usize) -> (Option<planner::Prediction>, Option<String>) {
        match self.source.as_ref().and_then(|source| Saved::read(source.file())) {
            None => (None, None),
            Some(saved) if saved.ranks == ranks => (Some(saved.prediction), None),
            Some(saved) => {
                let line = format!(
                    "the strategy was planned for {} ranks, and the job has {ranks}: its \
                     prediction is not compared",
                    saved.ranks
                );
                (None, Some(line))
            }
        }
    }

    /// Prints the strategy in force, and what came of it.
    fn report(
        &self,
        strategy: &DistributedStrategy,
        flags: Vec<String>,
        plan: &fleet_strategy::Plan,
    ) {
        let ranks = self.fleet.ranks().count;
        let report = Printed {
            strategy,
            is_alone: ranks == 1,
            overview: self.fleet.env().text(names::FLEET_OVERVIEW),
            flags,
            warnings: &plan.warnings,
            decisions: &plan.decisions,
            outcomes: &plan.outcomes,
            notes: &plan.notes,
        };
        report.print(format_args!("{}, {}", counted(ranks, "rank"), plan.chain_text()));
    }
}

/// The report on a job's strategy, as the first worker prints it.
struct Printed<'a> {
    strategy: &'a DistributedStrategy,
    /// Whether the job has one process.
    is_alone: bool,
    /// Value of `FLEET_OVERVIEW`.
    overview: Option<&'a str>,
    /// Lines about flags of the environment.
    flags: Vec<String>,
    warnings: &'a [Problem],
    decisions: &'a [Decision],
    outcomes: &'a [Outcome],
    notes: &'a [String],
}

impl Printed<'_> {
    /// Prints the parts of the strategy that differ from its defaults, warnings, then what is
    /// applied. A single process without a strategy prints nothing.
    fn print(&self, applied: impl std::fmt::Display) {
        let overview = match self.overview {
            Some("full") => self.strategy.overview(),
            Some("none") => String::new(),
            _ => self.strategy.overview_of_changes(),
        };
        if !overview.is_empty() {
            note(format_args!("strategy\n{}", overview.trim_end()));
        }
        self.flags.iter().for_each(note);
        self.warnings.iter().for_each(note);
        let auto = self.decisions.iter().filter(|it| it.strategy == StrategyId::Auto);
        let auto = auto.filter(|it| it.verdict == Verdict::Applied);
        auto.flat_map(|it| it.reason.lines()).for_each(|line| note(format_args!("auto: {line}")));
        if self.is_alone && self.strategy.is_empty() {
            return;
        }
        note(applied);
        self.print_idle();
        self.notes.iter().for_each(note);
    }

    /// Prints the assigned fields that have nothing to do in this job, unless a warning names the
    /// reason.
    fn print_idle(&self) {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for outcome in self.outcomes.iter().filter(|it| it.verdict == Verdict::Idle) {
            if self.warnings.iter().any(|it| outcome.reason.starts_with(&it.message)) {
                continue;
            }
            match reasons.iter_mut().find(|(reason, _)| *reason == outcome.reason) {
                Some((_, paths)) => paths.push(&outcome.path),
                None => reasons.push((&outcome.reason, vec![&outcome.path])),
            }
        }
        for (reason, paths) in reasons {
            note(format_args!("nothing to do for {}: {reason}", paths.join(", ")));
        }
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}
