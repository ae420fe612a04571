//! The place of a process in its job, as the environment or a script describes it.

use crate::error::OrRaise;
use fleet::Topology;
use fleet::topology::{Endpoint, Env, Role, UserDefinedRoleMaker};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// The role, the rank and the peers of a process.
#[pyclass(module = "fleet._fleet", frozen, eq)]
#[derive(PartialEq)]
pub struct TopologyCell {
    topology: Topology,
}

impl TopologyCell {
    pub fn topology(&self) -> &Topology {
        &self.topology
    }
}

impl From<Topology> for TopologyCell {
    fn from(topology: Topology) -> TopologyCell {
        TopologyCell { topology }
    }
}

#[pymethods]
impl TopologyCell {
    /// Reads the environment. Without a launcher, the process is worker 0 of 1.
    #[staticmethod]
    fn from_env(is_collective: bool) -> PyResult<TopologyCell> {
        let env = Env::process();
        let read = match is_collective {
            true => Topology::collective(&env),
            false => Topology::parameter_server(&env),
        };
        Ok(TopologyCell { topology: read.or_raise()? })
    }

    /// Takes the place that a script describes. `role` is a documented number.
    #[staticmethod]
    fn described(
        is_collective: bool,
        current_id: usize,
        role: i64,
        worker_num: Option<usize>,
        worker_endpoints: Vec<String>,
        server_endpoints: Vec<String>,
    ) -> PyResult<TopologyCell> {
        let known = [Role::Worker, Role::Server, Role::HeterWorker, Role::Coordinator];
        let Some(role) = known.into_iter().find(|known| *known as i64 == role) else {
            return Err(PyValueError::new_err(format!(
                "role: expected Role.WORKER or Role.SERVER, got {role}"
            )));
        };
        let list = |name: &str, given: Vec<String>| Endpoint::list(name, &given.join(","));
        let roles = UserDefinedRoleMaker {
            is_collective,
            current_id,
            role,
            worker_num,
            worker_endpoints: list("worker_endpoints", worker_endpoints).or_raise()?,
            server_endpoints: list("server_endpoints", server_endpoints).or_raise()?,
            ..UserDefinedRoleMaker::default()
        };
        Ok(TopologyCell { topology: roles.topology_in(&Env::process()).or_raise()? })
    }

    /// The documented number of the role.
    #[getter]
    fn role(&self) -> i64 {
        self.topology.role() as i64
    }

    #[getter]
    fn is_first_worker(&self) -> bool {
        self.topology.is_first_worker()
    }

    #[getter]
    fn is_non_distributed(&self) -> bool {
        self.topology.is_non_distributed()
    }

    /// The rank within the role.
    #[getter]
    fn rank(&self) -> usize {
        self.topology.rank()
    }

    #[getter]
    fn worker_num(&self) -> usize {
        self.topology.worker_num()
    }

    #[getter]
    fn server_num(&self) -> usize {
        self.topology.server_num()
    }

    #[getter]
    fn node_num(&self) -> usize {
        self.topology.node_num()
    }

    #[getter]
    fn worker_endpoints(&self) -> Vec<String> {
        self.topology.worker_endpoints().iter().map(ToString::to_string).collect()
    }

    #[getter]
    fn server_endpoints(&self) -> Vec<String> {
        self.topology.server_endpoints().iter().map(ToString::to_string).collect()
    }
}
