//! A worker's side: splits ids by server, merges equal ids, and sends requests to all servers at
//! once.
//!
//! [`Client`] is the same wherever the servers are; a [`Transport`] delivers its requests.

mod admin;
mod barriers;
mod connections;
mod heartbeats;
pub(crate) mod local;
#[cfg(test)]
mod lossy;
mod missing;
mod remote;
mod run;
mod split;
mod tables;
#[cfg(test)]
pub(crate) mod tests;

pub use local::LocalServers;
pub use remote::{IsOver, RemoteOptions, RemoteServers};

use crate::message::Body;
use crate::request::{Message, Request, Stamp};
use crate::server::{Caller, OPERATOR, WORKER_TIMEOUT};
use crate::{JobTables, Merger, Progress, Step};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use split::Split;
use std::collections::BTreeSet;
use std::ops::Range;
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

/// A worker's [`Servers`](crate::Servers), over any transport. Each part of the interface has a
/// file of its own.
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
    scratch: Mutex<Vec<Scratch>>,
}

/// Memory of a pull or push, for reuse.
#[derive(Default)]
struct Scratch {
    merger: Merger,
    split: Split,
}

/// Sequence numbers of changing requests.
#[derive(Default)]
struct Numbers {
    next: u64,
    open: BTreeSet<u64>,
}

/// Default of the longest wait of a barrier: the documented deadline of a request.
pub(crate) const DEADLINE_DEFAULT: Duration = Duration::from_secs(180);
/// All kinds of tables.
const KINDS: [&str; 4] = ["sparse", "geo", "dense", "global step"];

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
            scratch: Mutex::default(),
        })
    }

    /// Sets how long a barrier waits for the other workers.
    pub fn with_patience(self, patience: Duration) -> Client<T> {
        Client { barrier_timeout: patience, ..self }
    }

    /// Sends requests to servers; returns the answers in the order of the requests, or the first
    /// error. They contain gradients of this worker's steps up to `step`, if given.
    fn ask(&self, step: Option<Step>, requests: &[(usize, Request<'_>)]) -> Result<Vec<Vec<u8>>> {
        let step = step.map_or(0, Step::number);
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
    fn was_sent(&self, server: usize, table: u32, step: Option<Step>) -> bool {
        step.is_some_and(|step| lock(&self.sent_before).has(server, table, step))
    }

    /// Sends the same request to all servers.
    fn ask_all<'a>(&self, request: impl Into<Request<'a>>) -> Result<Vec<Vec<u8>>> {
        self.ask_some(0..self.job.server_count, &request.into())
    }

    fn ask_some(&self, servers: Range<usize>, request: &Request<'_>) -> Result<Vec<Vec<u8>>> {
        let requests: Vec<_> = servers.map(|server| (server, request.clone())).collect();
        self.ask(None, &requests)
    }

    /// Sends the same request to all servers, each of which answers a number.
    fn ask_numbers<'a>(&self, request: impl Into<Request<'a>>) -> Result<Vec<u64>> {
        self.ask_all(request)?.iter().map(|answer| number(answer)).collect()
    }

    /// Like [`Client::ask_numbers`], but returns their sum.
    fn ask_sum<'a>(&self, request: impl Into<Request<'a>>) -> Result<u64> {
        Ok(self.ask_numbers(request)?.into_iter().sum())
    }

    /// Makes requests; adds this worker to their error.
    fn placed<R>(&self, ask: impl FnOnce() -> Result<R>) -> Result<R> {
        ask().map_err(|error| error.at(Caller { worker: self.worker, client: 0 }))
    }
}

fn number(answer: &[u8]) -> Result<u64> {
    Body(answer).u64()
}
