//! A worker of a job with parameter servers: a session and its communication.

use super::ServerJob;
use super::loss_scale::{self, ScaleKeeper};
use super::port::{Sender, TableAdapter, UnknownIds, table_ids};
use super::remote_save::save_fs;
use super::settings::steps_between_reports;
use crate::dataset_run::{check_inputs, run_steps};
use crate::options::options_of_worker;
use crate::report::Reporter;
use crate::{DatasetReport, DatasetRun, Session, exec_options};
use fleet_base::{Error, ErrorKind, Result};
use fleet_data::Dataset;
use fleet_exec::{ExecOptions, Executor};
use fleet_nn::{HostRate, LrSchedule, Programs};
use fleet_ops::Services;
use fleet_ps::{
    Arrival, Communicator, CommunicatorOptions, CommunicatorStats, GeoCommunicator, Progress,
    PushMode, RateOf, Rates, START_ROUNDS, SaveFs, Servers, WorkerSeen,
};
use fleet_strategy::servers::{Exchange, ServerPlan};
use fleet_tensor::Tensor;
use fleet_topology::Env;
use std::sync::Arc;

/// Statistics of a worker's communication.
pub type WorkerStats = CommunicatorStats;

/// A worker: its session runs steps, and its communication runs concurrently.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::servers::{Place, ServerJob, Worker, WorkerStats};
/// use fleet::DistributedStrategy;
/// use fleet::ps::{CommunicatorOptions, LocalServers, ServerTables};
/// use std::sync::Arc;
///
/// let net = Net::new();
/// let (ids, y) = (net.data("ids", [-1, 2], DType::I64), net.data("y", [-1, 1], DType::F32));
/// let rows = ids.sparse_embedding([1000, 8]);
/// let loss = rows.flatten(1).fc(1).mse_loss(y, Reduction::Mean);
/// let strategy = DistributedStrategy::new().with_a_sync(false); // sync
/// let optimizer = Adagrad::new(0.1).into();
/// let place = Place { worker: 0, worker_count: 1, server_count: 1, half_async: false };
/// let job = ServerJob::minimize(&net, loss, &optimizer, None, &strategy, place)?;
///
/// let servers = ServerTables::all(&job.tables)?;
/// let servers = Arc::new(LocalServers::new(&servers, 0)?);
/// let options = CommunicatorOptions::default();
/// let mut worker =
///     Worker::start(servers, net.build()?, &job, ExecOptions::default(), options)?;
/// let ids = Tensor::from_slice(&[7i64, 900, 7, 3], [2, 2])?;
/// let y = Tensor::from_slice(&[1.0f32, -1.0], [2, 1])?;
/// worker.set_steps_done(0)?; // a new job
/// for _ in 0..200 {
///     worker.look_ahead(&[("ids", &ids), ("y", &y)])?; // the feeds of the next step
///     worker.run(&[("ids", &ids), ("y", &y)], &[])?;
/// }
/// let out = worker.run(&[("ids", &ids), ("y", &y)], &[&loss.name()])?;
/// assert!(out[0].item::<f32>()? < 0.05);
/// worker.flush()?;
/// worker.barrier()?;
/// assert_eq!(worker.workers()?[0].steps, 201);
/// let stats: WorkerStats = worker.stats();
/// assert!(stats.push_count > 0 && stats.blocked_seconds >= 0.0);
/// assert_eq!(*worker.servers().job(), worker.job().tables);
/// worker.stop()?;
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct Worker {
    /// The worker's programs and variables.
    pub session: Session,
    adapter: Arc<TableAdapter>,
    job: ServerJob,
    /// Progress of this worker's earlier processes, if it was restarted.
    earlier_progress: Option<Progress>,
    scale: ScaleKeeper,
    stopped: bool,
    reporter: Reporter,
    /// The file system of saves in remote folders.
    pub(super) save_fs: SaveFs,
}

impl Worker {
    /// Runs the startup program. Together with all workers it sends the parameters of worker 0 to
    /// the servers and pulls them from there. Then starts the communication.
    pub fn start(
        servers: impl Into<Servers>,
        programs: Programs,
        job: &ServerJob,
        options: ExecOptions,
        communication: CommunicatorOptions,
    ) -> Result<Worker> {
        let servers = servers.into();
        let session = Worker::startup(programs, job, options)?;
        Worker::join(servers, session, job, communication)
    }

