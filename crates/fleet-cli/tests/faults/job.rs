//! The job of the table: a small network, trained in every mode, in which one process does
//! something wrong at some point.

use fleet::nn::optimizer::OptimizerDesc;
use fleet::prelude::*;
use fleet::ps::{Durability, SaveFormat, SaveMode};
use fleet::servers::{ServerJob, Worker};
use fleet::{CheckpointPolicy, DistributedStrategy, Fleet};
use std::path::PathBuf;
use std::time::Duration;

/// How the workers of a job train together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Collective,
    Sync,
    HalfAsync,
    Async,
    Geo,
}

/// The process that does something wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    Worker,
    /// Its tables are in memory only.
    Server,
    /// Its tables are on disk too.
    Durable,
}

/// The part of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// `process::exit(0)`.
    Leave,
    /// `process::exit(3)`.
    Exit,
    Panic,
    /// SIGKILL.
    Kill,
    /// SIGSTOP, for ever.
    Stop,
    /// It sleeps, for ever.
    Hang,
    /// It trains with another strategy, whose communication is in the same groups.
    Strategy,
    /// Its strategy asks for other groups.
    Rings,
    /// Its network is another one.
    Network,
    /// It fetches a gradient from some step on.
    Fetch,
    /// It calls a collective that the others do not call.
    Extra,
    /// It is stopped until the servers have left without it.
    Late,
}

/// When it does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Start,
    Step,
    Save,
    Finish,
}

pub const MODES: &[Mode] = &[Mode::Collective, Mode::Sync, Mode::HalfAsync, Mode::Async, Mode::Geo];
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

/// One line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub mode: Mode,
    pub fault: Fault,
    pub phase: Phase,
    pub role: Role,
    /// The worker or server that does it.
    pub rank: usize,
    pub workers: usize,
    /// Launchers that stand for a machine each; it is on the last one.
    pub machines: usize,
}

/// Tells a process which case it is part of: `async kill step worker 1 2 1`.
pub const CASE: &str = "FAULTS_CASE";
/// The folder of the job, which all its machines see.
pub const FOLDER: &str = "FAULTS_FOLDER";
/// Is made in the job's folder just before the fault.
pub const MARK: &str = "fault";
/// Is made when a server has ended.
pub const OVER: &str = "over";

impl Case {
    pub fn name(&self) -> String {
        let Case { mode, fault, phase, role, rank, workers, machines } = self;
        format!("{mode:?} {fault:?} {phase:?} {role:?} {rank} {workers} {machines}").to_lowercase()
    }

    /// `worker 1`, as the launcher calls it.
    pub fn title(&self) -> String {
        let role = if self.role == Role::Worker { "worker" } else { "server" };
        format!("{role} {}", self.rank)
    }

    pub fn parse(text: &str) -> Option<Case> {
        let mut words = text.split(' ');
        let mode = find(MODES, words.next()?)?;
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
/// The step, and the step after which all save, in the middle.
const MIDDLE: u64 = 6;

/// Takes part in the job as the environment says.
pub fn run(case: &Case) -> Result<()> {
    let (own, is_server) = place();
    // A server that is started again does better.
    let is_again = is_server && std::env::var("FLEET_RESTART_COUNT").is_ok_and(|it| it != "0");
    let is_role = is_server != (case.role == Role::Worker);
    let mut part = Part { case: *case, is_it: is_role && own == case.rank && !is_again };
    // A server without Fleet reports nothing, and may be started again.
    if case.role != Role::Server {
        part.reach(Phase::Start, || Ok(()))?;
    }
    match case.mode {
        Mode::Collective => collective(&mut part),
        _ => servers(&mut part),
    }
}

/// The worker's number, and whether the process is a server, before Fleet knows.
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
    /// This process is the one that does something wrong.
    is_it: bool,
}

impl Part {
    fn does(&self, fault: Fault) -> bool {
        self.is_it && self.case.fault == fault
    }

    /// A point at which this process may do something wrong; `extra` is a collective.
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
        match self.case.mode {
            Mode::Collective if other => strategy.use_gradient_merge(2),
            Mode::Collective if self.does(Fault::Rings) => {
                let mut strategy = strategy;
                strategy.set_nccl_comm_num(2);
                strategy
            }
            Mode::Collective => strategy,
            Mode::Sync | Mode::HalfAsync => strategy.with_a_sync(other),
            Mode::Async => strategy.with_a_sync(!other),
            Mode::Geo if other => strategy.use_geo(3),
            Mode::Geo => strategy.use_geo(2),
        }
    }

    /// The width of the hidden layer.
    fn width(&self) -> i64 {
        if self.does(Fault::Network) { 9 } else { 8 }
    }

    /// What a step fetches: the loss on the first worker, as programs do, and a gradient by fault.
    fn fetches<'a>(&self, own: usize, step: u64, loss: &'a str, gradient: &'a str) -> Vec<&'a str> {
        let mut fetches = Vec::new();
        if own == 0 {
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
    let loss = x.fc(Fc::new(part.width()).act(Act::Tanh)).fc(1).mse_loss(y, Reduction::Mean);
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

/// Serves, in a thread of its own: the fault is that of the process.
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

/// In the middle of the training, lets the server do what it does then.
fn await_server(case: &Case) {
    if case.role == Role::Worker || case.phase != Phase::Step {
        return;
    }
    touch(MIDDLE_MARK, "");
    // While a panic prints its stack the server serves on, and must not finish.
    while case.fault == Fault::Panic || !path(MARK).exists() {
        std::thread::sleep(POLL);
    }
}

/// Workers have come to the middle of their training.
const MIDDLE_MARK: &str = "middle";
const POLL: Duration = Duration::from_millis(10);

/// The first worker saves; in a job whose workers wait for each other, all wait for that.
fn save(worker: &mut Worker, own: usize) -> Result<()> {
    worker.flush()?;
    if own == 0 {
        worker.save_persistables(path("saves"), SaveMode::All, SaveFormat::Binary)?;
    }
    worker.barrier()
}
