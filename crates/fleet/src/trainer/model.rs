//! The model that a trainer trains: a session, or a worker of parameter servers.

use super::source::Feeds;
use crate::servers::Worker;
use crate::{Fleet, Session};
use fleet_base::Result;
use fleet_tensor::Tensor;

/// A session or a worker of parameter servers, borrowed for a training or an evaluation.
pub enum Model<'m> {
    /// A session of one process, or of a rank of a collective job.
    Session(&'m mut Session),
    /// A worker of parameter servers.
    Worker(&'m mut Worker),
}

impl<'m> From<&'m mut Session> for Model<'m> {
    fn from(session: &'m mut Session) -> Model<'m> {
        Model::Session(session)
    }
}

impl<'m> From<&'m mut Worker> for Model<'m> {
    fn from(worker: &'m mut Worker) -> Model<'m> {
        Model::Worker(worker)
    }
}

impl Model<'_> {
    /// Returns the session; that of the worker on parameter servers.
    pub fn session(&mut self) -> &mut Session {
        match self {
            Model::Session(session) => session,
            Model::Worker(worker) => &mut worker.session,
        }
    }

    /// Returns the worker of parameter servers, if it is one.
    pub fn worker(&mut self) -> Option<&mut Worker> {
        match self {
            Model::Session(_) => None,
            Model::Worker(worker) => Some(worker),
        }
    }

    /// Returns whether all workers make the same steps: in collective and synchronous jobs.
    pub(super) fn is_in_step(&self) -> bool {
        match self {
            Model::Session(_) => true,
            Model::Worker(worker) => worker.job().plan.exchange.is_sync(),
        }
    }

    /// Runs a training step, with the feeds of the next one if they are known.
    pub(super) fn step(
        &mut self,
        feeds: &Feeds,
        next: Option<&Feeds>,
        fetch: &[&str],
        out: &mut Vec<Tensor>,
    ) -> Result<()> {
        match self {
            Model::Session(session) => session.run_into(&feeds.list(), fetch, out),
            Model::Worker(worker) => {
                if let Some(next) = next {
                    worker.look_ahead(&next.list())?;
                }
                worker.run_into(&feeds.list(), fetch, out)
            }
        }
    }

    /// Makes the model ready for an evaluation: all ranks have the same, or this worker the newest.
    pub(super) fn settle(&mut self, fleet: &Fleet) -> Result<()> {
        match self {
            Model::Session(session) => fleet.meet(session),
            Model::Worker(worker) => worker.flush(),
        }
    }
}
