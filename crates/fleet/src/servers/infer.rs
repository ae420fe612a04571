//! Inference with tables on servers (`DistributedInfer`): after training, or stand-alone from a
//! save.

use super::port::{Sender, TableAdapter, UnknownIds};
use super::remote_save::save_fs;
use super::save::{load_worker_vars, read_worker_vars, worker_var_names};
use super::worker::pull;
use super::{ServerJob, Worker};
use crate::{DatasetReport, DatasetRun, Fleet, Session, exec_options};
use fleet_base::{Error, Result, text};
use fleet_data::Dataset;
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_ir::Program;
use fleet_nn::Programs;
use fleet_ops::{Registry, Services};
use fleet_ps::{Arrival, PullMode, START_ROUNDS, Servers, Tables};
use fleet_tensor::Tensor;
use std::path::Path;
use std::sync::Arc;

/// The forward part of a program, which reads rows from servers. It never changes a table. An id
/// without a row reads as zeros or as its row's initial values, and no row is created.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::servers::UnknownIds;
/// use fleet::{DistributedStrategy, Fleet};
/// # let dir = std::env::temp_dir().join(format!("fleet-infer-servers-{}", std::process::id()));
/// fn network(net: &Net) -> Var<'_> {
///     let (ids, y) = (net.data("ids", [-1, 2], DType::I64), net.data("y", [-1, 1], DType::F32));
///     ids.sparse_embedding([1000, 8]).flatten(1).fc(1).mse_loss(y, Reduction::Mean)
/// }
/// let fleet = Fleet::parameter_server()?; // under fleetrun a server or a worker; here both
/// let net = Net::new();
/// let loss = network(&net);
/// let optimizer = fleet.distributed_optimizer(Adagrad::new(0.1), &DistributedStrategy::new());
/// let job = optimizer.minimize_on_servers(&net, loss)?;
/// let loss = loss.name();
/// let ids = Tensor::from_slice(&[7i64, 900], [1, 2])?;
/// let y = Tensor::from_slice(&[1.0f32], [1, 1])?;
/// let feed = [("ids", &ids), ("y", &y)];
///
/// let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::default())?;
/// worker.run(&feed, &[])?;
/// worker.save_persistables(&dir, fleet::ps::SaveMode::All, fleet::ps::SaveFormat::Binary)?;
/// let trained = worker.infer()?.run(&feed, &[&loss])?;
/// worker.stop()?;
///
/// // A later job: the same network, and the saved tables.
/// let options = ExecOptions::default();
/// let mut infer = fleet.distributed_infer(net.build()?, &job, Some(&dir), options)?;
/// infer.set_unknown_ids(UnknownIds::InitialValues);
/// infer.refresh()?; // pull newer parameters
/// assert!(infer.program().to_string().contains("distributed_lookup_table"));
/// assert_eq!(infer.servers().job().tables.len(), job.tables.tables.len());
/// assert_eq!(infer.run(&feed, &[&loss])?[0].item::<f32>()?, trained[0].item::<f32>()?);
/// infer.stop()?;
/// # std::fs::remove_dir_all(&dir).ok();
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct DistributedInfer {
    session: Session,
    adapter: Arc<TableAdapter>,
    job: ServerJob,
    /// Whether the last process to stop shuts down the servers; a training worker does so itself.
    stops: bool,
    /// The last fetch list and the program pruned to it, for runs that do not feed all inputs.
    pruned: Option<(Vec<String>, Program)>,
}

impl Fleet {
    /// Starts stand-alone inference (`init_distributed_infer_env`). The servers load the save that
    /// [`Worker::save_persistables`] wrote into `dir`, and the workers load the parameters from
    /// there. Servers and workers must see `dir` under this name. The servers' processes call
    /// [`Fleet::init_server`]. `job` must come from the same network, strategy and optimizer.
    pub fn distributed_infer(
        &self,
        programs: Programs,
        job: &ServerJob,
        dir: Option<&Path>,
        options: ExecOptions,
    ) -> Result<DistributedInfer> {
        let servers = self.servers(job)?;
        let options = exec_options(&job.strategy, self.on_own_cores(options)?);
        let mut session = Session::with_executor(programs, Executor::new(options))?;
        self.join_inference(&servers, dir)?;
        if let Some(dir) = dir {
            let fs = save_fs(&job.strategy, Some(self.env()));
            load_worker_vars(&fs, dir, job, &mut session)?;
        }
        DistributedInfer::over(servers, session, job, true)
    }