    /// Runs the startup program.
    pub(super) fn startup(
        programs: Programs,
        job: &ServerJob,
        options: ExecOptions,
    ) -> Result<Session> {
        let options = options_of_worker(exec_options(&job.strategy, options), job.place.worker);
        Session::with_executor(programs, Executor::new(options))
            .map_err(|error| with_table_sizes(job, error))
    }

    /// Exchanges the parameters of a session with the other workers, and starts the communication.
    pub(super) fn join(
        servers: Servers,
        mut session: Session,
        job: &ServerJob,
        communication: CommunicatorOptions,
    ) -> Result<Worker> {
        if *servers.job() != job.tables {
            return Err(Error::invalid("the servers' tables differ from those of the program")
                .help("give servers and workers the same network and strategy"));
        }
        let earlier_progress;
        let sender = match job.plan.exchange {
            Exchange::Geo { k_steps } => {
                let geo = GeoCommunicator::start(servers, k_steps)?;
                let push = |session: &Session| push_initial_geo(&geo, job, session);
                let begin = |table, values: &mut [f32], width| geo.begin(table, values, width);
                let pull = |session: &mut Session| update_copies(job, session, begin);
                earlier_progress = start_or_rejoin(geo.servers(), job, &mut session, push, pull)?;
                Sender::Geo(geo)
            }
            Exchange::Pushes(mode) => {
                let rates = rates(&job.plan, steps_between_reports(&job.strategy));
                let push = |session: &Session| {
                    push_initial(&servers, job, session)?;
                    rates.begin(&*servers.tables, 0)
                };
                let pull = |session: &mut Session| pull(&servers, job, session);
                earlier_progress = start_or_rejoin(&servers, job, &mut session, push, pull)?;
                Sender::Pushes(Communicator::start(servers, mode, communication, rates)?)
            }
        };
        if let Some(progress) = &earlier_progress {
            loss_scale::restore(&mut session.scope, progress)?;
        }
        let adapter = Arc::new(TableAdapter::new(sender, &job.plan));
        let services = Services::none().with_tables(adapter.clone());
        Ok(Worker {
            session: session.with_services(services),
            adapter,
            job: job.clone(),
            earlier_progress,
            scale: ScaleKeeper::default(),
            stopped: false,
            reporter: Reporter::default(),
            save_fs: save_fs(&job.strategy, None),
        })
    }

    /// Makes the worker report to the launcher that it has finished, or failed and why, and save
    /// as the environment says.
    pub(super) fn of_job(self, reporter: &Reporter, env: &Env) -> Worker {
        let save_fs = save_fs(&self.job.strategy, Some(env));
        Worker { reporter: reporter.clone(), save_fs, ..self }
    }

    /// Reports an error of an operation that involves the other workers.
    fn reported<T>(&self, result: Result<T>) -> Result<T> {
        result.inspect_err(|error| self.reporter.failed(error))
    }

    /// Returns the job that this worker trains.
    pub fn job(&self) -> &ServerJob {
        &self.job
    }

    /// Returns the servers, for requests that programs do not make.
    pub fn servers(&self) -> &Servers {
        self.adapter.servers()
    }

    /// Runs a training step.
    pub fn run(&mut self, feed: &[(&str, &Tensor)], fetch: &[&str]) -> Result<Vec<Tensor>> {
        let mut out = Vec::new();
        self.run_into(feed, fetch, &mut out)?;
        Ok(out)
    }

    /// Runs a training step and writes the results into existing tensors.
    pub(crate) fn run_into(
        &mut self,
        feed: &[(&str, &Tensor)],
        fetch: &[&str],
        out: &mut Vec<Tensor>,
    ) -> Result<()> {
        let ran = self.session.run_into(feed, fetch, out);
        let Worker { session, job, adapter, scale, .. } = self;
        let ran = ran.and_then(|()| after_step(job, adapter, (scale, session)));
        self.reported(ran.map_err(|error| with_table_names(&self.job, error)))
    }

