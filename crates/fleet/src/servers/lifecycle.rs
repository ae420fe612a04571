//! Lifecycle of a job with parameter servers: `init_server`, `run_server`, `init_worker`.

use super::agree::PublishedStrategy;
use super::control::Control;
use super::end_marker::EndMarker;
use super::launch_barrier::{expect_listening, waits_for_servers};
use super::remote_save::save_fs;
use super::save::{load_present, load_server};
use super::{Place, PreparedWorker, ServerJob, Worker, communicator_options};
use crate::connection::job_token;
use crate::report::Reporter;
use crate::{Fleet, Session, exec_options};
use fleet_base::output::note;
use fleet_base::{Error, Result};
use fleet_exec::ExecOptions;
use fleet_net::calls::CallOptions;
use fleet_net::{Log, resolve};
use fleet_nn::Programs;
use fleet_ps::{
    CommunicatorOptions, Durability, FolderState, LocalServers, RemoteOptions, RemoteServers,
    ServerTables, Servers, TableServer, folder_state,
};
use fleet_topology::{Mode, names};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

impl Fleet {
    /// Returns this process's place in the job; a server takes the view of worker 0.
    pub(crate) fn place(&self) -> Result<Place> {
        let topology = self.topology();
        if topology.mode() != Mode::ParameterServer {
            return Err(Error::invalid("this job has no parameter servers")
                .expected("a process of a parameter-server job")
                .help(
                    "in a collective job, call minimize; for parameter servers, start the job with \
                     fleetrun --server_num N --worker_num M",
                ));
        }
        Ok(Place {
            worker: if topology.is_worker() { topology.rank() } else { 0 },
            worker_count: topology.worker_num(),
            // A process started without a launcher contains its server.
            server_count: topology.server_num().max(1),
            half_async: false,
        })
    }

    /// Creates this server's part of the tables and listens.
    pub fn init_server(&self, job: &ServerJob) -> Result<Server> {
        self.serve(job, |server| self.new_tables(job, server).map(Arc::new))
    }

    /// As [`Fleet::init_server`], with the tables saved in `dir`
    /// (`init_server(dirname, var_names)`): all tables, or the sparse ones of these names. The save
    /// may come from any number of servers.
    pub fn init_server_from(
        &self,
        job: &ServerJob,
        dir: &Path,
        var_names: Option<&[&str]>,
    ) -> Result<Server> {
        self.serve(job, |server| {
            let tables = self.new_tables(job, server)?;
            load_server(&tables, job, dir, var_names)?;
            Ok(Arc::new(tables))
        })
    }

    /// As [`Fleet::init_server`], with the tables of rows that a save in `dir` has by name, for a
    /// network that has changed since the save (incremental training). The other tables start
    /// empty, and a line names them. A table of another width, rule or accessor is an error. Dense
    /// parameters come from worker 0 ([`PreparedWorker::load_vars`]).
    pub fn init_server_incremental(&self, job: &ServerJob, dir: &Path) -> Result<Server> {
        self.serve(job, |server| {
            let tables = self.new_tables(job, server)?;
            let new = load_present(&tables, job, dir)?;
            if !new.is_empty() {
                let (dir, new) = (dir.display(), new.join(", "));
                let text = format!("server {server}: {dir} lacks tables that start empty: {new}");
                Log::stderr().line(text);
            }
            Ok(Arc::new(tables))
        })
    }

    /// As [`Fleet::init_server`], with tables that are kept on disk. A restarted server, whether by
    /// `fleetrun` or by hand, resumes with every push that was acknowledged.
    ///
    /// The folder belongs to one job. If the job was interrupted, a restart resumes it. If it has
    /// finished successfully, the folder is refused: the trained tables are in the job's saves.
    pub fn init_durable_server(&self, job: &ServerJob, durability: Durability) -> Result<Server> {
        self.serve(job, |server| {
            refuse_finished(&durability.folder)?;
            if self.reporter().is_restart() {
                check_folder_exists(&durability.folder)?;
            }
            let tables = ServerTables::durable(&job.tables, server, durability)?;
            tables.set_save_fs(save_fs(&job.strategy, Some(self.env())));
            if self.reporter().is_first_start() {
                tables.begin_run()?;
            }
            if let (Some(found), Some(folder)) = (tables.recovered(), tables.durable_folder()) {
                let folder = folder.display();
                Log::stderr().line(format!("server {server}: resumed from {folder}: {found}"));
            }
            Ok(tables)
        })
    }

