//! The job of the table of faults: a small network, trained in every mode, in which one process has
//! a fault at some point.

use fleet::nn::optimizer::OptimizerDesc;
use fleet::prelude::*;
use fleet::ps::{Durability, SaveFormat, SaveMode};
use fleet::servers::{ServerJob, Worker};
use fleet::strategy::{HybridConfig, PipelineConfig, ShardingConfig};
use std::path::PathBuf;
use std::time::Duration;

/// How the workers of a job train together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Collective,
    /// Collective: workers own parameters, gradients and state.
    Sharding,
    /// Collective: workers divide layers.
    Tensor,
    /// Collective: workers have stages of the model.
    Pipeline,
    /// Collective: pairs of workers own the parameters, gradients and state of a stage.
    ShardedPipeline,
    Sync,
    HalfAsync,
    Async,
    Geo,
}

/// Role of the faulty process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Worker,
    /// A server whose tables are in memory only.
    Server,
    /// A server whose tables are also on disk.
    Durable,
}

/// Fault of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `process::exit(0)`.
    Leave,
    /// `process::exit(3)`.
    Exit,
    Panic,
    /// SIGKILL.
    Kill,
    /// SIGSTOP, without SIGCONT.
    Stop,
    /// It sleeps forever.
    Hang,
    /// It trains with another strategy, whose communication uses the same groups.
    Strategy,
    /// Its strategy needs other groups.
    Rings,
    /// It trains another network.
    Network,
    /// It fetches a gradient from some step on.
    Fetch,
    /// It calls a collective that the others do not call.
    Extra,
    /// It is stopped (SIGSTOP) until the servers have exited without it.
    Late,
}

/// Phase in which the fault happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Start,
    Step,
    Save,
    Finish,
}

pub const MODES: &[Mode] = &[Mode::Collective, Mode::Sync, Mode::HalfAsync, Mode::Async, Mode::Geo];
/// Modes whose workers divide the model.
pub const DIVIDED: &[Mode] = &[Mode::Sharding, Mode::Tensor, Mode::Pipeline, Mode::ShardedPipeline];

impl Mode {
    /// Returns whether workers run stages of the model.
    fn has_stages(self) -> bool {
        matches!(self, Mode::Pipeline | Mode::ShardedPipeline)
    }

    pub fn has_servers(self) -> bool {
        matches!(self, Mode::Sync | Mode::HalfAsync | Mode::Async | Mode::Geo)
    }
}

pub const FAULTS: &[Fault] = &[
    Fault::Leave,
    Fault::Exit,
    Fault::Panic,
    Fault::Kill,
    Fault::Stop,
    Fault::Hang,
    Fault::Strategy,
    Fault::Rings,
    Fault::Network,
    Fault::Fetch,
    Fault::Extra,
    Fault::Late,
];
pub const PHASES: &[Phase] = &[Phase::Start, Phase::Step, Phase::Save, Phase::Finish];

/// One row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub mode: Mode,
    pub fault: Fault,
    pub phase: Phase,
    pub role: Role,
    /// Rank of the faulty worker or server.
    pub rank: usize,
    pub workers: usize,
    /// Number of launchers, each of which represents a machine; the faulty process is on the last
    /// one.
    pub machines: usize,
}

/// Variable that names the case to a process: `async kill step worker 1 2 1`.
pub const CASE: &str = "FAULTS_CASE";
/// Variable with the folder of the job, which all its machines share.
pub const FOLDER: &str = "FAULTS_FOLDER";
/// File created in the job's folder just before the fault.
pub const MARK: &str = "fault";
/// File created when a server has ended.
pub const OVER: &str = "over";

impl Case {
    pub fn name(&self) -> String {
        let Case { mode, fault, phase, role, rank, workers, machines } = self;
        format!("{mode:?} {fault:?} {phase:?} {role:?} {rank} {workers} {machines}").to_lowercase()
    }

    /// Returns `worker 1`, the launcher's name for the faulty process.
    pub fn title(&self) -> String {
        let role = if self.role == Role::Worker { "worker" } else { "server" };
        format!("{role} {}", self.rank)
    }

    pub fn parse(text: &str) -> Option<Case> {
        let mut words = text.split(' ');
        let word = words.next()?;
        let mode = find(MODES, word).or_else(|| find(DIVIDED, word))?;
        let fault = find(FAULTS, words.next()?)?;
        let phase = find(PHASES, words.next()?)?;
        let role = find(&[Role::Worker, Role::Server, Role::Durable], words.next()?)?;
        let mut number = || words.next()?.parse().ok();
        let (rank, workers, machines) = (number()?, number()?, number()?);
        Some(Case { mode, fault, phase, role, rank, workers, machines })
    }
}

fn find<T: Copy + std::fmt::Debug>(all: &[T], word: &str) -> Option<T> {
    all.iter().find(|it| format!("{it:?}").to_lowercase() == word).copied()
}

const STEPS: u64 = 12;
/// Middle of the training: the step of the fault, and the step after which all workers save.
const MIDDLE: u64 = 6;

