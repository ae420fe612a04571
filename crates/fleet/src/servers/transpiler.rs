//! `DistributeTranspiler`: turns a list of endpoints and a few options into a job, with parameter
//! servers or without.

mod environment;

use super::{DistributeTranspilerConfig, ServerJob, Transpile, Worker};
use crate::agree::NetworkText;
use crate::{Distributed, Fleet, Session};
use environment::Call;
use fleet_base::output::note;
use fleet_base::{Error, Result};
use fleet_exec::ExecOptions;
use fleet_ir::Program;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_nn::{Net, Programs, Var};
use fleet_ops::Registry;
use fleet_strategy::servers::ParamBlock;
use fleet_strategy::servers::transpiler::{Source, Transpiled, TranspiledRanks, TranspilerMode};
use fleet_topology::{Endpoint, Env, Role, UserDefinedRoleMaker};

/// Creates the programs of trainers and servers.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::servers::{DistributeTranspiler, DistributeTranspilerConfig, Transpile};
/// let net = Net::new();
/// let loss = net.data("x", [-1, 1000], DType::F32).fc(64).mean();
/// let config = DistributeTranspilerConfig { slice_var_up: true, ..Default::default() };
/// let pservers = "10.0.0.1:6174,10.0.0.2:6174";
/// let call = Transpile { pservers, trainers: 2.into(), ..Default::default() };
/// let job = DistributeTranspiler::new(config).transpile(&net, loss, Sgd::new(0.1), &call)?;
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

/// A job made by the transpiler: its programs, and the processes that run it.
///
/// ```no_run
/// use fleet::prelude::*;
/// use fleet::servers::{DistributeTranspiler, Part, Transpile};
/// use fleet::topology::Env;
/// let net = Net::new();
/// let loss = net.data("x", [-1, 1000], DType::F32).fc(64).mean();
/// net.minimize(loss, Sgd::new(0.1))?;
/// let (env, server) = (Env::process(), std::env::args().nth(1)); // or an environment variable
/// let pservers = "127.0.0.1:6174,127.0.0.1:6175";
/// let call = Transpile { trainer_id: 0, pservers, ..Default::default() };
/// let made = DistributeTranspiler::default().transpile_program(net.build()?, &call)?;
/// if let Some(endpoint) = server {
///     return made.serve(&endpoint, &env); // until the last trainer has stopped
/// }
/// let fleet = made.join(Part::Trainer, &env)?;
/// let mut worker = made.worker(&fleet, ExecOptions::default())?;
/// worker.run(&[("x", &Tensor::zeros(DType::F32, [8, 1000])?)], &[])?;
/// worker.stop()?;
/// # Ok::<(), fleet::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TranspiledJob {
    /// The trainer's programs.
    pub programs: Programs,
    made: Made,
}

#[derive(Clone, Debug)]
enum Made {
    /// Mode pserver.
    Servers(Box<(ServerJob, Transpiled)>),
    /// Modes nccl2 and collective.
    Ranks(Box<(Distributed, TranspiledRanks)>),
}

/// The part of a process in a job of the transpiler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// The trainer of the call's `trainer_id`.
    Trainer,
    /// The server at this endpoint, one of the call's `pservers`.
    Pserver(&'a str),
}

impl DistributeTranspiler {
    /// Creates a transpiler with these settings.
    pub fn new(config: DistributeTranspilerConfig) -> DistributeTranspiler {
        DistributeTranspiler { config }
    }

    /// Rewrites a network into a trainer's.
    #[track_caller]
    pub fn transpile(
        &self,
        net: &Net,
        loss: Var<'_>,
        optimizer: impl Into<OptimizerDesc>,
        call: &Transpile<'_>,
    ) -> Result<TranspiledJob> {
        let (loss, optimizer) = (loss.id(), optimizer.into());
        let made = net.rewrite_with(|programs, registry| {
            self.make(programs, registry, Source::Loss(loss, &optimizer), call)
        })?;
        Ok(TranspiledJob { programs: net.build()?, made })
    }

