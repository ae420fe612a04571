//! A process of a job: the counterpart of `fleet.init`.
//!
//! A [`Fleet`] knows its rank from the environment that `fleetrun` and clusters set, and is
//! connected to the other ranks. It rewrites a network for them ([`Fleet::distributed_optimizer`])
//! and opens sessions whose programs communicate. A process started without a launcher is worker 0
//! of 1 and has no overhead.
//!
//! No wait for another rank outlasts that rank. If a rank dies, stops or leaves early, all others
//! get an error that names it and the operation that waited.

use crate::agree::{self, NetworkText, WholeRings};
use crate::explain::{FirstFault, StepPeers};
use crate::fit::{Budget, fit};
use crate::membership::{self, JobMembership};
use crate::report::Reporter;
use crate::rings::GroupRing;
use crate::servers::{Place, ServerJob};
use crate::terminal::{Printer, note};
use crate::{CheckpointPolicy, Checkpoints, Session, exec_options};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_comm::{Group, GroupOptions, ReduceOp, World};
use fleet_exec::{ExecOptions, Executor};
use fleet_net::{
    Abort, Deadline, Limits, Log, Member, Membership, Store, StoreClient, StoreServer, Swap,
    TcpFabric, TcpOptions, Vigilance, host, resolve,
};
use fleet_nn::optimizer::OptimizerDesc;
use fleet_nn::{Net, Programs, Var};
use fleet_ops::{Registry, Services};
use fleet_strategy::{
    Cluster, DistributedStrategy, Plan, Ranks, Rates, RingSpec, StrategyId, StrategySource,
    Verdict, Written,
};
use fleet_tensor::{DType, Shape};
use fleet_topology::{Env, Mode, Topology};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Timeout for ranks to meet; a machine may still be loading its program.
const JOIN_TIMEOUT: Duration = Duration::from_secs(10 * 60);

/// Time that a broken connection waits for the notice of which rank died.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(5);

/// This process as a member of its job.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::{DistributedStrategy, Fleet};
///
/// let fleet = Fleet::collective()?; // under fleetrun: one of many; here: worker 0 of 1
/// let net = Net::new();
/// let (x, y) = (net.data("x", [-1, 2], DType::F32), net.data("y", [-1, 1], DType::F32));
/// let loss = x.fc(1).mse_loss(y, Reduction::Mean);
/// let strategy = DistributedStrategy::new();
/// let job = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).minimize(&net, loss)?;
///
/// let mut session = fleet.session(net.build()?, &job, ExecOptions::default())?;
/// let x = Tensor::from_slice(&[1.0f32, 0.0, 0.0, 1.0], [2, 2])?;
/// let y = Tensor::from_slice(&[3.0f32, -1.0], [2, 1])?;
/// for _ in 0..10 {
///     session.run(&[("x", &x), ("y", &y)], &[])?;
/// }
/// fleet.finish()?;
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct Fleet {
    topology: Topology,
    /// Link to the other ranks. Ranks of a collective job connect at once, workers of parameter
    /// servers on first use.
    connection: OnceLock<Connection>,
    connecting: Mutex<()>,
    reporter: Reporter,
}

/// Connection of a rank to the other ranks.
struct Connection {
    world: World,
    /// Options of every group of the job.
    options: GroupOptions,
    everyone: Group,
    /// Groups that sessions communicate over, by name. A name is used once per job.
    opened: Mutex<BTreeMap<String, Group>>,
    /// Number of training steps of each session.
    steps: Mutex<Vec<Arc<AtomicU64>>>,
    membership: JobMembership,
    fault: FirstFault,
    reporter: Reporter,
    finished: AtomicBool,
}

impl Fleet {
    /// Joins a collective job as the rank that the environment gives.
    pub fn collective() -> Result<Fleet> {
        Fleet::init(Topology::collective(&Env::process())?)
    }

