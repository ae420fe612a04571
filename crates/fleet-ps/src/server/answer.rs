//! Runs the methods of requests.

use super::{Caller, ServerTables, SignKind, Table, WorkerSign, lock};
use crate::job_text;
use crate::message::{
    BINARY, Body, CLICKS, DAYS_DEFAULT, Head, Method, ONE, SHOWS, SLOTS, bytes_of, fill_f32s,
};
use crate::progress;
use crate::save::job;
use crate::{Arrival, PullMode, Push, START_ROUNDS, SaveFormat, SaveMode, SparseTable, TableStats};
use fleet_base::{Error, Result};
use fleet_net::Log;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// Longest wait of one request; a client that wants to wait longer repeats it.
const WAIT_MAX: Duration = Duration::from_secs(2);

impl ServerTables {
    /// Runs requests that may run any number of times.
    pub(super) fn read(
        &self,
        caller: Caller,
        method: Method,
        head: Head,
        mut body: Body<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        match method {
            Method::PullSparse => {
                let rows = self.rows(head.table)?;
                let ids = body.u64s(head.count)?;
                body.end()?;
                let mode = pull_mode(head.argument)?;
                fill_f32s(answer, ids.len() * rows.pull_width(), |out| rows.pull(&ids, out, mode))
            }
            Method::PullDense => {
                let Table::Dense(table) = self.table(head.table)? else { return wrong(head) };
                fill_f32s(answer, table.config().len, |out| table.pull_by(caller.worker, out))
            }
            Method::Wait => {
                let at = arrival(head.argument)?;
                let timeout = Duration::from_millis(body.u64()?).min(WAIT_MAX);
                let worker = caller.worker as u32;
                let missing = self.barrier.missing_after(worker, at, head.count, timeout)?;
                for (worker, sign) in self.awaited(missing) {
                    let [kind, span] = sign.numbers();
                    answer.extend(bytes_of(&[worker, kind, span]).iter());
                }
                Ok(())
            }
            Method::Heartbeat => {
                self.presence.set_steps(caller, head.count);
                self.progress.set_complete(caller, head.complete);
                Ok(())
            }
            Method::Workers => {
                for worker in 0..self.job.worker_count {
                    let ([kind, span], (steps, starts)) =
                        (self.sign(worker as u32).0.numbers(), self.presence.steps(worker));
                    let has_finished = self.barrier.has_finished(worker as u32).into();
                    let complete = self.progress.of(worker).complete;
                    let (kind, span, starts) = (kind.into(), span.into(), starts as u64);
                    let numbers = [kind, span, steps, starts, has_finished, complete];
                    answer.extend(bytes_of::<u64>(&numbers).iter());
                }
                Ok(())
            }
            Method::Rounds => {
                answer.extend(self.barrier.rounds(arrival(head.argument)?).to_le_bytes());
                Ok(())
            }
            Method::Stats => {
                answer.extend(bytes_of(&self.stats(head.table)?.numbers()).iter());
                Ok(())
            }
            Method::LastSave => {
                let last = job::last_id(&*self.disk, Path::new(body.text()?))?;
                answer.extend(last.to_le_bytes());
                Ok(())
            }
            Method::Compare => {
                self.compare(body.text()?)?;
                self.check_acknowledged(caller, [body.u64()?, body.u64()?, body.u64()?])?;
                answer.extend(bytes_of(&[self.server as u64, self.life]).iter());
                Ok(())
            }
            Method::Stop => {
                self.stop();
                Ok(())
            }
            _ => Err(Error::internal("modifying request handled as a read")),
        }
    }

