//! The tables of rows of a save, in the memory of this process: a model that was trained on
//! parameter servers reads them where there are no servers.

use fleet_base::{Error, Result};
use fleet_ir::Program;
use fleet_ops::ps::distributed_lookup_table;
use fleet_ops::{LookUp, Lookup, PushRows, Tables};
use fleet_ps::{SavedRows, TableIndex};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};

/// Folder of a save of servers with the program for inference and its parameters.
pub(crate) const MODEL_FOLDER: &str = "model";

/// Returns the folder of a model, and that of the save with its tables of rows. `dir` is either: a
/// save of servers has the model in a folder of its own.
pub(crate) fn model_folders(dir: &Path) -> (PathBuf, Option<PathBuf>) {
    let inner = dir.join(MODEL_FOLDER);
    match TableIndex::is_at(dir) && inner.is_dir() {
        true => (inner, Some(dir.to_path_buf())),
        false => {
            let parent = dir.parent().filter(|dir| TableIndex::is_at(dir));
            (dir.to_path_buf(), parent.map(Path::to_path_buf))
        }
    }
}

/// Tables that inference reads. An id without a row reads as zeros.
pub(crate) struct SavedTables {
    rows: HashMap<u32, SavedRows>,
}

impl SavedTables {
    /// Reads the tables that the lookups of a program name, from the latest save of a folder.
    pub fn read(dir: &Path, program: &Program) -> Result<SavedTables> {
        let index = TableIndex::read(dir)?;
        let mut rows = HashMap::new();
        for (_, op) in program.root_ops().filter(|(_, op)| distributed_lookup_table::DEF.is(op)) {
            let id = op.attr_int("table_id");
            let id = u32::try_from(id).map_err(|_| {
                Error::invalid("invalid table_id in the model").expected("0 or more").got(id)
            })?;
            if let Entry::Vacant(entry) = rows.entry(id) {
                entry.insert(index.rows(id, u64::MAX)?);
            }
        }
        Ok(SavedTables { rows })
    }
}

/// Returns whether a program reads rows of tables on servers.
///
/// ```
/// use fleet::prelude::*;
/// let net = Net::new();
/// net.data("ids", [-1, 2], DType::I64).embedding([10, 4]);
/// assert!(!fleet::reads_tables(&net.build()?.main)); // rows in the scope
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn reads_tables(program: &Program) -> bool {
    program.root_ops().any(|(_, op)| distributed_lookup_table::DEF.is(op))
}

impl Tables for SavedTables {
    fn lookup(&self, table: u32, lookups: &mut [Lookup<'_>], how: LookUp) -> Result<()> {
        if how.is_training {
            return Err(read_only());
        }
        let Some(SavedRows { ids, width, values, .. }) = self.rows.get(&table) else {
            return Err(Error::invalid(format!("the save has no table {table} of rows")));
        };
        if *width != how.width {
            return Err(Error::invalid(format!("table {table} of the save has another width"))
                .expected(how.width)
                .got(width));
        }
        for Lookup { ids: wanted, rows } in lookups {
            for (id, row) in wanted.iter().zip(rows.chunks_exact_mut(*width)) {
                match ids.binary_search(&(*id as u64)) {
                    Ok(at) if Some(*id) != how.padding => {
                        row.copy_from_slice(&values[at * width..][..*width]);
                    }
                    _ => row.fill(0.0),
                }
            }
        }
        Ok(())
    }

    fn push_sparse(&self, _: u32, _: &[PushRows<'_>], _: usize) -> Result<()> {
        Err(read_only())
    }

    fn send_dense(&self, _: u32, _: &[&[f32]]) -> Result<()> {
        Err(read_only())
    }

    fn recv_dense(&self, _: u32, _: &mut [&mut [f32]]) -> Result<()> {
        Err(read_only())
    }

    fn send_barrier(&self) -> Result<()> {
        Err(read_only())
    }

    fn fetch_barrier(&self) -> Result<()> {
        Err(read_only())
    }

    fn touch(&self, _: u32, _: &[i64]) -> Result<()> {
        Err(read_only())
    }

    fn exchange(&self, _: u32, _: &mut [&mut [f32]], _: Option<usize>) -> Result<()> {
        Err(read_only())
    }
}

fn read_only() -> Error {
    Error::invalid("the tables of a saved model cannot be trained")
        .help("load the save into a job with servers: fleet.load_model")
}
