//! A process of a job: the counterpart of `fleet.init`.
//!
//! A [`Fleet`] knows its rank from the environment that `fleetrun` and clusters set, and is
//! connected to the other ranks. It rewrites a network for them ([`Fleet::distributed_optimizer`])
//! and opens sessions whose programs communicate. A process started without a launcher is worker 0
//! of 1 and has no overhead.
//!
//! No wait for another rank outlasts that rank. If a rank dies, stops or leaves early, all others
//! get an error that names it and the operation that waited.

use crate::connection::{Connection, job_token};
use crate::hadoop;
use crate::job_store::JobStore;
use crate::membership;
use crate::report::Reporter;
use crate::step_clock::StepClock;
use crate::{CheckpointPolicy, Checkpoints, CommWorld};
use fleet_base::output::note;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_comm::Group;
use fleet_exec::ExecOptions;
use fleet_strategy::Ranks;
use fleet_topology::{Env, GlooMembers, Mode, Topology, UserDefinedRoleMaker, VARIABLES, names};
use std::path::Path;
use std::sync::{Mutex, OnceLock};

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
    env: Env,
    /// Link to the other workers. Ranks of a collective job connect at once, processes of a job
    /// with servers on first use.
    workers: Link,
    servers: Link,
    /// Link to all workers and servers.
    all: Link,
    /// Ends after the links, which need it.
    store: JobStore,
    reporter: Reporter,
    /// The clocks of sessions whose steps are reported at the end.
    clocks: Mutex<Vec<StepClock>>,
}

/// Connection to the members of a group, made on first use.
#[derive(Default)]
struct Link {
    connection: OnceLock<Connection>,
    connecting: Mutex<()>,
}

impl Fleet {
    /// Joins the job that this process's environment describes: [`Fleet::join`] with
    /// [`Env::process`].
    ///
    /// ```
    /// let fleet = fleet::Fleet::from_env()?; // this process has no launcher
    /// assert_eq!((fleet.worker_num(), fleet.server_num()), (1, 0));
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn from_env() -> Result<Fleet> {
        Fleet::of_process(topology_of)
    }

    /// Joins a collective job as the rank that this process's environment gives.
    pub fn collective() -> Result<Fleet> {
        Fleet::of_process(Topology::collective)
    }

    /// Joins a job with parameter servers as the server or worker that this process's environment
    /// gives. A process started without a launcher is worker 0 of 1, with a server in the same
    /// process.
    ///
    /// ```
    /// use fleet::prelude::*;
    /// use fleet::{DistributedStrategy, Fleet};
    ///
    /// let fleet = Fleet::parameter_server()?;
    /// let net = Net::new();
    /// let (ids, y) = (net.data("ids", [-1, 2], DType::I64), net.data("y", [-1, 1], DType::F32));
    /// let loss = ids.sparse_embedding([1000, 8]).flatten(1).fc(1).mse_loss(y, Reduction::Mean);
    /// let optimizer = fleet.distributed_optimizer(Adagrad::new(0.1), &DistributedStrategy::new());
    /// let job = optimizer.minimize_on_servers(&net, loss)?;
    /// if fleet.is_server() {
    ///     fleet.init_server(&job)?.run()?;
    ///     return Ok(());
    /// }
    /// let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::default())?;
    /// let ids = Tensor::from_slice(&[7i64, 900, 7, 3], [2, 2])?;
    /// let y = Tensor::from_slice(&[1.0f32, -1.0], [2, 1])?;
    /// worker.run(&[("ids", &ids), ("y", &y)], &[])?;
    /// worker.stop()?;
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn parameter_server() -> Result<Fleet> {
        Fleet::of_process(Topology::parameter_server)
    }

    /// Joins a job with the environment of this process, which the library reads only here.
    fn of_process(topology: fn(&Env) -> Result<Topology>) -> Result<Fleet> {
        let env = Env::process();
        Fleet::init(topology(&env)?, &env)
    }

