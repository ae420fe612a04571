//! A worker's traffic with the servers of its job, concurrent with its computation.
//!
//! A [`Communicator`] takes gradients as a program makes them, and supplies rows and parameters.
//! Each mode has one file for its differences; the queues, the merging and the sending threads are
//! shared (`outbox.rs`).
//!
//! | mode | a gradient | the end of a step | parameters |
//! | --- | --- | --- | --- |
//! | sync | is sent at once | waits until all workers' are applied | are pulled, all workers wait |
//! | half-async | is sent at once | waits until this worker's are applied | are pulled |
//! | async | is queued, merged with others, sent | does not wait | are the newest received |
//! | geo | stays here | exchanges differences every few steps ([`GeoCommunicator`]) | |
//!
//! In the asynchronous modes a step waits only if a queue is full, which bounds memory.

mod asynchronous;
mod batch;
mod geo;
mod half_async;
mod look_ahead;
#[cfg(test)]
mod new_run_tests;
#[cfg(test)]
mod options_tests;
mod outbox;
mod receive;
#[cfg(test)]
mod restart_tests;
mod schedule;
mod synchronous;
#[cfg(test)]
mod tests;

pub use geo::GeoCommunicator;
pub use schedule::{RateOf, Rates};

use crate::{Progress, PullMode, Push, PushMode, Servers, TableConfig};
use batch::Batches;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use look_ahead::LookAhead;
use outbox::{Grads, Item, Outbox};
use receive::Received;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

/// The documented options, with their documented defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CommunicatorOptions {
    /// Limit on the gradients of one table that are merged into one push (`max_merge_var_num`).
    pub merge_count_max: usize,
    /// Limit on the queued gradients of one table; a further one blocks the step
    /// (`send_queue_size`).
    pub queue_len_max: usize,
    /// How often a sender waits [`POLL_SPAN`] for more gradients to merge (`send_wait_times`).
    pub wait_count_max: usize,
    /// Number of sending threads (`thread_pool_size`).
    pub thread_count: usize,
    /// Parameters are received by a thread of their own instead of the sending thread
    /// (`independent_recv_thread`).
    pub receives_apart: bool,
    /// Number of dense tables received at a time (`rpc_get_thread_num`): by that many threads of
    /// `receives_apart`, or at the end of a step in the sync and half-async modes.
    pub receive_thread_count: usize,
    /// Number of tables whose rows are requested ahead at a time (`rpc_prefetch_thread_num`).
    pub look_ahead_thread_count: usize,
    /// Gradients sent before parameters are received again (`min_send_grad_num_before_recv`).
    pub sends_before_receive: usize,
    /// Merged gradients are averaged instead of summed (`is_sgd_optimizer` off).
    pub averages: bool,
}

impl Default for CommunicatorOptions {
    fn default() -> Self {
        CommunicatorOptions {
            merge_count_max: 1,
            queue_len_max: 16,
            wait_count_max: 1,
            thread_count: 1,
            receives_apart: false,
            receive_thread_count: 1,
            look_ahead_thread_count: 1,
            sends_before_receive: 1,
            averages: false,
        }
    }
}

/// Limit on the sending threads of one worker, each of which has one push in flight, and likewise
/// on those that receive and that look ahead.
const THREAD_COUNT_MAX: usize = 64;
/// Limit on queued gradients and on merged ones: a longer queue would be a leak.
const QUEUE_LEN_MAX: usize = 1 << 16;

impl CommunicatorOptions {
    pub(crate) fn check(&self) -> Result<()> {
        for (what, value, max) in [
            ("max_merge_var_num", self.merge_count_max, QUEUE_LEN_MAX),
            ("send_queue_size", self.queue_len_max, QUEUE_LEN_MAX),
            ("thread_pool_size", self.thread_count, THREAD_COUNT_MAX),
            ("rpc_get_thread_num", self.receive_thread_count, THREAD_COUNT_MAX),
            ("rpc_prefetch_thread_num", self.look_ahead_thread_count, THREAD_COUNT_MAX),
            ("min_send_grad_num_before_recv", self.sends_before_receive, QUEUE_LEN_MAX),
        ] {
            if !(1..=max).contains(&value) {
                return Err(Error::invalid(format!("{what} is out of range"))
                    .expected(format!("1 to {max}"))
                    .got(value));
            }
        }
        Ok(())
    }
}

/// How long a sender waits for more gradients to merge, each time.
pub const POLL_SPAN: Duration = Duration::from_millis(10);