    /// Trains on one pass of a dataset. The rows of a step are requested while the step before
    /// computes.
    ///
    /// Synchronous workers make steps together. If their shares of the data differ in size, `run`
    /// needs [`DatasetRun::together`]. Otherwise a worker that finishes first stops, and the others
    /// continue without it.
    pub fn train_from_dataset(
        &mut self,
        dataset: &dyn Dataset,
        run: DatasetRun<'_>,
    ) -> Result<DatasetReport> {
        check_inputs(&self.session.programs.main, dataset)?;
        let Worker { session, job, adapter, scale, .. } = self;
        let report = run_steps(dataset, run, true, |batch, next, fetch, out| {
            if let Some(next) = next {
                look_ahead(job, adapter, &next.feeds())?;
            }
            session.run_into(&batch.feeds(), fetch, out)?;
            after_step(job, adapter, (scale, session))
        });
        self.reported(report)
    }

    /// Runs the forward part on one pass of a dataset. Only metric counts are updated.
    pub fn infer_from_dataset(
        &mut self,
        dataset: &dyn Dataset,
        run: DatasetRun<'_>,
    ) -> Result<DatasetReport> {
        self.session.infer_from_dataset(dataset, run)
    }

    /// Sets the values that inference reads for ids without a row.
    pub fn set_unknown_ids(&mut self, unknown: UnknownIds) {
        self.adapter.set_unknown(unknown);
    }

    /// Runs the forward part. Ids without a row read as zeros or as selected by
    /// [`Worker::set_unknown_ids`], and no row is created.
    pub fn evaluate(&mut self, feed: &[(&str, &Tensor)], fetch: &[&str]) -> Result<Vec<Tensor>> {
        self.session.evaluate(feed, fetch)
    }

    /// Announces the feeds of the next step, before this one runs. In modes that do not wait for
    /// other workers, the next step's rows are requested while this one computes; otherwise as soon
    /// as it has ended. A step with other feeds is still correct.
    pub fn look_ahead(&self, next: &[(&str, &Tensor)]) -> Result<()> {
        look_ahead(&self.job, &self.adapter, next)
    }

    /// Sets the number of steps made in an earlier run whose tables were loaded, from which
    /// learning-rate schedules continue. All workers must call it.
    pub fn set_steps_done(&mut self, steps: u64) -> Result<()> {
        self.count_from(steps)?;
        match &self.adapter.sender {
            Sender::Pushes(communicator) => communicator.set_steps_done(steps),
            // The rates of GEO are in its program.
            Sender::Geo(geo) => geo.begin_run(steps, steps),
            Sender::ReadOnly(_) => Ok(()),
        }
    }

    /// Starts to count after a step of the job.
    fn count_from(&mut self, step: u64) -> Result<()> {
        self.scale.count_from(step);
        if self.session.scope.contains(HostRate::COUNTER) {
            // The rates of GEO are in its program. The counter is -1 before the first step.
            let counter = i64::try_from(step).unwrap_or(i64::MAX) - 1;
            let counter = Tensor::from_slice(&[counter], [1])?;
            self.session.scope.assign(HostRate::COUNTER, &counter)?;
        }
        Ok(())
    }

    /// As [`set_steps_done`](Self::set_steps_done), for a worker that was lost when the tables were
    /// saved: they contain its steps only up to `own` ([`WorkerSeen::complete`]).
    pub fn set_own_steps_done(&mut self, steps: u64, own: u64) -> Result<()> {
        self.count_from(own)?;
        match &self.adapter.sender {
            Sender::Pushes(communicator) => {
                communicator.set_steps_done(steps)?;
                communicator.begin_run(steps, own)
            }
            Sender::Geo(geo) => geo.begin_run(steps, own),
            Sender::ReadOnly(_) => Ok(()),
        }
    }