/// Runs the role that the environment assigns to this process.
pub fn run(case: &Case) -> Result<()> {
    let (own, is_server) = place();
    // A restarted server has no fault.
    let is_again = is_server && std::env::var("FLEET_RESTART_COUNT").is_ok_and(|it| it != "0");
    let is_role = is_server != (case.role == Role::Worker);
    let mut part = Part { case: *case, is_it: is_role && own == case.rank && !is_again };
    // A server that fails before it uses Fleet reports nothing and may be restarted.
    if case.role != Role::Server {
        part.reach(Phase::Start, || Ok(()))?;
    }
    match case.mode {
        mode if mode.has_servers() => servers(&mut part),
        _ => collective(&mut part),
    }
}

/// Returns the worker's rank, and whether the process is a server, before Fleet is initialized.
fn place() -> (usize, bool) {
    let text = |name: &str| std::env::var(name).unwrap_or_default();
    (text("PADDLE_TRAINER_ID").parse().unwrap_or(0), text("TRAINING_ROLE") == "PSERVER")
}

fn path(name: &str) -> PathBuf {
    PathBuf::from(std::env::var_os(FOLDER).expect("the harness names the folder")).join(name)
}

fn touch(name: &str, text: &str) {
    std::fs::write(path(name), text).expect("the folder of the job can be written");
}

struct Part {
    case: Case,
    /// This process is the faulty one.
    is_it: bool,
}

impl Part {
    fn does(&self, fault: Fault) -> bool {
        self.is_it && self.case.fault == fault
    }

    /// Triggers the fault if it is due in this phase; `extra` is a collective that only the fault
    /// calls.
    fn reach(&mut self, phase: Phase, extra: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.is_it || phase != self.case.phase {
            return Ok(());
        }
        println!("last words of {}", self.case.title());
        touch(MARK, &std::process::id().to_string());
        match self.case.fault {
            Fault::Leave => std::process::exit(0),
            Fault::Exit => std::process::exit(3),
            Fault::Panic => panic!("planned panic of {}", self.case.title()),
            Fault::Kill => signal(rustix::process::Signal::KILL),
            Fault::Stop | Fault::Late => signal(rustix::process::Signal::STOP),
            Fault::Hang => loop {
                std::thread::sleep(POLL);
            },
            Fault::Extra => extra()?,
            Fault::Strategy | Fault::Rings | Fault::Network | Fault::Fetch => {}
        }
        Ok(())
    }

    fn strategy(&self) -> DistributedStrategy {
        let strategy = DistributedStrategy::new();
        let other = self.does(Fault::Strategy);
        let micro_batches = PipelineConfig::default().with_accumulate_steps(2);
        match self.case.mode {
            Mode::Collective if other => strategy.use_gradient_merge(2),
            Mode::Collective if self.does(Fault::Rings) => {
                let mut strategy = strategy;
                strategy.set_nccl_comm_num(2);
                strategy
            }
            Mode::Collective => strategy,
            Mode::Sharding => strategy.use_sharding(ShardingConfig::default().with_stage(3)),
            Mode::Tensor => {
                let degree = self.case.workers as i32;
                strategy.with_hybrid_configs(HybridConfig::default().with_mp_degree(degree))
            }
            Mode::Pipeline => strategy.use_pipeline(micro_batches),
            Mode::ShardedPipeline => {
                let sharding = ShardingConfig::default().with_stage(3).with_sharding_degree(2);
                strategy.use_pipeline(micro_batches).use_sharding(sharding.with_pp_degree(2))
            }
            Mode::Sync | Mode::HalfAsync => strategy.with_a_sync(other),
            Mode::Async => strategy.with_a_sync(!other),
            Mode::Geo if other => strategy.use_geo(3),
            Mode::Geo => strategy.use_geo(2),
        }
    }

    /// Returns the width of the hidden layer.
    fn width(&self) -> i64 {
        if self.does(Fault::Network) { 9 } else { 8 }
    }

    /// Returns the fetches of a step: the loss on the first worker, as is usual, and a gradient if
    /// that is the fault.
    fn fetches<'a>(&self, own: usize, step: u64, loss: &'a str, gradient: &'a str) -> Vec<&'a str> {
        let mut fetches = Vec::new();
        // The loss is in the last stage of a pipeline.
        if own == 0 && !self.case.mode.has_stages() {
            fetches.push(loss);
        }
        if self.does(Fault::Fetch) && step >= MIDDLE {
            fetches.push(gradient);
        }
        fetches
    }
}

fn signal(signal: rustix::process::Signal) {
    let own = rustix::process::getpid();
    rustix::process::kill_process(own, signal).expect("a process may signal itself");
}