    fn new_tables(&self, job: &ServerJob, server: usize) -> Result<ServerTables> {
        let tables = ServerTables::new(&job.tables, server)?;
        tables.set_save_fs(save_fs(&job.strategy, Some(self.env())));
        Ok(tables)
    }

    fn serve(
        &self,
        job: &ServerJob,
        make: impl FnOnce(usize) -> Result<Arc<ServerTables>>,
    ) -> Result<Server> {
        self.listen(job, make).inspect_err(|error| self.reporter().failed(error))
    }

    fn listen(
        &self,
        job: &ServerJob,
        make: impl FnOnce(usize) -> Result<Arc<ServerTables>>,
    ) -> Result<Server> {
        let topology = self.topology();
        let endpoint = topology.endpoint().filter(|_| topology.is_server()).ok_or_else(|| {
            Error::invalid("this process is not a server")
                .got(topology.role())
                .help("call init_server if is_server() is true, and init_worker otherwise")
        })?;
        let (env, token) = (self.env(), job_token(topology)?);
        // The control starts before the tables, which may take long to load: health checks then see
        // a server that is not ready yet.
        let control = match env.number::<u16>(names::FLEET_GRPC_PORT)? {
            Some(port) => Some(Control::bind(endpoint, port, &token, (topology.rank(), env))?),
            None => None,
        };
        let tables = make(topology.rank())?;
        if let Some(silence) = topology.job().silence {
            tables.set_silent_after(silence);
        }
        if env.switch(names::PSERVER_DEBUG)?.unwrap_or(false) {
            let server = topology.rank();
            let text = job.plan.server_descriptor(job.place, server);
            note(format_args!("tables of server {server}:\n{text}"));
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
        let end_marker = EndMarker::new(self, &token);
        Ok(Server { server, end_marker, reporter: self.reporter().clone(), _control: control })
    }

    /// Connects to all servers, waits for those that do not listen yet, and starts a worker.
    /// Communication settings of the environment apply where the strategy leaves them open.
    pub fn init_worker(
        &self,
        programs: Programs,
        job: &ServerJob,
        options: ExecOptions,
    ) -> Result<Worker> {
        self.prepare_worker(programs, job, options)?.start()
    }

    /// The first part of [`Fleet::init_worker`]: runs the startup program and connects to all
    /// servers. Until [`PreparedWorker::start`], the other workers wait, and the worker may load
    /// parameters.
    pub fn prepare_worker(
        &self,
        programs: Programs,
        job: &ServerJob,
        options: ExecOptions,
    ) -> Result<PreparedWorker<'_>> {
        self.prepare_worker_with(self.worker_session(programs, job, options)?, job)
    }

    /// Opens the session of a worker, which runs the startup program.
    /// [`Fleet::prepare_worker_with`] connects it to the servers.
    pub fn worker_session(
        &self,
        programs: Programs,
        job: &ServerJob,
        options: ExecOptions,
    ) -> Result<Session> {
        if !self.is_worker() {
            return Err(Error::invalid("this process is not a worker").got(self.topology().role()));
        }
        self.reporter().joined();
        let open = || -> Result<Session> {
            let options = self.on_own_cores(options)?;
            self.print_in_force(&job.strategy, &exec_options(&job.strategy, options.clone()));
            Worker::startup(programs, job, options)
                .map_err(|error| at_worker(error, self.topology().rank()))
        };
        open().inspect_err(|error| self.reporter().failed(error))
    }

