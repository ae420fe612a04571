//! A session: a model's programs, the scope that they run on, and an executor.

use crate::agree::communication;
use crate::explain::StepPeers;
use crate::step_clock::StepClock;
use fleet_base::output::note;
use fleet_base::{Error, Result};
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_ir::{Program, VarId};
use fleet_nn::{HostRate, Programs};
use fleet_ops::Services;
use fleet_strategy::{Axis, LOSS_SCALE, Plan, SKIPPED_STEPS, StageInfo};
use fleet_tensor::{DType, Tensor};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::time::Instant;

/// A model's programs, the scope with its variables, and the executor that runs them.
///
/// A new session has run the startup program: its parameters are initialised.
pub struct Session {
    /// The programs of the model, as strategies have rewritten them.
    pub programs: Programs,
    /// The variables that persist between steps.
    pub scope: Scope,
    /// The executor of both programs.
    pub executor: Executor,
    test: Program,
    /// The evaluation program of the whole model, if this rank has a part of its layers.
    whole: Option<Program>,
    /// Number of ranks with samples of their own; none if all ranks have them.
    copies: Option<usize>,
    /// Number of training steps, shared with the job that this session is part of.
    steps: Arc<AtomicU64>,
    /// Link to the sessions of the other ranks.
    peers: Option<StepPeers>,
    /// The stage that this rank trains, in a pipeline.
    stage: Option<StageInfo>,
    /// The measured steps.
    clock: StepClock,
}

impl Session {
    /// Creates a session of one process, and runs the startup program.
    pub fn new(programs: Programs, options: ExecOptions) -> Result<Session> {
        Session::with_executor(programs, Executor::new(options))
    }

    /// Creates a session with an executor that has more than options, such as rings to other ranks.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// # let net = Net::new();
    /// # net.data("x", [-1, 2], DType::F32).fc(1);
    /// let services = fleet::ops::Services::none();
    /// let executor = Executor::new(ExecOptions::threads(1)).services(services);
    /// let session = Session::with_executor(net.build()?, executor)?;
    /// assert!(session.scope.contains("fc_0.w_0"), "the startup program has run");
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn with_executor(programs: Programs, mut executor: Executor) -> Result<Session> {
        let mut scope = Scope::new();
        executor.run(&programs.startup, &mut scope, &[], &[])?;
        Session::with_scope(programs, scope, executor)
    }

    /// Creates a session with a scope that already holds the startup program's variables.
    pub(crate) fn with_scope(
        programs: Programs,
        scope: Scope,
        executor: Executor,
    ) -> Result<Session> {
        warn_of_slow_kernels();
        let test = programs.for_test()?;
        let (steps, whole, copies, peers, stage, clock) = Default::default();
        Ok(Session { programs, scope, executor, test, whole, copies, steps, peers, stage, clock })
    }

    /// Returns the session with these services for its programs.
    pub(crate) fn with_services(self, services: Services) -> Session {
        Session { executor: self.executor.services(services), ..self }
    }

    /// Runs the main program once: a training step.
    ///
    /// Learning rates that are user-defined functions are set first:
    ///
    /// ```
    /// use fleet::prelude::*;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 4], DType::F32);
    /// let schedule = LrSchedule::lambda(0.8, |step| 0.5f64.powi(step as i32));
    /// let rate = net.minimize(x.fc(1).mean(), Sgd::new(schedule))?.learning_rate.name();
    /// let mut session = Session::new(net.build()?, ExecOptions::default())?;
    /// let x = Tensor::from_slice(&[0.0f32; 8], [2, 4])?;
    /// for expected in [0.8f32, 0.4, 0.2] {
    ///     assert_eq!(session.run(&[("x", &x)], &[&rate])?[0].to_vec::<f32>()?, [expected]);
    /// }
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn run(&mut self, feed: &[(&str, &Tensor)], fetch: &[&str]) -> Result<Vec<Tensor>> {
        let mut out = Vec::with_capacity(fetch.len());
        self.run_into(feed, fetch, &mut out)?;
        Ok(out)
    }

    fn begin_step(&self) {
        self.steps.fetch_add(1, Relaxed);
        if let Some(peers) = &self.peers {
            peers.world.makes_step();
        }
    }

    /// Sets what this rank has of the model.
    pub(crate) fn with_plan(self, plan: &Plan) -> Result<Session> {
        let whole = plan.whole.as_ref().map(Program::clone_for_test).transpose()?;
        Ok(Session { whole, copies: Some(plan.copy.1), stage: plan.stage.clone(), ..self })
    }

    /// Returns the number of the job's `ranks` that have samples of their own.
    pub(crate) fn copies(&self, ranks: usize) -> usize {
        self.copies.unwrap_or(ranks)
    }