    /// Runs requests that must run once.
    pub(super) fn change(
        &self,
        caller: Caller,
        method: Method,
        head: Head,
        mut body: Body<'_>,
        answer: &mut Vec<u8>,
    ) -> Result<()> {
        match method {
            Method::PushSparse => self.push_sparse(caller, head, body),
            Method::PushDense | Method::SetDense => {
                let Table::Dense(table) = self.table(head.table)? else { return wrong(head) };
                let numbers = body.rest_f32s()?;
                match method {
                    Method::PushDense => {
                        self.presence.set_steps(caller, head.count);
                        table.push_by(caller.worker, &numbers)
                    }
                    _ => table.begin(&numbers).map(drop),
                }
            }
            Method::SetRateScale => {
                let scale = f32::from_bits(head.argument);
                match self.table(head.table)? {
                    Table::Dense(table) => table.set_rate_scale(scale),
                    Table::Sparse { rows, .. } => rows.set_rate_scale(scale),
                    Table::Geo(_) | Table::GlobalStep(_) => wrong(head),
                }
            }
            Method::PushGeo => {
                let Table::Geo(table) = self.table(head.table)? else { return wrong(head) };
                let ids = body.u64s(head.count)?;
                table.push(caller.worker, &ids, &body.rest_f32s()?)
            }
            Method::PullGeo => {
                let Table::Geo(table) = self.table(head.table)? else { return wrong(head) };
                let (ids, rows) = table.pull_changed(caller.worker)?;
                answer.extend((ids.len() as u64).to_le_bytes());
                answer.extend(bytes_of(&ids).iter());
                answer.extend(bytes_of(&rows).iter());
                Ok(())
            }
            Method::PushSteps => {
                let Table::GlobalStep(table) = self.table(head.table)? else { return wrong(head) };
                answer.extend(table.push(head.argument).to_le_bytes());
                Ok(())
            }
            Method::Arrive => {
                let at = arrival(head.argument)?;
                self.presence.set_steps(caller, head.count);
                self.progress.set_complete(caller, head.complete);
                let mut applied = Ok(());
                let last = |workers| applied = self.apply_pending(at, workers);
                let round = self.barrier.arrive(caller.worker as u32, at, last)?;
                answer.extend(round.to_le_bytes());
                applied
            }
            Method::Finish => {
                self.presence.set_steps(caller, head.count);
                self.progress.set_complete(caller, head.complete);
                let mut applied = Ok(());
                let last = |at, workers| applied = self.apply_pending(at, workers);
                let all = self.barrier.finish(caller.worker as u32, last)?;
                answer.push(u8::from(all));
                applied
            }
            Method::Shrink => {
                let days = (head.argument != DAYS_DEFAULT).then_some(head.argument);
                let days = days.map(|days| u8::try_from(days).unwrap_or(u8::MAX));
                answer.extend(self.rows(head.table)?.shrink(days)?.to_le_bytes());
                Ok(())
            }
            Method::Clear => {
                answer.extend(self.clear(head.table)?.to_le_bytes());
                Ok(())
            }
            Method::Save => {
                let mode = SaveMode::parse(i64::from(head.argument & !(BINARY | ONE)))?;
                let binary = head.argument & BINARY != 0;
                let format = if binary { SaveFormat::Binary } else { SaveFormat::Text };
                let dir = Path::new(body.text()?);
                let saved =
                    self.save(caller, (dir, self.named(head)?), head.count, mode, format)?;
                answer.extend(bytes_of(&[saved.row_count, saved.bytes]).iter());
                Ok(())
            }
            Method::BeginRun => {
                self.progress.begin_run(caller, head.count, head.complete);
                Ok(())
            }
            Method::Adopt => {
                let own = self.progress.of(caller.worker);
                progress::write(own.base, own.complete, &own.tables, answer);
                Ok(())
            }
            Method::Resume => {
                let before = self.progress.of(caller.worker).client;
                let steps = self.progress.adopt(caller, head.complete);
                if before != caller.client {
                    self.sessions.retire(before);
                }
                self.presence.adopt(caller, steps);
                Ok(())
            }
            Method::NewRun => {
                self.barrier.begin_run();
                Ok(())
            }
            Method::Settle => self.settle(head.count),
            Method::EndSave => self.end_save(caller, head.count, head.argument == 1),
            Method::Load => {
                let tables = self.named(head)?;
                let dir = Path::new(body.text()?);
                let loaded = self.load(dir, tables.as_ref().map(std::slice::from_ref))?;
                answer.extend(loaded.to_le_bytes());
                Ok(())
            }
            _ => Err(Error::internal("read request handled as a modification")),
        }
    }

    fn push_sparse(&self, caller: Caller, head: Head, mut body: Body<'_>) -> Result<()> {
        let Table::Sparse { rows, pending } = self.table(head.table)? else { return wrong(head) };
        let ids = body.u64s(head.count)?;
        let width = rows.push_width() as u64;
        let grads = body.f32s(head.count.saturating_mul(width))?;
        let has = |flag: u32| head.argument & flag != 0;
        let shows = has(SHOWS).then(|| body.f32s(head.count)).transpose()?;
        let clicks = has(CLICKS).then(|| body.f32s(head.count)).transpose()?;
        let slots = has(SLOTS).then(|| body.u32s(head.count)).transpose()?;
        body.end()?;
        let push = Push {
            ids: &ids,
            grads: &grads,
            shows: shows.as_deref(),
            clicks: clicks.as_deref(),
            slots: slots.as_deref(),
        };
        if !self.job.sync {
            return rows.push(push);
        }
        let screened = rows.screen(&push)?;
        lock(pending).hold(caller.worker, head.seq, push, &screened)
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

    /// Applies the held pushes, when all workers have sent theirs.
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

    /// Returns the table that a request is limited to, if it is.
    fn named(&self, head: Head) -> Result<Option<u32>> {
        match head.argument & ONE {
            0 => Ok(None),
            _ => self.table(head.table).map(|_| Some(head.table)),
        }
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

    /// Checks that a client has the same job: its text must equal that of this server's
    /// [`JobTables`].
    fn compare(&self, theirs: &str) -> Result<()> {
        let ours = self.job.text();
        let Some(difference) = job_text::difference(&ours, theirs) else { return Ok(()) };
        let error = Error::invalid("the worker's tables differ from this server's")
            .expected(difference.expected)
            .got(difference.got)
            .help("run the same program, strategy and version of Fleet everywhere");
        Err(match difference.place.is_empty() {
            true => error,
            false => error.at(difference.place),
        })
    }
}

fn wrong<T>(head: Head) -> Result<T> {
    Err(Error::invalid(format!("wrong kind of table {} for this request", head.table)))
}

fn arrival(argument: u32) -> Result<Arrival> {
    match argument {
        0 => Ok(Arrival::Sent),
        1 => Ok(Arrival::Received),
        _ => Err(Error::invalid("unknown barrier").expected("0 or 1").got(argument)),
    }
}

fn pull_mode(argument: u32) -> Result<PullMode> {
    match argument {
        0 => Ok(PullMode::Train),
        1 => Ok(PullMode::Infer),
        2 => Ok(PullMode::InferInitial),
        _ => Err(Error::invalid("unknown pull mode").expected("0 to 2").got(argument)),
    }
}
