//! Checkpoints of a training: the last ones, and that of the best model.

use super::model::Model;
use super::source::Source;
use super::state::State;
use crate::{CheckpointPolicy, Checkpoints, Fleet, Resumed, Session};
use fleet_base::disk::{RealDisk, remove_folder_all};
use fleet_base::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Folder of the best model's checkpoint, in the folder of the others.
const BEST: &str = "best";

/// Checkpoints of a session, if the training saves any.
pub(super) struct Saves {
    last: Checkpoints,
    best: Option<Best>,
    every: Option<Duration>,
    saved_at: Duration,
    saved_step: Option<u64>,
    ranks: usize,
    constants: Vec<(String, String)>,
}

struct Best {
    checkpoints: Checkpoints,
    /// Checkpoints of later steps than the one that the training resumed from, to be removed once
    /// there is a newer best model.
    is_stale: bool,
    is_first_worker: bool,
}

impl Saves {
    /// Opens the folder. All workers of a collective job must call it.
    pub fn open(
        fleet: &Fleet,
        model: &mut Model<'_>,
        (folder, policy): (&Path, &CheckpointPolicy),
        (keeps_best, constants): (bool, &[(String, String)]),
        now: Duration,
    ) -> Result<Saves> {
        if model.worker().is_some() {
            return Err(Error::unsupported(
                "checkpoints of a trainer are not supported on parameter servers",
            )
            .help("save the tables with Worker::save_persistables, or use durable servers"));
        }
        // Time is checked by the trainer, which agrees on it with the other ranks seldom.
        let in_steps = CheckpointPolicy { every: None, ..policy.clone() };
        let last = fleet.checkpoints(folder, in_steps)?;
        let best = match keeps_best {
            false => None,
            true => {
                let folder = folder.join(BEST);
                let only = CheckpointPolicy { every_steps: None, every: None, keep_last: 1 };
                let checkpoints = fleet.checkpoints(&folder, only)?;
                let is_first_worker = fleet.is_first_worker();
                Some(Best { checkpoints, is_stale: true, is_first_worker })
            }
        };
        let (every, ranks) = (policy.every, fleet.worker_num());
        let constants = constants.to_vec();
        Ok(Saves { last, best, every, saved_at: now, saved_step: None, ranks, constants })
    }

    /// Loads the newest checkpoint into the session, and returns the state of the training, whose
    /// position in `data` is that of this number of ranks.
    pub fn resume(
        &mut self,
        session: &mut Session,
        watched: usize,
        data: &dyn Source,
    ) -> Result<Option<(State, Resumed)>> {
        let Some(resumed) = self.last.resume(&session.programs.main, &mut session.scope)? else {
            return Ok(None);
        };
        let (mut state, ranks) = State::check_constants(&self.constants, &resumed.entries)
            .and_then(|()| State::read(resumed.step, &resumed.entries, self.ranks, watched))
            .map_err(|error| error.at(resumed.path.display()))?;
        if ranks != self.ranks {
            state.position = data.redistribute(state.position, ranks, self.ranks);
        }
        self.saved_step = Some(resumed.step);
        Ok(Some((state, resumed)))
    }

    /// Returns whether a checkpoint is due by time, on this worker's clock.
    pub fn is_time(&self, now: Duration) -> bool {
        self.every.is_some_and(|every| now.saturating_sub(self.saved_at) >= every)
    }

    /// Saves if the step is one of the policy's, or `must` is true. Returns whether it did.
    pub fn after_step(
        &mut self,
        state: &State,
        session: &Session,
        must: bool,
        now: Duration,
    ) -> Result<bool> {
        let (program, scope) = (&session.programs.main, &session.scope);
        if self.saved_step == Some(state.step) {
            return Ok(false);
        }
        let mut is_saved = must;
        if must {
            self.last.save(
                state.step,
                program,
                scope,
                state.entries(self.ranks, &self.constants),
            )?;
        } else {
            let (ranks, constants) = (self.ranks, &self.constants);
            let entries = || {
                is_saved = true;
                state.entries(ranks, constants)
            };
            self.last.after_step(state.step, program, scope, entries)?;
        }
        if is_saved {
            (self.saved_at, self.saved_step) = (now, Some(state.step));
        }
        Ok(is_saved)
    }

    /// Saves the best model.
    pub fn best(&mut self, state: &State, session: &Session) -> Result<bool> {
        let Some(best) = &mut self.best else { return Ok(false) };
        let (program, scope) = (&session.programs.main, &session.scope);
        let entries: BTreeMap<_, _> = state.entries(self.ranks, &self.constants);
        best.checkpoints.save(state.step, program, scope, entries)?;
        if std::mem::take(&mut best.is_stale) {
            best.checkpoints.finish()?;
            best.remove_later(state.step)?;
        }
        Ok(true)
    }

    /// Waits until everything is on disk.
    pub fn finish(&mut self) -> Result<()> {
        let best = self.best.as_mut().map_or(Ok(()), |best| best.checkpoints.finish());
        self.last.finish().and(best)
    }
}

impl Best {
    /// Removes the checkpoints of later steps, which an interrupted run has left.
    fn remove_later(&self, step: u64) -> Result<()> {
        if !self.is_first_worker {
            return Ok(());
        }
        for (_, path) in self.checkpoints.list()?.into_iter().filter(|(other, _)| *other > step) {
            remove_folder_all(&RealDisk, &path)
                .map_err(|error| Error::io("remove", &path, &error))?;
        }
        Ok(())
    }
}
