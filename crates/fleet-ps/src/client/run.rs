//! A worker's progress through a run.

use super::{Client, Transport};
use crate::request::{Change, Read, Request};
use crate::{Arrival, Progress, RunControl, Step, WorkerSeen, progress, seen};
use fleet_base::Result;
use fleet_base::sync::lock;
use std::sync::atomic::Ordering::Relaxed;

impl<T: Transport> RunControl for Client<T> {
    fn count_step(&self) {
        self.steps.fetch_add(1, Relaxed);
    }

    fn completed(&self, step: u64) {
        self.complete.fetch_max(step, Relaxed);
    }

    fn keep(&self, step: u64, state: &[u64]) -> Result<()> {
        let request = Request::from(Change::Keep { state: state.into() });
        let servers = 0..self.job.server_count;
        let requests: Vec<_> = servers.map(|server| (server, request.clone())).collect();
        self.placed(|| self.ask(Step::new(step), &requests)).map(drop)
    }

    fn begin_run(&self, base: u64, complete: u64) -> Result<()> {
        self.complete.store(complete, Relaxed);
        self.placed(|| self.ask_all(Change::BeginRun { base })).map(drop)
    }

    fn adopt(&self) -> Result<Progress> {
        self.placed(|| progress::merged(&self.ask_all(Change::Adopt)?))
    }

    fn resume(&self, progress: &Progress) -> Result<()> {
        self.complete.store(progress.complete, Relaxed);
        *lock(&self.sent_before) = progress.clone();
        self.placed(|| self.ask_all(Change::Resume)).map(drop)
    }

    fn settle(&self) -> Result<u64> {
        self.placed(|| {
            let rounds = self.ask_numbers(Read::Rounds { at: Arrival::Sent })?;
            let steps = rounds.into_iter().max().unwrap_or(0);
            self.ask_all(Change::Settle { steps })?;
            Ok(steps)
        })
    }

    fn workers(&self) -> Result<Vec<WorkerSeen>> {
        self.placed(|| seen::merged(&self.ask_all(Read::Workers)?, self.job.worker_count))
    }
}
