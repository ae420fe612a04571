//! GEO: a worker trains locally and exchanges differences.
//!
//! Every `k_steps` steps, for each table: delta = (latest - old) / workers for the touched rows (of
//! a dense table: for all numbers), old += delta, and delta is sent to the servers, which add it.
//! Changes of other workers are received as rows: latest += row - old, old = row. So all workers
//! converge to the same table, plus what each has not sent yet.
//!
//! A thread of its own sends and receives. A step only takes in what was received and hands over
//! what is due. While an exchange of a table is in progress, the next exchange waits, not the step.

use crate::thread::Thread;
use crate::{JobTables, Progress, PullMode, Servers, Step, TableConfig, UniqueIds};
use fleet_base::sync::{lock, wait};
use fleet_base::{Error, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Condvar, Mutex};

/// A worker's traffic with the servers in GEO mode: it trains locally and exchanges differences.
///
/// ```
/// use fleet_ps::{
///     GeoCommunicator, Initializer, JobTables, LocalServers, ServerTables, SparseConfig,
///     TableConfig,
/// };
/// let initializer = Initializer::Constant(0.0);
/// let table = TableConfig::Geo(SparseConfig { initializer, ..SparseConfig::plain(0, 1) });
/// let tables = JobTables { server_count: 1, worker_count: 1, sync: false, tables: vec![table] };
/// let servers = std::sync::Arc::new(LocalServers::new(&ServerTables::all(&tables)?, 0)?);
/// let geo = GeoCommunicator::start(servers, 1)?;
/// let mut rows = vec![1.0, 2.0];
/// geo.fill(0, &rows, Some(1))?; // by worker 0
/// geo.begin(0, &mut rows, Some(1))?;
/// rows[1] = 5.0;
/// geo.touch(0, &[1])?;
/// geo.step(0, &mut [&mut rows], Some(1))?;
/// geo.flush()?;
/// assert_eq!(geo.stats().push_count, 1);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct GeoCommunicator {
    shared: Arc<Shared>,
    _thread: Thread,
}

struct Shared {
    servers: Servers,
    k_steps: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    tables: BTreeMap<u32, Table>,
    jobs: VecDeque<Job>,
    /// Jobs that are queued or in progress.
    open: usize,
    /// Steps made before these tables were read first.
    base: u64,
    closed: bool,
    error: Option<Error>,
    stats: super::CommunicatorStats,
}

/// A table as it was after the last exchange.
struct Table {
    old: Vec<f32>,
    /// Numbers per row; none for a dense table.
    width: Option<usize>,
    touched: BTreeSet<u64>,
    steps: usize,
    /// Steps of this worker.
    made: u64,
    /// Steps whose changes were sent.
    sent: u64,
    in_flight: bool,
    received: Vec<ServerChanges>,
}

/// Changes to send.
struct Job {
    table: u32,
    /// The last step that they include.
    step: u64,
    /// Ids of the rows; none for a dense table.
    ids: Option<Vec<u64>>,
    delta: Vec<f32>,
}

/// Values received.
enum ServerChanges {
    Rows(Vec<u64>, Vec<f32>),
    All(Vec<f32>),
}

/// Rows per push when a table is first filled.
const FILL_ROWS: usize = 1 << 16;

impl GeoCommunicator {
    /// Starts the thread that exchanges differences every `k_steps` steps, which must be at least
    /// 1.
    pub fn start(servers: impl Into<Servers>, k_steps: usize) -> Result<GeoCommunicator> {
        if k_steps == 0 {
            return Err(Error::invalid("invalid k_steps of GEO").expected("at least 1").got(0));
        }
        let (servers, state, changed) = (servers.into(), Mutex::default(), Condvar::new());
        let shared = Arc::new(Shared { servers, k_steps, state, changed });
        let served = Arc::clone(&shared);
        let thread = Thread::start("ps-geo", move || served.serve())?;
        Ok(GeoCommunicator { shared, _thread: thread })
    }

    /// Returns the servers that the differences are exchanged with.
    pub fn servers(&self) -> &Servers {
        &self.shared.servers
    }

