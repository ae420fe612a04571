//! Requests that wait for a worker.

use bytes::Bytes;
use fleet_job::serving::{Recommended, RequestError, ServedModel};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// A request, and where its answer goes.
pub enum Request {
    /// Scores rows.
    Score(Rows, Reply<Scores>),
    /// Recommends items to users.
    Recommend(Users, Reply<Items>),
}

/// Where an answer goes.
pub type Reply<T> = oneshot::Sender<Result<T, RequestError>>;

/// The rows of a request.
pub enum Rows {
    /// A JSON body.
    Json(Bytes),
    /// Columns of a message.
    #[cfg(feature = "grpc")]
    Table(crate::message::PredictRequest),
}

/// The users of a request, with how many items each wants.
pub enum Users {
    /// A JSON body.
    Json(Bytes),
    /// Columns of a message.
    #[cfg(feature = "grpc")]
    Table(crate::message::RecommendRequest),
}

/// The scores of a request's rows.
pub struct Scores {
    /// Scores, row after row.
    pub values: Vec<f32>,
    /// The model that made them.
    pub model: Arc<ServedModel>,
}

/// The items for a request's users.
pub struct Items {
    /// The items of each user.
    pub found: Recommended,
    /// The model that found them.
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

    /// Takes the request that waits longest if it has rows to score.
    pub fn try_take_rows(&self) -> Option<(Rows, Reply<Scores>)> {
        let mut state = self.lock();
        match state.waiting.pop_front()? {
            Request::Score(rows, reply) => Some((rows, reply)),
            other => {
                state.waiting.push_front(other);
                None
            }
        }
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
        let body = Bytes::from_static(b"x");
        let request = || Request::Score(Rows::Json(body.clone()), oneshot::channel().0);
        let users = Request::Recommend(Users::Json(body.clone()), oneshot::channel().0);
        assert!(queue.push(request()) && queue.push(users) && !queue.push(request()));
        assert!(queue.try_take_rows().is_some() && queue.try_take_rows().is_none());
        assert!(queue.take().is_some() && queue.len() == 0 && queue.push(request()));
        queue.close();
        assert!(!queue.push(request()) && queue.take().is_some() && queue.take().is_none());
    }
}
