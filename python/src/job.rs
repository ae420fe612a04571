//! This process as a member of its job, and programs rewritten for the job.

use crate::error::{OrRaise, guarded, released};
use crate::optimizer::optimizer;
use crate::program::{Place, ProgramCell, id_in};
use crate::strategy::StrategyCell;
use fleet::ir;
use fleet::nn::{Net, Programs};
use fleet::topology::{Env, UserDefinedRoleMaker};
use fleet::{Distributed, Fleet, ReduceOp};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::sync::Arc;

/// A pair of programs that a strategy has rewritten, with the job that runs them.
pub struct Job {
    pub fleet: Arc<Fleet>,
    pub distributed: Distributed,
    /// Both programs as the rewrite has left them.
    pub programs: Programs,
}

/// This process as a member of its job.
#[pyclass(module = "fleet._fleet", frozen)]
pub struct FleetCell {
    fleet: Arc<Fleet>,
}

#[pymethods]
impl FleetCell {
    /// Joins the collective job that the environment describes. Returns when all ranks have joined.
    #[staticmethod]
    fn collective(py: Python<'_>) -> PyResult<FleetCell> {
        let fleet = released(py, Fleet::collective)?;
        Ok(FleetCell { fleet: Arc::new(fleet) })
    }

    /// Joins a collective job as the worker that the program describes.
    #[staticmethod]
    fn described(
        py: Python<'_>,
        current_id: usize,
        worker_endpoints: Vec<String>,
    ) -> PyResult<FleetCell> {
        let endpoints =
            fleet::topology::Endpoint::list("worker_endpoints", &worker_endpoints.join(","));
        let roles = UserDefinedRoleMaker {
            is_collective: true,
            current_id,
            worker_endpoints: endpoints.or_raise()?,
            ..UserDefinedRoleMaker::default()
        };
        let fleet = released(py, || Fleet::with_roles(roles, &Env::process()))?;
        Ok(FleetCell { fleet: Arc::new(fleet) })
    }

    fn worker_index(&self) -> usize {
        self.fleet.worker_index()
    }

    fn worker_num(&self) -> usize {
        self.fleet.worker_num()
    }

    fn is_first_worker(&self) -> bool {
        self.fleet.is_first_worker()
    }

    fn worker_endpoints(&self) -> Vec<String> {
        self.fleet.topology().worker_endpoints().iter().map(ToString::to_string).collect()
    }

    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        released(py, || self.fleet.barrier_worker())
    }

    fn all_reduce(&self, py: Python<'_>, input: Vec<f64>, mode: &str) -> PyResult<Vec<f64>> {
        let op = match mode {
            "sum" => ReduceOp::Sum,
            "max" => ReduceOp::Max,
            "min" => ReduceOp::Min,
            other => {
                return Err(PyValueError::new_err(format!(
                    "all_reduce(): mode: expected 'sum', 'max' or 'min', got '{other}'"
                )));
            }
        };
        released(py, || self.fleet.util().all_reduce(&input, op))
    }

    fn all_gather(&self, py: Python<'_>, input: Vec<f64>) -> PyResult<Vec<Vec<f64>>> {
        released(py, || self.fleet.util().all_gather(&input))
    }

    /// Returns this worker's share of a list of files.
    fn file_shard(&self, files: Vec<String>) -> PyResult<Vec<String>> {
        Ok(self.fleet.util().get_file_shard(&files).or_raise()?.to_vec())
    }

    /// Waits until all ranks have finished, and leaves the job.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        released(py, || self.fleet.finish())
    }

    /// Rewrites both programs to train on all ranks: backward pass, communication, update. Returns
    /// the names of the applied strategies.
    fn minimize(
        &self,
        main: &Bound<'_, ProgramCell>,
        startup: &Bound<'_, ProgramCell>,
        place: Place,
        with: &Bound<'_, PyAny>,
        strategy: &Bound<'_, StrategyCell>,
        loss: u32,
    ) -> PyResult<String> {
        let desc = optimizer(with)?;
        let strategy = strategy.get().strategy()?;
        let optimizer = self.fleet.distributed_optimizer(desc, &strategy);
        let (mut held, mut start) = (main.get().lock()?, startup.get().lock()?);
        let loss = id_in(&held.program, loss)?;
        let mut names = place.names.get().lock()?;
        let mut programs = Programs {
            main: ir::Program::clone(&held.program),
            startup: ir::Program::clone(&start.program),
            host_rates: held.host_rates.clone(),
        };
        programs.main.swap_name_counters(&mut names);
        // With `auto`, ranks wait for each other here.
        let source = &place.source;
        let (mut programs, made) = main.py().detach(|| {
            let net = Net::from_programs(programs);
            let made = {
                let _source = net.source_guard(source);
                let minimize = || optimizer.minimize(&net, net.var_with_id(loss)?);
                guarded(minimize).and_then(|made| made)
            };
            (net.into_parts().0, made)
        });
        programs.main.swap_name_counters(&mut names);
        let distributed = made.or_raise()?;
        let text = distributed.plan.chain_text();
        held.program = Arc::new(programs.main.clone());
        held.host_rates = programs.host_rates.clone();
        start.program = Arc::new(programs.startup.clone());
        let fleet = Arc::clone(&self.fleet);
        let job = Arc::new(Job { fleet, distributed, programs });
        (held.job, start.job) = (Some(Arc::clone(&job)), Some(job));
        Ok(text)
    }
}
