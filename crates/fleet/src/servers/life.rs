//! The life of a job with parameter servers, from the environment on: `init_server`, `run_server`,
//! `init_worker`.

use super::agree::Published;
use super::control::Control;
use super::launch_barrier::{expect_listening, waits_for_servers};
use super::over::OverMark;
use super::save::load_server;
use super::{Place, ServerJob, Worker, communicator_options};
use crate::Fleet;
use crate::report::Reporter;
use crate::terminal::note;
use fleet_base::{Error, Result};
use fleet_exec::ExecOptions;
use fleet_net::calls::CallOptions;
use fleet_net::{Log, Token, resolve};
use fleet_nn::Programs;
use fleet_ps::{
    Durability, FolderState, LocalServers, RemoteOptions, RemoteServers, ServerTables, Servers,
    TableServer, folder_state,
};
use fleet_strategy::servers::Exchange;
use fleet_topology::{Env, Mode, Topology, names};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

impl Fleet {
    /// A process of whatever job the environment says: one with parameter servers where it names
    /// them (`PADDLE_PSERVERS_IP_PORT_LIST`), else a collective one.
    ///
    /// ```
    /// let fleet = fleet::Fleet::from_env()?; // nobody has launched this process
    /// assert_eq!((fleet.worker_num(), fleet.server_num()), (1, 0));
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn from_env() -> Result<Fleet> {
        match Env::process().text(names::PADDLE_PSERVERS_IP_PORT_LIST) {
            Some(_) => Fleet::parameter_server(),
            None => Fleet::collective(),
        }
    }