    /// Joins the job that `env` describes: one with parameter servers if
    /// `PADDLE_PSERVERS_IP_PORT_LIST` is set, else a collective one.
    ///
    /// ```
    /// use fleet::Fleet;
    /// use fleet::topology::Env;
    /// // An empty environment: worker 0 of 1.
    /// let fleet = Fleet::join(&Env::new())?;
    /// assert_eq!((fleet.worker_index(), fleet.worker_num(), fleet.server_num()), (0, 1, 0));
    /// assert!(fleet.is_worker() && fleet.is_first_worker() && !fleet.is_server());
    /// assert!(fleet.topology().is_worker() && fleet.cores_share() >= 1);
    /// assert_eq!(fleet.ranks().count, 1);
    /// fleet.barrier_worker()?;
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn join(env: &Env) -> Result<Fleet> {
        Fleet::init(topology_of(env)?, env)
    }

    /// Joins the job as the process that the program describes. Settings of the job that the
    /// description leaves open come from `env`.
    ///
    /// ```
    /// use fleet::Fleet;
    /// use fleet::topology::{Env, UserDefinedRoleMaker};
    /// let roles = UserDefinedRoleMaker { is_collective: true, ..Default::default() };
    /// let fleet = Fleet::with_roles(roles, &Env::new())?;
    /// assert_eq!((fleet.worker_index(), fleet.worker_num()), (0, 1));
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn with_roles(roles: UserDefinedRoleMaker, env: &Env) -> Result<Fleet> {
        Fleet::init(roles.topology_in(env)?, env)
    }

    /// Joins the job as the rank in `topology`, or as the one that MPI assigns. Returns when all
    /// ranks have joined. The settings of servers and workers that are neither in `topology` nor
    /// in a strategy come from `env`.
    ///
    /// ```
    /// use fleet::topology::Env;
    /// use fleet::{Fleet, Topology};
    /// let fleet = Fleet::init(Topology::collective(&Env::new())?, &Env::new())?;
    /// assert_eq!(fleet.topology().rank(), 0);
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn init(topology: Topology, env: &Env) -> Result<Fleet> {
        fleet_base::signals::ignore_file_size_signal();
        let (env, reporter) = (env.clone(), Reporter::new(&topology));
        let (servers, all) = (Link::default(), Link::default());
        let store = JobStore::new(hadoop::temporary(Some(&env)));
        let clocks = Mutex::default();
        if membership::started_by_mpi(&topology) {
            let (topology, world, membership) = membership::start_mpi(topology)?;
            let connection = Connection::over(world, &topology, membership, reporter.clone());
            let workers = Link { connection: OnceLock::from(connection?), ..Link::default() };
            return Ok(Fleet { topology, env, workers, servers, all, store, reporter, clocks });
        }
        let workers = Link::default();
        let fleet = Fleet { topology, env, workers, servers, all, store, reporter, clocks };
        if fleet.is_first_worker() {
            note_unused(&fleet.env);
        }
        if fleet.topology.job().open && !fleet.topology.is_non_distributed() {
            note("open mode: any user of this machine can join this job (FLEET_OPEN)");
        }
        if fleet.is_server() {
            fleet.reporter.starting();
        }
        fleet.host_store().inspect_err(|error| fleet.reporter.failed(error))?;
        // Workers of parameter servers meet through their servers.
        if fleet.topology.mode() != Mode::ParameterServer && fleet.worker_num() > 1 {
            fleet.reporter.joined();
            fleet.connect(CommWorld::Worker).inspect_err(|error| fleet.reporter.failed(error))?;
        }
        Ok(fleet)
    }

    pub(crate) fn reporter(&self) -> &Reporter {
        &self.reporter
    }

    /// Returns the environment with which this process joined the job.
    pub fn env(&self) -> &Env {
        &self.env
    }

