//! Async: a step does not wait. Gradients are queued, merged and sent by other threads. The
//! parameters of the next step are the newest received by then.

use super::outbox::PushCallback;
use super::{CommunicatorOptions, Core, Mode, scatter};
use crate::thread::Thread;
use crate::{TableAccess, TableConfig};
use fleet_base::sync::{lock, wait};
use fleet_base::{Error, Result};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex};

pub(super) struct Async {
    newest: Arc<Newest>,
    receivers: Vec<Thread>,
}

/// The newest parameters received.
struct Newest {
    servers: Arc<dyn TableAccess>,
    tables: BTreeMap<u32, Table>,
    sends_before_receive: usize,
    /// Requests to the receiving threads, if there are any.
    wanted: Mutex<Wanted>,
    changed: Condvar,
    receives_apart: bool,
}

#[derive(Default)]
struct Wanted {
    /// Tables to receive, with the number of the newest gradient that their values will contain.
    tables: BTreeMap<u32, u64>,
    closed: bool,
    error: Option<Error>,
}

struct Table {
    values: Mutex<Values>,
    /// Buffer of the next receive; its lock lets one thread receive at a time.
    spare: Mutex<Vec<f32>>,
    sends: Mutex<usize>,
}

struct Values {
    values: Vec<f32>,
    /// Number of the newest of this worker's gradients that they contain.
    holds: u64,
}

impl Async {
    pub fn start(servers: Arc<dyn TableAccess>, options: CommunicatorOptions) -> Result<Async> {
        let mut tables = BTreeMap::new();
        for config in &servers.job().tables {
            let TableConfig::Dense { table_id, .. } = config else { continue };
            let len = config.dense_len();
            let mut values = vec![0.0; len];
            servers.pull_dense(*table_id, &mut values)?;
            let table = Table {
                spare: Mutex::new(vec![0.0; len]),
                values: Mutex::new(Values { values, holds: 0 }),
                sends: Mutex::new(0),
            };
            tables.insert(*table_id, table);
        }
        let (wanted, changed) = Default::default();
        let newest = Arc::new(Newest {
            servers,
            tables,
            sends_before_receive: options.sends_before_receive,
            wanted,
            changed,
            receives_apart: options.receives_apart,
        });
        let mut mode = Async { newest, receivers: Vec::new() };
        let thread_count = match options.receives_apart {
            true => options.receive_thread_count.min(mode.newest.tables.len().max(1)),
            false => 0,
        };
        for _ in 0..thread_count {
            let newest = Arc::clone(&mode.newest);
            mode.receivers.push(Thread::start("ps-receive", move || newest.serve())?);
        }
        Ok(mode)
    }

    /// Returns the callback of the sending threads, for each dense push.
    pub fn on_push(&self) -> PushCallback {
        let newest = Arc::clone(&self.newest);
        Some(Box::new(move |table, number, count| newest.on_push(table, number, count)))
    }
}

impl Drop for Async {
    fn drop(&mut self) {
        lock(&self.newest.wanted).closed = true;
        self.newest.changed.notify_all();
    }
}

impl Mode for Async {
    fn sent(&self, core: &Core) -> Result<()> {
        core.count_step()
    }

    fn dense(&self, core: &Core, table: u32, parts: &mut [&mut [f32]]) -> Result<u64> {
        if let Some(error) = &lock(&self.newest.wanted).error {
            return Err(error.clone());
        }
        let handed = lock(&core.dense_count).get(&table).copied().unwrap_or(0);
        let found = self.newest.table(table)?;
        let newest = lock(&found.values);
        scatter(table, &newest.values, parts)?;
        Ok(handed.saturating_sub(newest.holds))
    }

    fn looks_ahead(&self) -> bool {
        true
    }
}

impl Newest {
    fn table(&self, table: u32) -> Result<&Table> {
        self.tables
            .get(&table)
            .ok_or_else(|| Error::invalid("no such dense table in this job").got(table))
    }

    fn on_push(&self, table: u32, number: u64, count: usize) -> Result<()> {
        {
            let mut sends = lock(&self.table(table)?.sends);
            *sends += count;
            if *sends < self.sends_before_receive {
                return Ok(());
            }
            *sends = 0;
        }
        if !self.receives_apart {
            return self.receive(table, number);
        }
        lock(&self.wanted).tables.insert(table, number);
        self.changed.notify_all();
        Ok(())
    }

    fn receive(&self, table: u32, holds: u64) -> Result<()> {
        let found = self.table(table)?;
        let mut spare = lock(&found.spare);
        self.servers.pull_dense(table, &mut spare)?;
        let mut newest = lock(&found.values);
        std::mem::swap(&mut newest.values, &mut *spare);
        newest.holds = newest.holds.max(holds);
        Ok(())
    }

    /// Body of a receiving thread. A table that is requested several times is received once.
    fn serve(&self) {
        let mut wanted = lock(&self.wanted);
        loop {
            if wanted.closed {
                return;
            }
            let Some((table, holds)) = wanted.tables.pop_first() else {
                wanted = wait(&self.changed, wanted);
                continue;
            };
            drop(wanted);
            let outcome = self.receive(table, holds);
            wanted = lock(&self.wanted);
            if let Err(error) = outcome {
                wanted.error.get_or_insert(error);
                return;
            }
        }
    }
}
