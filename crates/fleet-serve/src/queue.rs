//! Requests that wait for a worker.

use bytes::Bytes;
use fleet_job::serving::{RequestError, ServedModel};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// A request to score rows.
pub struct Request {
    /// The rows.
    pub rows: Rows,
    /// Where the scores go.
    pub answer: oneshot::Sender<Answer>,
}

/// The rows of a request.
pub enum Rows {
    /// A JSON body.
    Json(Bytes),
    /// Columns of a message.
    #[cfg(feature = "grpc")]
    Table(crate::message::PredictRequest),
}

/// The outcome of a request.
pub type Answer = Result<Scores, RequestError>;

/// The scores of a request's rows.
pub struct Scores {
    /// Scores, row after row.
    pub values: Vec<f32>,
    /// The model that made them.
    pub model: Arc<ServedModel>,
}

/// A queue with a limit.
pub struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
}

struct State {
    waiting: VecDeque<Request>,
    is_closed: bool,
}

impl Queue {
    /// Returns an empty queue.
    pub fn new(limit: usize) -> Queue {
        let state = State { waiting: VecDeque::with_capacity(limit), is_closed: false };
        Queue { state: Mutex::new(state), changed: Condvar::new(), limit }
    }

    /// Adds a request, or returns false if the queue is full or closed.
    pub fn push(&self, request: Request) -> bool {
        let mut state = self.lock();
        if state.is_closed || state.waiting.len() >= self.limit {
            return false;
        }
        state.waiting.push_back(request);
        drop(state);
        self.changed.notify_one();
        true
    }

    /// Waits for a request. `None` once the queue is closed and empty.
    pub fn take(&self) -> Option<Request> {
        let mut state = self.lock();
        loop {
            if let Some(request) = state.waiting.pop_front() {
                return Some(request);
            }
            if state.is_closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes a request if one waits.
    pub fn try_take(&self) -> Option<Request> {
        self.lock().waiting.pop_front()
    }

    /// Returns the number of requests that wait.
    pub fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// Takes no further requests. Workers end when they have taken all that wait.
    pub fn close(&self) {
        self.lock().is_closed = true;
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_takes_no_more() {
        let queue = Queue::new(2);
        let request =
            || Request { rows: Rows::Json(Bytes::from_static(b"x")), answer: oneshot::channel().0 };
        assert!(queue.push(request()) && queue.push(request()) && !queue.push(request()));
        assert!(queue.take().is_some() && queue.len() == 1);
        queue.close();
        assert!(!queue.push(request()) && queue.take().is_some() && queue.take().is_none());
    }
}