    /// Resumes a worker that was restarted while the others trained on, or any worker of a
    /// synchronous job that was restarted as a whole on durable servers. Returns `None` for all
    /// others.
    ///
    /// All tables contain the steps of the worker's earlier processes up to [`Progress::complete`],
    /// counted from the first step of the job. This worker resumes after that step, and must be fed
    /// the same batches as its earlier processes. Gradients of a step that only some servers have
    /// are sent to the other servers alone, so that each table gets every batch once. In GEO, the
    /// steps of the last exchanges may count twice in some of the tables.
    ///
    /// Without this call the worker's steps count anew, and all its gradients are applied.
    ///
    /// ```no_run
    /// # use fleet::{prelude::*, servers::Worker};
    /// # fn train(worker: &mut Worker, batch_of: impl Fn(u64) -> Tensor) -> Result<()> {
    /// let done = worker.resume()?.map_or(0, |progress| progress.complete);
    /// for step in done + 1..=1000 {
    ///     worker.run(&[("x", &batch_of(step))], &[])?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn resume(&mut self) -> Result<Option<Progress>> {
        let Some(progress) = self.earlier_progress.clone() else { return Ok(None) };
        match &self.adapter.sender {
            Sender::Pushes(communicator) => communicator.resume(&progress)?,
            Sender::Geo(geo) => geo.resume(&progress)?,
            Sender::ReadOnly(_) => {}
        }
        self.count_from(progress.complete)?;
        loss_scale::restore(&mut self.session.scope, &progress)?;
        Ok(Some(progress))
    }

    /// Returns whether the servers hold steps of this worker's earlier processes, which
    /// [`Worker::resume`] returns.
    pub fn can_resume(&self) -> bool {
        self.earlier_progress.is_some()
    }

    /// Returns this worker's loss scale of mixed precision (`get_loss_scaling`); none if the loss
    /// is not scaled. Each worker has its own, which starts at `init_loss_scaling`. The servers
    /// keep it: a worker that is restarted during the job continues with it.
    pub fn loss_scaling(&self) -> Result<Option<f32>> {
        self.session.loss_scaling()
    }

    /// Returns the number of this worker's steps in which gradients were not finite, and which
    /// changed no table; none if the loss is not scaled.
    pub fn skipped_steps(&self) -> Result<Option<u64>> {
        self.session.skipped_steps()
    }

    /// Waits until all workers that have not stopped have called it.
    pub fn barrier(&self) -> Result<()> {
        self.reported(self.servers().barriers.arrive(Arrival::Received))
    }

    /// Waits until everything that this worker has sent is applied, and pulls the newest
    /// parameters.
    pub fn flush(&mut self) -> Result<()> {
        let flushed = self.flush_tables();
        self.reported(flushed)
    }

    fn flush_tables(&mut self) -> Result<()> {
        match &self.adapter.sender {
            Sender::Pushes(communicator) => {
                communicator.flush().map_err(|error| with_table_names(&self.job, error))?;
                pull(communicator.servers(), &self.job, &mut self.session)
            }
            Sender::Geo(geo) => {
                let end = |table, values: &mut [f32], width| geo.end(table, &mut [values], width);
                update_copies(&self.job, &mut self.session, end)
            }
            Sender::ReadOnly(servers) => pull(servers, &self.job, &mut self.session),
        }
    }

    /// Replaces the parameters by those of the servers. In GEO, changes that were not sent are
    /// dropped.
    pub(crate) fn reload(&mut self) -> Result<()> {
        let Sender::Geo(geo) = &self.adapter.sender else { return self.flush() };
        let begin = |table, values: &mut [f32], width| geo.begin(table, values, width);
        let reloaded =
            geo.flush().and_then(|()| update_copies(&self.job, &mut self.session, begin));
        self.reported(reloaded)
    }

    /// Returns the servers' view of every worker of the job: its steps, its number of starts, and
    /// whether the others continue without it.
    pub fn workers(&self) -> Result<Vec<WorkerSeen>> {
        self.servers().run.workers()
    }

    /// Returns counters of this worker's communication.
    pub fn stats(&self) -> WorkerStats {
        match &self.adapter.sender {
            Sender::Pushes(communicator) => communicator.stats(),
            Sender::Geo(geo) => geo.stats(),
            Sender::ReadOnly(_) => WorkerStats::default(),
        }
    }

    /// Sends all pending gradients and leaves the job; the last worker stops the servers. The
    /// session keeps the parameters.
    pub fn stop(&mut self) -> Result<()> {
        if self.stopped {
            return Ok(());
        }
        self.flush()?;
        if let Sender::Pushes(communicator) = &self.adapter.sender {
            communicator.rest();
        }
        self.stopped = true;
        let servers = &self.servers().barriers;
        if self.reported(servers.finish())? {
            servers.stop()?;
        }
        self.reporter.finished();
        Ok(())
    }
}

