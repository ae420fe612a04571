//! Runs the methods of requests.

use super::{Caller, ServerTables, SignKind, Table, WorkerSign};
use crate::job_text;
use crate::message::{fill_f32s, put};
use crate::progress;
use crate::request::{Change, Read, Stamp};
use crate::{
    Arrival, DenseTable, GeoTable, GlobalStep, Push, START_ROUNDS, SparseTable, TableStats,
    UniqueIds,
};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_net::Log;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Longest wait of one request; a client that wants to wait longer repeats it.
const WAIT_MAX: Duration = Duration::from_secs(2);
/// Limit on the numbers of a worker's state: bounds the memory that workers take. A loss scale and
/// its counts are four.
const STATE_NUMBERS_MAX: usize = 64;

impl ServerTables {
    /// Runs a request that may run any number of times.
    pub(super) fn read(
        &self,
        caller: Caller,
        stamp: Stamp,
        request: &Read<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        match request {
            Read::PullSparse { table, mode, ids } => {
                let rows = self.rows(*table)?;
                let count = ids.len() * rows.pull_width();
                fill_f32s(answer, count, |out| rows.pull(ids, out, *mode))?;
            }
            Read::PullDense { table } => {
                let table = self.dense(*table)?;
                fill_f32s(answer, table.config().len, |out| table.pull_by(caller.worker, out))?;
            }
            Read::Wait { at, round, timeout } => {
                let worker = caller.worker as u32;
                let timeout = WAIT_MAX.min(*timeout);
                let missing = self.barrier.missing_after(worker, *at, *round, timeout)?;
                for (worker, sign) in self.awaited(missing) {
                    let [kind, span] = sign.numbers();
                    put(answer, &[worker, kind, span]);
                }
            }
            Read::Heartbeat { steps } => self.set_steps(caller, stamp, *steps),
            Read::Workers => (0..self.job.worker_count)
                .for_each(|worker| put(answer, &self.worker_numbers(worker))),
            Read::Rounds { at } => put(answer, &[self.barrier.rounds(*at)]),
            Read::Stats { table } => put(answer, &self.stats(*table)?.numbers()),
            Read::LastSave { dir } => put(answer, &[self.last_save(Path::new(dir))?]),
            Read::Compare { job, acknowledged } => {
                self.compare(job)?;
                let acknowledged = acknowledged
                    .ok_or_else(|| Error::invalid("message is shorter than its header states"))?;
                self.check_acknowledged(caller, acknowledged)?;
                put(answer, &[self.server as u64, self.life]);
            }
            Read::Stop => self.stop(),
        }
        Ok(())
    }

    /// Runs a request that must run once.
    pub(super) fn change(
        &self,
        caller: Caller,
        stamp: Stamp,
        request: &Change<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        match request {
            Change::Arrive { at, steps, skipped } => {
                self.set_steps(caller, stamp, *steps);
                self.arrive(caller, *at, *skipped, answer)?;
            }
            Change::Finish { steps } => self.finish(caller, stamp, *steps, answer)?,
            Change::Save { id, table, dir, mode, format } => {
                let place = (Path::new(dir), self.known(*table)?);
                let saved = self.save(caller, place, *id, *mode, *format)?;
                put(answer, &[saved.row_count, saved.bytes]);
            }
            Change::EndSave { id, keep } => self.end_save(caller, *id, *keep)?,
            Change::Load { table, dir } => {
                let table = self.known(*table)?;
                let loaded = self.load(Path::new(dir), table.as_ref().map(std::slice::from_ref))?;
                put(answer, &[loaded]);
            }
            Change::BeginRun { base } => self.progress.begin_run(caller, *base, stamp.complete),
            Change::Adopt => {
                let own = self.progress.of(caller.worker);
                let steps = (own.base, own.complete);
                progress::write(steps, &own.tables, (own.kept_step, &own.kept), answer);
            }
            Change::Resume => self.resume(caller, stamp),
            Change::NewRun => self.barrier.begin_run(),
            Change::Settle { steps } => self.settle(*steps)?,
            Change::Keep { state } => self.keep_state(caller, stamp, state)?,
            Change::PushSparse { table, ids, grads, shows, clicks, slots } => {
                let (shows, clicks) = (shows.as_deref(), clicks.as_deref());
                let ids = UniqueIds::assume(ids).into();
                let push = Push { ids, grads, shows, clicks, slots: slots.as_deref() };
                self.push_sparse(caller, stamp, *table, push)?;
            }
            Change::PushDense { table, steps, grad } => {
                let table = self.dense(*table)?;
                self.presence.set_steps(caller, *steps);
                table.push_by(caller.worker, grad)?;
            }
            Change::SetDense { table, values } => {
                self.dense(*table)?.begin(values)?;
            }
            Change::SetRateScale { table, scale } => self.set_rate_scale(*table, *scale)?,
            Change::PushGeo { table, ids, differences } => {
                self.geo(*table)?.push(caller.worker, UniqueIds::assume(ids), differences)?;
            }
            Change::PullGeo { table } => {
                let (ids, rows) = self.geo(*table)?.pull_changed(caller.worker)?;
                put(answer, &[ids.len() as u64]);
                put(answer, &ids);
                put(answer, &rows);
            }
            Change::PushSteps { table, steps } => put(answer, &[self.steps(*table)?.push(*steps)]),
            Change::Shrink { table, unseen_days } => {
                put(answer, &[self.rows(*table)?.shrink(*unseen_days)?]);
            }
            Change::Clear { table } => put(answer, &[self.clear(*table)?]),
        }
        Ok(())
    }

