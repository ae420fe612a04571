//! Statistics of a server, for control over gRPC.

use super::{ServerTables, SignKind, Table};
use crate::Arrival;
use crate::control::message::{StatisticsAnswer, TableStatistics, WorkerState, WorkerStatistics};
use fleet_base::Result;
use fleet_base::sync::lock;

impl ServerTables {
    pub(crate) fn statistics(&self) -> Result<StatisticsAnswer> {
        let tables = self.job.tables.iter().map(|config| {
            let table = config.table_id();
            self.table_statistics(table, config.kind())
        });
        let workers = (0..self.job.worker_count).map(|worker| self.worker_statistics(worker));
        Ok(StatisticsAnswer {
            server: self.server as u32,
            server_count: self.job.server_count as u32,
            worker_count: self.job.worker_count as u32,
            synchronous: self.job.sync,
            rounds: self.barrier.rounds(Arrival::Received),
            tables: tables.collect::<Result<_>>()?,
            workers: workers.collect(),
            log: self.keeper.as_ref().map(|keeper| keeper.statistics()),
        })
    }

    fn table_statistics(&self, table: u32, kind: &str) -> Result<TableStatistics> {
        let stats = self.stats(table)?;
        let queued_pushes = match self.table(table)? {
            Table::Sparse { pending, .. } => lock(pending).pushes.len() as u64,
            Table::Dense(table) => table.queued(),
            Table::Geo(_) | Table::GlobalStep(_) => 0,
        };
        Ok(TableStatistics {
            table,
            kind: kind.to_string(),
            rows: stats.row_count,
            waiting_ids: stats.pending_count,
            payload_bytes: stats.payload_bytes,
            held_bytes: stats.held_bytes,
            pulled_ids: stats.pulled,
            pushed_ids: stats.pushed,
            dropped_ids: stats.dropped,
            non_finite: stats.non_finite,
            deleted_rows: stats.deleted,
            queued_pushes,
            staleness_mean: stats.staleness_mean(),
            staleness_max: stats.staleness_max,
        })
    }

    fn worker_statistics(&self, worker: usize) -> WorkerStatistics {
        let sign = self.presence.sign(worker);
        let state = match sign.kind {
            SignKind::NeverConnected | SignKind::NotReconnected => WorkerState::NeverCame,
            SignKind::Connected => WorkerState::Connected,
            SignKind::Disconnected => WorkerState::Gone,
        };
        WorkerStatistics {
            worker: worker as u32,
            state: state.into(),
            silent_seconds: sign.span.as_secs_f64(),
            connections: self.presence.connections(worker) as u32,
        }
    }
}