    /// As [`Fleet::distributed_infer`], over a network that was built for inference, such as one
    /// without dropout and labels. Its parameters must have the names of those in `job`'s network.
    pub fn distributed_infer_over(
        &self,
        test: Programs,
        job: &ServerJob,
        dir: Option<&Path>,
        options: ExecOptions,
    ) -> Result<DistributedInfer> {
        let servers = self.servers(job)?;
        let options = exec_options(&job.strategy, self.on_own_cores(options)?);
        let mut session = test_session(test, job, Executor::new(options))?;
        self.join_inference(&servers, dir)?;
        let fs = save_fs(&job.strategy, Some(self.env()));
        let held = dir.map_or(Ok(None), |dir| read_worker_vars(&fs, dir))?;
        let mut held = held.unwrap_or_default();
        let find = |name: &str| {
            let at = held.iter().position(|(held, _)| held == name)?;
            Some(held.swap_remove(at).1)
        };
        adopt(&mut session, job, find)?;
        DistributedInfer::over(servers, session, job, true)
    }

    /// Waits for all workers and servers; the servers load a save meanwhile.
    fn join_inference(&self, servers: &Servers, dir: Option<&Path>) -> Result<()> {
        for round in servers.barriers.rounds(Arrival::Received)?..START_ROUNDS {
            if round == 1
                && self.is_first_worker()
                && let Some(dir) = dir
            {
                servers.admin.load(Tables::All, dir)?;
            }
            servers.barriers.arrive(Arrival::Received)?;
        }
        Ok(())
    }
}

impl Worker {
    /// Starts inference with everything that all workers have trained so far. Training may continue
    /// meanwhile.
    pub fn infer(&self) -> Result<DistributedInfer> {
        let Session { programs, scope, executor, .. } = &self.session;
        let mut own = Scope::new();
        for (_, var) in programs.main.vars().filter(|(_, var)| var.persistable) {
            if scope.contains(&var.name) {
                own.set(var.name.clone(), scope.tensor(&var.name)?);
            }
        }
        let executor = Executor::new(executor.options().clone());
        let session = Session::with_scope(programs.clone(), own, executor)?;
        DistributedInfer::over(self.servers().clone(), session, self.job(), false)
    }
}

impl Worker {
    /// As [`Worker::infer`], over a network that was built for inference. Its parameters must have
    /// the names of those that are trained.
    ///
    /// ```
    /// use fleet::prelude::*;
    /// use fleet::{DistributedStrategy, Fleet};
    /// fn scores(net: &Net, is_training: bool) -> Var<'_> {
    ///     let rows = net.data("ids", [-1, 2], DType::I64).sparse_embedding([1000, 8]).flatten(1);
    ///     let rows = if is_training { rows.dropout(0.5) } else { rows };
    ///     rows.fc(1)
    /// }
    /// let (fleet, net, test) = (Fleet::parameter_server()?, Net::new(), Net::new());
    /// let loss = scores(&net, true).mean();
    /// let score = scores(&test, false).name();
    /// let optimizer = fleet.distributed_optimizer(Adagrad::new(0.1), &DistributedStrategy::new());
    /// let job = optimizer.minimize_on_servers(&net, loss)?;
    /// let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::default())?;
    /// let mut infer = worker.infer_over(test.build()?)?;
    /// let ids = Tensor::from_slice(&[7i64, 900], [1, 2])?;
    /// let out = infer.run(&[("ids", &ids)], &[&score])?;
    /// assert_eq!(out[0].shape(), &Shape::from([1, 1]));
    /// worker.stop()?;
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn infer_over(&self, test: Programs) -> Result<DistributedInfer> {
        let Session { scope, executor, .. } = &self.session;
        let executor = Executor::new(executor.options().clone());
        let mut session = test_session(test, self.job(), executor)?;
        let find = |name: &str| scope.contains(name).then(|| scope.tensor(name).ok()).flatten();
        adopt(&mut session, self.job(), find)?;
        DistributedInfer::over(self.servers().clone(), session, self.job(), false)
    }
}

/// Starts a network that was built for inference; its lookups read the tables of `job`.
fn test_session(mut test: Programs, job: &ServerJob, executor: Executor) -> Result<Session> {
    job.plan.read_tables(&mut test, Registry::standard())?;
    for (name, len) in job.plan.tables.dense.iter().flat_map(|table| &table.params) {
        let Some(var) = test.main.find_var(name) else { continue };
        let shape = test.main.var(var).shape;
        if shape.numel() != Some(*len) {
            return Err(Error::invalid(format!("parameter '{name}' has another size here"))
                .expected(format!("{len} numbers, as in the trained network"))
                .got(shape));
        }
    }
    Session::with_executor(test, executor)
}