    fn set_rate_scale(&self, table: u32, scale: f32) -> Result<()> {
        match self.table(table)? {
            Table::Dense(table) => table.set_rate_scale(scale),
            Table::Sparse { rows, .. } => rows.set_rate_scale(scale),
            Table::Geo(_) | Table::GlobalStep(_) => wrong(table),
        }
    }

    /// Records the steps that a worker has made, and those that all servers have.
    fn set_steps(&self, caller: Caller, stamp: Stamp, steps: u64) {
        self.presence.set_steps(caller, steps);
        self.progress.set_complete(caller, stamp.complete);
    }

    /// Returns the state of a worker as in the answer to [`Read::Workers`].
    fn worker_numbers(&self, worker: usize) -> [u64; 6] {
        let [kind, span] = self.sign(worker as u32).0.numbers();
        let (steps, starts) = self.presence.steps(worker);
        let has_finished = self.barrier.has_finished(worker as u32).into();
        let complete = self.progress.of(worker).complete;
        [kind.into(), span.into(), steps, starts as u64, has_finished, complete]
    }

    fn arrive(
        &self,
        caller: Caller,
        at: Arrival,
        skipped: bool,
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        let mut applied = Ok(());
        let last = |workers| applied = self.apply_pending(at, workers);
        let worker = caller.worker as u32;
        let round = match skipped {
            true => self.barrier.arrive_skipping(worker, last)?,
            false => self.barrier.arrive(worker, at, last)?,
        };
        put(answer, &[round]);
        applied
    }

    fn finish(&self, caller: Caller, stamp: Stamp, steps: u64, answer: &mut Vec<u8>) -> Result<()> {
        self.set_steps(caller, stamp, steps);
        let mut applied = Ok(());
        let last = |at, workers| applied = self.apply_pending(at, workers);
        let all = self.barrier.finish(caller.worker as u32, last)?;
        answer.push(u8::from(all));
        applied
    }

    /// Keeps a worker's state for its next process.
    fn keep_state(&self, caller: Caller, stamp: Stamp, state: &[u64]) -> Result<()> {
        if state.len() > STATE_NUMBERS_MAX {
            return Err(Error::invalid("state of a worker is too long")
                .expected(format!("at most {STATE_NUMBERS_MAX} numbers"))
                .got(state.len()));
        }
        self.progress.keep(caller, stamp.step, state);
        Ok(())
    }

    /// Lets a process resume from the progress of its worker's earlier processes.
    fn resume(&self, caller: Caller, stamp: Stamp) {
        let before = self.progress.of(caller.worker).client;
        let steps = self.progress.adopt(caller, stamp.complete);
        if before != caller.client {
            self.sessions.retire(before);
        }
        self.presence.adopt(caller, steps);
    }

    fn push_sparse(&self, caller: Caller, stamp: Stamp, table: u32, push: Push<'_>) -> Result<()> {
        let Table::Sparse { rows, pending } = self.table(table)? else { return wrong(table) };
        if !self.job.sync {
            return rows.push(push);
        }
        let screened = rows.screen(&push)?;
        lock(pending).hold(caller.worker, stamp.seq, push, &screened)
    }

    /// Returns the missing workers that a barrier still waits for, and their state. A job that is
    /// not synchronous stops waiting for lost workers, once all have completed the start rounds.
    fn awaited(&self, missing: Vec<u32>) -> Vec<(u32, WorkerSign)> {
        let mut awaited = Vec::new();
        for worker in missing {
            let (sign, is_lost) = self.sign(worker);
            if !is_lost {
                awaited.push((worker, sign));
                continue;
            }
            Log::stderr().line(format!(
                "server {}: worker {worker} {}; the others continue without it",
                self.server,
                sign.loss_text()
            ));
            self.barrier.lose(worker);
        }
        awaited
    }

