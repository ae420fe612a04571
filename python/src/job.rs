//! This process as a member of its job: joining it, communication, and programs rewritten for it.

use crate::error::{OrRaise, exception, guarded, waiting};
use crate::interrupt::{self, Wait};
use crate::optimizer::optimizer;
use crate::program::{Place, ProgramCell, id_in, index};
use crate::scope::ScopeCell;
use crate::session::{Job, Plan, Stage};
use crate::strategy::StrategyCell;
use crate::topology::TopologyCell;
use fleet::nn::{Net, Programs};
use fleet::servers::Server;
use fleet::topology::{Env, Mode};
use fleet::{CommWorld, Error, Fleet, ReduceOp, ir};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex};

/// This process as a member of its job.
#[pyclass(module = "fleet._fleet", frozen)]
pub struct FleetCell {
    pub fleet: Arc<Fleet>,
    /// The job of the last `minimize`.
    job: Mutex<Option<Arc<Job>>>,
    /// The server that `init_server` has made.
    pub server: Mutex<Option<Server>>,
}

impl FleetCell {
    /// Returns a cell for a job that has been joined.
    pub fn of(fleet: Arc<Fleet>, job: Arc<Job>) -> FleetCell {
        FleetCell { fleet, job: Mutex::new(Some(job)), server: Mutex::default() }
    }

    /// Returns the job of the last `minimize`.
    pub fn job(&self) -> PyResult<Arc<Job>> {
        let job = self.job.lock().ok().and_then(|job| job.clone());
        job.ok_or_else(|| {
            exception(
                &Error::invalid("no network was minimized for the job").help(
                    "call fleet.distributed_optimizer(optimizer, strategy).minimize(loss) first",
                ),
            )
        })
    }
}

#[pymethods]
impl FleetCell {
    /// Joins a job. Returns when all ranks of a collective job have joined.
    #[staticmethod]
    fn join(py: Python<'_>, topology: &Bound<'_, TopologyCell>) -> PyResult<FleetCell> {
        let topology = topology.get().topology().clone();
        let fleet = waiting(py, || Fleet::init(topology, &Env::process()))?;
        Ok(FleetCell { fleet: Arc::new(fleet), job: Mutex::default(), server: Mutex::default() })
    }

    /// Returns this process's place in the job.
    fn topology(&self) -> TopologyCell {
        TopologyCell::from(self.fleet.topology().clone())
    }

    /// Returns whether the job has parameter servers, or its only process has their tables.
    fn has_servers(&self) -> bool {
        self.fleet.topology().mode() == Mode::ParameterServer
    }

    /// Returns whether a network was minimized for the job.
    fn has_job(&self) -> bool {
        self.job().is_ok()
    }

    /// Returns whether workers divide the state of the model, so that none has all of it.
    fn divides_state(&self) -> bool {
        self.job().is_ok_and(|job| job.plan.divides_state())
    }

    /// Returns whether this process trains as a worker of parameter servers.
    fn is_working(&self) -> PyResult<bool> {
        let Ok(job) = self.job() else { return Ok(false) };
        Ok(matches!(*job.stage().or_raise()?, Stage::Working(_)))
    }

    fn barrier(&self, py: Python<'_>, members: &str) -> PyResult<()> {
        let members = comm_world("barrier", members)?;
        waiting(py, || self.fleet.util().barrier_in(members))
    }

    fn all_reduce(
        &self,
        py: Python<'_>,
        input: Vec<f64>,
        mode: &str,
        members: &str,
    ) -> PyResult<Vec<f64>> {
        let members = comm_world("all_reduce", members)?;
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
        waiting(py, || self.fleet.util().all_reduce_in(&input, op, members))
    }

    fn all_gather(
        &self,
        py: Python<'_>,
        input: Vec<f64>,
        members: &str,
    ) -> PyResult<Vec<Vec<f64>>> {
        let members = comm_world("all_gather", members)?;
        waiting(py, || self.fleet.util().all_gather_in(&input, members))
    }

    /// Returns this worker's share of a list of files.
    fn file_shard(&self, files: Vec<String>) -> PyResult<Vec<String>> {
        Ok(self.fleet.util().get_file_shard(&files).or_raise()?.to_vec())
    }

    /// Computes a metric over all workers, from the counts of this one. A metric of one count
    /// ignores the second.
    fn metric(
        &self,
        py: Python<'_>,
        name: &str,
        first: Vec<f64>,
        second: Vec<f64>,
    ) -> PyResult<Vec<f64>> {
        let (first, second) = (&first[..], &second[..]);
        waiting(py, || {
            let metrics = self.fleet.metrics();
            match name {
                "sum" => metrics.sum(first),
                "max" => metrics.max(first),
                "min" => metrics.min(first),
                "acc" => metrics.acc(first, second).map(|value| vec![value]),
                "mae" => metrics.mae(first, second).map(|value| vec![value]),
                "mse" => metrics.mse(first, second).map(|value| vec![value]),
                "rmse" => metrics.rmse(first, second).map(|value| vec![value]),
                "auc" => metrics.auc(first, second).map(|value| vec![value]),
                other => Err(Error::invalid(format!("unknown metric '{other}'"))),
            }
        })
    }