    /// As [`Fleet::prepare_worker`], with a session of [`Fleet::worker_session`], whose parameters
    /// may have been loaded.
    pub fn prepare_worker_with(
        &self,
        session: Session,
        job: &ServerJob,
    ) -> Result<PreparedWorker<'_>> {
        let prepare = || -> Result<PreparedWorker<'_>> {
            let communication = communicator_options(&job.strategy, self.env())?;
            let servers = self.servers(job)?;
            if self.env().switch(names::PSERVER_DEBUG)?.unwrap_or(false) {
                let worker = self.topology().rank();
                let text = job.plan.worker_descriptor(job.place);
                note(format_args!("tables of worker {worker}:\n{text}"));
            }
            Ok(PreparedWorker::new(session, servers, job, communication, Some(self)))
        };
        prepare().inspect_err(|error| self.reporter().failed(error))
    }

    /// The second part of [`Fleet::init_worker`].
    pub(super) fn join_workers(
        &self,
        servers: Servers,
        session: Session,
        job: &ServerJob,
        communication: CommunicatorOptions,
    ) -> Result<Worker> {
        self.join_as(servers, session, job, communication)
            .inspect_err(|error| self.reporter().failed(error))
    }

    fn join_as(
        &self,
        servers: Servers,
        session: Session,
        job: &ServerJob,
        communication: CommunicatorOptions,
    ) -> Result<Worker> {
        let published = match self.topology().server_num() {
            0 => None,
            _ => PublishedStrategy::new(self, job, &job_token(self.topology())?),
        };
        let worker = Worker::join(servers, session, job, communication)
            .map_err(|error| at_worker(error, self.topology().rank()))?;
        if let Some(published) = published {
            published.compare()?;
        }
        if !job.plan.exchange.is_sync()
            && let Some(file) = self.env().text(names::FLEET_EXPENDABLE)
        {
            // All workers have joined: servers and the launcher now continue without a worker that
            // dies.
            std::fs::write(file, "")
                .map_err(|error| Error::io("create", Path::new(file), &error))?;
        }
        Ok(worker.of_job(self.reporter(), self.env()))
    }

    pub(super) fn servers(&self, job: &ServerJob) -> Result<Servers> {
        let topology = self.topology();
        if topology.server_num() == 0 {
            let servers = ServerTables::all(&job.tables)?;
            let fs = save_fs(&job.strategy, Some(self.env()));
            servers.iter().for_each(|server| server.set_save_fs(fs.clone()));
            return Ok(Arc::new(LocalServers::new(&servers, topology.rank())?).into());
        }
        let addresses = self.server_addresses()?;
        if !waits_for_servers(job, self.env())? {
            expect_listening(&addresses)?;
        }
        let mut options = RemoteOptions::default();
        if let Some(deadline_ms) = self.env().number::<u64>(names::FLAGS_RPC_DEADLINE)? {
            options.deadline = Duration::from_millis(deadline_ms);
        }
        options.silent_after = topology.job().silence.unwrap_or(options.silent_after);
        let deadline = options.deadline;
        let token = job_token(self.topology())?;
        options.is_over = EndMarker::new(self, &token).map(EndMarker::into_is_over);
        let remote =
            RemoteServers::connect(&job.tables, topology.rank(), &addresses, &token, options)?;
        Ok(Arc::new(remote.with_patience(deadline)).into())
    }

    fn server_addresses(&self) -> Result<Vec<SocketAddr>> {
        let endpoints = self.topology().server_endpoints().iter();
        endpoints.map(|endpoint| resolve(&endpoint.to_string())).collect()
    }
}

/// Refuses the folder of a job that has finished: its workers have made all their steps.
fn refuse_finished(folder: &Path) -> Result<()> {
    match folder_state(folder)? {
        FolderState::Empty | FolderState::Unfinished => Ok(()),
        FolderState::Finished => {
            Err(Error::invalid(format!("the job in {} has finished", folder.display()))
                .expected("an empty folder, or one of an interrupted job")
                .help(
                    "remove the folder or use another one; to continue training, start from a save",
                ))
        }
    }
}

/// Refuses to start an empty folder on a server that has served before. The folder may have been
/// moved, and should be moved back.
fn check_folder_exists(folder: &Path) -> Result<()> {
    if folder_state(folder)? != FolderState::Empty {
        return Ok(());
    }
    Err(Error::invalid("durable folder of this server not found")
        .expected(format!("tables of an earlier start of this server in {}", folder.display()))
        .got("a missing or empty folder")
        .help("move it back and restart the job, or start the job from a save"))
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
    end_marker: Option<EndMarker>,
    reporter: Reporter,
    /// Held until the server ends.
    _control: Option<Control>,
}

impl Server {
    /// Returns the address where the server listens.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Serves until the last worker has stopped. Returns an error if a durable server cannot write
    /// its log or its last snapshot.
    pub fn run(self) -> Result<()> {
        self.server.tables().wait();
        self.reporter.leaving();
        self.server.run().inspect_err(|error| self.reporter.failed(error))?;
        if let Some(end_marker) = &self.end_marker {
            end_marker.set();
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
        let error = check_folder_exists(&folder).unwrap_err().to_string();
        assert!(error.contains("durable folder of this server not found"), "{error}");
        assert!(error.contains(&folder.display().to_string()), "{error}");
        std::fs::create_dir_all(folder.join("server-000")).unwrap();
        std::fs::write(folder.join("server-000/log-0"), "").unwrap();
        check_folder_exists(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
