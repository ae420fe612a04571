//! What a job with parameter servers saves: the tables, by the servers, and beside them what only a worker
//! has (statistics of batches, counts of metrics).

use super::{ServerJob, Worker};
use crate::Session;
use fleet_base::{Error, Result, text};
use fleet_format::{Meta, load_tensors, save_tensors};
use fleet_ps::{SaveFormat, SaveMode, Saved, ServerTables};
use std::path::Path;

/// The folder of a save that holds what only a worker has.
const WORKER_FOLDER: &str = "worker";

impl Worker {
    /// Saves all tables of all servers into a folder that they see by this name, and what only a worker has. One
    /// worker calls it, between barriers where training is to stand still (`save_persistables`).
    pub fn save_persistables(
        &mut self,
        dir: impl AsRef<Path>,
        mode: SaveMode,
        format: SaveFormat,
    ) -> Result<Saved> {
        let dir = dir.as_ref();
        self.flush()?;
        let saved = self.servers().save(dir, mode, format)?;
        let names = own_names(self.job(), &self.session);
        let scope = &self.session.scope;
        let tensors: Vec<_> =
            names.iter().map(|name| Ok((*name, scope.tensor(name)?))).collect::<Result<_>>()?;
        let meta = Meta { step: scope.step(), ..Meta::default() };
        let pairs = tensors.iter().map(|(name, tensor)| (*name, tensor));
        save_tensors(dir.join(WORKER_FOLDER), pairs, &meta)?;
        Ok(saved)
    }

    /// Loads the latest save in a folder over the tables of all servers, and takes the parameters from there.
    /// One worker calls it while the others wait; they then call [`Worker::flush`].
    pub fn load_persistables(&mut self, dir: impl AsRef<Path>) -> Result<u64> {
        let loaded = self.servers().load(dir.as_ref())?;
        let job = self.job().clone();
        load_own(dir.as_ref(), &job, &mut self.session)?;
        self.flush()?;
        Ok(loaded)
    }
}

/// What a worker keeps that is in no table.
fn own_names<'a>(job: &ServerJob, session: &'a Session) -> Vec<&'a str> {
    let tables = &job.plan.tables;
    let in_table = |name: &str| {
        tables.sparse.iter().any(|table| table.name == name)
            || tables.dense.iter().any(|table| table.params.iter().any(|(param, _)| param == name))
    };
    let kept = session.programs.main.vars().filter(|(_, var)| var.persistable);
    let names = kept.map(|(_, var)| var.name.as_str());
    names.filter(|name| !in_table(name) && session.scope.contains(name)).collect()
}

/// Loads what only a worker has.
pub(super) fn load_own(dir: &Path, job: &ServerJob, session: &mut Session) -> Result<()> {
    let folder = dir.join(WORKER_FOLDER);
    if !folder.exists() {
        // Tables alone, as `Servers::save` writes them.
        return Ok(());
    }
    let held = load_tensors(&folder)?;
    for name in own_names(job, session).into_iter().map(str::to_string).collect::<Vec<_>>() {
        let Some((_, tensor)) = held.tensors.iter().find(|(held, _)| *held == name) else {
            return Err(Error::invalid(format!("the save has no variable '{name}'"))
                .at(folder.display())
                .help("it is of another network"));
        };
        session.scope.assign(&name, tensor).map_err(|error| error.at(folder.display()))?;
    }
    Ok(())
}

/// Loads a server's part of a save: all tables, or those of these variables.
pub(super) fn load_server(
    server: &ServerTables,
    job: &ServerJob,
    dir: &Path,
    names: Option<&[&str]>,
) -> Result<u64> {
    let Some(names) = names else { return server.load(dir, None) };
    let known: Vec<&str> = job.plan.tables.sparse.iter().map(|table| &*table.name).collect();
    let number = |name: &&str| {
        let found = job.plan.tables.sparse.iter().find(|table| table.name == *name);
        found.map(|table| table.table_id).ok_or_else(|| {
            let hint = text::did_you_mean(name, known.iter().copied());
            Error::invalid(format!("there is no sparse table '{name}'{hint}"))
                .expected(format!("some of {}", known.join(", ")))
        })
    };
    let tables = names.iter().map(number).collect::<Result<Vec<u32>>>()?;
    server.load(dir, Some(&tables))
}