    /// Returns this process's place in the job.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns this worker's rank, from 0.
    pub fn worker_index(&self) -> usize {
        self.topology.worker_index()
    }

    /// Returns the number of workers of the job.
    pub fn worker_num(&self) -> usize {
        self.topology.worker_num()
    }

    /// Returns whether this is worker 0, which saves and prints for all.
    pub fn is_first_worker(&self) -> bool {
        self.topology.is_first_worker()
    }

    /// Returns whether this process is a parameter server.
    pub fn is_server(&self) -> bool {
        self.topology.is_server()
    }

    /// Returns whether this process is a worker.
    pub fn is_worker(&self) -> bool {
        self.topology.is_worker()
    }

    /// Returns the number of parameter servers of the job.
    pub fn server_num(&self) -> usize {
        self.topology.server_num()
    }

    /// Waits until all workers have called it.
    pub fn barrier_worker(&self) -> Result<()> {
        self.workers()?.map_or(Ok(()), |workers| workers.barrier("barrier_worker"))
    }

    /// Starts the job's store early if servers meet there, which may come before worker 0 does.
    fn host_store(&self) -> Result<()> {
        let gloo = self.topology.gloo();
        if gloo.members == GlooMembers::All && !self.topology.is_non_distributed() {
            self.store.host(&self.topology, &job_token(&self.topology)?)?;
        }
        Ok(())
    }

    /// Connects to the other members of a group on the first call; `None` if there is only one.
    fn connect(&self, members: CommWorld) -> Result<Option<&Connection>> {
        let link = match members {
            CommWorld::Worker => &self.workers,
            CommWorld::Server => &self.servers,
            CommWorld::All => &self.all,
        };
        let size = members.size(&self.topology);
        if let Some(connection) = link.connection.get() {
            return Ok(Some(connection));
        }
        if members != CommWorld::Worker {
            members.check(&self.topology)?;
        }
        // Also in a group of one, of which this process may not be.
        let rank = members.rank(&self.topology)?;
        if size == 1 {
            return Ok(None);
        }
        let _one = lock(&link.connecting);
        if link.connection.get().is_none() {
            let connection =
                Connection::connect(&self.topology, &self.store, &self.reporter, members)
                    .map_err(|error| error.at(format!("rank {rank} of {size}")))?;
            return Ok(Some(link.connection.get_or_init(|| connection)));
        }
        Ok(link.connection.get())
    }

    /// Returns the link to the other workers, unless there is none yet.
    pub(crate) fn connection(&self) -> Option<&Connection> {
        self.workers.connection.get()
    }

    /// Returns the group of all workers; `None` if there is only one.
    pub(crate) fn workers(&self) -> Result<Option<&Group>> {
        self.group(CommWorld::Worker)
    }

    /// Returns a group of the whole job; `None` if it has one member.
    pub(crate) fn group(&self, members: CommWorld) -> Result<Option<&Group>> {
        // A job without servers has one group.
        let members = match members {
            CommWorld::All if self.server_num() == 0 => CommWorld::Worker,
            members => members,
        };
        Ok(self.connect(members)?.map(Connection::everyone))
    }

    /// Returns this rank's share of the cores of its machine.
    pub fn cores_share(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        (cores / self.ranks().per_node).max(1)
    }

    /// Completes options by the environment: the limit on memory (`FLEET_MEMORY`), and `CPU_NUM`
    /// threads, or as many as this rank's share of the cores. What they state remains.
    /// `FLAGS_enable_parallel_graph` selects the share.
    pub(crate) fn on_own_cores(&self, options: ExecOptions) -> Result<ExecOptions> {
        let memory_limit = options.memory_limit.or(self.env.size(names::FLEET_MEMORY)?);
        let options = ExecOptions { memory_limit, ..options };
        if options.num_threads > 0 {
            return Ok(options);
        }
        let takes_share = self.env.switch(names::FLAGS_ENABLE_PARALLEL_GRAPH)?.unwrap_or(false);
        let num_threads = match self.env.number(names::CPU_NUM)? {
            Some(0) => return Err(Error::invalid("CPU_NUM is 0").expected("1 thread or more")),
            Some(threads) if !takes_share => threads,
            _ => self.cores_share(),
        };
        Ok(ExecOptions { num_threads, ..options })
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
        match self.workers()? {
            None => Checkpoints::open(folder, policy),
            Some(workers) => Checkpoints::open_together(folder.as_ref(), policy, workers),
        }
    }