    /// A server or a worker of a job with parameter servers, as the environment says. A process
    /// that nobody launched is worker 0 of 1, with a server in the same process.
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
        let env = Env::process();
        let fleet = Fleet::init(Topology::parameter_server(&env)?)?;
        if fleet.is_server() {
            fleet.reporter().starting();
        }
        Ok(fleet)
    }

    pub fn is_server(&self) -> bool {
        self.topology().is_server()
    }

    pub fn is_worker(&self) -> bool {
        self.topology().is_worker()
    }

    pub fn server_num(&self) -> usize {
        self.topology().server_num()
    }

    /// Where this process stands; a server takes worker 0's view.
    pub(crate) fn place(&self) -> Result<Place> {
        let topology = self.topology();
        if topology.mode() != Mode::ParameterServer {
            return Err(Error::invalid("this job has no parameter servers")
                .expected("a process of a parameter-server job")
                .help(
                    "in a collective job call minimize; for parameter servers start the job with \
                     fleetrun --server_num N --worker_num M, and call Fleet::parameter_server",
                ));
        }
        Ok(Place {
            worker: if topology.is_worker() { topology.rank() } else { 0 },
            worker_count: topology.worker_num(),
            // A process that nobody launched has its server with it.
            server_count: topology.server_num().max(1),
            half_async: false,
        })
    }

    /// Makes this server's part of the tables, and listens.
    pub fn init_server(&self, job: &ServerJob) -> Result<Server> {
        self.serve(|server| ServerTables::new(&job.tables, server).map(Arc::new))
    }

    /// As [`Fleet::init_server`], with what was saved in `dir` (`init_server(dirname, var_names)`):
    /// all tables, or the sparse ones of these names. Any number of servers may have saved it.
    pub fn init_server_from(
        &self,
        job: &ServerJob,
        dir: &Path,
        var_names: Option<&[&str]>,
    ) -> Result<Server> {
        self.serve(|server| {
            let tables = ServerTables::new(&job.tables, server)?;
            load_server(&tables, job, dir, var_names)?;
            Ok(Arc::new(tables))
        })
    }

    /// As [`Fleet::init_server`], with tables that are kept on disk: a server that is started
    /// again, by `fleetrun` or by hand, resumes with every push that was acknowledged.
    ///
    /// The folder is of one job. When that was interrupted, a restart of the job resumes it. When
    /// it has ended well, the folder is refused: what it has learnt is in its saves.
    pub fn init_durable_server(&self, job: &ServerJob, durability: Durability) -> Result<Server> {
        self.serve(|server| {
            refuse_finished(&durability.folder)?;
            if self.reporter().is_restart() {
                refuse_vanished(&durability.folder)?;
            }
            let tables = ServerTables::durable(&job.tables, server, durability)?;
            if self.reporter().is_first_start() {
                tables.begin_run()?;
            }
            if let (Some(found), Some(folder)) = (tables.recovered(), tables.durable_folder()) {
                let folder = folder.display();
                Log::stderr().line(format!("server {server}: resumes with {found} in {folder}"));
            }
            Ok(tables)
        })
    }

    fn serve(&self, make: impl FnOnce(usize) -> Result<Arc<ServerTables>>) -> Result<Server> {
        self.listen(make).inspect_err(|error| self.reporter().failed(error))
    }

    fn listen(&self, make: impl FnOnce(usize) -> Result<Arc<ServerTables>>) -> Result<Server> {
        let topology = self.topology();
        let endpoint = topology.endpoint().filter(|_| topology.is_server()).ok_or_else(|| {
            Error::invalid("this process is no server")
                .got(topology.role())
                .help("call init_server where Fleet::is_server holds, and init_worker elsewhere")
        })?;
        let (env, token) = (Env::process(), self.job_token()?);
        // Before the tables, which may take long to load: probes see a server that is not ready
        // yet.
        let control = match env.number::<u16>(names::FLEET_GRPC_PORT)? {
            Some(port) => Some(Control::bind(endpoint, port, &token, (topology.rank(), &env))?),
            None => None,
        };
        let tables = make(topology.rank())?;
        if let Some(silence) = topology.job().silence {
            tables.set_silent_after(silence);
        }
        if env.switch(names::PSERVER_DEBUG)?.unwrap_or(false) {
            note(format_args!("tables of server {}: {:#?}", topology.rank(), tables.job()));
        }
        let address = (endpoint.host.as_str(), endpoint.port);
        let options = CallOptions::default();
        let save_root = env.text(names::FLEET_SAVE_ROOT).map(PathBuf::from);
        let within = (options, save_root);
        let server =
            TableServer::bind_within(address, tables.clone(), &token, within, Log::stderr())
                .map_err(|error| error.at(format!("server {}", topology.rank())))?;
        let is_durable = tables.durable_folder().is_some();
        if let Some(control) = &control {
            control.serve(tables, &self.server_addresses()?)?;
        }
        self.reporter().serving(is_durable);
        let over = OverMark::of(self, &token);
        Ok(Server { server, over, reporter: self.reporter().clone(), _control: control })
    }

    /// Connects to all servers, waits for those that are not there yet, and starts a worker. What
    /// the environment says about traffic is what the strategy leaves open.
    pub fn init_worker(
        &self,
        programs: Programs,
        job: &ServerJob,
        options: ExecOptions,
    ) -> Result<Worker> {
        if !self.is_worker() {
            return Err(Error::invalid("this process is no worker").got(self.topology().role()));
        }
        let env = Env::process();
        self.reporter().joined();
        self.start_worker(programs, job, options, &env)
            .inspect_err(|error| self.reporter().failed(error))
    }

    fn start_worker(
        &self,
        programs: Programs,
        job: &ServerJob,
        options: ExecOptions,
        env: &Env,
    ) -> Result<Worker> {
        let traffic = communicator_options(&job.strategy, env)?;
        let num_threads = match options.num_threads {
            0 => self.cores_share(),
            given => given,
        };
        let options = ExecOptions { num_threads, ..options };
        let servers = self.servers(job, env)?;
        let published = match self.topology().server_num() {
            0 => None,
            _ => Published::new(self, job, &self.job_token()?),
        };
        let worker = Worker::start(servers, programs, job, options, traffic)
            .map_err(|error| at_worker(error, self.topology().rank()))?;
        if let Some(published) = published {
            published.compare()?;
        }
        if job.plan.exchange != Exchange::Sync
            && let Some(file) = env.text(names::FLEET_EXPENDABLE)
        {
            // All have met: servers go on without whoever dies now, and so does the launcher.
            std::fs::write(file, "")
                .map_err(|error| Error::io("make the file", Path::new(file), &error))?;
        }
        Ok(worker.reports_to(self.reporter()))
    }

    pub(super) fn servers(&self, job: &ServerJob, env: &Env) -> Result<Arc<dyn Servers>> {
        let topology = self.topology();
        if topology.server_num() == 0 {
            let servers = ServerTables::all(&job.tables)?;
            return Ok(Arc::new(LocalServers::new(&servers, topology.rank())?));
        }
        let addresses = self.server_addresses()?;
        if !waits_for_servers(job, env)? {
            expect_listening(&addresses)?;
        }
        let mut options = RemoteOptions::default();
        if let Some(deadline_ms) = env.number::<u64>(names::FLAGS_RPC_DEADLINE)? {
            options.deadline = Duration::from_millis(deadline_ms);
        }
        options.silent_after = topology.job().silence.unwrap_or(options.silent_after);
        let deadline = options.deadline;
        let token = self.job_token()?;
        options.is_over = OverMark::of(self, &token).map(OverMark::asked_by_workers);
        let remote =
            RemoteServers::connect(&job.tables, topology.rank(), &addresses, &token, options)?;
        Ok(Arc::new(remote.with_patience(deadline)))
    }

    fn server_addresses(&self) -> Result<Vec<SocketAddr>> {
        let endpoints = self.topology().server_endpoints().iter();
        endpoints.map(|endpoint| resolve(&endpoint.to_string())).collect()
    }

    fn job_token(&self) -> Result<Token> {
        let token = self.topology().job().token.as_ref().ok_or_else(|| {
            Error::invalid("servers and workers of this job have no common secret")
                .expected("FLEET_TOKEN, the same in every process")
                .help("start the job with fleetrun, which makes one")
        })?;
        Token::from_text(token.reveal())
    }
}

