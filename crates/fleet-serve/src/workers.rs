//! Threads that score rows.

use crate::queue::{Items, Queue, Reply, Request, Rows, Scores, Users};
use fleet_base::output::note;
use fleet_base::{Error, ErrorKind, Result};
use fleet_job::serving::{
    Recommended, Recommender, RequestError, RowScorer, ServedModel, no_items,
};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The threads, and the model that they use.
pub struct Workers {
    /// Requests that wait.
    pub queue: Queue,
    rows_max: usize,
    threads: usize,
    current: Mutex<Current>,
    /// Counts the models; workers compare it without a lock.
    generation: AtomicU64,
}

struct Current {
    model: Arc<ServedModel>,
    /// Parts that no worker has taken yet.
    ready: Vec<Parts>,
}

/// A thread's part of a model.
struct Parts {
    scorer: RowScorer,
    recommender: Option<Recommender>,
}

/// Rows up to which a worker adds further requests that wait. A run of fewer rows takes almost as
/// long as one of this number.
const ROWS_TOGETHER: usize = 64;

impl Workers {
    /// Starts threads that use a model.
    pub fn start(
        model: ServedModel,
        threads: usize,
        queue_max: usize,
        rows_max: usize,
    ) -> Result<(Arc<Workers>, Vec<JoinHandle<()>>)> {
        let current = Mutex::new(Current::new(model, threads)?);
        let queue = Queue::new(queue_max);
        let generation = AtomicU64::new(0);
        let workers = Arc::new(Workers { queue, rows_max, threads, current, generation });
        let start = |index: usize| {
            let workers = Arc::clone(&workers);
            std::thread::Builder::new()
                .name(format!("fleet-serve-{index}"))
                .spawn(move || workers.work())
                .map_err(|error| Error::unavailable(format!("cannot start a thread: {error}")))
        };
        let running: Result<Vec<_>> = (0..threads).map(start).collect();
        Ok((Arc::clone(&workers), running?))
    }

    /// Returns the model.
    pub fn model(&self) -> Arc<ServedModel> {
        Arc::clone(&self.lock().model)
    }

    /// Changes to another model, which was tried. Requests that are being scored end with the old
    /// one.
    pub fn change(&self, model: ServedModel) -> Result<()> {
        let next = Current::new(model, self.threads)?;
        *self.lock() = next;
        self.generation.fetch_add(1, Ordering::Release);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut own: Option<(u64, Worker)> = None;
        while let Some(request) = self.queue.take() {
            let generation = self.generation.load(Ordering::Acquire);
            let current = own.take().filter(|(held, _)| *held == generation);
            let (held, mut worker) = match current.map_or_else(|| self.worker(), Ok) {
                Ok(current) => current,
                Err(error) => {
                    fail(request, &error);
                    continue;
                }
            };
            // A panic loses the requests of this run, not the thread. It has been printed.
            let outcome = catch_unwind(AssertUnwindSafe(|| worker.run(request, self)));
            if outcome.is_ok() {
                own = Some((held, worker));
            }
        }
    }

    /// Returns a part of the current model.
    fn worker(&self) -> Result<(u64, Worker)> {
        let mut current = self.lock();
        // The lock is held, so the model cannot change meanwhile.
        let generation = self.generation.load(Ordering::Acquire);
        let model = Arc::clone(&current.model);
        let parts = current.ready.pop().map_or_else(|| Parts::new(&model), Ok)?;
        Ok((generation, Worker { model, parts }))
    }
}

impl Parts {
    fn new(model: &ServedModel) -> Result<Parts> {
        Ok(Parts { scorer: model.scorer()?, recommender: model.recommender()? })
    }

    /// Makes the plans of most requests.
    fn warm_up(mut self) -> Result<Parts> {
        self.scorer.warm_up()?;
        self.recommender.as_mut().map_or(Ok(()), Recommender::warm_up)?;
        Ok(self)
    }
}