    /// Joins the job as the rank in `topology`, or as the one that MPI assigns. Returns when all
    /// ranks have joined.
    ///
    /// ```
    /// use fleet::topology::Env;
    /// use fleet::{Fleet, Topology};
    /// // An empty environment: worker 0 of 1.
    /// let fleet = Fleet::init(Topology::collective(&Env::new())?)?;
    /// assert_eq!((fleet.worker_index(), fleet.worker_num(), fleet.server_num()), (0, 1, 0));
    /// assert!(fleet.is_worker() && fleet.is_first_worker() && !fleet.is_server());
    /// assert!(fleet.topology().is_worker() && fleet.cores_share() >= 1);
    /// assert_eq!(fleet.ranks().count, 1);
    /// fleet.barrier_worker()?;
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn init(topology: Topology) -> Result<Fleet> {
        fleet_base::signals::ignore_file_size_signal();
        let (connecting, reporter) = (Mutex::default(), Reporter::new(&topology));
        if membership::started_by_mpi(&topology) {
            let (topology, world, membership) = membership::start_mpi(topology)?;
            let connection = Connection::over(world, &topology, membership, reporter.clone());
            let connection = OnceLock::from(connection?);
            return Ok(Fleet { topology, connection, connecting, reporter });
        }
        let fleet = Fleet { topology, connection: OnceLock::new(), connecting, reporter };
        // Workers of parameter servers meet through their servers.
        if fleet.topology.mode() != Mode::ParameterServer && fleet.worker_num() > 1 {
            fleet.reporter.joined();
            fleet.group().inspect_err(|error| fleet.reporter.failed(error))?;
        }
        Ok(fleet)
    }

    pub(crate) fn reporter(&self) -> &Reporter {
        &self.reporter
    }

    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    pub fn worker_index(&self) -> usize {
        self.topology.worker_index()
    }

    pub fn worker_num(&self) -> usize {
        self.topology.worker_num()
    }

    pub fn is_first_worker(&self) -> bool {
        self.topology.is_first_worker()
    }

    /// Waits until all workers have called it.
    pub fn barrier_worker(&self) -> Result<()> {
        self.group()?.map_or(Ok(()), |connection| connection.everyone.barrier("barrier_worker"))
    }

    /// Returns the link to the other workers; `None` if there is only one worker.
    fn group(&self) -> Result<Option<&Connection>> {
        if self.worker_num() == 1 || self.connection.get().is_some() {
            return Ok(self.connection.get());
        }
        if !self.topology.is_worker() {
            return Err(Error::invalid("only workers have a group").got(self.topology.role()));
        }
        let _one = lock(&self.connecting);
        if self.connection.get().is_none() {
            let connection =
                Connection::connect(&self.topology, &self.reporter).map_err(|error| {
                    error.at(format!("rank {} of {}", self.topology.rank(), self.worker_num()))
                })?;
            return Ok(Some(self.connection.get_or_init(|| connection)));
        }
        Ok(self.connection.get())
    }

    /// Returns the group of all workers; `None` if there is only one.
    pub(crate) fn workers(&self) -> Result<Option<&Group>> {
        Ok(self.group()?.map(|connection| &connection.everyone))
    }

