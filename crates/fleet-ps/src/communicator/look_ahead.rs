//! Rows of coming steps, asked for ahead by a thread of their own.
//!
//! An answer is found by its table and its ids, all of them in their order: what was asked for by mistake
//! is never used, and forgotten when more has been asked for.

use super::{lock, spawn};
use crate::{PullMode, Servers};
use fleet_base::{Error, Result};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Answers that are kept for a table: the next step's, and one more.
const KEPT_MAX: usize = 2;

pub(super) struct LookAhead {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    servers: Arc<dyn Servers>,
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
    /// Not before the step that is under way has ended.
    Held,
    Wanted,
    OnTheWay,
    Here(Result<Vec<f32>>),
}

impl LookAhead {
    pub fn start(servers: Arc<dyn Servers>) -> Result<LookAhead> {
        let (state, changed) = Default::default();
        let shared = Arc::new(Shared { state, changed, servers });
        let thread = {
            let shared = Arc::clone(&shared);
            spawn("ps-look-ahead", move || shared.serve())?
        };
        Ok(LookAhead { shared, thread: Some(thread) })
    }

    /// Asks for rows, at once or when the step has ended.
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

    /// The step has ended: what waited for it may go.
    pub fn release(&self) {
        let mut state = lock(&self.shared.state);
        for asked in &mut state.asked {
            if matches!(asked.answer, Answer::Held) {
                asked.answer = Answer::Wanted;
            }
        }
        self.shared.changed.notify_all();
    }

    /// Forgets what was asked for, and waits for what is on the way: afterwards nobody asks the servers.
    pub fn rest(&self) {
        let mut state = lock(&self.shared.state);
        state.asked.retain(|asked| matches!(asked.answer, Answer::OnTheWay));
        while state.asked.iter().any(|asked| matches!(asked.answer, Answer::OnTheWay)) {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.asked.clear();
    }

    /// The rows of these ids, if they were asked for; waits for them when they are on the way.
    pub fn take(&self, table: u32, ids: &[u64], rows: &mut [f32]) -> Result<bool> {
        let mut state = lock(&self.shared.state);
        loop {
            let found = state
                .asked
                .iter()
                .position(|asked| asked.table == table && asked.ids.as_slice() == ids);
            let Some(at) = found else { return Ok(false) };
            match state.asked[at].answer {
                // Nobody has begun: asking oneself is as fast.
                Answer::Held | Answer::Wanted => {
                    state.asked.remove(at);
                    return Ok(false);
                }
                Answer::OnTheWay => {
                    state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
                Answer::Here(_) => {
                    let asked = state.asked.remove(at);
                    drop(state);
                    return deliver(asked, rows);
                }
            }
        }
    }
}

fn deliver(asked: Option<Asked>, rows: &mut [f32]) -> Result<bool> {
    let Some(Asked { answer: Answer::Here(answer), table, .. }) = asked else {
        return Ok(false);
    };
    let answer = answer?;
    if answer.len() != rows.len() {
        return Err(Error::invalid(format!(
            "rows of table {table} were asked for in another width"
        ))
        .expected(rows.len())
        .got(answer.len()));
    }
    rows.copy_from_slice(&answer);
    Ok(true)
}

impl Drop for LookAhead {
    fn drop(&mut self) {
        let waits = {
            let mut state = lock(&self.shared.state);
            state.closed = true;
            state.asked.iter().any(|asked| matches!(asked.answer, Answer::OnTheWay))
        };
        self.shared.changed.notify_all();
        // A thread that waits for a server, which may be gone, ends by itself.
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
            let mut rows = vec![0.0; ids.len() * width];
            let outcome = self.servers.pull_sparse(table, &ids, &mut rows, PullMode::Train);
            state = lock(&self.state);
            if let Some(asked) = state.asked.iter_mut().find(|asked| asked.number == number) {
                asked.answer = Answer::Here(outcome.map(|()| rows));
            }
            self.changed.notify_all();
        }
    }
}