    /// Uploads worker 0's copy of a table to the servers. The other workers begin after that.
    ///
    /// Existing rows stay as they are: the servers have loaded them, or this worker was restarted
    /// in the middle.
    pub fn fill(&self, table: u32, values: &[f32], width: Option<usize>) -> Result<()> {
        let servers = &*self.shared.servers.tables;
        let Some(width) = width else { return servers.set_dense(table, values) };
        let mut known = Vec::new();
        for (at, rows) in values.chunks(FILL_ROWS * width).enumerate() {
            let first = (at * FILL_ROWS) as u64;
            let mut ids: Vec<u64> = (first..first + (rows.len() / width) as u64).collect();
            known.resize(rows.len(), 0.0);
            servers.pull_sparse(table, (&ids).into(), &mut known, PullMode::Infer)?;
            // Rows that no server has are read as zeros.
            let is_new = |row: usize| known[row * width..][..width].iter().all(|it| *it == 0.0);
            let new: Vec<usize> = (0..ids.len()).filter(|row| is_new(*row)).collect();
            ids = new.iter().map(|row| ids[*row]).collect();
            let rows: Vec<f32> =
                new.iter().flat_map(|row| &rows[row * width..][..width]).copied().collect();
            servers.push_geo(table, None, UniqueIds::assume(&ids).into(), &rows)?;
        }
        Ok(())
    }

    /// Reads the table from the servers, and remembers it. Changes that were not sent are dropped,
    /// as after a load. Nothing may be in flight.
    pub fn begin(&self, table: u32, values: &mut [f32], width: Option<usize>) -> Result<()> {
        let servers = &*self.shared.servers.tables;
        match width {
            Some(width) => self.begin_rows(table, values, width)?,
            None if is_dense(servers.job(), table) => servers.pull_dense(table, values)?,
            None => {
                return Err(Error::invalid("no such dense table in this job").got(table));
            }
        }
        let mut state = lock(&self.shared.state);
        let made = state.tables.get(&table).map_or(state.base, |own| own.made);
        let own = Table {
            old: values.to_vec(),
            width,
            touched: BTreeSet::new(),
            steps: 0,
            made,
            sent: made,
            in_flight: false,
            received: Vec::new(),
        };
        state.tables.insert(table, own);
        Ok(())
    }

    /// Starts to count after step `complete`, in a run that begins after step `base`.
    pub fn begin_run(&self, base: u64, complete: u64) -> Result<()> {
        self.count_from(complete);
        self.shared.servers.run.begin_run(base, complete)
    }

    /// Resumes after the steps that earlier processes of this worker completed. Steps that were not
    /// sent for all tables are repeated, and count twice in the tables for which they were sent. At
    /// least the last exchange is repeated, because servers learn of its end from the next one.
    pub fn resume(&self, progress: &Progress) -> Result<()> {
        self.count_from(progress.complete);
        let progress = Progress { applied: Vec::new(), ..progress.clone() };
        self.shared.servers.run.resume(&progress)
    }

    fn count_from(&self, step: u64) {
        let mut state = lock(&self.shared.state);
        state.base = step;
        state.tables.values_mut().for_each(|own| (own.made, own.sent) = (step, step));
    }

    /// Reads all rows: first those with changes that this worker has not pulled, which this clears,
    /// then the others. A restarted worker has pulled some changes before.
    fn begin_rows(&self, table: u32, values: &mut [f32], width: usize) -> Result<()> {
        let servers = &*self.shared.servers.tables;
        let (changes, rows) = servers.pull_geo(table)?;
        let mut is_read = vec![false; values.len() / width];
        for (id, row) in changes.iter().zip(rows.chunks(width)) {
            let at = row_of(*id, is_read.len())?;
            is_read[at] = true;
            values[at * width..][..width].copy_from_slice(row);
        }
        let others: Vec<u64> =
            (0..is_read.len()).filter(|at| !is_read[*at]).map(|at| at as u64).collect();
        for ids in others.chunks(FILL_ROWS) {
            let mut rows = vec![0.0; ids.len() * width];
            servers.pull_sparse(table, ids.into(), &mut rows, PullMode::Infer)?;
            for (id, row) in ids.iter().zip(rows.chunks(width)) {
                values[*id as usize * width..][..width].copy_from_slice(row);
            }
        }
        Ok(())
    }