/// Counts and times of a worker's traffic.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CommunicatorStats {
    /// Steps counted.
    pub step_count: u64,
    /// Gradients handed over.
    pub gradient_count: u64,
    /// Pushes made from them.
    pub push_count: u64,
    /// Seconds for which steps were blocked by a full queue.
    pub blocked_seconds: f64,
    /// How often dense parameters were read.
    pub read_count: u64,
    /// This worker's gradients that these parameters lacked, summed over the reads.
    pub staleness_sum: u64,
    /// The largest number of gradients lacking in a read.
    pub staleness_max: u64,
    /// Lookups whose rows had been requested ahead.
    pub looked_ahead: u64,
}

impl CommunicatorStats {
    /// Returns the mean number of this worker's gradients that the parameters of a step lacked.
    pub fn staleness_mean(&self) -> f64 {
        self.staleness_sum as f64 / self.read_count.max(1) as f64
    }
}

/// The part in which the modes differ.
trait Mode: Send + Sync {
    /// Called when all gradients of a step are handed over.
    fn sent(&self, core: &Core) -> Result<()>;

    /// Reads parameters for the next step, by default from the servers; returns how many of this
    /// worker's gradients they lack.
    fn dense(&self, core: &Core, table: u32, parts: &mut [&mut [f32]]) -> Result<u64> {
        core.pull_dense(table, parts).map(|()| 0)
    }

    /// Called when the step has all its parameters.
    fn received(&self, _: &Core) -> Result<()> {
        Ok(())
    }

    /// Returns whether rows may be requested while a step is in progress.
    fn looks_ahead(&self) -> bool {
        false
    }
}

/// The part that all modes share.
struct Core {
    servers: Servers,
    outbox: Outbox,
    rates: Rates,
    /// By table, the number of dense gradients handed over.
    dense_count: Mutex<std::collections::BTreeMap<u32, u64>>,
    steps: AtomicU64,
    /// The step in progress is skipped: it has no gradients.
    is_skipped: AtomicBool,
    /// Buffer for parameters that one thread receives.
    buffer: Mutex<Vec<f32>>,
    /// Parameters that several threads receive at the end of a step.
    received: Option<Received>,
}

impl Core {
    /// Reads the parameters of a dense table from the servers.
    fn pull_dense(&self, table: u32, parts: &mut [&mut [f32]]) -> Result<()> {
        if let Some(received) = &self.received
            && received.take(table, parts)?
        {
            return Ok(());
        }
        let mut buffer = lock(&self.buffer);
        buffer.resize(parts.iter().map(|part| part.len()).sum(), 0.0);
        self.servers.tables.pull_dense(table, &mut buffer)?;
        scatter(table, &buffer, parts)
    }

    /// Counts the step that is about to end; reports at the interval.
    fn count_step(&self) -> Result<()> {
        let Some(table) = self.rates.steps_table else { return Ok(()) };
        let every = u64::from(self.rates.report_every.max(1));
        let made = self.steps.load(Relaxed) + 1;
        match made % every {
            0 => self.outbox.put(table, Item::Steps(every as u32)),
            _ => Ok(()),
        }
    }
}

/// A worker's traffic with the servers, in one of the modes with pushes.
///
/// ```
/// use fleet_ps::{
///     Communicator, PushMode, CommunicatorOptions, JobTables, LocalServers, NonFinite,
///     Rates, Rule, ServerTables, TableConfig, rule::Sgd,
/// };
/// let table = TableConfig::Dense {
///     table_id: 0,
///     params: vec![("weight".to_string(), 2)],
///     rule: Rule::Sgd(Sgd { lr: 1.0 }),
///     non_finite: NonFinite::Refuse,
///     options: Default::default(),
/// };
/// let tables = JobTables { server_count: 1, worker_count: 1, sync: false, tables: vec![table] };
/// let servers = std::sync::Arc::new(LocalServers::new(&ServerTables::all(&tables)?, 0)?);
/// let (mode, options) = (PushMode::HalfAsync, CommunicatorOptions::default());
/// let communicator = Communicator::start(servers, mode, options, Rates::constant())?;
/// communicator.push_dense(0, &[&[1.0], &[2.0]])?;
/// communicator.sent()?;
/// let mut values = [0.0; 2];
/// communicator.dense(0, &mut [&mut values])?;
/// assert_eq!(values, [-1.0, -2.0]);
/// communicator.flush()?;
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct Communicator {
    // The threads of the mode and those that look ahead must end before those of the core.
    mode: Box<dyn Mode>,
    look_ahead: LookAhead,
    batches: Arc<Batches>,
    core: Arc<Core>,
    reads: Mutex<CommunicatorStats>,
}

