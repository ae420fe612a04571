//! `DistributeTranspiler`: turns a list of servers and a few options into a job with parameter
//! servers.

use super::{DistributeTranspilerConfig, ServerJob, Transpile};
use fleet_base::Result;
use fleet_ir::Program;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_nn::{Net, Programs, Var};
use fleet_strategy::servers::transpiler::Transpiled;

/// Creates the programs of trainers and servers.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::servers::{DistributeTranspiler, DistributeTranspilerConfig, Transpile};
/// let net = Net::new();
/// let loss = net.data("x", [-1, 1000], DType::F32).fc(64).mean();
/// let config = DistributeTranspilerConfig { slice_var_up: true, ..Default::default() };
/// let pservers = "10.0.0.1:6174,10.0.0.2:6174";
/// let cluster = Transpile { pservers, trainers: 2, ..Default::default() };
/// let job = DistributeTranspiler::new(config).transpile(&net, loss, Sgd::new(0.1), &cluster)?;
/// let trainer = job.get_trainer_program().to_string();
/// assert!(trainer.contains("send_barrier") && !trainer.contains("sgd"));
/// let server = job.get_pserver_program("10.0.0.1:6174")?.to_string();
/// assert!(server.contains("listen_and_serv") && server.contains("sgd"));
/// let both = job.get_pserver_programs("10.0.0.2:6174")?;
/// let startup = job.get_startup_program("10.0.0.2:6174")?;
/// assert_eq!(both.startup.to_string(), startup.to_string());
/// # Ok::<(), fleet::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct DistributeTranspiler {
    /// Settings of the rewrite.
    pub config: DistributeTranspilerConfig,
}

/// A job made by the transpiler, for `Fleet::init_server` and `Fleet::init_worker`, and its
/// programs for inspection. See [`DistributeTranspiler`] for an example.
#[derive(Clone, Debug)]
pub struct TranspiledJob {
    /// The job that servers and workers start with.
    pub job: ServerJob,
    /// The programs of all parts.
    pub transpiled: Transpiled,
    /// The trainer's programs, with which a worker starts.
    pub programs: Programs,
}

impl DistributeTranspiler {
    /// Creates a transpiler with these settings.
    pub fn new(config: DistributeTranspilerConfig) -> DistributeTranspiler {
        DistributeTranspiler { config }
    }

    /// Rewrites a network into a trainer's. The original takes the loss and the optimizer from a
    /// program with updates; here they are arguments.
    #[track_caller]
    pub fn transpile(
        &self,
        net: &Net,
        loss: Var<'_>,
        optimizer: impl Into<OptimizerDesc>,
        cluster: &Transpile<'_>,
    ) -> Result<TranspiledJob> {
        let (loss, optimizer) = (loss.id(), optimizer.into());
        let transpiled = net.rewrite_with(|programs, registry| {
            self.config.transpile(programs, registry, loss, &optimizer, cluster)
        })?;
        let job = ServerJob {
            tables: transpiled.plan.job_tables(transpiled.place),
            plan: transpiled.plan.clone(),
            strategy: transpiled.strategy.clone(),
            place: transpiled.place,
        };
        Ok(TranspiledJob { job, transpiled, programs: net.build()? })
    }
}

impl TranspiledJob {
    /// Returns the program that a trainer runs in every step.
    pub fn get_trainer_program(&self) -> &Program {
        &self.programs.main
    }

    /// Returns the program of the server at an endpoint.
    pub fn get_pserver_program(&self, endpoint: &str) -> Result<Program> {
        self.transpiled.get_pserver_program(endpoint)
    }

    /// Returns that program, and the one that creates its parameters.
    pub fn get_pserver_programs(&self, endpoint: &str) -> Result<Programs> {
        self.transpiled.get_pserver_programs(endpoint)
    }

    /// Returns the program that creates the parameters of the server at an endpoint.
    pub fn get_startup_program(&self, endpoint: &str) -> Result<Program> {
        self.transpiled.get_startup_program(endpoint)
    }
}
