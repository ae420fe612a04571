//! A worker's side: splits ids by server, merges equal ids, and sends requests to all servers at
//! once.
//!
//! [`Client`] is the same wherever the servers are; a [`Transport`] delivers its requests.

mod heartbeats;
pub(crate) mod local;
#[cfg(test)]
mod lossy;
mod missing;
mod place;
mod remote;
#[cfg(test)]
pub(crate) mod tests;

pub use local::LocalServers;
pub use remote::{IsOver, RemoteOptions, RemoteServers};

use crate::message::copy_f32s;
use crate::request::{Change, Message, Read, Request, Stamp};
use crate::server::{Caller, OPERATOR, WORKER_TIMEOUT};
use crate::{
    Arrival, DenseCut, JobTables, Progress, PullMode, Push, SaveFormat, SaveMode, Saved, Servers,
    SparseConfig, TableConfig, TableStats, WorkerSeen, progress, seen,
};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_net::Time;
use missing::Missing;
use place::Split;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Delivers requests to servers.
pub trait Transport: Send + Sync {
    /// Sends all requests, at most one to a server, and waits for all answers. A changing request
    /// runs at most once; an error may leave open whether it ran.
    fn exchange(&self, requests: &[Message<'_>]) -> Vec<Result<Vec<u8>>>;

    /// Takes back used answers, whose memory later answers reuse.
    fn recycle(&self, _answers: Vec<Vec<u8>>) {}

    /// Writes a line to this worker's log.
    fn log_line(&self, _line: &str) {}

    /// Fails if waits for other workers must end.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// A worker's [`Servers`], over any transport.
pub struct Client<T> {
    job: JobTables,
    worker: usize,
    /// Longest wait of a barrier for the other workers.
    barrier_timeout: Duration,
    /// Silence after which a worker is lost.
    silent_after: Duration,
    transport: T,
    /// Steps that this process has made.
    steps: Arc<AtomicU64>,
    /// Steps whose gradients all servers have, including those of earlier processes and runs.
    complete: Arc<AtomicU64>,
    /// Progress of earlier processes of this worker, if it resumes from that.
    sent_before: Mutex<Progress>,
    numbers: Mutex<Numbers>,
    splits: Mutex<Vec<Split>>,
}

/// Sequence numbers of changing requests.
#[derive(Default)]
struct Numbers {
    next: u64,
    open: BTreeSet<u64>,
}

/// Default of the longest wait of a barrier: the documented deadline of a request.
pub(crate) const DEADLINE_DEFAULT: Duration = Duration::from_secs(180);
/// A barrier that takes longer is logged.
const BARRIER_LOG_AFTER: Duration = Duration::from_secs(3);
/// All kinds of tables.
const KINDS: [&str; 4] = ["sparse", "geo", "dense", "global step"];
/// Limit on the sets of scratch memory kept for reuse.
const SPLITS_MAX: usize = 64;

impl<T: Transport> Client<T> {
    pub(crate) fn over(job: &JobTables, worker: usize, transport: T) -> Result<Client<T>> {
        job.check()?;
        if worker != OPERATOR && worker >= job.worker_count {
            return Err(Error::invalid("worker number is outside the job")
                .expected(format!("a number below {}", job.worker_count))
                .got(worker));
        }
        Ok(Client {
            job: job.clone(),
            worker,
            barrier_timeout: DEADLINE_DEFAULT,
            silent_after: WORKER_TIMEOUT,
            transport,
            steps: Arc::default(),
            complete: Arc::default(),
            sent_before: Mutex::default(),
            numbers: Mutex::default(),
            splits: Mutex::default(),
        })
    }

    /// Sets how long a barrier waits for the other workers.
    pub fn with_patience(self, patience: Duration) -> Client<T> {
        Client { barrier_timeout: patience, ..self }
    }

    /// Sends requests to servers; returns the answers in the order of the requests, or the first
    /// error. They contain gradients of this worker's steps up to `step`, or none if it is 0.
    fn ask(&self, step: u64, requests: &[(usize, Request<'_>)]) -> Result<Vec<Vec<u8>>> {
        let mut stamp = Stamp { step, complete: self.complete.load(Relaxed), ..Stamp::default() };
        let changes = matches!(requests.first(), Some((_, Request::Change(_))));
        if changes {
            let mut numbers = lock(&self.numbers);
            stamp.seq = numbers.next;
            numbers.next += 1;
            numbers.open.insert(stamp.seq);
            stamp.done = numbers.open.first().copied().unwrap_or(stamp.seq);
        }
        let messages: Vec<Message<'_>> = requests
            .iter()
            .map(|(server, request)| Message::new(*server, stamp, request))
            .collect();
        let answers = self.transport.exchange(&messages);
        if changes {
            let mut numbers = lock(&self.numbers);
            numbers.open.remove(&stamp.seq);
        }
        answers.into_iter().collect()
    }

    /// Returns whether an earlier process of this worker has sent a server its gradients of a step.
    fn was_sent(&self, server: usize, table: u32, step: u64) -> bool {
        lock(&self.sent_before).has(server, table, step)
    }

    /// Sends the same request to all servers.
    fn ask_all<'a>(&self, request: impl Into<Request<'a>>) -> Result<Vec<Vec<u8>>> {
        self.ask_some(0..self.job.server_count, &request.into())
    }

    fn ask_some(&self, servers: Range<usize>, request: &Request<'_>) -> Result<Vec<Vec<u8>>> {
        let requests: Vec<_> = servers.map(|server| (server, request.clone())).collect();
        self.ask(0, &requests)
    }

    /// Sends the same request to all servers; returns the sum of the numbers that they answer.
    fn ask_sum<'a>(&self, request: impl Into<Request<'a>>) -> Result<u64> {
        self.ask_all(request)?.iter().map(|answer| number(answer)).sum()
    }

    /// Returns the config of a table's rows; the table must be one of `kinds`.
    fn rows_config(&self, table: u32, kinds: &[&str]) -> Result<&SparseConfig> {
        match self.job.table(table, kinds)? {
            TableConfig::Sparse(config) | TableConfig::Geo(config) => Ok(config),
            TableConfig::Dense { .. } | TableConfig::GlobalStep { .. } => {
                Err(Error::invalid(format!("table {table} has no rows")))
            }
        }
    }

    /// Returns the length of a dense table, which must be `numbers`, and its division among the
    /// servers.
    fn dense_cut(&self, table: u32, numbers: usize) -> Result<(usize, &DenseCut)> {
        match self.job.table(table, &["dense"])? {
            TableConfig::Dense { len, options, .. } if *len == numbers => Ok((*len, &options.cut)),
            TableConfig::Dense { len, .. } => {
                Err(wrong_length(table, "the numbers of a dense table", *len, numbers))
            }
            _ => Err(Error::invalid(format!("table {table} is not dense"))),
        }
    }

    /// Sends each server a request with its part of the numbers of a dense table.
    fn send_dense<'a>(
        &self,
        (table, step): (u32, u64),
        numbers: &'a [f32],
        request: impl Fn(Cow<'a, [f32]>) -> Change<'a>,
    ) -> Result<()> {
        let cut = self.dense_cut(table, numbers.len())?;
        let part = |ranges: Vec<Range<usize>>| match ranges.as_slice() {
            [range] => Cow::Borrowed(&numbers[range.clone()]),
            many => many.iter().flat_map(|range| &numbers[range.clone()]).copied().collect(),
        };
        let requests: Vec<_> = self
            .dense_parts(cut)
            .filter(|(server, _)| !self.was_sent(*server, table, step))
            .map(|(server, ranges)| (server, request(part(ranges)).into()))
            .collect();
        self.ask(step, &requests).map(drop)
    }

    /// Returns the servers that have a part of a dense table, with their ranges.
    fn dense_parts(
        &self,
        (len, cut): (usize, &DenseCut),
    ) -> impl Iterator<Item = (usize, Vec<Range<usize>>)> {
        let count = self.job.server_count;
        (0..count)
            .map(move |server| (server, cut.ranges(len, server, count)))
            .filter(|(_, ranges)| !ranges.is_empty())
    }

    fn with_split<R>(&self, run: impl FnOnce(&mut Split) -> R) -> R {
        let kept = lock(&self.splits).pop();
        let mut split = kept.unwrap_or_default();
        let result = run(&mut split);
        let mut splits = lock(&self.splits);
        if splits.len() < SPLITS_MAX {
            splits.push(split);
        }
        result
    }

    fn place(&self, error: Error) -> Error {
        error.at(Caller { worker: self.worker, client: 0 })
    }

    fn try_pull_sparse(
        &self,
        table: u32,
        ids: &[u64],
        rows: &mut [f32],
        mode: PullMode,
    ) -> Result<()> {
        let width = self.rows_config(table, &["sparse", "geo"])?.pull_width();
        if rows.len() != ids.len() * width {
            return Err(wrong_length(table, "the rows", ids.len() * width, rows.len()));
        }
        self.with_split(|split| {
            split.ids(ids, self.job.server_count);
            let pull = |ids| Read::PullSparse { table, mode, ids: Cow::Borrowed(ids) };
            let requests: Vec<_> =
                split.parts().map(|(server, ids)| (server, pull(ids).into())).collect();
            let answers = self.ask(0, &requests)?;
            for ((_, ids), answer) in split.parts().zip(&answers) {
                check_answer(answer, ids.len() * width * 4)?;
            }
            split.spread(&answers, width, rows);
            self.transport.recycle(answers);
            Ok(())
        })
    }

    fn try_push_sparse(&self, step: u64, table: u32, push: Push<'_>) -> Result<()> {
        let config = self.rows_config(table, &["sparse"])?;
        let (width, count) = (config.push_width(), push.ids.len());
        for (what, len, width) in [
            ("the gradients", Some(push.grads.len()), width),
            ("the shows", push.shows.map(<[f32]>::len), 1),
            ("the clicks", push.clicks.map(<[f32]>::len), 1),
            ("the slots", push.slots.map(<[u32]>::len), 1),
        ] {
            if len.is_some_and(|len| len != count * width) {
                return Err(wrong_length(table, what, count * width, len.unwrap_or(0)));
            }
        }
        self.with_split(|split| {
            split.ids(push.ids, self.job.server_count);
            let grads = split.merger().merged(push.grads, width)?;
            let extras = split.merger().merge_extras(&push, config)?;
            let parts: Vec<_> = split.parts().collect();
            let requests: Vec<_> = (parts.iter().enumerate())
                .filter(|(_, (server, _))| !self.was_sent(*server, table, step))
                .map(|(part, (server, ids))| {
                    let push = Change::PushSparse {
                        table,
                        ids: Cow::Borrowed(*ids),
                        grads: split.part_of(part, &grads, width),
                        shows: extras.shows.as_deref().map(|it| split.part_of(part, it, 1)),
                        clicks: extras.clicks.as_deref().map(|it| split.part_of(part, it, 1)),
                        slots: extras.slots.as_deref().map(|it| split.part_of(part, it, 1)),
                    };
                    (*server, push.into())
                })
                .collect();
            self.ask(step, &requests).map(drop)
        })
    }

    fn try_push_geo(&self, step: u64, table: u32, ids: &[u64], differences: &[f32]) -> Result<()> {
        let config = self.rows_config(table, &["geo"])?;
        let width = config.push_width();
        if differences.len() != ids.len() * width {
            return Err(wrong_length(
                table,
                "the differences",
                ids.len() * width,
                differences.len(),
            ));
        }
        self.with_split(|split| {
            split.ids(ids, self.job.server_count);
            let merged = split.merger().merged(differences, width)?;
            let parts: Vec<_> = split.parts().collect();
            let requests: Vec<_> = (parts.iter().enumerate())
                .map(|(part, (server, ids))| {
                    let (ids, differences) =
                        (Cow::Borrowed(*ids), split.part_of(part, &merged, width));
                    (*server, Change::PushGeo { table, ids, differences }.into())
                })
                .collect();
            self.ask(step, &requests).map(drop)
        })
    }

    fn try_pull_geo(&self, table: u32) -> Result<(Vec<u64>, Vec<f32>)> {
        let width = self.rows_config(table, &["geo"])?.pull_width() as u64;
        let (mut ids, mut rows) = (Vec::new(), Vec::new());
        for answer in self.ask_all(Change::PullGeo { table })? {
            let mut body = crate::message::Body(&answer);
            let count = body.u64()?;
            ids.extend(body.u64s(count)?.iter());
            rows.extend(body.f32s(count.saturating_mul(width))?.iter());
            body.end()?;
        }
        Ok((ids, rows))
    }

    /// Saves in two phases: all servers write, and then all keep the save or none does.
    fn try_save(
        &self,
        table: Option<u32>,
        dir: &Path,
        mode: SaveMode,
        format: SaveFormat,
    ) -> Result<Saved> {
        let dir = text(dir)?;
        let last = self.ask_all(Read::LastSave { dir })?;
        let last = last.iter().map(|answer| number(answer)).collect::<Result<Vec<u64>>>()?;
        let id = last.into_iter().max().unwrap_or(0) + 1;
        self.check_known(table)?;
        let saved = self.ask_all(Change::Save { id, table, dir, mode, format });
        let ended = self.ask_all(Change::EndSave { id, keep: saved.is_ok() });
        let mut sum = Saved::default();
        for answer in saved? {
            let mut body = crate::message::Body(&answer);
            sum.row_count += body.u64()?;
            sum.bytes += body.u64()?;
        }
        ended.map(|_| sum)
    }

    /// Checks that the table of a save or load is one of the job.
    fn check_known(&self, table: Option<u32>) -> Result<()> {
        table.map_or(Ok(()), |table| self.job.table(table, &KINDS).map(drop))
    }

    fn try_load(&self, table: Option<u32>, dir: &Path) -> Result<u64> {
        self.check_known(table)?;
        self.ask_sum(Change::Load { table, dir: text(dir)? })
    }

    /// Returns the number of rounds that all workers have completed, as each server counts it.
    fn rounds_of_each(&self, at: Arrival) -> Result<Vec<u64>> {
        self.ask_all(Read::Rounds { at })?.iter().map(|answer| number(answer)).collect()
    }

    /// Waits until all servers have opened a barrier.
    fn try_arrive(&self, at: Arrival) -> Result<()> {
        let rounds = self.ask_all(Change::Arrive { at, steps: self.steps.load(Relaxed) })?;
        let rounds: Vec<u64> = rounds.iter().map(|answer| number(answer)).collect::<Result<_>>()?;
        let start = Time::now();
        let mut closed: Vec<usize> = (0..self.job.server_count).collect();
        let mut is_logged = false;
        loop {
            let left = self.barrier_timeout.saturating_sub(Time::now().since(start));
            let wait = |server: usize| Read::Wait { at, round: rounds[server], timeout: left };
            let requests: Vec<_> =
                closed.iter().map(|server| (*server, wait(*server).into())).collect();
            let answers = self.ask(0, &requests)?;
            let mut missing = Missing::default();
            let mut still = Vec::new();
            for (server, answer) in closed.into_iter().zip(&answers) {
                if missing.add_answer(answer)? {
                    still.push(server);
                }
            }
            if still.is_empty() {
                if is_logged {
                    let seconds = Time::now().since(start).as_secs_f64();
                    self.transport.log_line(&format!("continues after {seconds:.1} s"));
                }
                return Ok(());
            }
            // If pushes are applied on receipt, the servers decide when to continue without a
            // worker.
            let silent_after = if self.job.sync { self.silent_after } else { WORKER_TIMEOUT };
            if let Some(error) = missing.lost(silent_after) {
                return Err(error);
            }
            if left.is_zero() {
                return Err(Error::unavailable("barrier timed out")
                    .expected(format!(
                        "{} workers within {:?} at '{at:?}'",
                        self.job.worker_count, self.barrier_timeout
                    ))
                    .got(format!("{} missing: {}", missing.count(), missing.names())));
            }
            if !is_logged && Time::now().since(start) >= BARRIER_LOG_AFTER {
                is_logged = true;
                self.transport.log_line(&format!("waits for {}", missing.describe()));
            }
            self.transport.check()?;
            closed = still;
        }
    }
}

impl<T: Transport> Servers for Client<T> {
    fn worker(&self) -> usize {
        self.worker
    }

    fn tables(&self) -> &JobTables {
        &self.job
    }

    fn pull_sparse(&self, table: u32, ids: &[u64], rows: &mut [f32], mode: PullMode) -> Result<()> {
        self.try_pull_sparse(table, ids, rows, mode).map_err(|error| self.place(error))
    }

    fn push_sparse_of(&self, step: u64, table: u32, push: Push<'_>) -> Result<()> {
        self.try_push_sparse(step, table, push).map_err(|error| self.place(error))
    }

    fn pull_dense(&self, table: u32, values: &mut [f32]) -> Result<()> {
        let mut pull = || {
            let cut = self.dense_cut(table, values.len())?;
            let parts: Vec<_> = self.dense_parts(cut).collect();
            let pull = || Read::PullDense { table }.into();
            let requests: Vec<_> = parts.iter().map(|(server, _)| (*server, pull())).collect();
            let answers = self.ask(0, &requests)?;
            for ((_, ranges), answer) in parts.into_iter().zip(&answers) {
                let count: usize = ranges.iter().map(ExactSizeIterator::len).sum();
                check_answer(answer, count * 4)?;
                let mut rest = answer.as_slice();
                for range in ranges {
                    let (own, others) = rest.split_at(range.len() * 4);
                    copy_f32s(own, &mut values[range]);
                    rest = others;
                }
            }
            self.transport.recycle(answers);
            Ok(())
        };
        pull().map_err(|error| self.place(error))
    }

    fn push_dense_of(&self, step: u64, table: u32, grad: &[f32]) -> Result<()> {
        let steps = self.steps.load(Relaxed);
        let push = |grad| Change::PushDense { table, steps, grad };
        self.send_dense((table, step), grad, push).map_err(|error| self.place(error))
    }

    fn set_dense(&self, table: u32, values: &[f32]) -> Result<()> {
        let set = |values| Change::SetDense { table, values };
        self.send_dense((table, 0), values, set).map_err(|error| self.place(error))
    }

    fn set_rate_scale(&self, table: u32, scale: f32) -> Result<()> {
        let set = || {
            self.job.table(table, &["dense", "sparse"])?;
            self.ask_all(Change::SetRateScale { table, scale }).map(drop)
        };
        set().map_err(|error| self.place(error))
    }

    fn push_geo_of(&self, step: u64, table: u32, ids: &[u64], differences: &[f32]) -> Result<()> {
        self.try_push_geo(step, table, ids, differences).map_err(|error| self.place(error))
    }

    fn pull_geo(&self, table: u32) -> Result<(Vec<u64>, Vec<f32>)> {
        self.try_pull_geo(table).map_err(|error| self.place(error))
    }

    fn push_steps_of(&self, step: u64, table: u32, steps: u32) -> Result<u64> {
        let push = || {
            self.job.table(table, &["global step"])?;
            // One server counts all steps.
            let server = table as usize % self.job.server_count;
            // A server that has these steps already is only asked for the total.
            let (step, steps) =
                if self.was_sent(server, table, step) { (0, 0) } else { (step, steps) };
            let answers = self.ask(step, &[(server, Change::PushSteps { table, steps }.into())])?;
            number(&answers[0])
        };
        push().map_err(|error| self.place(error))
    }

    fn count_step(&self) {
        self.steps.fetch_add(1, Relaxed);
    }

    fn begin_after(&self, base: u64, complete: u64) -> Result<()> {
        self.complete.store(complete, Relaxed);
        let answers = self.ask_all(Change::BeginRun { base });
        answers.map(drop).map_err(|error| self.place(error))
    }

    fn completed(&self, step: u64) {
        self.complete.fetch_max(step, Relaxed);
    }

    fn take_over(&self) -> Result<Progress> {
        let answers = self.ask_all(Change::Adopt);
        answers.and_then(|it| progress::merged(&it)).map_err(|error| self.place(error))
    }

    fn go_on(&self, progress: &Progress) -> Result<()> {
        self.complete.store(progress.complete, Relaxed);
        *lock(&self.sent_before) = progress.clone();
        let answers = self.ask_all(Change::Resume);
        answers.map(drop).map_err(|error| self.place(error))
    }

    fn settle(&self) -> Result<u64> {
        let settle = || -> Result<u64> {
            let steps = self.rounds_of_each(Arrival::Sent)?.into_iter().max().unwrap_or(0);
            self.ask_all(Change::Settle { steps })?;
            Ok(steps)
        };
        settle().map_err(|error| self.place(error))
    }

    fn workers(&self) -> Result<Vec<WorkerSeen>> {
        let answers = self.ask_all(Read::Workers);
        answers
            .and_then(|answers| seen::merged(&answers, self.job.worker_count))
            .map_err(|error| self.place(error))
    }

    fn arrive(&self, at: Arrival) -> Result<()> {
        self.try_arrive(at).map_err(|error| self.place(error))
    }

    fn rounds(&self, at: Arrival) -> Result<u64> {
        let rounds = self.rounds_of_each(at).map_err(|error| self.place(error))?;
        Ok(rounds.into_iter().min().unwrap_or(0))
    }

    fn finish(&self) -> Result<bool> {
        let finish = Change::Finish { steps: self.steps.load(Relaxed) }.into();
        let ask = |servers| self.ask_some(servers, &finish);
        // The first server decides which worker is the last, and is asked last. So when the last
        // worker stops all servers, no other worker still waits for an answer.
        ask(1..self.job.server_count)
            .and_then(|_| ask(0..1))
            .map(|answers| answers[0] == [1])
            .map_err(|error| self.place(error))
    }

    fn stop(&self) -> Result<()> {
        let answers = self.ask_all(Read::Stop);
        answers.map(drop).map_err(|error| self.place(error))
    }

    fn shrink(&self, table: u32, unseen_days: Option<u8>) -> Result<u64> {
        let shrink = || -> Result<u64> {
            self.job.table(table, &["sparse", "geo"])?;
            self.ask_sum(Change::Shrink { table, unseen_days })
        };
        shrink().map_err(|error| self.place(error))
    }

    fn clear(&self, table: u32) -> Result<u64> {
        let clear = || -> Result<u64> {
            self.job.table(table, &KINDS)?;
            self.ask_sum(Change::Clear { table })
        };
        clear().map_err(|error| self.place(error))
    }

    fn save(&self, dir: &Path, mode: SaveMode, format: SaveFormat) -> Result<Saved> {
        self.try_save(None, dir, mode, format).map_err(|error| self.place(error))
    }

    fn save_table(
        &self,
        table: u32,
        dir: &Path,
        mode: SaveMode,
        format: SaveFormat,
    ) -> Result<Saved> {
        self.try_save(Some(table), dir, mode, format).map_err(|error| self.place(error))
    }

    fn load_table(&self, table: u32, dir: &Path) -> Result<u64> {
        self.try_load(Some(table), dir).map_err(|error| self.place(error))
    }

    fn load(&self, dir: &Path) -> Result<u64> {
        self.try_load(None, dir).map_err(|error| self.place(error))
    }

    fn stats(&self, table: u32) -> Result<TableStats> {
        let stats = || {
            let mut sum = TableStats::default();
            for answer in self.ask_all(Read::Stats { table })? {
                let mut numbers = [0; TableStats::COUNT];
                let read = crate::message::Body(&answer).u64s(numbers.len() as u64)?;
                numbers.iter_mut().zip(read.iter()).for_each(|(number, read)| *number = *read);
                sum.add(&TableStats::from_numbers(numbers));
            }
            Ok(sum)
        };
        stats().map_err(|error| self.place(error))
    }
}

/// Returns a folder's name as text, which messages contain.
fn text(path: &Path) -> Result<&str> {
    path.to_str()
        .ok_or_else(|| Error::invalid(format!("the name of {} is not UTF-8", path.display())))
}

fn number(answer: &[u8]) -> Result<u64> {
    crate::message::Body(answer).u64()
}

fn check_answer(answer: &[u8], bytes: usize) -> Result<()> {
    match answer.len() == bytes {
        true => Ok(()),
        false => Err(Error::internal("a server's answer has the wrong length")
            .expected(format!("{bytes} bytes"))
            .got(answer.len())),
    }
}

fn wrong_length(table: u32, what: &str, expected: usize, got: usize) -> Error {
    Error::invalid(format!("{what} have the wrong length"))
        .expected(expected)
        .got(got)
        .at(format!("table {table}"))
}