    /// Rewrites the programs of a network that trains in one process (the documents' `program` and
    /// `startup_program`) into a trainer's. Rule, learning rate, clipping and decay follow from the
    /// updates in it.
    ///
    /// ```
    /// use fleet::prelude::*;
    /// use fleet::servers::{DistributeTranspiler, Transpile};
    /// let net = Net::new();
    /// let loss = net.data("x", [-1, 1000], DType::F32).fc(64).mean();
    /// net.minimize(loss, Momentum::new(0.1, 0.9))?;
    /// let call = Transpile { pservers: "10.0.0.1:6174", ..Default::default() };
    /// let made = DistributeTranspiler::default().transpile_program(net.build()?, &call)?;
    /// assert!(!made.get_trainer_program().to_string().contains("momentum"));
    /// assert!(made.get_pserver_program("10.0.0.1:6174")?.to_string().contains("momentum"));
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn transpile_program(
        &self,
        programs: Programs,
        call: &Transpile<'_>,
    ) -> Result<TranspiledJob> {
        let mut programs = programs;
        let made = self.make(&mut programs, Registry::standard(), Source::Updates, call)?;
        Ok(TranspiledJob { programs, made })
    }

    fn make(
        &self,
        programs: &mut Programs,
        registry: &'static Registry,
        source: Source<'_>,
        call: &Transpile<'_>,
    ) -> Result<Made> {
        let made = match self.config.mode {
            TranspilerMode::Pserver => {
                let transpiled = self.config.transpile(programs, registry, source, call)?;
                let job = ServerJob {
                    tables: transpiled.plan.job_tables(transpiled.place),
                    plan: transpiled.plan.clone(),
                    strategy: transpiled.strategy.clone(),
                    place: transpiled.place,
                };
                Made::Servers(Box::new((job, transpiled)))
            }
            TranspilerMode::Nccl2 | TranspilerMode::Collective => {
                let before = programs.clone();
                let ranks = self.config.transpile_ranks(programs, registry, source, call)?;
                let network = NetworkText::new(&before, &ranks.optimizer);
                let (plan, strategy) = (ranks.plan.clone(), ranks.strategy.clone());
                Made::Ranks(Box::new((
                    Distributed {
                        plan,
                        strategy,
                        network,
                        prediction: None,
                        memory_before: None,
                        is_of_file: false,
                    },
                    ranks,
                )))
            }
        };
        // Without servers, the notes are printed when a session opens.
        if let Made::Servers(made) = &made
            && self.config.print_log
        {
            made.0.plan.notes.iter().for_each(note);
        }
        Ok(made)
    }
}

impl TranspiledJob {
    /// Returns the program that a trainer runs in every step.
    pub fn get_trainer_program(&self) -> &Program {
        &self.programs.main
    }

    /// Returns the program of the server at an endpoint.
    pub fn get_pserver_program(&self, endpoint: &str) -> Result<Program> {
        self.on_servers()?.1.get_pserver_program(endpoint)
    }

    /// Returns that program, and the one that creates its parameters.
    pub fn get_pserver_programs(&self, endpoint: &str) -> Result<Programs> {
        self.on_servers()?.1.get_pserver_programs(endpoint)
    }

    /// Returns the program that creates the parameters of the server at an endpoint.
    pub fn get_startup_program(&self, endpoint: &str) -> Result<Program> {
        self.on_servers()?.1.get_startup_program(endpoint)
    }

    /// Returns the blocks of dense parameters on the server at an endpoint.
    pub fn blocks(&self, endpoint: &str) -> Result<Vec<&ParamBlock>> {
        self.on_servers()?.1.blocks(endpoint)
    }

    /// Returns the job of mode pserver, for `Fleet::init_server` and `Fleet::init_worker`.
    pub fn server_job(&self) -> Result<&ServerJob> {
        Ok(&self.on_servers()?.0)
    }

    /// Returns the job of modes nccl2 and collective, for `Fleet::session`.
    pub fn distributed(&self) -> Result<&Distributed> {
        Ok(&self.among_ranks()?.0)
    }

    fn on_servers(&self) -> Result<&(ServerJob, Transpiled)> {
        match &self.made {
            Made::Servers(made) => Ok(made),
            Made::Ranks(_) => Err(no_servers()),
        }
    }

    fn among_ranks(&self) -> Result<&(Distributed, TranspiledRanks)> {
        match &self.made {
            Made::Ranks(made) => Ok(made),
            Made::Servers(_) => Err(Error::invalid("trainers of mode pserver have no session")
                .expected("mode nccl2 or collective")
                .help("use TranspiledJob::worker")),
        }
    }