    pub fn util(&self) -> Util<'_> {
        Util(self)
    }

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

    /// Opens a session whose programs communicate over the rings of `job`. All ranks must open it.
    /// The startup program has run, and every rank has the parameters of rank 0.
    ///
    /// The strategy's execution settings override `options`. A `num_threads` of 0 means this rank's
    /// share of the machine's cores.
    pub fn session(
        &self,
        programs: Programs,
        job: &Distributed,
        options: ExecOptions,
    ) -> Result<Session> {
        let options = exec_options(&job.strategy, options);
        let num_threads = match options.num_threads {
            0 => self.cores_share(),
            given => given,
        };
        let executor = Executor::new(ExecOptions { num_threads, ..options });
        let rings = WholeRings::new(&job.plan.rings, self.worker_num());
        if let Some(connection) = self.connection.get() {
            let parts = agree::parts(&job.strategy, &job.network, &rings, &programs.main);
            agree::compare(&connection.everyone, &parts)
                .inspect_err(|error| self.reporter.failed(error))?;
        }
        let executor = executor.services(self.services(&job.plan.rings)?);
        let session = Session::with_executor(programs, executor)?;
        let Some(connection) = self.connection.get() else { return Ok(session) };
        let mut steps = lock(&connection.steps);
        let peers = StepPeers {
            world: connection.world.clone(),
            prefix: format!("{}/steps/{}", self.topology.job().attempt(), steps.len()),
            rank: self.topology.rank(),
            rank_count: self.worker_num(),
            rings,
            fault: connection.fault.clone(),
            reporter: self.reporter.clone(),
        };
        steps.push(session.step_count());
        Ok(session.with_peers(peers))
    }

    /// Returns this rank's share of the cores of its machine.
    pub fn cores_share(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (cores / self.ranks().per_node).max(1)
    }

    /// Returns this process's place among the ranks in the form that strategies use.
    pub fn ranks(&self) -> Ranks {
        let hosts = self.topology.hosts();
        let per_node = hosts.iter().map(|host| host.ranks.len()).max().unwrap_or(1);
        Ranks::new(self.topology.rank(), self.topology.worker_num()).per_node(per_node)
    }

    /// Opens the job's checkpoints in a folder that all ranks see. All ranks must open it, and
    /// resume and save together.
    ///
    /// ```
    /// # use fleet::prelude::*;
    /// # use fleet::{CheckpointPolicy, DistributedStrategy, Fleet};
    /// # let folder = std::env::temp_dir().join(format!("fleet-ranks-doc-{}", std::process::id()));
    /// let fleet = Fleet::collective()?;
    /// let net = Net::new();
    /// let x = net.data("x", [-1, 2], DType::F32);
    /// let loss = x.fc(1).mean();
    /// let strategy = DistributedStrategy::new().use_gradient_merge(2);
    /// let job = fleet.distributed_optimizer(Sgd::new(0.1), &strategy).minimize(&net, loss)?;
    /// let mut session = fleet.session(net.build()?, &job, ExecOptions::default())?;
    ///
    /// let policy = CheckpointPolicy { every_steps: Some(5), ..CheckpointPolicy::default() };
    /// let mut checkpoints = fleet.checkpoints(&folder, policy)?;
    /// let resumed = checkpoints.resume(&session.programs.main, &mut session.scope)?;
    /// let done = resumed.map_or(0, |resumed| resumed.step);
    /// let x = Tensor::zeros(DType::F32, [4, 2])?;
    /// for step in done + 1..=10 {
    ///     session.run(&[("x", &x)], &[])?;
    ///     checkpoints.after_step(step, &session.programs.main, &session.scope, Default::default)?;
    /// }
    /// checkpoints.finish()?;
    /// fleet.finish()?;
    /// # std::fs::remove_dir_all(&folder).ok();
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn checkpoints(
        &self,
        folder: impl AsRef<Path>,
        policy: CheckpointPolicy,
    ) -> Result<Checkpoints> {
        match self.group()? {
            None => Checkpoints::open(folder, policy),
            Some(connection) => {
                Checkpoints::open_together(folder.as_ref(), policy, &connection.everyone)
            }
        }
    }

    /// Announces that this rank has finished, waits until all ranks have, and leaves. The other
    /// ranks get an error if a rank ends without this call, calls it while others still train, or
    /// has made another number of steps.
    pub fn finish(&self) -> Result<()> {
        let Some(connection) =
            self.connection.get().filter(|connection| !connection.membership.has_ended())
        else {
            return Ok(());
        };
        connection.finish_rings()?;
        connection.compare_steps()?;
        connection.finished.store(true, SeqCst);
        if self.topology.mode() != Mode::ParameterServer {
            self.reporter.finished();
        }
        connection.membership.end()
    }

    fn services(&self, rings: &[RingSpec]) -> Result<Services> {
        let Some(connection) = self.connection.get() else { return Ok(Services::none()) };
        let mut services = Services::none();
        for ring in rings {
            let members: Vec<usize> = ring.members().collect();
            let group = connection.group(ring, &members)?;
            services = services.with_ring(ring.id, Arc::new(GroupRing(group)));
        }
        Ok(services)
    }
}

