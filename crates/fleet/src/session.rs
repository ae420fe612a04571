//! A session: a model's programs, the scope that they run on, and an executor.

use crate::dataset_run::{DatasetReport, DatasetRun, run_counted, run_from_dataset};
use fleet_base::Result;
use fleet_data::Dataset;
use fleet_exec::{ExecOptions, Executor, Scope};
use fleet_ir::Program;
use fleet_nn::Programs;
use fleet_ops::Services;
use fleet_tensor::Tensor;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The three things that a training loop needs, together.
///
/// A new session has run the startup program: its parameters are initialised.
pub struct Session {
    pub programs: Programs,
    pub scope: Scope,
    pub executor: Executor,
    test: Program,
    /// Training steps, for the job that this session is part of.
    steps: Arc<AtomicU64>,
}

impl Session {
    pub fn new(programs: Programs, options: ExecOptions) -> Result<Session> {
        Session::with_executor(programs, Executor::new(options))
    }

    /// With an executor that has been given more than options: rings to other ranks.
    pub fn with_executor(programs: Programs, mut executor: Executor) -> Result<Session> {
        let mut scope = Scope::new();
        executor.run(&programs.startup, &mut scope, &[], &[])?;
        let test = programs.for_test()?;
        Ok(Session { programs, scope, executor, test, steps: Arc::default() })
    }

    /// The same session, whose programs from now on have a way out.
    pub(crate) fn with_services(self, services: Services) -> Session {
        Session { executor: self.executor.services(services), ..self }
    }

    /// Runs the main program once: a training step.
    pub fn run(&mut self, feed: &[(&str, &Tensor)], fetch: &[&str]) -> Result<Vec<Tensor>> {
        self.steps.fetch_add(1, Relaxed);
        self.executor.run(&self.programs.main, &mut self.scope, feed, fetch)
    }

    /// Counts the training steps of this session.
    pub(crate) fn step_count(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.steps)
    }

    /// Trains on one pass of a dataset.
    pub fn train_from_dataset(
        &mut self,
        dataset: &dyn Dataset,
        run: DatasetRun<'_>,
    ) -> Result<DatasetReport> {
        let Session { programs, scope, executor, steps, .. } = self;
        run_counted(executor, &programs.main, scope, dataset, run, steps)
    }

    /// Runs the forward part, as for inference, on one pass of a dataset: nothing is updated but what
    /// metrics count.
    pub fn infer_from_dataset(
        &mut self,
        dataset: &dyn Dataset,
        run: DatasetRun<'_>,
    ) -> Result<DatasetReport> {
        run_from_dataset(&mut self.executor, &self.test, &mut self.scope, dataset, run)
    }

    /// Runs the forward part as for inference: no dropout, running statistics, no update.
    pub fn evaluate(&mut self, feed: &[(&str, &Tensor)], fetch: &[&str]) -> Result<Vec<Tensor>> {
        self.executor.run(&self.test, &mut self.scope, feed, fetch)
    }
}
