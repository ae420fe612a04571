//! The path of a request to the workers and back, which the protocols have in common.

use crate::access::Token;
use crate::metrics::{Gauges, Metrics};
use crate::queue::{Items, Reply, Request, Rows, Scores, Users};
use crate::workers::Workers;
use fleet_base::{Error, ErrorKind};
use fleet_job::serving::RequestError;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;

/// The state that connections share.
pub struct App {
    /// The threads that score rows.
    pub workers: Arc<Workers>,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// The token that requests must carry.
    pub token: Option<Token>,
    /// Limit on the body of a request, in bytes.
    pub body_max: usize,
}

/// Seconds after which a client should try again when the queue is full.
pub const RETRY_AFTER: &str = "1";

impl App {
    /// Returns whether a header `authorization` admits a request.
    pub fn admits(&self, header: Option<&[u8]>) -> bool {
        self.token.as_ref().is_none_or(|token| token.admits(header))
    }

    /// Scores the rows of a request.
    pub async fn score(&self, rows: Rows) -> Result<Scores, RequestError> {
        let request = |reply| Request::Score(rows, reply);
        self.ask(request, |scores| scores.values.len() / scores.model.width()).await
    }

    /// Recommends items to the users of a request.
    pub async fn recommend(&self, users: Users) -> Result<Items, RequestError> {
        let request = |reply| Request::Recommend(users, reply);
        self.ask(request, |items: &Items| items.found.users.len()).await
    }

    /// Waits for the answer of a worker. `rows_of` counts its rows.
    async fn ask<T>(
        &self,
        request: impl FnOnce(Reply<T>) -> Request,
        rows_of: impl FnOnce(&T) -> usize,
    ) -> Result<T, RequestError> {
        let begin = Instant::now();
        let (reply, answered) = oneshot::channel();
        if !self.workers.queue.push(request(reply)) {
            return Err(RequestError::of_request(
                Error::unavailable("too many requests wait")
                    .help(format!("try again after {RETRY_AFTER} s")),
            ));
        }
        let answer = answered.await.unwrap_or_else(|_| {
            Err(RequestError::of_request(Error::internal("the request was lost; see the logs")))
        })?;
        self.metrics.scored(rows_of(&answer), begin.elapsed());
        Ok(answer)
    }

    /// Returns the counters as text.
    pub fn metrics_text(&self) -> String {
        let version = self.workers.model().version();
        self.metrics.text(&Gauges { queue: self.workers.queue.len(), version })
    }
}

/// Returns the code of HTTP for an error.
pub fn code_of(error: &Error) -> u16 {
    match error.kind() {
        ErrorKind::Invalid => 400,
        ErrorKind::Exhausted => 413,
        ErrorKind::Unsupported => 501,
        ErrorKind::Unavailable => 503,
        ErrorKind::Numeric | ErrorKind::Internal => 500,
    }
}