    /// Joins the job that the call of `transpile` describes, as a trainer or server of it. Secret,
    /// store and further settings come from `env`. Variables there that describe another job than
    /// the call are an error.
    pub fn join(&self, part: Part<'_>, env: &Env) -> Result<Fleet> {
        let call = self.call(part)?;
        call.check(env)?;
        let Call { part, trainer_id, trainers, trainer_endpoints, servers } = call;
        let is_collective = matches!(self.made, Made::Ranks(_));
        let (role, current_id) = match part {
            Part::Trainer => (Role::Worker, trainer_id),
            Part::Pserver(endpoint) => (Role::Server, position(&servers, endpoint)?),
        };
        let worker_endpoints = match is_collective {
            true => trainer_endpoints,
            false => environment::workers(env)?,
        };
        let roles = UserDefinedRoleMaker {
            is_collective,
            current_id,
            role,
            worker_num: Some(trainers),
            worker_endpoints,
            server_endpoints: servers,
            ..UserDefinedRoleMaker::default()
        };
        Fleet::with_roles(roles, env)
    }

    fn call<'a>(&self, part: Part<'a>) -> Result<Call<'a>> {
        let list = |what: &str, list: &[String]| Endpoint::list(what, &list.join(","));
        Ok(match &self.made {
            Made::Servers(made) => Call {
                part,
                trainer_id: made.0.place.worker,
                trainers: made.0.place.worker_count,
                trainer_endpoints: Vec::new(),
                servers: list("pservers", &made.1.endpoints)?,
            },
            Made::Ranks(made) if part == Part::Trainer => Call {
                part,
                trainer_id: made.1.ranks.rank,
                trainers: made.1.ranks.count,
                trainer_endpoints: list("trainers", &made.1.endpoints)?,
                servers: Vec::new(),
            },
            Made::Ranks(_) => return Err(no_servers()),
        })
    }

    /// Joins the job as the server at an endpoint, and serves until the last trainer has stopped.
    pub fn serve(&self, endpoint: &str, env: &Env) -> Result<()> {
        let fleet = self.join(Part::Pserver(endpoint), env)?;
        fleet.init_server(self.server_job()?)?.run()
    }

    /// Starts the worker of a trainer in mode pserver.
    pub fn worker(&self, fleet: &Fleet, options: ExecOptions) -> Result<Worker> {
        fleet.init_worker(self.programs.clone(), self.server_job()?, options)
    }

    /// Opens the session of a trainer in modes nccl2 and collective. All trainers must open it, and
    /// call [`Fleet::finish`] in the end.
    ///
    /// ```
    /// use fleet::prelude::*;
    /// use fleet::servers::{
    ///     DistributeTranspiler, DistributeTranspilerConfig, Part, Transpile, TranspilerMode,
    /// };
    /// use fleet::topology::Env;
    /// let net = Net::new();
    /// let loss = net.data("x", [-1, 4], DType::F32).fc(1).mean();
    /// net.minimize(loss, Sgd::new(0.1))?;
    /// let (mode, trainers) = (TranspilerMode::Nccl2, "127.0.0.1:6174".into());
    /// let config = DistributeTranspilerConfig { mode, ..Default::default() };
    /// let call = Transpile { trainers, ..Default::default() };
    /// let made = DistributeTranspiler::new(config).transpile_program(net.build()?, &call)?;
    /// let fleet = made.join(Part::Trainer, &Env::new())?;
    /// let mut session = made.session(&fleet, ExecOptions::default())?;
    /// session.run(&[("x", &Tensor::zeros(DType::F32, [8, 4])?)], &[])?;
    /// fleet.finish()?;
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn session(&self, fleet: &Fleet, options: ExecOptions) -> Result<Session> {
        let (job, ranks) = self.among_ranks()?;
        if fleet.is_first_worker() {
            note(format_args!("{} ranks, {}", ranks.ranks.count, job.plan.chain_text()));
            job.plan.notes.iter().for_each(note);
        }
        fleet.session(self.programs.clone(), job, options)
    }
}

fn no_servers() -> Error {
    Error::invalid("modes nccl2 and collective have no servers")
        .expected("mode pserver")
        .help("use TranspiledJob::session instead of servers and workers")
}

/// Returns the number of the server at an endpoint.
fn position(servers: &[Endpoint], endpoint: &str) -> Result<usize> {
    let own: Endpoint = endpoint.parse()?;
    servers.iter().position(|server| *server == own).ok_or_else(|| {
        Error::invalid("no server of this job has this endpoint")
            .expected(format!("one of {}", Endpoint::join(servers)))
            .got(own)
    })
}