    /// Reports the steps of a session at the end of the job.
    pub(crate) fn watch(&self, clock: StepClock) {
        if clock.is_watched() {
            lock(&self.clocks).push(clock);
        }
    }

    /// Prints the reports on this rank's steps that were not printed before.
    fn report_steps(&self) {
        for clock in std::mem::take(&mut *lock(&self.clocks)) {
            let measured: Vec<_> = clock.measured().into_iter().collect();
            clock.report(self.worker_index(), &measured).iter().for_each(note);
        }
    }

    /// Announces that this rank has finished, waits until all ranks have, and leaves. The other
    /// ranks get an error if a rank ends without this call, calls it while others still train, or
    /// has made another number of steps.
    pub fn finish(&self) -> Result<()> {
        self.report_steps();
        let Some(connection) = self.connection().filter(|connection| !connection.has_ended())
        else {
            return Ok(());
        };
        connection.finish()?;
        if self.topology.mode() != Mode::ParameterServer {
            self.reporter.finished();
        }
        connection.end()
    }
}

/// Reports documented variables that are set and have no effect.
fn note_unused(env: &Env) {
    for variable in VARIABLES.iter().filter(|variable| env.text(variable.name).is_some()) {
        if let Some(why) = variable.no_effect {
            note(format_args!("{} has no effect: {why}", variable.name));
        }
    }
}

/// Returns the place of a process with this environment in its job.
fn topology_of(env: &Env) -> Result<Topology> {
    match env.text(names::PADDLE_PSERVERS_IP_PORT_LIST) {
        Some(_) => Topology::parameter_server(env),
        None => Topology::collective(env),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_gives_the_threads_that_are_left_open() {
        let threads = |cpu_num: &str, options: ExecOptions| {
            let fleet = Fleet::join(&Env::from([("CPU_NUM", cpu_num)])).unwrap();
            fleet.on_own_cores(options).map(|options| options.num_threads)
        };
        assert_eq!(threads("3", ExecOptions::default()).unwrap(), 3);
        assert_eq!(threads("3", ExecOptions::threads(2)).unwrap(), 2);
        let alone = Fleet::join(&Env::new()).unwrap();
        assert_eq!(threads("", ExecOptions::default()).unwrap(), alone.cores_share());
        let more_than_cores = (alone.cores_share() + 1).to_string();
        let parallel = |flag: &str, options: ExecOptions| {
            let variables = [("CPU_NUM", &*more_than_cores), ("FLAGS_enable_parallel_graph", flag)];
            let fleet = Fleet::join(&Env::from(variables)).unwrap();
            fleet.on_own_cores(options).map(|options| options.num_threads)
        };
        assert_eq!(parallel("1", ExecOptions::default()).unwrap(), alone.cores_share());
        assert_eq!(parallel("1", ExecOptions::threads(9)).unwrap(), 9);
        assert_eq!(parallel("0", ExecOptions::default()).unwrap(), alone.cores_share() + 1);
        let error = parallel("often", ExecOptions::default()).unwrap_err().to_string();
        assert!(error.contains("FLAGS_enable_parallel_graph"), "{error}");
        for wrong in ["0", "many"] {
            let error = threads(wrong, ExecOptions::default()).unwrap_err().to_string();
            assert!(error.contains("CPU_NUM"), "{error}");
        }
    }
}