    /// Records the rows that a step is about to change.
    pub fn touch(&self, table: u32, ids: &[i64]) -> Result<()> {
        let mut state = lock(&self.shared.state);
        let touched = &mut state.table(table)?.touched;
        touched.extend(ids.iter().map(|id| *id as u64));
        Ok(())
    }

    /// Takes in the changes of other workers after a step, and hands over this worker's if they are
    /// due.
    pub fn step(&self, table: u32, parts: &mut [&mut [f32]], width: Option<usize>) -> Result<()> {
        let k_steps = self.shared.k_steps;
        let mut state = lock(&self.shared.state);
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        let own = state.table(table)?;
        let len: usize = parts.iter().map(|part| part.len()).sum();
        if (own.old.len(), own.width) != (len, width) {
            return Err(Error::invalid(format!("shape of table {table} has changed"))
                .expected(format!("{} numbers, rows of {:?}", own.old.len(), own.width))
                .got(format!("{len} numbers, rows of {width:?}")));
        }
        own.take_in(parts)?;
        own.steps += 1;
        own.made += 1;
        if own.steps >= k_steps && !own.in_flight {
            self.shared.hand_over(&mut state, table, parts)?;
        }
        Ok(())
    }

    /// Waits until everything that was handed over has arrived.
    pub fn flush(&self) -> Result<()> {
        let mut state = lock(&self.shared.state);
        while state.open > 0 && state.error.is_none() {
            state = wait(&self.shared.changed, state);
        }
        state.error.clone().map_or(Ok(()), Err)
    }

    /// Makes the last exchange of a table: sends all pending changes, and takes in the answer.
    pub fn end(&self, table: u32, parts: &mut [&mut [f32]], width: Option<usize>) -> Result<()> {
        self.flush()?;
        {
            let mut state = lock(&self.shared.state);
            let own = state.table(table)?;
            own.check_width(table, width)?;
            own.take_in(parts)?;
            self.shared.hand_over(&mut state, table, parts)?;
        }
        self.flush()?;
        lock(&self.shared.state).table(table)?.take_in(parts)
    }

    /// Returns the activity since the start.
    pub fn stats(&self) -> super::CommunicatorStats {
        lock(&self.shared.state).stats
    }
}

impl Drop for GeoCommunicator {
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Hands this worker's changes of a table over to the thread.
    fn hand_over(&self, state: &mut State, table: u32, parts: &[&mut [f32]]) -> Result<()> {
        let workers = self.servers.job().worker_count as f32;
        let job = state.table(table)?.due(table, parts, workers);
        state.stats.gradient_count += 1;
        state.open += 1;
        state.jobs.push_back(job);
        self.changed.notify_all();
        Ok(())
    }

    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            let Some(job) = state.jobs.pop_front() else {
                if state.closed {
                    return;
                }
                state = wait(&self.changed, state);
                continue;
            };
            drop(state);
            let (table, step) = (job.table, job.step);
            let outcome = self.exchange(job);
            state = lock(&self.state);
            state.open -= 1;
            match outcome {
                Ok(changes) => {
                    state.stats.push_count += 1;
                    if let Some(own) = state.tables.get_mut(&table) {
                        own.received.push(changes);
                        (own.in_flight, own.sent) = (false, step);
                    }
                    let sent = state.tables.values().map(|own| own.sent).min();
                    self.servers.run.completed(sent.unwrap_or(0));
                }
                Err(error) => _ = state.error.get_or_insert(error),
            }
            self.changed.notify_all();
            if state.error.is_some() {
                return;
            }
        }
    }

    fn exchange(&self, job: Job) -> Result<ServerChanges> {
        let Job { table, step, ids, delta } = job;
        let (servers, step) = (&*self.servers.tables, Step::new(step));
        if let Some(ids) = ids {
            servers.push_geo(table, step, UniqueIds::assume(&ids).into(), &delta)?;
            let (ids, rows) = servers.pull_geo(table)?;
            return Ok(ServerChanges::Rows(ids, rows));
        }
        // The table's rule subtracts gradients.
        let mut values: Vec<f32> = delta.iter().map(|delta| -delta).collect();
        servers.push_dense(table, step, &values)?;
        servers.pull_dense(table, &mut values)?;
        Ok(ServerChanges::All(values))
    }
}