impl Communicator {
    /// Starts the threads. Dense tables must have their values already, and tables with a schedule
    /// their rate ([`Rates::begin`]).
    pub fn start(
        servers: impl Into<Servers>,
        mode: PushMode,
        options: CommunicatorOptions,
        rates: Rates,
    ) -> Result<Communicator> {
        options.check()?;
        let servers = servers.into();
        let batches = Arc::<Batches>::default();
        let (tables, threads) = (servers.tables.clone(), options.look_ahead_thread_count);
        let look_ahead = LookAhead::start(tables, Arc::clone(&batches), threads)?;
        let receive_threads = options.receive_thread_count;
        let received = match mode {
            PushMode::Sync | PushMode::HalfAsync => {
                Received::new(&servers.job().tables, receive_threads)
            }
            // Its own threads receive.
            PushMode::Async => None,
        };
        let start =
            |options: CommunicatorOptions, on_push: outbox::PushCallback| -> Result<Arc<Core>> {
                Ok(Arc::new(Core {
                    outbox: Outbox::start(servers.clone(), options, rates.clone(), on_push)?,
                    servers: servers.clone(),
                    rates: rates.clone(),
                    dense_count: Mutex::default(),
                    steps: AtomicU64::new(0),
                    is_skipped: AtomicBool::new(false),
                    buffer: Mutex::default(),
                    received,
                }))
            };
        // A push that must be sent by the end of the step gains nothing by waiting for more
        // gradients.
        let prompt = CommunicatorOptions { wait_count_max: 0, ..options };
        let (core, mode): (_, Box<dyn Mode>) = match mode {
            PushMode::Sync => (start(prompt, None)?, Box::new(synchronous::Sync)),
            PushMode::HalfAsync => (start(prompt, None)?, Box::new(half_async::HalfAsync)),
            PushMode::Async => {
                let newest = asynchronous::Async::start(servers.tables.clone(), options)?;
                (start(options, newest.on_push())?, Box::new(newest))
            }
        };
        Ok(Communicator { mode, look_ahead, batches, core, reads: Mutex::default() })
    }

    /// Returns the servers that gradients are sent to.
    pub fn servers(&self) -> &Servers {
        &self.core.servers
    }

    /// Looks up the rows of ids.
    pub fn look_up(&self, table: u32, ids: &[u64], rows: &mut [f32], mode: PullMode) -> Result<()> {
        let servers = &*self.core.servers.tables;
        if mode != PullMode::Train || ids.is_empty() || !rows.len().is_multiple_of(ids.len()) {
            return servers.pull_sparse(table, ids.into(), rows, mode);
        }
        let width = rows.len() / ids.len();
        let (batch, pulled) = match self.look_ahead.take(table, ids)? {
            Some((batch, pulled)) => {
                self.lock().looked_ahead += 1;
                (batch, pulled)
            }
            None => {
                let batch = self.batches.make(table, Arc::new(ids.to_vec()));
                let pulled = self.batches.pull(servers, &batch, width)?;
                (batch, pulled)
            }
        };
        let spread = batch.merger.spread_rows(&pulled, width, rows);
        self.batches.recycle(pulled);
        self.batches.keep(batch);
        spread.map_err(|error| error.at(format!("rows of table {table}")))
    }

    /// Requests the rows of a coming step; a lookup of exactly these ids will find them. In the
    /// asynchronous modes they are pulled while the current step computes, and lack its gradients.
    /// In the others they are pulled when it has ended.
    pub fn look_ahead(&self, table: u32, ids: Vec<u64>, width: usize) {
        self.look_ahead.ask(table, ids, width, self.mode.looks_ahead());
    }

    /// Hands over gradients of rows. Those of equal ids are summed here.
    pub fn push_sparse(&self, table: u32, push: Push<'_>) -> Result<()> {
        let job = self.core.servers.job();
        let TableConfig::Sparse(config) = job.table(table, &["sparse"])? else {
            return Err(Error::internal("table is not sparse"));
        };
        let batch = self.batches.of(table, push.ids.as_slice());
        let extras = batch.merger.merge_extras(&push, config)?;
        let mut grads = self.core.outbox.memory();
        batch.merger.sum_rows_into(push.grads, config.push_width(), &mut grads)?;
        self.core.outbox.put(table, Item::Sparse(Grads::of(batch.merger.ids(), grads, extras)))
    }

