//! Sync and half-async: the dense tables of a step, received by several threads at once.
//!
//! When the gradients of a step are applied, the threads pull all dense tables, a table each. The
//! step then takes the values. Threads are of one step: their number is set only where waiting for
//! answers takes longer than starting them, as for many small tables.

use super::scatter;
use crate::{TableAccess, TableConfig};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread::{Builder, scope};

pub(super) struct Received {
    thread_count: usize,
    tables: Vec<(u32, Mutex<Values>)>,
}

struct Values {
    values: Vec<f32>,
    /// Received after the last step's gradients, and not taken yet.
    is_new: bool,
}

impl Received {
    /// Returns none if one thread receives all tables: the computing thread.
    pub fn new(configs: &[TableConfig], thread_count: usize) -> Option<Received> {
        let tables: Vec<_> = configs
            .iter()
            .filter_map(|config| match config {
                TableConfig::Dense { table_id, .. } => Some((*table_id, config.dense_len())),
                _ => None,
            })
            .map(|(table, len)| {
                (table, Mutex::new(Values { values: vec![0.0; len], is_new: false }))
            })
            .collect();
        let thread_count = thread_count.min(tables.len());
        (thread_count > 1).then_some(Received { thread_count, tables })
    }

    /// Receives all tables.
    pub fn receive(&self, servers: &dyn TableAccess) -> Result<()> {
        let next = AtomicUsize::new(0);
        let pull = || -> Result<()> {
            while let Some((table, received)) = self.tables.get(next.fetch_add(1, Relaxed)) {
                let mut received = lock(received);
                servers.pull_dense(*table, &mut received.values)?;
                received.is_new = true;
            }
            Ok(())
        };
        scope(|scope| {
            let mut threads = Vec::with_capacity(self.thread_count);
            for _ in 1..self.thread_count {
                let started = Builder::new().name("ps-receive".into()).spawn_scoped(scope, pull);
                let failed = |error| Error::exhausted(format!("cannot start a thread: {error}"));
                threads.push(started.map_err(failed)?);
            }
            let own = pull();
            threads.into_iter().fold(own, |outcome, thread| match thread.join() {
                Ok(other) => outcome.and(other),
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    /// Copies a table's values into parts laid end to end, and returns true, if they were received
    /// for this step.
    pub fn take(&self, table: u32, parts: &mut [&mut [f32]]) -> Result<bool> {
        let Some((_, received)) = self.tables.iter().find(|(id, _)| *id == table) else {
            return Ok(false);
        };
        let mut received = lock(received);
        if std::mem::take(&mut received.is_new) {
            scatter(table, &received.values, parts)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Forgets values that the step did not take.
    pub fn end(&self) {
        self.tables.iter().for_each(|(_, received)| lock(received).is_new = false);
    }
}