impl Current {
    /// Makes the parts of all threads, and tries them.
    fn new(model: ServedModel, threads: usize) -> Result<Current> {
        let model = Arc::new(model);
        let tried = || Parts::new(&model).and_then(Parts::warm_up);
        let ready: Result<Vec<Parts>> = (0..threads).map(|_| tried()).collect();
        Ok(Current { ready: ready?, model })
    }
}

/// A thread's model.
struct Worker {
    model: Arc<ServedModel>,
    parts: Parts,
}

impl Worker {
    fn run(&mut self, request: Request, workers: &Workers) {
        match request {
            Request::Score(rows, reply) => self.score(rows, reply, workers),
            // A client that is gone needs no items.
            Request::Recommend(_, reply) if reply.is_closed() => {}
            Request::Recommend(users, reply) => {
                let found = self.recommend(&users, workers.rows_max);
                if let Err(fault) = &found
                    && fault.error.kind() == ErrorKind::Internal
                {
                    note(format!("cannot recommend items: {}", fault.error));
                }
                let items = found.map(|found| Items { found, model: Arc::clone(&self.model) });
                drop(reply.send(items));
            }
        }
    }

    fn recommend(&mut self, users: &Users, rows_max: usize) -> Result<Recommended, RequestError> {
        let recommender = self.parts.recommender.as_mut();
        let recommender = recommender.ok_or_else(|| RequestError::of_request(no_items()))?;
        match users {
            Users::Json(body) => recommender.json(body, rows_max),
            #[cfg(feature = "grpc")]
            Users::Table(request) => {
                let columns = crate::message::columns(&request.columns);
                let columns = columns.map_err(RequestError::of_request)?;
                recommender.table(columns, request.wanted(), rows_max)
            }
        }
    }

    /// Scores a request, and others that wait if they are small.
    fn score(&mut self, rows: Rows, reply: Reply<Scores>, workers: &Workers) {
        self.parts.scorer.clear();
        let mut added = Vec::new();
        let mut count = 0;
        let mut next = Some((rows, reply));
        while let Some((rows, reply)) = next {
            // A client that is gone needs no scores.
            if !reply.is_closed() {
                match self.add(&rows, workers.rows_max) {
                    Ok(range) => {
                        count = range.end;
                        added.push((reply, range));
                    }
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            next = if count < ROWS_TOGETHER { workers.queue.try_take_rows() } else { None };
        }
        let width = self.model.width();
        match self.parts.scorer.score() {
            Ok(scores) => {
                for (reply, range) in added {
                    let values = scores[range.start * width..range.end * width].to_vec();
                    let scores = Scores { values, model: Arc::clone(&self.model) };
                    drop(reply.send(Ok(scores)));
                }
            }
            Err(error) => {
                note(format!("cannot score {count} rows: {error}"));
                let fault = || fault("rows cannot be scored", &error);
                added.into_iter().for_each(|(reply, _)| drop(reply.send(Err(fault()))));
            }
        }
    }

    fn add(&mut self, rows: &Rows, rows_max: usize) -> Result<Range<usize>, RequestError> {
        match rows {
            Rows::Json(body) => self.parts.scorer.add_json(body, rows_max),
            #[cfg(feature = "grpc")]
            Rows::Table(request) => {
                let columns = crate::message::columns(&request.columns);
                let columns = columns.map_err(RequestError::of_request)?;
                self.parts.scorer.add_table(columns, rows_max)
            }
        }
    }
}

/// Answers a request with a fault of the server.
fn fail(request: Request, error: &Error) {
    let fault = fault("the request cannot be answered", error);
    match request {
        Request::Score(_, reply) => drop(reply.send(Err(fault))),
        Request::Recommend(_, reply) => drop(reply.send(Err(fault))),
    }
}

fn fault(what: &str, error: &Error) -> RequestError {
    RequestError::of_request(Error::internal(format!("{what}: {}", error.message())))
}