/// A job that has ended well is not resumed: its workers have made all their steps.
fn refuse_finished(folder: &Path) -> Result<()> {
    match folder_state(folder)? {
        FolderState::Empty | FolderState::Unfinished => Ok(()),
        FolderState::Finished => {
            Err(Error::invalid(format!("the job in {} has finished", folder.display()))
                .expected("an empty folder, or one of a job that was interrupted")
                .help("remove the folder, or choose another one; to train on, start from a save"))
        }
    }
}

/// A server that has served, and whose folder is gone, does not begin anew there: the folder may
/// have been moved, and is to be moved back.
fn refuse_vanished(folder: &Path) -> Result<()> {
    if folder_state(folder)? != FolderState::Empty {
        return Ok(());
    }
    Err(Error::invalid("the durable folder of this server is gone")
        .expected(format!("the tables of the server that ran before in {}", folder.display()))
        .got("no folder, or an empty one")
        .help("move it back and start the job again, or start the job from a save"))
}

/// A server that listens.
///
/// ```no_run
/// use fleet::prelude::*;
/// use fleet::ps::Durability;
/// use fleet::{DistributedStrategy, Fleet};
/// let fleet = Fleet::parameter_server()?;
/// let net = Net::new();
/// let loss = net.data("ids", [-1, 2], DType::I64).sparse_embedding([1000, 8]).mean();
/// let optimizer = fleet.distributed_optimizer(Adagrad::new(0.1), &DistributedStrategy::new());
/// let job = optimizer.minimize_on_servers(&net, loss)?;
/// // From a save, or with tables that outlive the process.
/// let server = match std::env::args().nth(1) {
///     Some(saved) => fleet.init_server_from(&job, saved.as_ref(), None)?,
///     None => fleet.init_durable_server(&job, Durability::in_folder("tables"))?,
/// };
/// println!("listens at {}", server.address());
/// server.run()?;
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct Server {
    server: TableServer,
    over: Option<OverMark>,
    reporter: Reporter,
    /// Until the server ends.
    _control: Option<Control>,
}

impl Server {
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Serves until the last worker has stopped. An error is that of a durable server whose log or
    /// last snapshot could not be written.
    pub fn run(self) -> Result<()> {
        self.server.tables().wait();
        self.reporter.leaving();
        self.server.run().inspect_err(|error| self.reporter.failed(error))?;
        if let Some(over) = &self.over {
            over.set();
        }
        self.reporter.finished();
        Ok(())
    }
}

/// Names the worker where an error happened, unless a request to the servers has named it.
fn at_worker(error: Error, rank: usize) -> Error {
    let own = format!("worker {rank}");
    match error.places().contains(&own) {
        true => error,
        false => error.at(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_their_worker_once() {
        let error = at_worker(Error::unavailable("2 missing").at("table 1"), 1);
        assert_eq!(error.places(), ["table 1", "worker 1"]);
        assert_eq!(at_worker(error.clone(), 1), error);
    }

    #[test]
    fn a_server_that_has_served_does_not_begin_anew_in_an_empty_folder() {
        let folder = std::env::temp_dir().join(format!("fleet-vanished-{}", std::process::id()));
        let error = refuse_vanished(&folder).unwrap_err().to_string();
        assert!(error.contains("the durable folder of this server is gone"), "{error}");
        assert!(error.contains(&folder.display().to_string()), "{error}");
        std::fs::create_dir_all(folder.join("server-000")).unwrap();
        std::fs::write(folder.join("server-000/log-0"), "").unwrap();
        refuse_vanished(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
