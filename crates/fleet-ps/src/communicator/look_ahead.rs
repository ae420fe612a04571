//! Rows of coming steps, requested ahead by a thread of their own.
//!
//! An answer is found by its table and its ids, all of them in order. So a mistaken request is
//! never used, and it is dropped after later requests.

use super::batch::{Batch, Batches};
use super::{lock, spawn};
use crate::Servers;
use fleet_base::Result;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Limit on the requests kept for a table: the next step's, and one more.
const KEPT_MAX: usize = 2;

pub(super) struct LookAhead {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    servers: Arc<dyn Servers>,
    batches: Arc<Batches>,
}

#[derive(Default)]
struct State {
    asked: VecDeque<Asked>,
    next_number: u64,
    closed: bool,
}

struct Asked {
    number: u64,
    table: u32,
    ids: Arc<Vec<u64>>,
    width: usize,
    answer: Answer,
}

enum Answer {
    /// Not to be sent before the current step has ended.
    Held,
    Wanted,
    OnTheWay,
    Here(Result<Rows>),
}

/// A batch, and a row for each of its distinct ids.
pub(super) type Rows = (Arc<Batch>, Vec<f32>);

impl LookAhead {
    pub fn start(servers: Arc<dyn Servers>, batches: Arc<Batches>) -> Result<LookAhead> {
        let (state, changed) = Default::default();
        let shared = Arc::new(Shared { state, changed, servers, batches });
        let thread = {
            let shared = Arc::clone(&shared);
            spawn("ps-look-ahead", move || shared.serve())?
        };
        Ok(LookAhead { shared, thread: Some(thread) })
    }

    /// Requests rows, at once or when the current step has ended.
    pub fn ask(&self, table: u32, ids: Vec<u64>, width: usize, at_once: bool) {
        let mut state = lock(&self.shared.state);
        let number = state.next_number;
        state.next_number += 1;
        let answer = if at_once { Answer::Wanted } else { Answer::Held };
        state.asked.push_back(Asked { number, table, ids: Arc::new(ids), width, answer });
        let of_table = state.asked.iter().filter(|asked| asked.table == table).count();
        if of_table > KEPT_MAX {
            let idle =
                |asked: &Asked| asked.table == table && !matches!(asked.answer, Answer::OnTheWay);
            if let Some(at) = state.asked.iter().position(idle) {
                state.asked.remove(at);
            }
        }
        self.shared.changed.notify_all();
    }

    /// Sends the requests that waited for the end of the step.
    pub fn release(&self) {
        let mut state = lock(&self.shared.state);
        for asked in &mut state.asked {
            if matches!(asked.answer, Answer::Held) {
                asked.answer = Answer::Wanted;
            }
        }
        self.shared.changed.notify_all();
    }

    /// Drops all requests, and waits for those in flight. Afterwards the thread sends nothing to
    /// the servers.
    pub fn rest(&self) {
        let mut state = lock(&self.shared.state);
        state.asked.retain(|asked| matches!(asked.answer, Answer::OnTheWay));
        while state.asked.iter().any(|asked| matches!(asked.answer, Answer::OnTheWay)) {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.asked.clear();
    }

    /// Takes the rows of these ids, if they were requested; waits for them if they are in flight.
    pub fn take(&self, table: u32, ids: &[u64]) -> Result<Option<Rows>> {
        let mut state = lock(&self.shared.state);
        loop {
            let found = state
                .asked
                .iter()
                .position(|asked| asked.table == table && asked.ids.as_slice() == ids);
            let Some(at) = found else { return Ok(None) };
            match state.asked[at].answer {
                // Not sent yet: the caller can pull them just as fast.
                Answer::Held | Answer::Wanted => {
                    state.asked.remove(at);
                    return Ok(None);
                }
                Answer::OnTheWay => {
                    state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Answer::Here(_) => {
                    let Some(Asked { answer: Answer::Here(rows), .. }) = state.asked.remove(at)
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
            state.asked.iter().any(|asked| matches!(asked.answer, Answer::OnTheWay))
        };
        self.shared.changed.notify_all();
        // A thread that waits for a server, which may be gone, is left to end by itself.
        if let Some(thread) = self.thread.take().filter(|_| !waits) {
            // A panic has been reported by its thread.
            let _ = thread.join();
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
            let wanted =
                state.asked.iter_mut().find(|asked| matches!(asked.answer, Answer::Wanted));
            let Some(asked) = wanted else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            asked.answer = Answer::OnTheWay;
            let (number, table, width) = (asked.number, asked.table, asked.width);
            let ids = Arc::clone(&asked.ids);
            drop(state);
            let batch = self.batches.make(table, ids);
            let outcome = self.batches.pull(&*self.servers, &batch, width);
            state = lock(&self.state);
            if let Some(asked) = state.asked.iter_mut().find(|asked| asked.number == number) {
                asked.answer = Answer::Here(outcome.map(|rows| (batch, rows)));
            }
            self.changed.notify_all();
        }
    }
}