impl Connection {
    fn connect(topology: &Topology, reporter: &Reporter) -> Result<Connection> {
        let job = topology.job();
        // Workers of parameter servers restart one by one: each joins the attempt of the first
        // start.
        let is_one_by_one = topology.mode() == Mode::ParameterServer;
        let restarts = if is_one_by_one { 0 } else { job.restarts };
        let attempt = fleet_topology::Job { restarts, ..job.clone() }.attempt();
        let token = match &job.token {
            Some(token) => fleet_net::Token::from_text(token.reveal())?,
            None => {
                return Err(Error::invalid("the ranks of this job have no shared secret")
                    .expected("FLEET_TOKEN, the same on every rank")
                    .help("start the job with fleetrun, which creates one"));
            }
        };
        let abort = Abort::new();
        // Workers of parameter servers do not depend on each other: the mode decides which failures
        // they report.
        let reporter = if is_one_by_one { Reporter::default() } else { reporter.clone() };
        let reports = reporter.clone();
        let reports = abort.on_fire(move |error| reports.failed(error));
        let limits = Limits::new(Deadline::within(JOIN_TIMEOUT), &abort);
        // Without a launcher, rank 0 hosts the store at its endpoint.
        let endpoint = job.store.as_ref().or(topology.worker_endpoints().first());
        let endpoint = endpoint.ok_or_else(|| {
            Error::invalid("no rendezvous endpoint for the ranks of this job")
                .expected("FLEET_STORE=HOST:PORT, or PADDLE_TRAINER_ENDPOINTS")
                .help("start the job with fleetrun")
        })?;
        let hosts_it = job.store.is_none() && topology.rank() == 0;
        let server = match hosts_it {
            true => Some(StoreServer::bind(
                (endpoint.host.as_str(), endpoint.port),
                &token,
                Vigilance::default(),
                Log::stderr(),
            )?),
            false => None,
        };
        let address = resolve(&endpoint.to_string())?;
        let store = Arc::new(StoreClient::connect(address, &token, &limits)?);
        let own = host::own_member(topology.rank());
        if is_one_by_one {
            join_once(&*store, &attempt, &own, &limits)?;
        }
        let membership = Membership::join(address, &token, &attempt, own, &limits, {
            let abort = abort.clone();
            move |notice| {
                abort.fire(notice.error());
            }
        })?;
        let mut options =
            TcpOptions::new(&attempt, topology.rank(), topology.worker_num()).store(address);
        options.notice_wait = NOTICE_TIMEOUT;
        // A firewall may allow only the ports of the job's endpoints.
        options.port = topology.endpoint().filter(|_| !hosts_it).map(|own| own.port);
        let fabric = Arc::new(TcpFabric::start(&*store, &token, options, &limits)?);
        let world = crate::nccl::with_nccl(World::new(fabric, store, abort), topology);
        let world = world.inspect_err(|error| {
            // The others would wait for this rank, and leaving the membership reports no error.
            let how = format!("NCCL failed: {}", error.message());
            membership.report_end(&host::own_member(topology.rank()), &how);
        })?;
        Connection::over(
            world,
            topology,
            JobMembership::Store { membership, _reports: reports, _server: server },
            reporter,
        )
    }

