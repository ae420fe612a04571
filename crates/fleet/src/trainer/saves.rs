//! Checkpoints of a training: the last ones, and that of the best model.

use super::model::Model;
use super::server_saves::{BEST, Limits, ServerSaves};
use super::settings::Settings;
use super::source::Source;
use super::state::{Start, State};
use crate::servers::Worker;
use crate::{CheckpointPolicy, Checkpoints, Fleet, Session};
use fleet_base::disk::{RealDisk, remove_folder_all};
use fleet_base::{Error, Result};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// Checkpoints of a training.
pub(super) struct Saves {
    kind: Kind,
    /// Interval in time, which the trainer measures: it agrees with the other workers seldom.
    every: Option<Duration>,
    saved_at: Duration,
}

enum Kind {
    Session(Box<SessionSaves>),
    Servers(ServerSaves),
}

impl Saves {
    /// Opens the folder of the settings, if they have one. All workers must call it.
    pub fn open(
        fleet: &Fleet,
        model: &mut Model<'_>,
        settings: &Settings<'_>,
        is_in_team: bool,
        now: Duration,
    ) -> Result<Option<Saves>> {
        let Some((folder, policy)) = &settings.checkpoints else { return Ok(None) };
        let kept = (settings.goal.is_some(), &settings.constants[..]);
        let mut every = policy.every;
        let kind = match model.worker() {
            None => Kind::Session(Box::new(SessionSaves::open(fleet, (folder, policy), kept)?)),
            Some(worker) => {
                let Settings { epochs, steps, .. } = *settings;
                let limits = Limits { epochs, steps };
                let saves = ServerSaves::open(worker, (folder, policy), kept, is_in_team, limits)?;
                every = every.filter(|_| saves.saves_at_any_step());
                Kind::Servers(saves)
            }
        };
        Ok(Some(Saves { kind, every, saved_at: now }))
    }

    /// Loads the newest checkpoint into the model. Returns the state of the training, whose
    /// position in `data` is that of this number of workers; `None` if it is new.
    pub fn resume(
        &mut self,
        model: &mut Model<'_>,
        watched: usize,
        data: &dyn Source,
    ) -> Result<Option<Start>> {
        match &mut self.kind {
            Kind::Session(saves) => saves.resume(model.session(), watched, data),
            Kind::Servers(saves) => saves.resume(worker_of(model)?, watched, data),
        }
    }

    /// Returns whether a checkpoint is due by time, on this worker's clock.
    pub fn is_time(&self, now: Duration) -> bool {
        self.every.is_some_and(|every| now.saturating_sub(self.saved_at) >= every)
    }

    /// Saves if the step is one of the policy's, or `must` is true. Returns whether it did.
    pub fn after_step(
        &mut self,
        state: &State,
        model: &mut Model<'_>,
        must: bool,
        now: Duration,
    ) -> Result<bool> {
        let is_saved = match &mut self.kind {
            Kind::Session(saves) => saves.after_step(state, model.session(), must),
            Kind::Servers(saves) => saves.after_step(state, worker_of(model)?, must),
        }?;
        if is_saved {
            self.saved_at = now;
        }
        Ok(is_saved)
    }

    /// Saves the best model. Returns whether it did.
    pub fn best(&mut self, state: &State, model: &mut Model<'_>) -> Result<bool> {
        match &mut self.kind {
            Kind::Session(saves) => saves.best(state, model.session()),
            Kind::Servers(saves) => saves.best(state, worker_of(model)?),
        }
    }

    /// Waits until everything is on disk.
    pub fn finish(&mut self) -> Result<()> {
        match &mut self.kind {
            Kind::Session(saves) => saves.finish(),
            Kind::Servers(_) => Ok(()),
        }
    }

    /// Returns the checkpoints of parameter servers.
    pub fn servers(&self) -> Option<&ServerSaves> {
        match &self.kind {
            Kind::Session(_) => None,
            Kind::Servers(saves) => Some(saves),
        }
    }
}

fn worker_of<'w>(model: &'w mut Model<'_>) -> Result<&'w mut Worker> {
    model.worker().ok_or_else(|| Error::internal("checkpoints of servers without a worker"))
}

/// Checkpoints of a session.
struct SessionSaves {
    last: Checkpoints,
    best: Option<Best>,
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

impl SessionSaves {
    /// Opens the folder. All workers of a collective job must call it.
    fn open(
        fleet: &Fleet,
        (folder, policy): (&Path, &CheckpointPolicy),
        (keeps_best, constants): (bool, &[(String, String)]),
    ) -> Result<SessionSaves> {
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
        let (ranks, constants) = (fleet.worker_num(), constants.to_vec());
        Ok(SessionSaves { last, best, saved_step: None, ranks, constants })
    }

    fn resume(
        &mut self,
        session: &mut Session,
        watched: usize,
        data: &dyn Source,
    ) -> Result<Option<Start>> {
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
        Ok(Some(Start { state, resumed: Some(resumed), has_joined: false }))
    }

    fn after_step(&mut self, state: &State, session: &Session, must: bool) -> Result<bool> {
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
            self.saved_step = Some(state.step);
        }
        Ok(is_saved)
    }

    fn best(&mut self, state: &State, session: &Session) -> Result<bool> {
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

    fn finish(&mut self) -> Result<()> {
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