    /// Hands over the gradient of a dense table, in parts laid end to end.
    pub fn push_dense(&self, table: u32, parts: &[&[f32]]) -> Result<()> {
        let number = {
            let mut counts = lock(&self.core.dense_count);
            let count = counts.entry(table).or_default();
            *count += 1;
            *count
        };
        self.core.outbox.put_dense(table, parts, number)
    }

    /// Skips this step, whose gradients are not handed over to any table. It counts as made.
    pub fn skip(&self) {
        self.core.is_skipped.store(true, Relaxed);
    }

    /// Ends the gradients of this step: all are handed over, or the step is skipped.
    pub fn sent(&self) -> Result<()> {
        self.mode.sent(&self.core)?;
        if let Some(received) = &self.core.received {
            received.receive(&*self.core.servers.tables)?;
        }
        self.core.is_skipped.store(false, Relaxed);
        let steps = self.core.steps.fetch_add(1, Relaxed) + 1;
        self.core.outbox.end_step(steps);
        Ok(())
    }

    /// Reads the parameters of a dense table for the next step, into parts laid end to end.
    pub fn dense(&self, table: u32, parts: &mut [&mut [f32]]) -> Result<()> {
        let staleness = self.mode.dense(&self.core, table, parts)?;
        let mut reads = self.lock();
        reads.read_count += 1;
        reads.staleness_sum += staleness;
        reads.staleness_max = reads.staleness_max.max(staleness);
        Ok(())
    }

    /// Ends this step: it has all its parameters.
    pub fn received(&self) -> Result<()> {
        if let Some(received) = &self.core.received {
            received.end();
        }
        self.mode.received(&self.core)?;
        self.look_ahead.release();
        Ok(())
    }

    /// Sets the number of steps made before this run, from which schedules of rates resume.
    pub fn set_steps_done(&self, steps: u64) -> Result<()> {
        self.count_from(steps, 0);
        let servers = &self.core.servers;
        servers.run.begin_run(steps, steps)?;
        // Each worker sets the rate: whichever pushes first, it is set. If the servers count steps,
        // a load has restored their count.
        self.core.rates.begin(&*servers.tables, steps)
    }

    /// Resumes after the steps that earlier processes of this worker completed. The next step must
    /// have the same data as before. Gradients that some servers have are sent only to the others.
    pub fn resume(&self, progress: &Progress) -> Result<()> {
        self.count_from(progress.complete, progress.newest());
        self.core.servers.run.resume(progress)
    }

    /// Starts in a run that resumes from a save. The save has this worker's steps up to `complete`,
    /// and the others' up to `base`.
    pub fn begin_run(&self, base: u64, complete: u64) -> Result<()> {
        self.count_from(complete, 0);
        self.core.servers.run.begin_run(base, complete)
    }

    /// Starts to count after a step. Earlier processes have sent gradients up to `sent_before`.
    fn count_from(&self, step: u64, sent_before: u64) {
        self.core.steps.store(step, Relaxed);
        self.core.outbox.resume_at(step, sent_before);
    }

    /// Waits until everything that was handed over is applied.
    pub fn flush(&self) -> Result<()> {
        self.core.outbox.drain()
    }

    /// Ends the look-ahead. Must be called before the servers stop, which would leave it without
    /// answers.
    pub fn rest(&self) {
        self.look_ahead.end();
    }

    /// Returns the activity since the start.
    pub fn stats(&self) -> CommunicatorStats {
        let sent = self.core.outbox.counts();
        CommunicatorStats {
            step_count: self.core.steps.load(Relaxed),
            gradient_count: sent.taken,
            push_count: sent.pushed,
            blocked_seconds: sent.blocked.as_secs_f64(),
            ..*self.lock()
        }
    }

    fn lock(&self) -> MutexGuard<'_, CommunicatorStats> {
        lock(&self.reads)
    }
}

/// Copies the numbers of a dense table into parts laid end to end.
fn scatter(table: u32, values: &[f32], parts: &mut [&mut [f32]]) -> Result<()> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if len != values.len() {
        return Err(Error::invalid(format!("wrong size of dense table {table}"))
            .expected(values.len())
            .got(len));
    }
    let mut rest = values;
    for part in parts {
        let (own, others) = rest.split_at(part.len());
        part.copy_from_slice(own);
        rest = others;
    }
    Ok(())
}
