//! What a worker asks of its tables of rows beside training: reading, the end of a day.

use super::Worker;
use fleet_base::{Error, Result};
use fleet_ps::{PullMode, TableStats};
use fleet_strategy::servers::SparseTable;

impl Worker {
    /// Deletes rows that nobody needs, in all tables of rows: those unseen for more than
    /// `unseen_days` days (where none is given, as many as the table's accessor says, or 30). Click
    /// tables first multiply their shows and clicks by `show_click_decay_rate`, and also lose the
    /// rows whose score is below `delete_threshold`. Returns how many rows went. One worker does
    /// it, at the end of a day.
    ///
    /// ```
    /// use fleet::prelude::*;
    /// use fleet::ps::{SaveFormat, SaveMode};
    /// use fleet::strategy::{DistributedStrategy, TableParameter};
    /// use fleet::Fleet;
    ///
    /// let mut strategy = DistributedStrategy::new();
    /// let mut table = TableParameter::default().with_table_name("rows");
    /// table.accessor_mut().set_accessor_class("CtrCommonAccessor");
    /// table.accessor_mut().ctr_accessor_param_mut().set_delete_threshold(0.15);
    /// strategy.set_downpour_table_param([table]);
    ///
    /// let (fleet, net) = (Fleet::parameter_server()?, Net::new());
    /// let ids = net.data("ids", [-1, 1], DType::I64);
    /// let rows = ids.sparse_embedding(SparseEmbedding::new(1u64 << 40, 3 + 8).weight("rows"));
    /// let loss = rows.flatten(1).fc(1).mean();
    /// let job = fleet.distributed_optimizer(Adagrad::new(0.1), &strategy).minimize_on_servers(&net, loss)?;
    /// let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::threads(1))?;
    /// for day in [[7i64, 7], [7, 900]] {
    ///     worker.run(&[("ids", &Tensor::from_slice(&day, [2, 1])?)], &[])?;
    /// }
    /// worker.flush()?;
    /// assert_eq!(worker.read_rows("rows", &[7])?[..2], [3.0, 0.0]); // shows and clicks
    /// assert_eq!(worker.shrink(None)?, 1); // 900 was shown once: its score is 0.098
    /// # let dir = std::env::temp_dir().join(format!("fleet-table-doc-{}", std::process::id()));
    /// worker.save_table("rows", &dir, SaveMode::All, SaveFormat::Binary)?;
    /// assert_eq!((worker.clear("rows")?, worker.table_stats("rows")?.row_count), (1, 0));
    /// assert_eq!(worker.load_table("rows", &dir)?, 1);
    /// # std::fs::remove_dir_all(&dir).ok();
    /// worker.stop()?;
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn shrink(&mut self, unseen_days: Option<u8>) -> Result<u64> {
        self.flush()?;
        let tables = self.job().plan.tables.sparse.iter();
        tables.map(|table| self.servers().shrink(table.table_id, unseen_days)).sum()
    }

    /// Deletes all rows of a table by the name of its parameter: ids get new ones when they come.
    /// Returns how many there were. GEO's workers have copies of the table, and keep them.
    pub fn clear(&mut self, table: &str) -> Result<u64> {
        let table = self.sparse_table(table)?.table_id;
        self.flush()?;
        self.servers().clear(table)
    }

    /// The rows of a table by the name of its parameter, as a lookup would give them, one after
    /// another; ids that nobody has seen read as zeros, and get no row.
    pub fn read_rows(&self, table: &str, ids: &[i64]) -> Result<Vec<f32>> {
        let found = self.sparse_table(table)?;
        let ids: Vec<u64> = ids.iter().map(|id| *id as u64).collect();
        let mut rows = vec![0.0; ids.len() * found.width];
        self.servers().pull_sparse(found.table_id, &ids, &mut rows, PullMode::Infer)?;
        Ok(rows)
    }

    /// Numbers about a table by the name of its parameter, added up over the servers.
    pub fn table_stats(&self, table: &str) -> Result<TableStats> {
        self.servers().stats(self.sparse_table(table)?.table_id)
    }

    pub(super) fn sparse_table(&self, name: &str) -> Result<&SparseTable> {
        let tables = &self.job().plan.tables.sparse;
        tables.iter().find(|table| table.name == name).ok_or_else(|| {
            let known: Vec<&str> = tables.iter().map(|table| table.name.as_str()).collect();
            Error::invalid("no such table of rows").expected(format!("one of {known:?}")).got(name)
        })
    }
}
