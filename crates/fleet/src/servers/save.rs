//! Saves of a job with parameter servers. The servers save the tables. A worker saves the variables
//! that are in no table, such as batch statistics and metric counts.

use super::remote_save::WorkerUpload;
use super::{ServerJob, Worker};
use crate::Session;
use crate::save::save_named;
use crate::saved_tables::MODEL_FOLDER;
use fleet_base::{Error, Result};
use fleet_exec::Scope;
use fleet_format::load_tensors;
use fleet_ir::Program;
use fleet_ps::{
    SaveFormat, SaveFs, SaveMode, SaveSource, Saved, SavedTable, ServerTables, TableIndex, Tables,
    remote_url,
};
use fleet_tensor::Tensor;
use std::collections::HashSet;
use std::path::Path;

/// Folder of a save with the variables that are in no table.
const WORKER_FOLDER: &str = "worker";

impl Worker {
    /// Saves all tables of all servers, and this worker's variables that are in no table
    /// (`save_persistables`). All servers must see the folder under this name. It may be remote
    /// (`hdfs://host/folder`), with the Hadoop client of `fs_client_param`. Only one worker should
    /// call it, between barriers if training must pause.
    pub fn save_persistables(
        &mut self,
        dir: impl AsRef<Path>,
        mode: SaveMode,
        format: SaveFormat,
    ) -> Result<Saved> {
        self.flush()?;
        self.save_flushed(dir.as_ref(), None, mode, format)
    }

    /// Saves all tables as the servers have them, this worker's variables that are in no table, and
    /// with `targets` the model for inference.
    pub(crate) fn save_flushed(
        &self,
        dir: &Path,
        targets: Option<&[&str]>,
        mode: SaveMode,
        format: SaveFormat,
    ) -> Result<Saved> {
        let save = || self.servers().admin.save(Tables::All, dir, mode, format);
        let Some(url) = remote_url(dir)? else {
            let saved = save()?;
            self.write_own(dir, targets)?;
            return Ok(saved);
        };
        let staged = self.save_fs.staging()?;
        self.write_own(staged.path(), targets)?;
        let upload = WorkerUpload::send(&self.save_fs, url, &staged)?;
        let saved = save()?;
        upload.complete().map(|()| saved)
    }

    /// Writes the folders of a save that come from this worker.
    fn write_own(&self, dir: &Path, targets: Option<&[&str]>) -> Result<()> {
        let Session { programs, scope, .. } = &self.session;
        save_named(&dir.join(WORKER_FOLDER), scope, &worker_var_names(self.job(), &self.session))?;
        match targets {
            Some(targets) => {
                crate::save_inference_model(dir.join(MODEL_FOLDER), &programs.main, targets, scope)
            }
            None => Ok(()),
        }
    }

    /// Saves everything for inference (`save_inference_model`): all that
    /// [`Worker::save_persistables`] saves and, under `model/`, the part of the program that
    /// computes `targets`, with its parameters. The program's lookups name the tables that are
    /// saved beside it. Programs of GEO contain their rows.
    /// [`load_inference_model`](crate::load_inference_model) loads the folder into one process,
    /// [`Fleet::distributed_infer`](crate::Fleet) into one with servers, and
    /// `fleet print DIR/model` shows the program. Only one worker should call it.
    ///
    /// ```
    /// use fleet::prelude::*;
    /// use fleet::ps::{SaveFormat, SaveMode};
    /// use fleet::{DistributedStrategy, Fleet};
    /// # let dir = std::env::temp_dir().join(format!("fleet-worker-model-{}", std::process::id()));
    /// let (fleet, net) = (Fleet::parameter_server()?, Net::new());
    /// let (ids, y) = (net.data("ids", [-1, 2], DType::I64), net.data("y", [-1, 1], DType::F32));
    /// let score = ids.sparse_embedding([1000, 8]).flatten(1).fc(1);
    /// let loss = score.mse_loss(y, Reduction::Mean);
    /// let optimizer = fleet.distributed_optimizer(Adagrad::new(0.1), &DistributedStrategy::new());
    /// let job = optimizer.minimize_on_servers(&net, loss)?;
    /// let score = score.name();
    /// let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::default())?;
    /// worker.save_inference_model(&dir, &[&score], SaveMode::All, SaveFormat::Binary)?;
    /// worker.stop()?;
    ///
    /// let mut model = fleet::load_inference_model(&dir)?;
    /// assert_eq!((&model.feeds[..], &model.targets[..]), (&["ids".into()][..], &[score][..]));
    /// let tables = model.tables.ok_or(fleet::Error::invalid("no tables"))?;
    /// let services = fleet::ops::Services::none().with_tables(tables);
    /// let mut exe = Executor::new(ExecOptions::default()).services(services);
    /// let ids = Tensor::from_slice(&[7i64, 900], [1, 2])?;
    /// let (feed, fetch) = ([("ids", &ids)], [&*model.targets[0]]);
    /// let out = exe.run(&model.program, &mut model.scope, &feed, &fetch)?;
    /// assert_eq!(out[0].shape(), &Shape::from([1, 1]));
    /// # std::fs::remove_dir_all(&dir).ok();
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn save_inference_model(
        &mut self,
        dir: impl AsRef<Path>,
        targets: &[&str],
        mode: SaveMode,
        format: SaveFormat,
    ) -> Result<Saved> {
        // A wrong name is an error before anything is written.
        for target in targets {
            self.session.programs.main.var_named(target)?;
        }
        self.flush()?;
        self.save_flushed(dir.as_ref(), Some(targets), mode, format)
    }