    fn over(
        world: World,
        topology: &Topology,
        membership: JobMembership,
        reporter: Reporter,
    ) -> Result<Connection> {
        let fault = FirstFault::default();
        let (first, reports) = (fault.clone(), reporter.clone());
        let world = world.on_fault(move |error| {
            let mut first = lock(&first);
            first.get_or_insert_with(|| error.clone());
            reports.failed(error);
        });
        let all: Vec<usize> = (0..topology.worker_num()).collect();
        let shared_memory = topology.job().shared_memory.unwrap_or(true);
        let mut options = GroupOptions { shared_memory, ..GroupOptions::default() };
        options.silence = topology.job().silence.unwrap_or(options.silence);
        let everyone = world.group("everyone", &all, &options).inspect_err(|error| {
            let how = format!("failed to join the other ranks: {}", error.message());
            membership.report_end(world.rank(), &how);
        })?;
        let (opened, steps, finished) = Default::default();
        Ok(Connection {
            world,
            options,
            everyone,
            opened,
            steps,
            membership,
            fault,
            reporter,
            finished,
        })
    }

    /// Runs a barrier on every ring that programs use, which fails on a rank that still trains. The
    /// barriers run at once, since such a rank waits in only one of the rings. An error on one ring
    /// ends the waits on all.
    fn finish_rings(&self) -> Result<()> {
        let opened: Vec<Group> = self.lock().values().cloned().collect();
        let finish = |group: &Group| {
            let outcome = group.barrier("finish");
            if let Err(error) = &outcome {
                opened.iter().for_each(|other| other.abort(error.clone()));
            }
            outcome
        };
        let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
            let finish = &finish;
            let start = |group| scope.spawn(move || finish(group));
            let threads: Vec<_> = opened.iter().map(start).collect();
            let died = |_| Err(Error::internal("the thread that finishes a ring panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(died)).collect()
        });
        outcomes.into_iter().collect()
    }

