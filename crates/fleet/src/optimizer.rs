//! The optimizer of a job: `fleet.distributed_optimizer`.

use crate::agree::NetworkText;
use crate::fit::{Budget, fit};
use crate::servers::{Place, ServerJob};
use crate::{Distributed, Fleet, probe};
use fleet_base::Result;
use fleet_base::output::note;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_nn::{Net, Programs, Var};
use fleet_ops::Registry;
use fleet_strategy::{
    Cluster, DistributedStrategy, Plan, Ranks, Rates, StrategyId, StrategySource, Verdict, Written,
};
use fleet_tensor::{DType, Shape};

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

    /// Sets the file that the strategy was read from ([`DistributedStrategy::load_with_source`]).
    /// An error in the strategy then names the line of the file instead of the caller's.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// # use fleet::{DistributedStrategy, Fleet};
    /// # let name = format!("fleet-source-{}.prototxt", std::process::id());
    /// # let file = std::env::temp_dir().join(name);
    /// std::fs::write(&file, "pipeline: true\n")?;
    /// let (fleet, net) = (Fleet::collective()?, Net::new());
    /// let mut strategy = DistributedStrategy::new();
    /// let (source, _) = strategy.load_with_source(&file)?;
    /// # std::fs::remove_file(&file)?;
    /// let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
    /// let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).read_from(source);
    /// let error = optimizer.minimize(&net, loss).unwrap_err().to_string();
    /// assert!(error.contains(":1:11: pipeline: is not supported"), "{error}");
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
        if self.fleet.is_first_worker() && !self.fleet.topology().is_non_distributed() {
            let (workers, servers) = (place.worker_count, place.server_count);
            let s = |count: usize| if count == 1 { "" } else { "s" };
            let (of_workers, of_servers) = (s(workers), s(servers));
            let chain = job.plan.chain_text();
            note(format_args!(
                "{workers} worker{of_workers}, {servers} server{of_servers}, {chain}"
            ));
            job.plan.notes.iter().for_each(note);
        }
        Ok(job)
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
        let rates = match self.strategy.auto() {
            true => probe::rates(self.fleet, self.batch)?,
            false => Rates::default(),
        };
        let loss = loss.id();
        let mut strategy = self.strategy.clone();
        let mut network = NetworkText::default();
        let rewrite = |programs: &mut Programs, registry: &'static Registry| {
            let optimizer = &self.optimizer;
            if ranks.count > 1 {
                network = NetworkText::new(programs, optimizer);
            }
            let mut note = None;
            if let Some(budget) = budget {
                let written = (optimizer, &self.strategy);
                let (fitting, line) = fit(programs, registry, loss, written, ranks, &budget)?;
                (strategy, note) = (fitting, Some(line));
            }
            let (written, on) = (self.strategy_ref(&strategy), Cluster { ranks, rates });
            let mut plan =
                fleet_strategy::minimize(programs, registry, loss, optimizer, written, on)?;
            plan.notes.extend(note);
            Ok(plan)
        };
        let plan = match &self.source {
            Some(source) => net.rewrite_for(&source.file().display().to_string(), rewrite)?,
            None => net.rewrite_with(rewrite)?,
        };
        if self.fleet.is_first_worker() {
            report(&plan, &ranks, self.source.as_ref());
        }
        Ok(Distributed { plan, strategy, network })
    }
}

/// Prints the warnings, decisions and notes of a plan; with one rank, nothing about rings.
fn report(plan: &Plan, ranks: &Ranks, source: Option<&StrategySource>) {
    for warning in &plan.warnings {
        note(warning);
    }
    for decision in &plan.decisions {
        match (decision.strategy, decision.verdict) {
            (StrategyId::Auto, _) => note(format_args!("auto: {}", decision.reason)),
            (name, Verdict::Dropped) => {
                let place = source.map(|it| format!("{}: ", it.place_of(&decision.field)));
                let place = place.unwrap_or_default();
                note(format_args!("{place}warning: {name} is not applied: {}", decision.reason));
            }
            _ => {}
        }
    }
    if ranks.count > 1 {
        note(format_args!("{} ranks, {}", ranks.count, plan.chain_text()));
        plan.notes.iter().for_each(note);
    }
}