impl State {
    fn table(&mut self, table: u32) -> Result<&mut Table> {
        self.tables.get_mut(&table).ok_or_else(|| {
            Error::invalid("table is not initialized for GEO").got(table).help("call init_worker")
        })
    }
}

impl Table {
    fn check_width(&self, table: u32, width: Option<usize>) -> Result<()> {
        if self.width == width {
            return Ok(());
        }
        Err(Error::invalid(format!("width of table {table} has changed"))
            .expected(format!("{:?}", self.width))
            .got(format!("{width:?}")))
    }

    /// Returns the changes of this worker, which count as sent from now on.
    fn due(&mut self, table: u32, parts: &[&mut [f32]], workers: f32) -> Job {
        (self.steps, self.in_flight) = (0, true);
        let mut latest = vec![0.0; self.old.len()];
        gather(parts, &mut latest);
        let mut difference = |range: std::ops::Range<usize>| -> Vec<f32> {
            let old = &mut self.old[range.clone()];
            let share = |(latest, old): (&f32, &mut f32)| {
                let delta = (latest - *old) / workers;
                *old += delta;
                delta
            };
            latest[range].iter().zip(old).map(share).collect()
        };
        let Some(width) = self.width else {
            let len = latest.len();
            return Job { table, step: self.made, ids: None, delta: difference(0..len) };
        };
        let rows = latest.len() / width.max(1);
        let touched = std::mem::take(&mut self.touched);
        let ids: Vec<u64> = touched.into_iter().filter(|id| (*id as usize) < rows).collect();
        let delta = ids
            .iter()
            .flat_map(|id| difference(*id as usize * width..(*id as usize + 1) * width))
            .collect();
        Job { table, step: self.made, ids: Some(ids), delta }
    }

    /// Takes in all received values.
    fn take_in(&mut self, parts: &mut [&mut [f32]]) -> Result<()> {
        let received = std::mem::take(&mut self.received);
        received.into_iter().try_for_each(|changes| self.apply_changes(changes, parts))
    }

    /// Takes in received values: latest += new - old, old = new.
    fn apply_changes(&mut self, changes: ServerChanges, parts: &mut [&mut [f32]]) -> Result<()> {
        match changes {
            ServerChanges::All(values) => {
                let mut rest = values.as_slice();
                let mut old = self.old.as_mut_slice();
                for part in parts {
                    let (values, values_rest) = rest.split_at(part.len());
                    let (own, old_rest) = old.split_at_mut(part.len());
                    add_changes(part, own, values);
                    (rest, old) = (values_rest, old_rest);
                }
            }
            ServerChanges::Rows(ids, rows) => {
                let width = self.width.unwrap_or(1).max(1);
                let Some(table) = parts.first_mut() else { return Ok(()) };
                for (id, row) in ids.iter().zip(rows.chunks(width)) {
                    let at = row_of(*id, table.len() / width)?;
                    let range = at * width..(at + 1) * width;
                    let latest = &mut table[range.clone()];
                    add_changes(latest, &mut self.old[range], row);
                }
            }
        }
        Ok(())
    }
}

fn add_changes(latest: &mut [f32], old: &mut [f32], new: &[f32]) {
    for ((latest, old), new) in latest.iter_mut().zip(old).zip(new) {
        *latest += new - *old;
        *old = *new;
    }
}

/// Returns the row of an id in a table of `count` rows.
fn row_of(id: u64, count: usize) -> Result<usize> {
    usize::try_from(id).ok().filter(|at| *at < count).ok_or_else(|| {
        Error::invalid("received a row outside the worker's table")
            .expected(format!("an id below {count}"))
            .got(id)
    })
}

fn gather(parts: &[&mut [f32]], into: &mut [f32]) {
    let mut at = 0;
    for part in parts {
        into[at..at + part.len()].copy_from_slice(part);
        at += part.len();
    }
}

fn is_dense(job: &JobTables, table: u32) -> bool {
    let mut tables = job.tables.iter();
    tables.any(|it| matches!(it, TableConfig::Dense { table_id, .. } if *table_id == table))
}
