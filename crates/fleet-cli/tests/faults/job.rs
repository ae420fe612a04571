//! The job of the table: a small network, trained in every mode, in which one worker does something
//! wrong at some point.

use fleet::nn::optimizer::OptimizerDesc;
use fleet::prelude::*;
use fleet::ps::{SaveFormat, SaveMode};
use fleet::servers::Worker;
use fleet::{CheckpointPolicy, DistributedStrategy, Fleet};

/// How the workers of a job train together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Collective,
    Sync,
    HalfAsync,
    Async,
    Geo,
}

/// The part of one worker.
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
    /// The worker that does it.
    pub rank: usize,
    pub workers: usize,
}

/// Tells a process which case it is part of: `async kill step 1 2`.
pub const CASE: &str = "FAULTS_CASE";
/// Is made in the job's folder just before the fault.
pub const MARK: &str = "fault";
/// Is made when a server has ended.
pub const OVER: &str = "over";

impl Case {
    pub fn name(&self) -> String {
        let (mode, fault, phase) = (self.mode, self.fault, self.phase);
        format!("{mode:?} {fault:?} {phase:?} {} {}", self.rank, self.workers).to_lowercase()
    }

    pub fn parse(text: &str) -> Option<Case> {
        let mut words = text.split(' ');
        let mode = find(MODES, words.next()?)?;
        let fault = find(FAULTS, words.next()?)?;
        let phase = find(PHASES, words.next()?)?;
        let (rank, workers) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Case { mode, fault, phase, rank, workers })
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
    let mut part = Part { case: *case, is_it: !is_server && own == case.rank };
    part.reach(Phase::Start, || Ok(()))?;
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
        println!("last words of worker {}", self.case.rank);
        let own = std::process::id().to_string();
        std::fs::write(MARK, own).expect("the folder of the job can be written");
        match self.case.fault {
            Fault::Leave => std::process::exit(0),
            Fault::Exit => std::process::exit(3),
            Fault::Panic => panic!("planned panic of worker {}", self.case.rank),
            Fault::Kill => signal(rustix::process::Signal::KILL),
            Fault::Stop | Fault::Late => signal(rustix::process::Signal::STOP),
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
    let mut checkpoints = fleet.checkpoints("saves", policy)?;
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
        fleet.init_server(&job)?.run()?;
        std::fs::write(OVER, "").expect("the folder of the job can be written");
        return Ok(());
    }
    let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::threads(1))?;
    let ids = Tensor::from_slice(&[7i64, 99, 7, 3], [2, 2])?;
    let y = Tensor::from_slice(&[1.0f32, -1.0], [2, 1])?;
    for step in 1..=STEPS {
        if step == MIDDLE {
            part.reach(Phase::Step, || worker.barrier())?;
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

/// The first worker saves; in a job whose workers wait for each other, all wait for that.
fn save(worker: &mut Worker, own: usize) -> Result<()> {
    worker.flush()?;
    if own == 0 {
        worker.save_persistables("saves", SaveMode::All, SaveFormat::Binary)?;
    }
    worker.barrier()
}