/// Adds the sizes of GEO's tables to an error, if memory is exhausted.
fn with_table_sizes(job: &ServerJob, error: Error) -> Error {
    if !(job.plan.exchange.is_geo() && error.kind() == ErrorKind::Exhausted) {
        return error;
    }
    let sparse = job.plan.tables.sparse.iter();
    let sizes: Vec<String> =
        sparse.map(|it| format!("'{}' of {} rows of {}", it.name, it.rows, it.width())).collect();
    error.at(format!("tables of GEO, which workers hold whole: {}", sizes.join(", "))).help(
        "give the tables no more rows than there are ids, or use another mode (k_steps 0), whose \
         workers hold only the rows of a step",
    )
}

/// Counts a completed step.
fn after_step(
    job: &ServerJob,
    adapter: &TableAdapter,
    (scale, session): (&mut ScaleKeeper, &Session),
) -> Result<()> {
    let run = &*adapter.servers().run;
    run.count_step();
    // No op of an async program marks the end of a step.
    if let (Exchange::Pushes(PushMode::Async), Sender::Pushes(communicator)) =
        (job.plan.exchange, &adapter.sender)
    {
        communicator.sent()?;
    }
    scale.after_step(&session.scope, run)
}

/// Adds the names of the tables to an error about a number in one of them: servers know tables by
/// id only.
fn with_table_names(job: &ServerJob, error: Error) -> Error {
    if error.kind() != ErrorKind::Numeric {
        return error;
    }
    let tables = &job.plan.tables;
    let sparse =
        tables.sparse.iter().map(|table| format!("{} is '{}'", table.table_id(), table.name));
    let dense = tables.dense.iter().map(|table| {
        let names: Vec<&str> = table.params.iter().map(|(name, _)| name.as_str()).collect();
        let shown = names.iter().take(NAMES_SHOWN).copied().collect::<Vec<_>>().join(", ");
        let more = if names.len() > NAMES_SHOWN { ", ..." } else { "" };
        format!("{} is {shown}{more}", table.table_id)
    });
    let all: Vec<String> = sparse.chain(dense).collect();
    error.at(format!("tables: {}", all.join("; ")))
}

/// Maximum number of a dense table's parameters that an error names.
const NAMES_SHOWN: usize = 4;

/// Requests the rows of the next step.
fn look_ahead(job: &ServerJob, adapter: &TableAdapter, next: &[(&str, &Tensor)]) -> Result<()> {
    let Sender::Pushes(communicator) = &adapter.sender else { return Ok(()) };
    for lookup in job.plan.lookups.iter().filter(|lookup| lookup.is_fed) {
        let mut parts = Vec::new();
        for name in &lookup.ids {
            match next.iter().find(|(fed, _)| fed == name) {
                Some((_, tensor)) => parts.push(tensor.as_slice::<i64>()?),
                None => break,
            }
        }
        // The step reports wrong ids; rows of such ids must not be created.
        let is_whole = parts.len() == lookup.ids.len();
        if is_whole && adapter.check_ids(lookup.table_id, parts.iter().copied()).is_ok() {
            let ids = table_ids(parts.into_iter(), lookup.padding);
            communicator.look_ahead(lookup.table_id, ids, lookup.width);
        }
    }
    Ok(())
}

/// Reads the parameters of a dense table from the scope.
fn gather(session: &Session, params: &[(String, usize)]) -> Result<Vec<f32>> {
    let mut all = Vec::new();
    for (name, _) in params {
        all.extend_from_slice(session.scope.tensor(name)?.as_slice::<f32>()?);
    }
    Ok(all)
}

/// Writes the parameters of a dense table to the scope. A network for inference may lack some.
fn scatter(session: &mut Session, params: &[(String, usize)], values: &[f32]) -> Result<()> {
    let mut rest = values;
    for (name, len) in params {
        let (own, others) = rest.split_at((*len).min(rest.len()));
        if session.scope.contains(name) {
            let shape = *session.scope.tensor(name)?.shape();
            session.scope.assign(name, &Tensor::from_slice(own, shape)?)?;
        }
        rest = others;
    }
    Ok(())
}

