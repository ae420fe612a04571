//! `DistributeTranspiler` of the 1.x interface: programs that train alone, rewritten for servers
//! and trainers by a list of endpoints.

use crate::args::wrong;
use crate::error::{OrRaise, waiting};
use crate::job::FleetCell;
use crate::program::{Place, ProgramCell};
use crate::session::{Job, Plan};
use fleet::ir;
use fleet::nn::Programs;
use fleet::servers::{
    DistributeTranspiler, DistributeTranspilerConfig, Part, SplitMethod, Trainers, Transpile,
    TranspiledJob,
};
use fleet::topology::Env;
use pyo3::exceptions::{PyAttributeError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, MutexGuard};

/// The switches.
#[pyclass(module = "fleet._fleet", frozen)]
pub struct TranspilerConfigCell {
    config: Mutex<DistributeTranspilerConfig>,
}

/// Assigns a switch by its name.
macro_rules! assign {
    ($config:ident, $name:ident, $value:ident, [$($plain:ident)*]) => {
        match $name {
            "mode" => $config.mode = text($name, $value)?.parse().or_raise()?,
            "split_method" => $config.split_method = split_method(&text($name, $value)?)?,
            "collective_mode" => {
                $config.collective_mode = match $value.is_none() {
                    true => None,
                    false => Some(text($name, $value)?.parse().or_raise()?),
                };
            }
            $(stringify!($plain) => {
                let expected = match stringify!($plain) {
                    "min_block_size" | "geo_sgd_need_push_nums" | "nccl_comm_num"
                    | "hierarchical_allreduce_inter_nranks" => "an integer",
                    _ => "True or False",
                };
                $config.$plain = $value.extract().map_err(|_| wrong($name, expected, $value))?;
            })*
            _ => {
                let near = fleet_base::text::did_you_mean($name, [
                    "mode", "split_method", "collective_mode", $(stringify!($plain)),*
                ]);
                let text = format!("DistributeTranspilerConfig has no switch '{}'{near}", $name);
                return Err(PyAttributeError::new_err(text));
            }
        }
    };
}

#[pymethods]
impl TranspilerConfigCell {
    #[new]
    fn new() -> TranspilerConfigCell {
        TranspilerConfigCell { config: Mutex::default() }
    }

    fn set(&self, name: &str, value: &Bound<'_, PyAny>) -> PyResult<()> {
        let config = &mut *self.lock()?;
        assign!(config, name, value, [
            print_log slice_var_up min_block_size sync_mode half_async completely_not_async
            enable_dc_asgd geo_sgd_mode geo_sgd_need_push_nums runtime_split_send_recv wait_port
            nccl_comm_num use_hierarchical_allreduce hierarchical_allreduce_inter_nranks
        ]);
        Ok(())
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("{:?}", *self.lock()?))
    }
}

impl TranspilerConfigCell {
    fn lock(&self) -> PyResult<MutexGuard<'_, DistributeTranspilerConfig>> {
        self.config.lock().map_err(|_| PyRuntimeError::new_err("the settings are broken"))
    }
}

fn split_method(name: &str) -> PyResult<SplitMethod> {
    match name {
        "RoundRobin" => Ok(SplitMethod::RoundRobin),
        "HashName" => Ok(SplitMethod::HashName),
        other => Err(PyValueError::new_err(format!(
            "split_method: expected 'RoundRobin' or 'HashName', got '{other}'"
        ))),
    }
}

fn text(name: &str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    value.extract().map_err(|_| wrong(name, "a name", value))
}

/// Programs that the transpiler has rewritten, and the job that they describe.
#[pyclass(module = "fleet._fleet", frozen)]
pub struct TranspiledCell {
    made: TranspiledJob,
}

/// Rewrites both programs into a trainer's. If that fails, they stay as they were.
#[pyfunction]
#[expect(clippy::too_many_arguments, reason = "one call of Python")]
pub fn transpile(
    config: &Bound<'_, TranspilerConfigCell>,
    main: &Bound<'_, ProgramCell>,
    startup: &Bound<'_, ProgramCell>,
    place: Place,
    trainer_id: usize,
    pservers: &str,
    trainers: &Bound<'_, PyAny>,
    sync_mode: Option<bool>,
    current_endpoint: &str,
) -> PyResult<TranspiledCell> {
    let endpoints: Option<String> = trainers.extract().ok();
    let trainers = match (&endpoints, trainers.extract()) {
        (Some(endpoints), _) => Trainers::Endpoints(endpoints),
        (None, Ok(count)) => Trainers::Count(count),
        (None, Err(_)) => {
            return Err(wrong("trainers", "their number, or their endpoints", trainers));
        }
    };
    let call = Transpile { trainer_id, pservers, trainers, sync_mode, current_endpoint };
    let (mut held, mut start) = (main.get().lock()?, startup.get().lock()?);
    let mut names = place.names.get().lock(main.py())?;
    let mut programs = Programs {
        main: ir::Program::clone(&held.program),
        startup: ir::Program::clone(&start.program),
        host_rates: held.host_rates.clone(),
        ..Programs::new()
    };
    let before = names.clone();
    programs.main.swap_name_counters(&mut names);
    let transpiler = DistributeTranspiler::new(config.get().lock()?.clone());
    let made = transpiler.transpile_program(programs, &call);
    let mut made = made.inspect_err(|_| *names = before).or_raise()?;
    made.programs.main.swap_name_counters(&mut names);
    held.program = Arc::new(made.programs.main.clone());
    held.host_rates = made.programs.host_rates.clone();
    start.program = Arc::new(made.programs.startup.clone());
    Ok(TranspiledCell { made })
}

#[pymethods]
impl TranspiledCell {
    /// Returns the program of the server at an endpoint.
    fn pserver_program(&self, endpoint: &str) -> PyResult<ProgramCell> {
        Ok(ProgramCell::of(self.made.get_pserver_program(endpoint).or_raise()?))
    }

    /// Returns the program that creates the parameters of that server.
    fn startup_program(&self, endpoint: &str) -> PyResult<ProgramCell> {
        Ok(ProgramCell::of(self.made.get_startup_program(endpoint).or_raise()?))
    }

    /// Returns whether parameters are on servers.
    fn has_servers(&self) -> bool {
        self.made.server_job().is_ok()
    }

    /// Serves at an endpoint until the last trainer has stopped.
    fn serve(&self, py: Python<'_>, endpoint: &str) -> PyResult<()> {
        waiting(py, || self.made.serve(endpoint, &Env::process()))
    }

    /// Joins the job as the trainer, which runs these programs.
    fn join(
        &self,
        py: Python<'_>,
        main: &Bound<'_, ProgramCell>,
        startup: &Bound<'_, ProgramCell>,
    ) -> PyResult<FleetCell> {
        let plan = match self.made.server_job() {
            Ok(job) => Plan::Servers(Box::new(job.clone())),
            Err(_) => Plan::Collective(Box::new(self.made.distributed().or_raise()?.clone())),
        };
        let fleet = Arc::new(waiting(py, || self.made.join(Part::Trainer, &Env::process()))?);
        let job = Arc::new(Job::new(Arc::clone(&fleet), plan, self.made.programs.clone()));
        let (mut held, mut start) = (main.get().lock()?, startup.get().lock()?);
        (held.job, start.job) = (Some(Arc::clone(&job)), Some(Arc::clone(&job)));
        Ok(FleetCell::of(fleet, job))
    }
}