fn collective(part: &mut Part) -> Result<()> {
    let fleet = Fleet::collective()?;
    let net = Net::new();
    let (x, y) = (net.data("x", [-1, 4], DType::F32), net.data("y", [-1, 1], DType::F32));
    let hidden = x.fc(Fc::new(part.width()).act(Act::Tanh).split(Split::Columns));
    let loss = hidden.fc(Fc::new(1).split(Split::Rows)).mse_loss(y, Reduction::Mean);
    let loss_name = loss.name();
    let optimizer = fleet.distributed_optimizer(Sgd::new(0.1), &part.strategy());
    let job = optimizer.minimize(&net, loss)?;
    let mut session = fleet.session(net.build()?, &job, ExecOptions::threads(1))?;
    let policy = CheckpointPolicy { every_steps: Some(MIDDLE), ..CheckpointPolicy::default() };
    let mut checkpoints = fleet.checkpoints(path("saves"), policy)?;
    let x = Tensor::from_slice(&[0.5f32; 8], [2, 4])?;
    let y = Tensor::from_slice(&[1.0f32; 2], [2, 1])?;
    for step in 1..=STEPS {
        if step == MIDDLE {
            part.reach(Phase::Step, || fleet.barrier_worker())?;
        }
        let fetches = part.fetches(fleet.worker_index(), step, &loss_name, "fc_0.w_0@GRAD");
        session.run(&[("x", &x), ("y", &y)], &fetches)?;
        if step == MIDDLE {
            part.reach(Phase::Save, || fleet.barrier_worker())?;
        }
        let (main, scope) = (&session.programs.main, &session.scope);
        checkpoints.after_step(step, main, scope, Default::default)?;
    }
    checkpoints.finish()?;
    part.reach(Phase::Finish, || fleet.barrier_worker())?;
    fleet.finish()
}

fn servers(part: &mut Part) -> Result<()> {
    let fleet = Fleet::parameter_server()?;
    let net = Net::new();
    let (ids, y) = (net.data("ids", [-1, 2], DType::I64), net.data("y", [-1, 1], DType::F32));
    let rows = ids.sparse_embedding([100, 4]).flatten(1);
    let loss = rows.fc(Fc::new(part.width())).fc(1).mse_loss(y, Reduction::Mean);
    let loss_name = loss.name();
    let optimizer: OptimizerDesc = match part.case.mode {
        Mode::Geo => Sgd::new(0.1).into(),
        _ => Adagrad::new(0.1).into(),
    };
    let optimizer = fleet.distributed_optimizer(optimizer, &part.strategy());
    let job =
        optimizer.half_async(part.case.mode == Mode::HalfAsync).minimize_on_servers(&net, loss)?;
    if fleet.is_server() {
        return serve(part, &fleet, &job);
    }
    let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::threads(1))?;
    let ids = Tensor::from_slice(&[7i64, 99, 7, 3], [2, 2])?;
    let y = Tensor::from_slice(&[1.0f32, -1.0], [2, 1])?;
    for step in 1..=STEPS {
        if step == MIDDLE {
            part.reach(Phase::Step, || worker.barrier())?;
            await_server(&part.case);
        }
        let fetches = part.fetches(fleet.worker_index(), step, &loss_name, "fc_0.w_0@GRAD");
        worker.run(&[("ids", &ids), ("y", &y)], &fetches)?;
        if step == MIDDLE {
            part.reach(Phase::Save, || worker.barrier())?;
            save(&mut worker, fleet.worker_index())?;
        }
    }
    part.reach(Phase::Finish, || worker.barrier())?;
    worker.stop()
}

/// Serves in a separate thread, so that this one can trigger a fault of the process.
fn serve(part: &mut Part, fleet: &Fleet, job: &ServerJob) -> Result<()> {
    if part.case.role == Role::Server {
        part.reach(Phase::Start, || Ok(()))?;
    }
    let server = match part.case.role {
        Role::Durable => fleet.init_durable_server(job, Durability::in_folder(path("kept")))?,
        Role::Worker | Role::Server => fleet.init_server(job)?,
    };
    let serving = std::thread::spawn(move || server.run());
    while part.is_it && !serving.is_finished() {
        if path(MIDDLE_MARK).exists() {
            part.reach(Phase::Step, || Ok(()))?;
            break;
        }
        std::thread::sleep(POLL);
    }
    serving.join().expect("serving does not panic")?;
    touch(OVER, "");
    Ok(())
}

/// Waits in the middle of the training until the server has had its fault.
fn await_server(case: &Case) {
    if case.role == Role::Worker || case.phase != Phase::Step {
        return;
    }
    touch(MIDDLE_MARK, "");
    // While a panic prints its stack trace the server keeps serving, and the job must not finish.
    while case.fault == Fault::Panic || !path(MARK).exists() {
        std::thread::sleep(POLL);
    }
}

/// File created when workers have reached the middle of their training.
const MIDDLE_MARK: &str = "middle";
const POLL: Duration = Duration::from_millis(10);

/// Saves on the first worker; in a job whose workers wait for each other, all wait for that.
fn save(worker: &mut Worker, own: usize) -> Result<()> {
    worker.flush()?;
    if own == 0 {
        worker.save_persistables(path("saves"), SaveMode::All, SaveFormat::Binary)?;
    }
    worker.barrier()
}
