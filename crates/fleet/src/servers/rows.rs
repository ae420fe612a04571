//! A worker's requests to its sparse tables besides training: reads, and maintenance at the end of
//! a day.

use super::Worker;
use fleet_base::Result;
use fleet_ps::{PullMode, TableStats};

impl Worker {
    /// Deletes stale rows in all sparse tables: those unseen for more than `unseen_days` days. The
    /// default is that of the table's accessor, or else 30 days. Click tables first multiply their
    /// shows and clicks by `show_click_decay_rate`, and also delete rows whose score is below
    /// `delete_threshold`. Returns the number of deleted rows. Only one worker should call it, at
    /// the end of a day.
    ///
    /// ```
    /// use fleet::prelude::*;
    /// use fleet::ps::{SaveFormat, SaveMode};
    /// use fleet::strategy::TableParameter;
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
    /// let optimizer = fleet.distributed_optimizer(Adagrad::new(0.1), &strategy);
    /// let job = optimizer.minimize_on_servers(&net, loss)?;
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
        tables.map(|table| self.servers().admin.shrink(table.table_id(), unseen_days)).sum()
    }

    /// Deletes all rows of a table, given the name of its parameter: ids get new rows on their next
    /// use. Returns the number of deleted rows. Workers of GEO keep their copies of the table.
    pub fn clear(&mut self, table: &str) -> Result<u64> {
        let table = self.job().sparse_table(table)?.table_id();
        self.flush()?;
        self.servers().admin.clear(table)
    }

    /// Returns rows of a table, given the name of its parameter, one after another, as a lookup
    /// would. Ids without a row read as zeros, and no row is created.
    pub fn read_rows(&self, table: &str, ids: &[i64]) -> Result<Vec<f32>> {
        let found = self.job().sparse_table(table)?;
        let ids: Vec<u64> = ids.iter().map(|id| *id as u64).collect();
        let mut rows = vec![0.0; ids.len() * found.width()];
        self.servers().tables.pull_sparse(
            found.table_id(),
            (&ids).into(),
            &mut rows,
            PullMode::Infer,
        )?;
        Ok(rows)
    }

    /// Returns statistics of a table, given the name of its parameter, summed over the servers.
    pub fn table_stats(&self, table: &str) -> Result<TableStats> {
        self.servers().admin.stats(self.job().sparse_table(table)?.table_id())
    }
}