    /// Saves the rows of one table, given the name of its parameter, into a folder of its own
    /// (`save_one_table`). Only one worker should call it.
    pub fn save_table(
        &mut self,
        table: &str,
        dir: impl AsRef<Path>,
        mode: SaveMode,
        format: SaveFormat,
    ) -> Result<Saved> {
        let table = self.job().sparse_table(table)?.table_id();
        self.flush()?;
        self.servers().admin.save(Tables::One(table), dir.as_ref(), mode, format)
    }

    /// Loads the rows of one table over its current ones, from a save of this table or of all
    /// tables (`load_one_table`). Only one worker should call it. Workers of GEO keep their copies
    /// of the table.
    pub fn load_table(&mut self, table: &str, dir: impl AsRef<Path>) -> Result<u64> {
        let table = self.job().sparse_table(table)?.table_id();
        self.flush()?;
        self.servers().admin.load(Tables::One(table), dir.as_ref())
    }

    /// Loads the latest save of a folder over the tables of all servers, and the parameters from
    /// it. Only one worker should call it while the others wait; they then call
    /// [`Worker::adopt_loaded`].
    pub fn load_persistables(&mut self, dir: impl AsRef<Path>) -> Result<u64> {
        let loaded = self.servers().admin.load(Tables::All, dir.as_ref())?;
        self.adopt_loaded(dir)?;
        Ok(loaded)
    }

    /// Adopts a save that another worker has loaded ([`Worker::load_persistables`]): pulls the
    /// parameters from the servers, and loads the variables that are in no table, such as the loss
    /// scale and batch statistics. In GEO, this worker's changes that were not sent are dropped.
    pub fn adopt_loaded(&mut self, dir: impl AsRef<Path>) -> Result<()> {
        let (job, fs) = (self.job().clone(), self.save_fs.clone());
        load_worker_vars(&fs, dir.as_ref(), &job, &mut self.session)?;
        self.reload()
    }

    /// Sets variables that are in no table.
    pub(crate) fn set_variables(&mut self, variables: &[(String, Tensor)]) -> Result<()> {
        let scope = &mut self.session.scope;
        variables.iter().try_for_each(|(name, tensor)| scope.assign(name, tensor))
    }
}

/// Returns the names of this worker's persistable variables that are in no table.
pub(crate) fn worker_var_names<'a>(job: &ServerJob, session: &'a Session) -> Vec<&'a str> {
    let tables = &job.plan.tables;
    let in_table = |name: &str| {
        tables.sparse.iter().any(|table| table.name == name)
            || tables.dense.iter().any(|table| table.params.iter().any(|(param, _)| param == name))
    };
    let kept = session.programs.main.vars().filter(|(_, var)| var.persistable);
    let names = kept.map(|(_, var)| var.name.as_str());
    names.filter(|name| !in_table(name) && session.scope.contains(name)).collect()
}