/// Copies the variables that are in no table: parameters that are not trained, such as the
/// statistics of a batch norm, and others that `find` has.
fn adopt(
    session: &mut Session,
    job: &ServerJob,
    mut find: impl FnMut(&str) -> Option<Tensor>,
) -> Result<()> {
    let names: Vec<String> =
        worker_var_names(job, session).into_iter().map(str::to_string).collect();
    for name in names {
        let main = &session.programs.main;
        let is_parameter = main.find_var(&name).is_some_and(|var| main.var(var).is_parameter());
        match find(&name) {
            Some(tensor) => session.scope.assign(&name, &tensor)?,
            None if is_parameter => {
                let trained = job.plan.tables.dense.iter().flat_map(|table| &table.params);
                let hint = text::did_you_mean(&name, trained.map(|(name, _)| &name[..]));
                return Err(Error::invalid(format!(
                    "parameter '{name}' of the network for inference was not trained{hint}"
                ))
                .help(
                    "build both networks in the same order, each in a new Net, or name the \
                     parameters: they are matched by name",
                ));
            }
            None => {}
        }
    }
    Ok(())
}

impl DistributedInfer {
    fn over(
        servers: Servers,
        session: Session,
        job: &ServerJob,
        stops: bool,
    ) -> Result<DistributedInfer> {
        let adapter = Arc::new(TableAdapter::new(Sender::ReadOnly(servers), &job.plan));
        let session = session.with_services(Services::none().with_tables(adapter.clone()));
        let (job, pruned) = (job.clone(), None);
        let mut infer = DistributedInfer { session, adapter, job, stops, pruned };
        infer.refresh()?;
        Ok(infer)
    }

    /// Pulls the current parameters from the servers. Rows are read anew in every step anyway.
    pub fn refresh(&mut self) -> Result<()> {
        let servers = self.adapter.servers().clone();
        pull(&servers, &self.job, &mut self.session)?;
        if !self.job.plan.exchange.is_geo() {
            return Ok(());
        }
        // Programs of GEO hold whole tables.
        for table in &self.job.plan.tables.sparse {
            if !self.session.scope.contains(&table.name) {
                continue;
            }
            let mut rows = self.session.scope.tensor(&table.name)?.to_vec::<f32>()?;
            let ids: Vec<u64> = (0..table.rows).collect();
            for (ids, rows) in
                ids.chunks(ROWS_AT_ONCE).zip(rows.chunks_mut(ROWS_AT_ONCE * table.width()))
            {
                servers.tables.pull_sparse(table.table_id(), ids.into(), rows, PullMode::Infer)?;
            }
            let shape = [table.rows as i64, table.width() as i64];
            self.session.scope.assign(&table.name, &Tensor::from_slice(&rows, shape)?)?;
        }
        Ok(())
    }

    /// Sets the values of ids without a row (default: zeros).
    pub fn set_unknown_ids(&mut self, unknown: UnknownIds) {
        self.adapter.set_unknown(unknown);
    }

    /// Returns the program that runs (`get_dist_infer_program`): lookups read from servers, and
    /// nothing is updated.
    pub fn program(&self) -> &Program {
        self.session.test_program()
    }

    /// Returns the servers' tables.
    pub fn servers(&self) -> &Servers {
        self.adapter.servers()
    }

    /// Runs one batch. If an input such as a label is not fed, computes only the part of the
    /// program that the fetched variables need.
    pub fn run(&mut self, feed: &[(&str, &Tensor)], fetch: &[&str]) -> Result<Vec<Tensor>> {
        let whole = self.session.test_program();
        let fed = |name: &str| feed.iter().any(|(fed, _)| *fed == name);
        if whole.vars().all(|(_, var)| !var.is_data || fed(&var.name)) {
            return self.session.evaluate(feed, fetch);
        }
        if self.pruned.as_ref().is_none_or(|(names, _)| *names != fetch) {
            let ids: Result<Vec<_>> = fetch.iter().map(|name| whole.var_named(name)).collect();
            let names = fetch.iter().map(|name| name.to_string()).collect();
            self.pruned = Some((names, whole.prune(&ids?)));
        }
        let Some((_, pruned)) = &self.pruned else { return Ok(Vec::new()) };
        let taken = |(name, _): &&(&str, &Tensor)| {
            pruned.var_named(name).is_ok() || whole.var_named(name).is_err()
        };
        let feed: Vec<_> = feed.iter().filter(taken).copied().collect();
        let Session { scope, executor, .. } = &mut self.session;
        executor.run(pruned, scope, &feed, fetch)
    }

    /// Runs one pass of a dataset.
    pub fn infer_from_dataset(
        &mut self,
        dataset: &dyn Dataset,
        run: DatasetRun<'_>,
    ) -> Result<DatasetReport> {
        self.session.infer_from_dataset(dataset, run)
    }

    /// Leaves the job; the last worker of stand-alone inference stops the servers.
    pub fn stop(self) -> Result<()> {
        if !self.stops {
            return Err(Error::invalid("DistributedInfer::stop called on a training worker")
                .help("call Worker::stop"));
        }
        let servers = &self.adapter.servers().barriers;
        if servers.finish()? {
            servers.stop()?;
        }
        Ok(())
    }
}

/// Rows per request: some megabytes.
const ROWS_AT_ONCE: usize = 1 << 16;
