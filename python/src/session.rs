//! A job's programs, and the session that runs them on this process.

use crate::error::guarded;
use fleet::ir;
use fleet::nn::Programs;
use fleet::ops::Registry;
use fleet::servers::{ServerJob, Worker};
use fleet::{Distributed, Error, ExecOptions, Fleet, Result, Scope, Session};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};

/// A pair of programs that a strategy has rewritten, with the job that runs them.
pub struct Job {
    pub fleet: Arc<Fleet>,
    pub plan: Plan,
    /// Both programs as the rewrite has left them.
    pub programs: Programs,
    /// The process that has the session's threads: a fork of it has none.
    process: u32,
    stage: Mutex<Stage>,
    /// The scope with the variables of the session.
    scope: Mutex<Option<Arc<RwLock<Scope>>>>,
}

/// The rewrite of the programs.
pub enum Plan {
    Collective(Box<Distributed>),
    Servers(Box<ServerJob>),
}

impl Plan {
    /// Returns whether workers divide the state of the model, so that none has all of it.
    pub fn divides_state(&self) -> bool {
        matches!(self, Plan::Collective(distributed) if distributed.plan.divides_state)
    }

    /// Returns whether this worker has a stage of a pipeline.
    pub fn is_stage(&self) -> bool {
        matches!(self, Plan::Collective(distributed) if distributed.plan.stage.is_some())
    }

    /// Returns the names of the applied strategies.
    pub fn chain_text(&self) -> String {
        match self {
            Plan::Collective(distributed) => distributed.plan.chain_text(),
            Plan::Servers(job) => job.plan.chain_text(),
        }
    }
}

/// How far this process is. Between two calls the variables of a session are in a scope of Python,
/// and its own scope has none.
pub enum Stage {
    /// The startup program has not run.
    Written,
    /// The startup program has run. A worker of parameter servers has not joined the others yet.
    Started(Box<Session>),
    Working(Box<Working>),
    /// The worker has left the job, or has failed to join it.
    Stopped,
}

/// A worker of a job with parameter servers.
pub struct Working {
    pub worker: Worker,
    /// Programs for evaluation whose lookups read the tables, by the fingerprint of the original.
    evaluations: HashMap<u128, Arc<ir::Program>>,
}

/// Limit on the programs for evaluation that are kept: more than a script has.
const EVALUATIONS_MAX: usize = 64;

impl Working {
    pub fn new(worker: Worker) -> Working {
        Working { worker, evaluations: HashMap::new() }
    }

    /// Returns a program whose lookups read the job's tables.
    pub fn reading_tables(&mut self, program: &Arc<ir::Program>) -> Result<Arc<ir::Program>> {
        let fingerprint = program.fingerprint();
        if let Some(found) = self.evaluations.get(&fingerprint) {
            return Ok(Arc::clone(found));
        }
        let main = ir::Program::clone(program);
        let mut programs = Programs { main, ..Programs::new() };
        self.worker.job().plan.read_tables(&mut programs, Registry::standard())?;
        let made = Arc::new(programs.main);
        if self.evaluations.len() >= EVALUATIONS_MAX {
            self.evaluations.clear();
        }
        self.evaluations.insert(fingerprint, Arc::clone(&made));
        Ok(made)
    }
}

impl Job {
    pub fn new(fleet: Arc<Fleet>, plan: Plan, programs: Programs) -> Job {
        let (stage, scope) = (Mutex::new(Stage::Written), Mutex::default());
        Job { fleet, plan, programs, process: std::process::id(), stage, scope }
    }

    /// Locks the stage, unless another call uses the job.
    pub fn stage(&self) -> Result<MutexGuard<'_, Stage>> {
        if self.process != std::process::id() {
            return Err(Error::invalid("the job belongs to the process that forked this one")
                .help("call fleet.init after the fork"));
        }
        self.stage.try_lock().map_err(|_| Job::busy())
    }

    /// Returns the error of a call while another uses the job.
    pub fn busy() -> Error {
        Error::unavailable("the job is in use by another call")
            .help("run the programs of a job in one thread, and not in a fetch handler")
    }

    /// Runs the startup program, which opens the session. Moves its variables to `scope`, which
    /// keeps its other variables.
    pub fn start(&self, options: ExecOptions, scope: &mut Scope) -> Result<()> {
        let mut stage = self.stage()?;
        if matches!(*stage, Stage::Working(_)) {
            return Err(Error::invalid("the startup program cannot run again: the worker trains")
                .help("load variables with static.load_vars or fleet.load_model"));
        }
        *stage = Stage::Written;
        let programs = self.programs.clone();
        let mut session = match &self.plan {
            Plan::Collective(distributed) => self.fleet.session(programs, distributed, options)?,
            Plan::Servers(job) => self.fleet.worker_session(programs, job, options)?,
        };
        replace_all(scope, &mut session.scope);
        *stage = Stage::Started(Box::new(session));
        Ok(())
    }

    /// Sets the scope that has the variables between two calls.
    pub fn keep_scope(&self, scope: Arc<RwLock<Scope>>) {
        if let Ok(mut held) = self.scope.lock() {
            *held = Some(scope);
        }
    }

    /// Returns the scope that has the variables between two calls.
    pub fn scope(&self) -> Arc<RwLock<Scope>> {
        self.scope.lock().ok().and_then(|held| held.clone()).unwrap_or_default()
    }

    /// Ends a session without servers.
    pub fn close(&self) {
        if let (Plan::Collective(_), Ok(mut stage)) = (&self.plan, self.stage()) {
            *stage = Stage::Written;
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        // In a fork there are no threads to wait for.
        if self.process != std::process::id()
            && let Ok(stage) = self.stage.get_mut()
        {
            std::mem::forget(std::mem::replace(stage, Stage::Written));
        }
    }
}

/// Calls `call` while a session or worker has the variables of `scope` in its own scope.
pub fn with_variables<S, T>(
    scope: &mut Scope,
    runner: &mut S,
    own: impl Fn(&mut S) -> &mut Scope,
    call: impl FnOnce(&mut S) -> Result<T>,
) -> Result<T> {
    std::mem::swap(scope, own(runner));
    let made = guarded(|| call(runner));
    std::mem::swap(scope, own(runner));
    made.and_then(|made| made)
}

pub fn scope_of(session: &mut Session) -> &mut Scope {
    &mut session.scope
}

pub fn scope_of_worker(worker: &mut Worker) -> &mut Scope {
    scope_of(&mut worker.session)
}

impl Job {
    /// Calls `call` with the session, which has its variables.
    pub fn with_session<T>(&self, call: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let scope = self.scope();
        let mut scope = scope.try_write().map_err(|_| Error::unavailable("the scope is in use"))?;
        match &mut *self.stage()? {
            Stage::Started(session) => with_variables(&mut scope, &mut **session, scope_of, call),
            Stage::Working(working) => {
                with_variables(&mut scope, &mut working.worker, scope_of_worker, |worker| {
                    call(&mut worker.session)
                })
            }
            Stage::Written => Err(Error::invalid("the startup program of the job has not run")
                .help("run it first: exe.run(default_startup_program())")),
            Stage::Stopped => Err(Error::invalid("the worker has left the job")),
        }
    }
}

/// Moves all variables of `made` to `scope`, which keeps its other variables.
fn replace_all(scope: &mut Scope, made: &mut Scope) {
    let others: Vec<String> =
        scope.names().filter(|name| !made.contains(name)).map(str::to_string).collect();
    for name in others {
        if let Some(tensor) = scope.remove(&name) {
            made.set(name, tensor);
        }
    }
    std::mem::swap(scope, made);
}
