//! Rows of coming steps, requested ahead by threads of their own. Each has one request in flight.
//!
//! An answer is found by its table and its ids, all of them in order. So a mistaken request is
//! never used, and it is dropped after later requests.

use super::batch::{Batch, Batches};
use crate::TableAccess;
use crate::thread::Thread;
use fleet_base::Result;
use fleet_base::sync::{lock, wait};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};

/// Limit on the requests kept for a table: the next step's, and one more.
const KEPT_MAX: usize = 2;

pub(super) struct LookAhead {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    servers: Arc<dyn TableAccess>,
    batches: Arc<Batches>,
}

#[derive(Default)]
struct State {
    requests: VecDeque<Request>,
    next_number: u64,
    closed: bool,
}

struct Request {
    number: u64,
    table: u32,
    ids: Arc<Vec<u64>>,
    width: usize,
    answer: Answer,
}

enum Answer {
    /// Not to be sent before the current step has ended.
    Unsent,
    Queued,
    InFlight,
    Ready(Result<Rows>),
}

/// A batch, and a row for each of its distinct ids.
pub(super) type Rows = (Arc<Batch>, Vec<f32>);

impl LookAhead {
    pub fn start(
        servers: Arc<dyn TableAccess>,
        batches: Arc<Batches>,
        thread_count: usize,
    ) -> Result<LookAhead> {
        let (state, changed) = Default::default();
        let shared = Arc::new(Shared { state, changed, servers, batches });
        let mut look_ahead = LookAhead { shared, threads: Vec::new() };
        for _ in 0..thread_count {
            let shared = Arc::clone(&look_ahead.shared);
            look_ahead.threads.push(Thread::start("ps-look-ahead", move || shared.serve())?);
        }
        Ok(look_ahead)
    }

    /// Requests rows, at once or when the current step has ended.
    pub fn ask(&self, table: u32, ids: Vec<u64>, width: usize, at_once: bool) {
        let mut state = lock(&self.shared.state);
        let number = state.next_number;
        state.next_number += 1;
        let answer = if at_once { Answer::Queued } else { Answer::Unsent };
        state.requests.push_back(Request { number, table, ids: Arc::new(ids), width, answer });
        let of_table = state.requests.iter().filter(|request| request.table == table).count();
        if of_table > KEPT_MAX {
            let idle = |request: &Request| {
                request.table == table && !matches!(request.answer, Answer::InFlight)
            };
            if let Some(at) = state.requests.iter().position(idle) {
                state.requests.remove(at);
            }
        }
        self.shared.changed.notify_all();
    }

    /// Sends the requests that waited for the end of the step.
    pub fn release(&self) {
        let mut state = lock(&self.shared.state);
        for request in &mut state.requests {
            if matches!(request.answer, Answer::Unsent) {
                request.answer = Answer::Queued;
            }
        }
        self.shared.changed.notify_all();
    }

    /// Drops all requests, and waits for those in flight. Afterwards nothing is sent to the
    /// servers.
    pub fn end(&self) {
        let mut state = lock(&self.shared.state);
        state.requests.retain(|request| matches!(request.answer, Answer::InFlight));
        while state.requests.iter().any(|request| matches!(request.answer, Answer::InFlight)) {
            state = wait(&self.shared.changed, state);
        }
        state.requests.clear();
    }

    /// Takes the rows of these ids, if they were requested; waits for them if they are in flight.
    pub fn take(&self, table: u32, ids: &[u64]) -> Result<Option<Rows>> {
        let mut state = lock(&self.shared.state);
        loop {
            let found = state
                .requests
                .iter()
                .position(|request| request.table == table && request.ids.as_slice() == ids);
            let Some(at) = found else { return Ok(None) };
            match state.requests[at].answer {
                // Not sent yet: the caller can pull them just as fast.
                Answer::Unsent | Answer::Queued => {
                    state.requests.remove(at);
                    return Ok(None);
                }
                Answer::InFlight => {
                    state = wait(&self.shared.changed, state);
                }
                Answer::Ready(_) => {
                    let Some(Request { answer: Answer::Ready(rows), .. }) =
                        state.requests.remove(at)
                    else {
                        return Ok(None);
                    };
                    return rows.map(Some);
                }
            }
        }
    }
}

impl Drop for LookAhead {
    fn drop(&mut self) {
        let waits = {
            let mut state = lock(&self.shared.state);
            state.closed = true;
            state.requests.iter().any(|request| matches!(request.answer, Answer::InFlight))
        };
        self.shared.changed.notify_all();
        // Threads that wait for a server, which may be gone, are left to end by themselves.
        if waits {
            self.threads.drain(..).for_each(Thread::detach);
        }
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if state.closed {
                return;
            }
            let queued =
                state.requests.iter_mut().find(|request| matches!(request.answer, Answer::Queued));
            let Some(request) = queued else {
                state = wait(&self.changed, state);
                continue;
            };
            request.answer = Answer::InFlight;
            let (number, table, width) = (request.number, request.table, request.width);
            let ids = Arc::clone(&request.ids);
            drop(state);
            let batch = self.batches.make(table, ids);
            let outcome = self.batches.pull(&*self.servers, &batch, width);
            state = lock(&self.state);
            if let Some(request) =
                state.requests.iter_mut().find(|request| request.number == number)
            {
                request.answer = Answer::Ready(outcome.map(|rows| (batch, rows)));
            }
            self.changed.notify_all();
        }
    }
}