    /// Returns the evaluation program of the whole model, if this rank has a part of its layers.
    pub(crate) fn whole_program(&self) -> Option<&Program> {
        self.whole.as_ref()
    }

    /// Sets the clock of the steps.
    pub(crate) fn with_clock(self, clock: StepClock) -> Session {
        Session { clock, ..self }
    }

    /// Returns the measured steps.
    pub(crate) fn clock(&self) -> &StepClock {
        &self.clock
    }

    /// Links this session to those of the other ranks.
    pub(crate) fn with_peers(self, peers: StepPeers) -> Session {
        Session { peers: Some(peers), ..self }
    }

    /// Returns the stage that this rank trains, in a pipeline.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// use fleet::strategy::{PipelineConfig, StageInfo};
    /// let (fleet, net) = (Fleet::collective()?, Net::new());
    /// let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
    /// let pipeline = PipelineConfig::default().with_accumulate_steps(2);
    /// let strategy = DistributedStrategy::new().use_pipeline(pipeline);
    /// let job = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).minimize(&net, loss)?;
    /// let session = fleet.session(net.build()?, &job, ExecOptions::default())?;
    /// let stage: &StageInfo = session.stage().unwrap();
    /// // All stages of a pipeline are fed the same batch: that of their copy of the model.
    /// assert_eq!((stage.number, stage.count, stage.copy, stage.copies), (0, 1, 0, 1));
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn stage(&self) -> Option<&StageInfo> {
        self.stage.as_ref()
    }

    /// Rejects fetches of variables that another stage of the pipeline has.
    fn check_fetch(&self, program: &Program, fetch: &[&str]) -> Result<()> {
        let Some(stage) = &self.stage else { return Ok(()) };
        let here = |name: &&&str| program.find_var(name).is_none();
        let Some(name) = fetch.iter().find(here) else { return Ok(()) };
        let Some(other) = stage.elsewhere.get(*name) else { return Ok(()) };
        let ranks = stage.grid.ranks_at(Axis::Pipeline, *other);
        let ranks: Vec<String> = ranks.map(|rank| rank.to_string()).collect();
        Err(Error::invalid(format!("'{name}' is on stage {other} of the pipeline"))
            .expected(format!("a variable of stage {}, or the loss", stage.number))
            .help(format!("fetch it on rank {}", ranks.join(" or "))))
    }

    /// Returns the reason for an error of a step, if it lies in a difference between ranks.
    fn explained(&mut self, error: Error, feed: &[(&str, &Tensor)], fetch: &[&str]) -> Error {
        let Some(peers) = self.peers.as_ref().filter(|peers| peers.disagree()) else {
            return error;
        };
        let feeds: Vec<_> = feed.iter().map(|(name, t)| (*name, t.dtype(), *t.shape())).collect();
        let main = &self.programs.main;
        match self.executor.planned_program(main, &self.scope, &feeds, fetch) {
            Ok(planned) => {
                let communication = communication(&planned, &peers.rings);
                peers.explain(error, fetch, &communication)
            }
            Err(_) => error,
        }
    }

    /// As [`run`](Self::run), and writes the results into existing tensors.
    pub(crate) fn run_into(
        &mut self,
        feed: &[(&str, &Tensor)],
        fetch: &[&str],
        out: &mut Vec<Tensor>,
    ) -> Result<()> {
        self.check_fetch(&self.programs.main, fetch)?;
        self.begin_step();
        set_host_rates(&self.programs.host_rates, &mut self.scope)?;
        let (begin, waited) = (Instant::now(), self.executor.message_wait());
        let ran = self.executor.run_into(&self.programs.main, &mut self.scope, feed, fetch, out);
        self.clock.add(begin.elapsed(), self.executor.message_wait().saturating_sub(waited));
        ran.map_err(|error| self.explained(error, feed, fetch))
    }

    /// As [`evaluate`](Self::evaluate), and writes the results into existing tensors.
    pub(crate) fn evaluate_into(
        &mut self,
        feed: &[(&str, &Tensor)],
        fetch: &[&str],
        out: &mut Vec<Tensor>,
    ) -> Result<()> {
        self.check_fetch(&self.test, fetch)?;
        let step = self.scope.step();
        let ran = self.executor.run_into(&self.test, &mut self.scope, feed, fetch, out);
        self.scope.set_step(step);
        ran
    }

    /// Returns the forward part, as for inference.
    pub(crate) fn test_program(&self) -> &Program {
        &self.test
    }

