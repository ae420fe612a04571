//! A worker before it joins the others: the place to load parameters from an earlier training, of
//! the same or of a changed network.

use super::remote_save::save_fs;
use super::save::load_named;
use super::{ServerJob, Worker};
use crate::save::persistables;
use crate::{Fleet, Session};
use fleet_base::Result;
use fleet_exec::{ExecOptions, Scope};
use fleet_ir::{Program, Var};
use fleet_nn::Programs;
use fleet_ps::{CommunicatorOptions, Servers};
use fleet_topology::Env;
use std::path::Path;

/// A worker whose startup program has run, and that has not joined the others yet.
///
/// When workers start, worker 0 sends its dense parameters to the servers. Values that it loads
/// before continue an earlier training (incremental training). The network may have changed: new
/// layers keep their initial values. Tables of rows come from [`Fleet::init_server_incremental`].
///
/// ```
/// use fleet::prelude::*;
/// use fleet::{DistributedStrategy, Fleet};
/// # let dir = std::env::temp_dir().join(format!("fleet-prepare-doc-{}", std::process::id()));
/// // An earlier training, in one process.
/// let old = Net::new();
/// let loss = old.data("x", [-1, 2], DType::F32).fc(4).mean();
/// old.minimize(loss, Sgd::new(0.1))?;
/// let session = Session::new(old.build()?, ExecOptions::default())?;
/// fleet::save_persistables(&dir, &session.programs.main, &session.scope)?;
///
/// // The network of today has one more layer.
/// let (fleet, net) = (Fleet::parameter_server()?, Net::new());
/// let loss = net.data("x", [-1, 2], DType::F32).fc(4).fc(3).mean();
/// let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &DistributedStrategy::new());
/// let job = optimizer.minimize_on_servers(&net, loss)?;
/// let mut worker = fleet.prepare_worker(net.build()?, &job, ExecOptions::default())?;
/// worker.load_vars(&dir, &["fc_0.b_0"])?;
/// worker.load_vars_where(&dir, |var| var.name.starts_with("fc_0.w"))?;
/// let mut worker = worker.start()?;
/// let weight = |session: &Session| session.scope.tensor("fc_0.w_0")?.to_vec::<f32>();
/// assert_eq!(weight(&worker.session)?, weight(&session)?);
/// worker.stop()?;
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct PreparedWorker<'f> {
    /// The session, which may load or set parameters before the worker joins.
    pub session: Session,
    servers: Servers,
    job: ServerJob,
    communication: CommunicatorOptions,
    /// The job's processes; `None` for workers and servers in one process.
    fleet: Option<&'f Fleet>,
}

impl Worker {
    /// The first part of [`Worker::start`]: runs the startup program.
    pub fn prepare(
        servers: impl Into<Servers>,
        programs: Programs,
        job: &ServerJob,
        options: ExecOptions,
        communication: CommunicatorOptions,
    ) -> Result<PreparedWorker<'static>> {
        let servers = servers.into();
        let session = Worker::startup(programs, job, options)?;
        Ok(PreparedWorker::new(session, servers, job, communication, None))
    }
}

impl ServerJob {
    /// Loads variables into the scope of a session before it becomes a worker, as
    /// [`PreparedWorker::load_vars`] does. `env` has settings of the client of a remote folder.
    pub fn load_vars(
        &self,
        env: Option<&Env>,
        dir: impl AsRef<Path>,
        program: &Program,
        scope: &mut Scope,
        names: &[&str],
    ) -> Result<()> {
        load_named(&save_fs(&self.strategy, env), dir.as_ref(), program, scope, names)
    }
}

impl<'f> PreparedWorker<'f> {
    pub(super) fn new(
        session: Session,
        servers: Servers,
        job: &ServerJob,
        communication: CommunicatorOptions,
        fleet: Option<&'f Fleet>,
    ) -> PreparedWorker<'f> {
        PreparedWorker { session, servers, job: job.clone(), communication, fleet }
    }

    /// Loads the named variables. `dir` is what a process saved alone ([`fleet::save_persistables`]
    /// and its like), or a save of servers ([`Worker::save_persistables`]). Nothing changes unless
    /// all of them are there, with their shapes. Only the values of worker 0 reach the servers.
    ///
    /// [`fleet::save_persistables`]: crate::save_persistables
    pub fn load_vars(&mut self, dir: impl AsRef<Path>, names: &[&str]) -> Result<()> {
        let env = self.fleet.map(Fleet::env);
        let Session { programs, scope, .. } = &mut self.session;
        self.job.load_vars(env, dir, &programs.main, scope, names)
    }

    /// As [`load_vars`](Self::load_vars), for the persistable variables for which `which` returns
    /// true.
    pub fn load_vars_where(
        &mut self,
        dir: impl AsRef<Path>,
        which: impl Fn(&Var) -> bool,
    ) -> Result<()> {
        let env = self.fleet.map(Fleet::env);
        let Session { programs, scope, .. } = &mut self.session;
        let names = persistables(&programs.main, |var| var.persistable && which(var));
        self.job.load_vars(env, dir, &programs.main, scope, &names)
    }

    /// Joins the other workers: worker 0 sends its parameters, and the others pull them. Servers
    /// keep the parameters that they have loaded themselves.
    pub fn start(self) -> Result<Worker> {
        let PreparedWorker { session, servers, job, communication, fleet } = self;
        match fleet {
            Some(fleet) => fleet.join_workers(servers, session, &job, communication),
            None => Worker::join(servers, session, &job, communication),
        }
    }
}