    /// Checks that all ranks made the same number of steps. Where ranks communicate in only some
    /// steps, a rank with fewer steps would otherwise go unnoticed.
    fn compare_steps(&self) -> Result<()> {
        let counts = lock(&self.steps);
        let mine: u64 = counts.iter().map(|count| count.load(Relaxed)).sum();
        let mut all = vec![0i64; self.everyone.size()];
        self.everyone.all_gather("finish", &[mine as i64], &mut all)?;
        let Some(other) = all.iter().position(|count| *count != all[0]) else { return Ok(()) };
        Err(Error::invalid("ranks made different numbers of training steps")
            .expected(format!("{} on every rank, as on rank 0", all[0]))
            .got(format!("{} on rank {other}", all[other]))
            .help("give every rank the same number of batches: drop or repeat the last ones"))
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Group>> {
        lock(&self.opened)
    }

    /// Returns the group of a ring. It is opened once and shared by sessions.
    fn group(&self, ring: &RingSpec, members: &[usize]) -> Result<Group> {
        let name = format!("ring {} ({})", ring.id, ring.label);
        let mut opened = self.lock();
        if let Some(group) = opened.get(&name) {
            return Ok(group.clone());
        }
        let options = GroupOptions { in_steps: true, ..self.options.clone() };
        let group = self.world.group(&name, members, &options)?;
        opened.insert(name, group.clone());
        Ok(group)
    }
}

/// Registers a worker, which may join the others only once. A worker that restarts after it had
/// joined would wait for the others in vain.
fn join_once(store: &dyn Store, attempt: &str, own: &Member, limits: &Limits) -> Result<()> {
    let key = format!("{attempt}/joined/{}", own.rank);
    let process = format!("pid {} on {} ({})", own.pid, own.host, own.host_id);
    match store.compare_and_set(&key, None, process.as_bytes(), limits)? {
        Swap::Lost(Some(before)) if before != process.as_bytes() => Err(Error::unavailable(
            "this worker was restarted after it had joined the others, and cannot join them again",
        )
        .expected(String::from_utf8_lossy(&before))
        .got(process)
        .help(
            "restart the whole job to use operations of all workers (metrics, global shuffle, \
             barrier_worker); training on the servers continues without this worker",
        )),
        _ => Ok(()),
    }
}

/// Reported cause when a rank ends while others still need it.
const LEFT_EARLY: &str = "left the job without calling Fleet::finish";

impl Drop for Connection {
    /// Reports a rank that leaves early, so that the others do not wait for it.
    fn drop(&mut self) {
        let finished = self.finished.load(SeqCst);
        if !finished && !self.world.abort().is_fired() {
            // Report first: the others' failure follows from this one, not the reverse.
            self.reporter.failed(&Error::unavailable(LEFT_EARLY));
            self.membership.report_end(self.world.rank(), LEFT_EARLY);
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
    /// let strategy = DistributedStrategy::new().with_lars(true); // for the layers; rows keep their rule
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
    /// # let file = std::env::temp_dir().join(format!("fleet-source-{}.prototxt", std::process::id()));
    /// std::fs::write(&file, "pipeline: true\n")?;
    /// let (fleet, net, mut strategy) = (Fleet::collective()?, Net::new(), DistributedStrategy::new());
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
            true => crate::probe::rates(self.fleet, self.batch)?,
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

/// The result of rewriting a network for the job.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::{Distributed, DistributedStrategy, Fleet};
/// let (fleet, net) = (Fleet::collective()?, Net::new());
/// let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
/// let strategy = DistributedStrategy::new().with_lars(true);
/// let optimizer = fleet.distributed_optimizer(Momentum::new(0.1, 0.9), &strategy);
/// let job: Distributed = optimizer.minimize(&net, loss)?;
/// assert!(job.strategy.lars() && job.plan.chain_text().contains("Lars"));
/// # Ok::<(), fleet::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Distributed {
    /// The applied strategies with the reasons, and the rings that the programs use.
    pub plan: Plan,
    pub strategy: DistributedStrategy,
    network: NetworkText,
}

/// Helpers for communication between workers, as `fleet.util`.
///
/// ```
/// use fleet::{Fleet, ReduceOp, Util};
/// let fleet = Fleet::collective()?;
/// let util: Util<'_> = fleet.util();
/// assert_eq!(util.all_reduce(&[1.0, 2.0], ReduceOp::Sum)?, [1.0, 2.0]); // of one worker
/// assert_eq!(util.all_gather(&[7.0])?, [[7.0]]);
/// util.barrier()?;
/// util.print_on_rank("all workers have joined", 0);
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct Util<'f>(&'f Fleet);

impl Util<'_> {
    /// Reduces every worker's numbers element by element; every worker gets the result.
    pub fn all_reduce(&self, input: &[f64], op: ReduceOp) -> Result<Vec<f64>> {
        let mut out = input.to_vec();
        if let Some(connection) = self.0.group()? {
            connection.everyone.all_reduce("util.all_reduce", &mut out, op)?;
        }
        Ok(out)
    }

    /// Returns every worker's numbers, in order of rank.
    pub fn all_gather(&self, input: &[f64]) -> Result<Vec<Vec<f64>>> {
        let Some(connection) = self.0.group()? else { return Ok(vec![input.to_vec()]) };
        let mut all = vec![0.0; input.len() * self.0.worker_num()];
        connection.everyone.all_gather("util.all_gather", input, &mut all)?;
        Ok(all.chunks(input.len().max(1)).map(<[f64]>::to_vec).collect())
    }

    pub fn barrier(&self) -> Result<()> {
        self.0.barrier_worker()
    }

    /// Returns this worker's share of the files. Shares are contiguous, and the first workers take
    /// one more if the count is not divisible.
    ///
    /// ```
    /// let fleet = fleet::Fleet::collective()?;
    /// assert_eq!(fleet.util().get_file_shard(&["part-0", "part-1"])?, ["part-0", "part-1"]); // alone
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn get_file_shard<'a, T>(&self, files: &'a [T]) -> Result<&'a [T]> {
        fleet_data::file_shard(files, self.0.worker_index(), self.0.worker_num())
    }

    /// Prints on one rank only. A failure to write to the standard output is reported on standard
    /// error; it is not an error of the call.
    pub fn print_on_rank(&self, message: impl std::fmt::Display, rank: usize) {
        if self.0.worker_index() == rank {
            Printer::stdout().line(message);
        }
    }
}
