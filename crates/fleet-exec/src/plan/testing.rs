//! Programs for the tests of phases.

use super::infer::Inferred;
use super::{Plan, PlanRequest};
use crate::{Device, ExecOptions};
use fleet_ir::{Program, VarId};
use fleet_ops::{Meta, Registry, Services};

/// A program to plan. Every fed variable has its declared shape.
pub(super) struct Planned {
    program: Program,
}

impl Planned {
    pub fn new(text: &str) -> Planned {
        Planned { program: Program::parse(text, Registry::standard()).unwrap() }
    }

    pub fn var(&self, name: &str) -> VarId {
        self.program.find_var(name).unwrap()
    }

    /// Calls `check` with the result of the first phase.
    pub fn with<T>(&self, check: impl FnOnce(&Inferred<'_>) -> T) -> T {
        self.request(&[], |request| check(&Inferred::new(&request).unwrap()))
    }

    /// Runs all phases.
    pub fn plan(&self, fetches: &[&str]) -> Plan {
        self.request(fetches, |request| Plan::build(request).unwrap())
    }

    fn request<T>(&self, fetches: &[&str], use_it: impl FnOnce(PlanRequest<'_>) -> T) -> T {
        let program = &self.program;
        let fed = program.vars().filter(|(_, var)| var.is_data);
        let feeds: Vec<_> = fed.map(|(id, var)| (id, Meta::dense(var.dtype, var.shape))).collect();
        let fetches: Vec<VarId> = fetches.iter().map(|name| self.var(name)).collect();
        use_it(PlanRequest {
            program: program.clone(),
            registry: Registry::standard(),
            feeds: &feeds,
            fetches: &fetches,
            scope_meta: &|_| None,
            options: &ExecOptions { device: Device::Null, ..ExecOptions::threads(1) },
            services: &Services::none(),
            counts_scratch: false,
        })
    }
}