    /// Returns the counter of this session's training steps.
    pub(crate) fn step_count(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.steps)
    }

    /// Checks that the program computes in mixed precision (`amp_init`). There is nothing to
    /// initialise: parameters and optimizer state are 32-bit in every mode, and each step casts
    /// the parameters that it needs in 16 bits.
    ///
    /// ```
    /// use fleet::DistributedStrategy;
    /// use fleet::prelude::*;
    /// use fleet::strategy::AmpConfig;
    /// # let fleet = fleet::Fleet::collective()?;
    /// let net = Net::new();
    /// let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
    /// let strategy = DistributedStrategy::new().use_amp(AmpConfig::default());
    /// fleet.distributed_optimizer(Sgd::new(0.1), &strategy).minimize(&net, loss)?;
    /// let mut session = Session::new(net.build()?, ExecOptions::default())?;
    /// session.amp_init()?;
    /// session.run(&[("x", &Tensor::from_slice(&[1.0f32; 8], [2, 4])?)], &[])?;
    /// assert_eq!(session.loss_scaling()?, Some(32768.0));
    /// assert_eq!(session.skipped_steps()?, Some(0));
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn amp_init(&self) -> Result<()> {
        let main = &self.programs.main;
        let is_half = |var: VarId| matches!(main.var(var).dtype, DType::F16 | DType::BF16);
        let mut forward = main.root_ops().filter(|(_, op)| op.role.is_forward());
        match forward.any(|(_, op)| op.all_outputs().any(is_half)) {
            true => Ok(()),
            false => Err(Error::invalid("the program does not use mixed precision")
                .expected("ops that compute in 16 bits")
                .help("set amp in the strategy before minimize")),
        }
    }

    /// Returns the loss scale of mixed precision (`get_loss_scaling`); none if the loss is not
    /// scaled.
    pub fn loss_scaling(&self) -> Result<Option<f32>> {
        let is_scaled = self.scope.contains(LOSS_SCALE);
        is_scaled.then(|| self.scope.tensor(LOSS_SCALE)?.item::<f32>()).transpose()
    }

    /// Returns the number of steps in which gradients were not finite, so that mixed precision
    /// skipped them; none if the loss is not scaled.
    pub fn skipped_steps(&self) -> Result<Option<u64>> {
        let is_counted = self.scope.contains(SKIPPED_STEPS);
        let count = || Ok(self.scope.tensor(SKIPPED_STEPS)?.item::<i32>()?.max(0) as u64);
        is_counted.then(count).transpose()
    }

    /// Runs the forward part as for inference: no dropout, running statistics, no update. The
    /// random numbers of later steps are those that they would be without this evaluation.
    pub fn evaluate(&mut self, feed: &[(&str, &Tensor)], fetch: &[&str]) -> Result<Vec<Tensor>> {
        let mut values = Vec::new();
        self.evaluate_into(feed, fetch, &mut values)?;
        Ok(values)
    }
}

/// Warns once in a process whose kernels are compiled without optimization, as the profile `dev` of
/// a new crate does.
fn warn_of_slow_kernels() {
    static WARNED: Once = Once::new();
    if !fleet_kernels::IS_OPTIMIZED {
        WARNED.call_once(|| note(SLOW_KERNELS));
    }
}

const SLOW_KERNELS: &str = "the kernels are compiled without optimization and about 100 times \
    slower; build with --release, or add to Cargo.toml:
    [profile.dev.package.\"*\"]
    opt-level = 3";

/// Sets the learning rates of the next step that are user-defined functions
/// ([`Programs::host_rates`]). A [`Session`] does so itself; a program that an [`Executor`] runs
/// needs it before each step. The step count is in the scope, so schedules continue after a
/// checkpoint is loaded.
///
/// ```
/// use fleet::prelude::*;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
/// let schedule = LrSchedule::lambda(0.8, |step| 0.5f64.powi(step as i32));
/// let rate = net.minimize(loss, Sgd::new(schedule))?.learning_rate.name();
/// let programs = net.build()?;
/// let (mut executor, mut scope) = (Executor::new(ExecOptions::default()), Scope::new());
/// executor.run(&programs.startup, &mut scope, &[], &[])?;
/// let x = Tensor::from_slice(&[0.0f32; 8], [2, 4])?;
/// for expected in [0.8f32, 0.4, 0.2] {
///     fleet::set_host_rates(&programs.host_rates, &mut scope)?;
///     let out = executor.run(&programs.main, &mut scope, &[("x", &x)], &[&rate])?;
///     assert_eq!(out[0].to_vec::<f32>()?, [expected]);
/// }
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn set_host_rates(rates: &[HostRate], scope: &mut Scope) -> Result<()> {
    for rate in rates {
        let done = match scope.contains(HostRate::COUNTER) {
            true => scope.tensor(HostRate::COUNTER)?.to_vec::<i64>()?.first().copied(),
            false => None,
        };
        let value = rate.value_after(done)?;
        scope.assign(&rate.variable, &Tensor::from_slice(&[value], [1])?)?;
    }
    Ok(())
}