/// Loads a worker's variables that are in no table.
pub(super) fn load_worker_vars(
    fs: &SaveFs,
    dir: &Path,
    job: &ServerJob,
    session: &mut Session,
) -> Result<()> {
    // A save that `Servers::save` wrote has tables alone.
    let Some(held) = read_worker_vars(fs, dir)? else { return Ok(()) };
    let place = dir.join(WORKER_FOLDER);
    for name in worker_var_names(job, session).into_iter().map(str::to_string).collect::<Vec<_>>() {
        let Some((_, tensor)) = held.iter().find(|(held, _)| *held == name) else {
            return Err(Error::invalid(format!("the save has no variable '{name}'"))
                .at(place.display())
                .help("load a save of the same network"));
        };
        session.scope.assign(&name, tensor).map_err(|error| error.at(place.display()))?;
    }
    Ok(())
}

/// Reads the variables of a save that are in no table; `None` if it has tables alone.
pub(super) fn read_worker_vars(fs: &SaveFs, dir: &Path) -> Result<Option<Vec<(String, Tensor)>>> {
    let source = fs.source(dir)?;
    source.fetch_numbered(WORKER_FOLDER)?;
    let folder = source.path().join(WORKER_FOLDER);
    if !folder.exists() {
        return Ok(None);
    }
    let held = load_tensors(&folder).map_err(|error| source.naming(error))?;
    Ok(Some(held.tensors))
}

/// Loads a server's part of a save: all tables, or those of the named variables.
pub(super) fn load_server(
    server: &ServerTables,
    job: &ServerJob,
    dir: &Path,
    names: Option<&[&str]>,
) -> Result<u64> {
    let Some(names) = names else { return server.load(dir, None) };
    let number = |name: &&str| Ok(job.sparse_table(name)?.table_id());
    let tables = names.iter().map(number).collect::<Result<Vec<u32>>>()?;
    server.load(dir, Some(&tables))
}

/// Loads the tables of rows that a save has by name into a server; returns the names of the others.
pub(super) fn load_present(
    server: &ServerTables,
    job: &ServerJob,
    dir: &Path,
) -> Result<Vec<String>> {
    let tables: Vec<u32> = job.plan.tables.sparse.iter().map(|table| table.table_id()).collect();
    server.load_present(dir, &tables)
}

/// Loads named variables of a program from a save of servers, or from one of a single process.
/// Changes nothing unless all are there.
pub(super) fn load_named(
    fs: &SaveFs,
    dir: &Path,
    program: &Program,
    scope: &mut Scope,
    names: &[&str],
) -> Result<()> {
    let source = fs.source(dir)?;
    let loaded = load_named_from(&source, program, scope, names);
    loaded.map_err(|error| source.naming(error))
}

fn load_named_from(
    source: &SaveSource,
    program: &Program,
    scope: &mut Scope,
    names: &[&str],
) -> Result<()> {
    let dir = source.path();
    if !TableIndex::is_at(dir) {
        source.fetch_all()?;
        return crate::load_vars(dir, program, scope, names);
    }
    let index = TableIndex::read(dir)?;
    let dense_tables = index.tables.iter().filter(|table| !table.params.is_empty());
    let folders: Vec<String> = dense_tables.map(SavedTable::folder).collect();
    source.fetch(folders.iter().map(String::as_str))?;
    source.fetch_numbered(WORKER_FOLDER)?;
    let known: HashSet<&str> = index.params().collect();
    let (dense, others): (Vec<&str>, Vec<&str>) =
        names.iter().copied().partition(|name| known.contains(name));
    let mut tensors = Vec::new();
    for (name, values) in dense.iter().zip(index.dense(&dense)?) {
        let shape = program.var(program.var_named(name)?).shape;
        if shape.numel() != Some(values.len()) {
            return Err(Error::invalid(format!("variable '{name}' of the save has another size"))
                .expected(shape)
                .got(format!("{} numbers", values.len()))
                .at(dir.display()));
        }
        tensors.push((*name, Tensor::from_slice(&values, shape)?));
    }
    if !others.is_empty() {
        let folder = dir.join(WORKER_FOLDER);
        let load = match folder.exists() {
            true => crate::load_vars(&folder, program, scope, &others),
            false => Err(Error::invalid(format!("the save has no variable '{}'", others[0]))
                .at(dir.display())),
        };
        load.map_err(|error| error.or_help("tables.txt of the save lists its parameters"))?;
    }
    tensors.iter().try_for_each(|(name, tensor)| scope.assign(name, tensor))
}
