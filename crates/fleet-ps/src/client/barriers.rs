//! The places at which workers wait for each other.

use super::missing::Missing;
use super::{Client, Transport};
use crate::request::{Change, Read};
use crate::server::WORKER_TIMEOUT;
use crate::{Arrival, Barriers};
use fleet_base::{Error, Result};
use fleet_net::Time;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// A barrier that takes longer is logged.
const BARRIER_LOG_AFTER: Duration = Duration::from_secs(3);

impl<T: Transport> Barriers for Client<T> {
    fn arrive(&self, at: Arrival) -> Result<()> {
        self.placed(|| self.try_arrive(at, false))
    }

    fn arrive_skipping(&self) -> Result<()> {
        self.placed(|| self.try_arrive(Arrival::Sent, true))
    }

    fn rounds(&self, at: Arrival) -> Result<u64> {
        let rounds = self.placed(|| self.ask_numbers(Read::Rounds { at }))?;
        Ok(rounds.into_iter().min().unwrap_or(0))
    }

    fn finish(&self) -> Result<bool> {
        let finish = Change::Finish { steps: self.steps.load(Relaxed) }.into();
        let ask = |servers| self.ask_some(servers, &finish);
        // The first server decides which worker is the last, and is asked last. So when the last
        // worker stops all servers, no other worker still waits for an answer.
        let answers = self.placed(|| ask(1..self.job.server_count).and_then(|_| ask(0..1)))?;
        Ok(answers[0] == [1])
    }

    fn stop(&self) -> Result<()> {
        self.placed(|| self.ask_all(Read::Stop)).map(drop)
    }
}

impl<T: Transport> Client<T> {
    /// Waits until all servers have opened a barrier.
    fn try_arrive(&self, at: Arrival, skipped: bool) -> Result<()> {
        let steps = self.steps.load(Relaxed);
        let rounds = self.ask_numbers(Change::Arrive { at, steps, skipped })?;
        let start = Time::now();
        let mut closed: Vec<usize> = (0..self.job.server_count).collect();
        let mut is_logged = false;
        loop {
            let left = self.barrier_timeout.saturating_sub(Time::now().since(start));
            let wait = |server: usize| Read::Wait { at, round: rounds[server], timeout: left };
            let requests: Vec<_> =
                closed.iter().map(|server| (*server, wait(*server).into())).collect();
            let answers = self.ask(None, &requests)?;
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