/// Sends the parameters and rates of worker 0 to the servers, before any worker may push; all
/// workers pull the parameters. A worker that was restarted while the others train adopts the
/// progress of its earlier processes and returns it. So do all workers of a synchronous job that is
/// restarted as a whole on durable servers: they join from the first round.
fn start_or_rejoin(
    servers: &Servers,
    job: &ServerJob,
    session: &mut Session,
    push: impl Fn(&Session) -> Result<()>,
    pull: impl Fn(&mut Session) -> Result<()>,
) -> Result<Option<Progress>> {
    let passed = servers.barriers.rounds(Arrival::Received)?;
    if passed >= START_ROUNDS {
        check_rejoin(job)?;
        let progress = servers.run.adopt()?;
        pull(session)?;
        return Ok(Some(progress));
    }
    let is_sync = job.plan.exchange.is_sync();
    let mut steps = 0;
    for round in passed..START_ROUNDS {
        if round == 1 && servers.worker() == 0 && (!is_sync || servers.run.settle()? == 0) {
            push(session)?;
        }
        if round == 2 {
            steps = if is_sync { servers.barriers.rounds(Arrival::Sent)? } else { 0 };
            pull(session)?;
        }
        servers.barriers.arrive(Arrival::Received)?;
    }
    if steps == 0 {
        return Ok(None);
    }
    let earlier = servers.run.adopt()?;
    // The servers have settled on one step: none has a part of a later one.
    let complete = earlier.base + steps;
    Ok(Some(earlier.settled(complete)))
}

/// Returns the learning-rate schedules of the tables.
fn rates(plan: &ServerPlan, report_every: u32) -> Rates {
    let rate_of = |(id, schedule): (u32, &LrSchedule)| -> (u32, RateOf) {
        let schedule = schedule.clone();
        (id, Arc::new(move |step| schedule.value_at(step)))
    };
    let tables = plan.schedules().map(rate_of).collect();
    Rates { steps_table: plan.tables.steps, report_every, tables }
}

fn push_initial(servers: &Servers, job: &ServerJob, session: &Session) -> Result<()> {
    for table in &job.plan.tables.dense {
        servers.tables.set_dense(table.table_id, &gather(session, &table.params)?)?;
    }
    Ok(())
}

/// Checks that a worker may join a job that is already training. Gradients that the worker's
/// earlier process had not sent are lost.
fn check_rejoin(job: &ServerJob) -> Result<()> {
    if !job.plan.exchange.is_sync() {
        return Ok(());
    }
    Err(Error::unavailable(
        "a worker of a sync job cannot be restarted alone: the other workers wait in a step that \
         may be partly applied",
    )
    .help(
        "stop the whole job and restart it with fleetrun: it resumes on durable servers; otherwise \
         start it from a save or a checkpoint",
    ))
}

/// Pulls the dense parameters that the session has.
pub(super) fn pull(servers: &Servers, job: &ServerJob, session: &mut Session) -> Result<()> {
    for table in &job.plan.tables.dense {
        if !table.params.iter().any(|(name, _)| session.scope.contains(name)) {
            continue;
        }
        let mut values = vec![0.0; table.len];
        servers.tables.pull_dense(table.table_id, &mut values)?;
        scatter(session, &table.params, &values)?;
    }
    Ok(())
}

/// A worker's own copies of all tables: (table, parameters, width of a row).
type Copies = Vec<(u32, Vec<(String, usize)>, Option<usize>)>;

fn copies(job: &ServerJob) -> Copies {
    let tables = &job.plan.tables;
    let sparse = tables.sparse.iter().map(|table| {
        let len = table.rows as usize * table.width();
        (table.table_id(), vec![(table.name.clone(), len)], Some(table.width()))
    });
    let dense = tables.dense.iter().map(|table| (table.table_id, table.params.clone(), None));
    sparse.chain(dense).collect()
}

fn push_initial_geo(geo: &GeoCommunicator, job: &ServerJob, session: &Session) -> Result<()> {
    for (table, params, width) in copies(job) {
        geo.fill(table, &gather(session, &params)?, width)?;
    }
    Ok(())
}

/// Replaces the worker's copies by what `update` makes of them: (table, values, width of a row).
fn update_copies(
    job: &ServerJob,
    session: &mut Session,
    update: impl Fn(u32, &mut [f32], Option<usize>) -> Result<()>,
) -> Result<()> {
    for (table, params, width) in copies(job) {
        let mut values = gather(session, &params)?;
        update(table, &mut values, width)?;
        scatter(session, &params, &values)?;
    }
    Ok(())
}
