//! Threads that score rows.

use crate::queue::{Queue, Request, Rows, Scores};
use fleet_base::output::note;
use fleet_base::{Error, Result};
use fleet_job::serving::{RequestError, RowScorer, ServedModel};
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
    /// Scorers that no worker has taken yet.
    ready: Vec<RowScorer>,
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
                    fail(request, error);
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

    /// Returns a scorer of the current model.
    fn worker(&self) -> Result<(u64, Worker)> {
        let mut current = self.lock();
        // The lock is held, so the model cannot change meanwhile.
        let generation = self.generation.load(Ordering::Acquire);
        let model = Arc::clone(&current.model);
        let scorer = match current.ready.pop() {
            Some(scorer) => scorer,
            None => model.scorer()?,
        };
        Ok((generation, Worker { model, scorer }))
    }
}

impl Current {
    /// Makes scorers for all threads, and tries them.
    fn new(model: ServedModel, threads: usize) -> Result<Current> {
        let model = Arc::new(model);
        let tried = || {
            let mut scorer = model.scorer()?;
            scorer.warm_up()?;
            Ok(scorer)
        };
        let ready: Result<Vec<RowScorer>> = (0..threads).map(|_| tried()).collect();
        Ok(Current { ready: ready?, model })
    }
}

/// A thread's model.
struct Worker {
    model: Arc<ServedModel>,
    scorer: RowScorer,
}

impl Worker {
    /// Scores a request, and others that wait if they are small.
    fn run(&mut self, first: Request, workers: &Workers) {
        self.scorer.clear();
        let mut added = Vec::new();
        let mut rows = 0;
        let mut next = Some(first);
        while let Some(request) = next {
            // A client that is gone needs no scores.
            if !request.answer.is_closed() {
                match self.add(&request.rows, workers.rows_max) {
                    Ok(range) => {
                        rows = range.end;
                        added.push((request, range));
                    }
                    Err(error) => drop(request.answer.send(Err(error))),
                }
            }
            next = if rows < ROWS_TOGETHER { workers.queue.try_take() } else { None };
        }
        let width = self.model.width();
        match self.scorer.score() {
            Ok(scores) => {
                for (request, range) in added {
                    let values = scores[range.start * width..range.end * width].to_vec();
                    let scores = Scores { values, model: Arc::clone(&self.model) };
                    drop(request.answer.send(Ok(scores)));
                }
            }
            Err(error) => {
                note(format!("cannot score {rows} rows: {error}"));
                added.into_iter().for_each(|(request, _)| fail(request, error.clone()));
            }
        }
    }

    fn add(&mut self, rows: &Rows, rows_max: usize) -> Result<Range<usize>, RequestError> {
        match rows {
            Rows::Json(body) => self.scorer.add_json(body, rows_max),
            #[cfg(feature = "grpc")]
            Rows::Table(request) => {
                let columns = request.columns().map_err(RequestError::of_request)?;
                self.scorer.add_table(columns, rows_max)
            }
        }
    }
}

/// Answers a request with a fault of the server.
fn fail(request: Request, error: Error) {
    let message = format!("rows cannot be scored: {}", error.message());
    drop(request.answer.send(Err(RequestError::of_request(Error::internal(message)))));
}
