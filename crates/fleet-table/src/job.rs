//! The tables of a job.

use crate::{DenseCut, NonFinite, Rule, SparseConfig};
use fleet_base::{Error, Result};
use std::collections::HashSet;

/// The tables of a job, the same on every server and known to every worker.
#[derive(Clone, Debug, PartialEq)]
pub struct JobTables {
    /// Number of servers.
    pub server_count: usize,
    /// Number of workers.
    pub worker_count: usize,
    /// Whether pushes wait until all workers have sent their part of a step, so that the servers
    /// apply their mean once. A dense table takes the mean over the pushes. A sparse table divides
    /// the sum by the number of workers that arrived. Rows of click tables are summed and not
    /// divided: their gradients are sums over samples already. Otherwise each push is applied on
    /// receipt. Geo tables add at once in either case.
    pub sync: bool,
    /// The tables, whose numbers differ.
    pub tables: Vec<TableConfig>,
}

/// One table of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum TableConfig {
    /// Parameters laid end to end, divided among the servers.
    Dense {
        /// Number of the table in the job.
        table_id: u32,
        /// Names of the parameters and their numbers of elements, on all servers.
        params: Vec<(String, usize)>,
        /// The optimizer.
        rule: Rule,
        /// Treatment of gradients that are NaN or infinite.
        non_finite: NonFinite,
        /// Cut and correction of late gradients.
        options: DenseOptions,
    },
    /// Rows by id; an id is on server `id mod server_count`.
    Sparse(SparseConfig),
    /// Rows that workers train locally and exchange as differences.
    Geo(SparseConfig),
    /// Count of the steps of all workers, for learning rate schedules.
    GlobalStep {
        /// Number of the table in the job.
        table_id: u32,
    },
}

/// Options that few dense tables need.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DenseOptions {
    /// How the table is divided among the servers.
    pub cut: DenseCut,
    /// Correct gradients for the changes since their worker read the parameters (DC-ASGD). Invalid
    /// in synchronous jobs, where there are no such changes.
    pub corrects_delay: bool,
}

impl TableConfig {
    /// Returns the number of the table.
    pub fn table_id(&self) -> u32 {
        match self {
            TableConfig::Dense { table_id, .. } | TableConfig::GlobalStep { table_id } => *table_id,
            TableConfig::Sparse(config) | TableConfig::Geo(config) => config.table_id,
        }
    }

    /// Returns the parameter that became a table of rows, or the documented name of a table.
    pub fn name(&self) -> &str {
        match self {
            TableConfig::Dense { .. } => "MergedDense",
            TableConfig::Sparse(config) | TableConfig::Geo(config) => &config.name,
            TableConfig::GlobalStep { .. } => "GlobalStep",
        }
    }

    /// Returns the number of elements of a dense table on all servers; 0 for other tables.
    pub fn dense_len(&self) -> usize {
        match self {
            TableConfig::Dense { params, .. } => params.iter().map(|(_, len)| len).sum(),
            _ => 0,
        }
    }

    /// Returns the kind as statistics show it: `dense`, `sparse`, `geo` or `global step`.
    pub fn kind(&self) -> &'static str {
        match self {
            TableConfig::Dense { .. } => "dense",
            TableConfig::Sparse(_) => "sparse",
            TableConfig::Geo(_) => "geo",
            TableConfig::GlobalStep { .. } => "global step",
        }
    }
}

/// Limit on servers and on workers of a job, within which barriers and placements are practical.
const COUNT_MAX: usize = 1 << 16;

impl JobTables {
    /// Rejects jobs without servers or workers, and duplicate ids and names of tables.
    pub fn check(&self) -> Result<()> {
        for (what, count) in [("servers", self.server_count), ("workers", self.worker_count)] {
            if !(1..=COUNT_MAX).contains(&count) {
                return Err(Error::invalid(format!("invalid number of {what} in a job"))
                    .expected(format!("1 to {COUNT_MAX}"))
                    .got(count));
            }
        }
        for table in &self.tables {
            let TableConfig::Dense { table_id, options, .. } = table else { continue };
            let place = |error: Error| error.at(format!("dense table {table_id}"));
            options.cut.check(table.dense_len(), self.server_count).map_err(place)?;
            if options.corrects_delay && self.sync {
                return Err(place(
                    Error::invalid("delay compensation (DC-ASGD) conflicts with a synchronous job")
                        .help("turn off delay compensation (enable_dc_asgd) or sync"),
                ));
            }
        }
        self.check_names()?;
        let mut ids: Vec<u32> = self.tables.iter().map(TableConfig::table_id).collect();
        ids.sort_unstable();
        match ids.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::invalid("duplicate table id").got(pair[0])),
            None => Ok(()),
        }
    }

    /// Rejects two tables or parameters of one name: saves are loaded by name.
    fn check_names(&self) -> Result<()> {
        let names = self.tables.iter().flat_map(|table| match table {
            TableConfig::Dense { params, .. } => params.iter().map(|(name, _)| &name[..]).collect(),
            TableConfig::Sparse(config) | TableConfig::Geo(config) => vec![&config.name[..]],
            TableConfig::GlobalStep { .. } => Vec::new(),
        });
        let mut known = HashSet::new();
        match names.into_iter().find(|name| !name.is_empty() && !known.insert(*name)) {
            Some(name) => Err(Error::invalid("duplicate name of a table or parameter").got(name)),
            None => Ok(()),
        }
    }

    /// Returns the table with an id, which must be of one of `kinds`.
    pub fn table(&self, table_id: u32, kinds: &[&str]) -> Result<&TableConfig> {
        let table = self.tables.iter().find(|table| table.table_id() == table_id);
        let error = match table {
            Some(table) if kinds.contains(&table.kind()) => return Ok(table),
            Some(table) => Error::invalid(format!("table {table_id} is a {} table", table.kind()))
                .expected(kinds.join(" or ")),
            None => {
                let known: Vec<u32> = self.tables.iter().map(TableConfig::table_id).collect();
                Error::invalid("no such table").expected(format!("one of {known:?}")).got(table_id)
            }
        };
        Err(error)
    }
}