    /// Returns the state of a worker, and whether the others continue without it.
    fn sign(&self, worker: u32) -> (WorkerSign, bool) {
        let has_begun = self.barrier.rounds(Arrival::Received) >= START_ROUNDS;
        let mut sign = self.presence.sign(worker as usize);
        if self.is_restarted.load(Relaxed) && sign.kind == SignKind::NeverConnected {
            sign = WorkerSign { kind: SignKind::NotReconnected, ..sign };
        }
        let silent_after = self.presence.silent_after();
        (sign, has_begun && !self.job.sync && sign.is_lost(silent_after))
    }

    /// Returns whether some workers have finished and all are gone, so that none will stop the
    /// servers.
    pub(super) fn is_abandoned(&self) -> bool {
        let mut workers = 0..self.job.worker_count as u32;
        self.barrier.any_finished() && workers.all(|worker| self.sign(worker).1)
    }

    /// Applies the held pushes, when all workers have sent theirs. `workers` is the number of those
    /// that did not skip the step.
    pub(super) fn apply_pending(&self, at: Arrival, workers: u32) -> Result<()> {
        if !(self.job.sync && at == Arrival::Sent) {
            return Ok(());
        }
        let mut outcome = Ok(());
        for table in self.tables.values() {
            let applied = match table {
                Table::Dense(table) => {
                    table.apply_pending();
                    Ok(())
                }
                Table::Sparse { rows, pending } => lock(pending).apply(rows, workers),
                Table::Geo(_) | Table::GlobalStep(_) => Ok(()),
            };
            // The first error is returned; the other tables are updated all the same.
            outcome = outcome.and(applied);
        }
        outcome
    }

    /// Checks that a table that a request is limited to exists.
    fn known(&self, table: Option<u32>) -> Result<Option<u32>> {
        table.map(|table| self.table(table).map(|_| table)).transpose()
    }

    /// Resets a table to its initial state.
    fn clear(&self, table: u32) -> Result<u64> {
        match self.table(table)? {
            Table::Dense(table) => {
                table.clear();
                Ok(0)
            }
            Table::Sparse { rows, pending } => {
                lock(pending).pushes.clear();
                rows.clear()
            }
            Table::Geo(geo) => geo.clear(),
            Table::GlobalStep(steps) => {
                steps.restore(0);
                Ok(0)
            }
        }
    }

    pub(crate) fn stats(&self, table: u32) -> Result<TableStats> {
        Ok(match self.table(table)? {
            Table::Dense(table) => table.stats(),
            Table::Sparse { rows, .. } => rows.stats(),
            Table::Geo(geo) => geo.rows().stats(),
            Table::GlobalStep(steps) => {
                TableStats { pushed: steps.count(), ..TableStats::default() }
            }
        })
    }

    pub(super) fn table(&self, table: u32) -> Result<&Table> {
        self.tables.get(&table).ok_or_else(|| {
            let known: Vec<u32> = self.tables.keys().copied().collect();
            Error::invalid("no such table").expected(format!("one of {known:?}")).got(table)
        })
    }

    /// Returns the number of values per id in a pull; 0 if the table has no rows.
    pub(super) fn pull_width(&self, table: u32) -> usize {
        self.rows(table).map_or(0, SparseTable::pull_width)
    }

    fn rows(&self, table: u32) -> Result<&SparseTable> {
        self.table(table)?
            .rows()
            .ok_or_else(|| Error::invalid(format!("table {table} has no rows")))
    }

    fn dense(&self, table: u32) -> Result<&DenseTable> {
        let Table::Dense(dense) = self.table(table)? else { return wrong(table) };
        Ok(dense)
    }

    fn steps(&self, table: u32) -> Result<&GlobalStep> {
        let Table::GlobalStep(steps) = self.table(table)? else { return wrong(table) };
        Ok(steps)
    }

    fn geo(&self, table: u32) -> Result<&GeoTable> {
        let Table::Geo(geo) = self.table(table)? else { return wrong(table) };
        Ok(geo)
    }

    /// Checks that a client has the same job: its text must equal that of this server's
    /// [`JobTables`].
    fn compare(&self, theirs: &str) -> Result<()> {
        let message = "the worker's tables differ from this server's";
        job_text::check(&job_text::text(&self.job), theirs, message).map_err(|error| {
            error.help("run the same program, strategy and version of Fleet everywhere")
        })
    }
}

fn wrong<T>(table: u32) -> Result<T> {
    Err(Error::invalid(format!("wrong kind of table {table} for this request")))
}