    /// Rewrites both programs to train in the job: backward pass, communication, update. `rows`
    /// updates the rows of tables instead of `with`. Returns the names of the applied strategies.
    #[expect(clippy::too_many_arguments, reason = "one call of Python")]
    fn minimize(
        &self,
        main: &Bound<'_, ProgramCell>,
        startup: &Bound<'_, ProgramCell>,
        place: Place,
        with: &Bound<'_, PyAny>,
        strategy: &Bound<'_, StrategyCell>,
        loss: u32,
        rows: Option<Bound<'_, PyAny>>,
        half_async: bool,
    ) -> PyResult<String> {
        let desc = optimizer(with)?;
        let strategy = strategy.get().strategy()?;
        let mut optimizer = self.fleet.distributed_optimizer(desc, &strategy);
        if let Some(rows) = &rows {
            optimizer = optimizer.rows(crate::optimizer::optimizer(rows)?);
        }
        let optimizer = optimizer.half_async(half_async);
        let (mut held, mut start) = (main.get().lock()?, startup.get().lock()?);
        let loss = id_in(&held.program, loss)?;
        let mut names = place.names.get().lock(main.py())?;
        let mut programs = Programs {
            main: ir::Program::clone(&held.program),
            startup: ir::Program::clone(&start.program),
            host_rates: held.host_rates.clone(),
            ..Programs::new()
        };
        programs.main.swap_name_counters(&mut names);
        // With `auto`, ranks wait for each other here.
        let source = &place.source;
        let mode = self.fleet.topology().mode();
        interrupt::watch(main.py())?;
        let (mut programs, made) = main.py().detach(|| {
            let _wait = Wait::begin();
            let net = Net::from_programs(programs);
            let made = {
                let _source = net.source_guard(source);
                let minimize = || {
                    let loss = net.var_with_id(loss)?;
                    Ok(match mode {
                        Mode::Collective => {
                            Plan::Collective(Box::new(optimizer.minimize(&net, loss)?))
                        }
                        Mode::ParameterServer => {
                            Plan::Servers(Box::new(optimizer.minimize_on_servers(&net, loss)?))
                        }
                    })
                };
                guarded(minimize).and_then(|made| made)
            };
            (net.into_parts().0, made)
        });
        programs.main.swap_name_counters(&mut names);
        let plan = made.or_raise()?;
        let text = plan.chain_text();
        held.left = held
            .program
            .vars()
            .filter(|(id, var)| programs.main.find_var(&var.name) != Some(*id))
            .map(|(id, var)| (index(id), var.name.clone()))
            .collect();
        held.program = Arc::new(programs.main.clone());
        held.host_rates = programs.host_rates.clone();
        start.program = Arc::new(programs.startup.clone());
        let job = Arc::new(Job::new(Arc::clone(&self.fleet), plan, programs));
        (held.job, start.job) = (Some(Arc::clone(&job)), Some(Arc::clone(&job)));
        let busy = |_| PyRuntimeError::new_err("minimize runs in another thread");
        *self.job.lock().map_err(busy)? = Some(job);
        Ok(text)
    }
}

/// Returns the model with the state of all workers, on worker 0: its forward part, for evaluation,
/// and a scope with its variables. All workers of a collective job must call it.
#[pyfunction]
pub fn whole_model(
    py: Python<'_>,
    cell: &Bound<'_, FleetCell>,
) -> PyResult<Option<(ProgramCell, ScopeCell)>> {
    let job = cell.get().job()?;
    let whole = waiting(py, || job.with_session(|session| job.fleet.whole(session)))?;
    Ok(whole.map(|whole| (ProgramCell::of_test(whole.program), ScopeCell::of(whole.scope))))
}

/// Checks that the job computes in mixed precision.
#[pyfunction]
pub fn amp_init(cell: &Bound<'_, FleetCell>) -> PyResult<()> {
    cell.get().job()?.with_session(|session| session.amp_init()).or_raise()
}

/// Returns the loss scale of the job; none if the loss is not scaled.
#[pyfunction]
pub fn loss_scaling(cell: &Bound<'_, FleetCell>) -> PyResult<Option<f32>> {
    cell.get().job()?.with_session(|session| session.loss_scaling()).or_raise()
}

/// Reads `comm_world`.
fn comm_world(call: &str, name: &str) -> PyResult<CommWorld> {
    match name {
        "worker" => Ok(CommWorld::Worker),
        "server" => Ok(CommWorld::Server),
        "all" => Ok(CommWorld::All),
        other => Err(PyValueError::new_err(format!(
            "{call}(): comm_world: expected 'worker', 'server' or 'all', got '{other}'"
        ))),
    }
}
