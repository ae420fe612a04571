//! Runs the steps of a plan, each lane in its own order.
//!
//! The calling thread runs the compute lane. Every other lane has a thread that lives as long as
//! the executor. A step that depends on another lane waits until that lane has finished enough
//! steps: it spins briefly and then sleeps.

use crate::bind::Binding;
use crate::plan::{Instr, Plan, Step, StepKind};
use crate::trace::Times;
use fleet_base::sync::{lock, wait};
use fleet_base::{Error, Result};
use fleet_kernels::pool::Pool;
use fleet_ops::{KernelCtx, Services};
use fleet_tensor::{DType, View};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of polls before a waiting lane sleeps.
const SPINS_BEFORE_SLEEP: u32 = 2000;

/// One run of a plan, shared by all lanes.
pub(crate) struct Run<'a> {
    pub plan: &'a Plan,
    pub binding: &'a Binding,
    pub step: u64,
    pub check_nan_inf: bool,
    /// Present if profiling is on.
    pub times: Option<&'a Times>,
    services: &'a Services,
    progress: &'a Progress,
}

/// The number of steps that each lane has finished, and the first error.
#[derive(Default)]
pub(crate) struct Progress {
    done: Vec<AtomicUsize>,
    failed: AtomicBool,
    error: Mutex<Option<Error>>,
    sleep: Mutex<()>,
    wake: Condvar,
    /// Time that the compute lane has waited for messages, over all runs.
    message_wait_ns: AtomicU64,
}

impl Progress {
    fn reset(&mut self, lanes: usize) {
        if self.done.len() != lanes {
            self.done = (0..lanes).map(|_| AtomicUsize::new(0)).collect();
        }
        self.done.iter().for_each(|done| done.store(0, SeqCst));
        self.failed.store(false, SeqCst);
        *lock(&self.error) = None;
    }

    fn add_message_wait(&self, waited: Duration) {
        self.message_wait_ns.fetch_add(waited.as_nanos() as u64, Relaxed);
    }

    fn finish_step(&self, lane: usize) {
        self.done[lane].fetch_add(1, SeqCst);
        if self.done.len() > 1 {
            drop(lock(&self.sleep));
            self.wake.notify_all();
        }
    }

    fn fail(&self, error: Error) {
        lock(&self.error).get_or_insert(error);
        self.failed.store(true, SeqCst);
        drop(lock(&self.sleep));
        self.wake.notify_all();
    }

    /// Waits until the lane has finished `count` steps. Returns false if the run fails first.
    fn wait(&self, lane: usize, count: usize) -> bool {
        let ready = || self.done[lane].load(SeqCst) >= count;
        for _ in 0..SPINS_BEFORE_SLEEP {
            if self.failed.load(SeqCst) {
                return false;
            }
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        let mut guard = lock(&self.sleep);
        while !ready() {
            if self.failed.load(SeqCst) {
                return false;
            }
            guard = wait(&self.wake, guard);
        }
        true
    }
}

/// The threads of all lanes but the compute lane.
#[derive(Default)]
pub(crate) struct Lanes {
    threads: Vec<LaneThread>,
    progress: Progress,
}

struct LaneThread {
    slot: Arc<WorkSlot>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct WorkSlot {
    state: Mutex<Work>,
    changed: Condvar,
}

#[derive(Default)]
enum Work {
    #[default]
    Empty,
    /// The address of a [`Run`], which outlives the work, and the number of the lane.
    Run(usize, usize),
    Stop,
}

/// The inputs of a run besides the plan.
pub(crate) struct RunContext<'a> {
    pub pool: &'a Pool,
    pub step: u64,
    pub check_nan_inf: bool,
    pub times: Option<&'a Times>,
    pub services: &'a Services,
}

impl Lanes {
    /// Returns how long the compute lane has waited for messages, over all runs.
    pub fn message_wait(&self) -> Duration {
        Duration::from_nanos(self.progress.message_wait_ns.load(Relaxed))
    }

    /// Runs the plan once. Returns when every lane has finished or stopped.
    pub fn run(&mut self, plan: &Plan, binding: &Binding, context: RunContext<'_>) -> Result<()> {
        self.progress.reset(plan.lanes.len());
        while self.threads.len() + 1 < plan.lanes.len() {
            self.threads.push(LaneThread::start(self.threads.len() + 1)?);
        }
        let RunContext { pool, step, check_nan_inf, times, services } = context;
        let progress = &self.progress;
        let run = Run { plan, binding, step, check_nan_inf, times, services, progress };
        let sides = &self.threads[..plan.lanes.len() - 1];
        let address = &raw const run as usize;
        for (index, side) in sides.iter().enumerate() {
            side.slot.put(Work::Run(address, index + 1));
        }
        run.run_lane(0, pool);
        let begin = Instant::now();
        for side in sides {
            side.slot.wait_idle();
        }
        // A stage that has computed its part waits here for the others.
        if plan.lanes.iter().any(|lane| lane.passes_messages) {
            progress.add_message_wait(begin.elapsed());
        }
        match lock(&progress.error).take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }
}

impl LaneThread {
    fn start(lane: usize) -> Result<LaneThread> {
        let slot = Arc::new(WorkSlot::default());
        let theirs = Arc::clone(&slot);
        let thread = std::thread::Builder::new()
            .name(format!("fleet-lane-{lane}"))
            .spawn(move || theirs.serve())
            .map_err(|error| Error::exhausted(format!("cannot start a lane's thread: {error}")))?;
        Ok(LaneThread { slot, thread: Some(thread) })
    }
}

impl Drop for LaneThread {
    fn drop(&mut self) {
        self.slot.put(Work::Stop);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl WorkSlot {
    fn put(&self, work: Work) {
        *lock(&self.state) = work;
        self.changed.notify_all();
    }

    fn wait_idle(&self) {
        let mut state = lock(&self.state);
        while !matches!(*state, Work::Empty) {
            state = wait(&self.changed, state);
        }
    }

    fn serve(&self) {
        let serial = Pool::new(1);
        loop {
            let mut state = lock(&self.state);
            let (address, lane) = loop {
                match *state {
                    Work::Stop => return,
                    Work::Run(address, lane) => break (address, lane),
                    Work::Empty => {
                        state = wait(&self.changed, state);
                    }
                }
            };
            drop(state);
            // SAFETY: the run lives on the stack of `Lanes::run`, which does not return before this
            // slot is empty again.
            let run = unsafe { &*(address as *const Run<'_>) };
            run.run_lane(lane, &serial);
            self.put(Work::Empty);
        }
    }
}

impl Run<'_> {
    fn run_lane(&self, lane: usize, pool: &Pool) {
        let outcome = catch_unwind(AssertUnwindSafe(|| self.run_steps(lane, pool)));
        match outcome {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.fail(error),
            Err(panic) => {
                self.fail(Error::internal("a kernel panicked").got(panic_message(&*panic)))
            }
        }
    }

    /// Fails the run. Notifies the other lanes and the peers, which would otherwise wait for this
    /// rank.
    fn fail(&self, error: Error) {
        let for_peers = self.plan.communicates.then(|| error.clone());
        self.progress.fail(error);
        if let Some(error) = for_peers {
            self.services.abort(&error);
        }
    }

    fn run_steps(&self, lane: usize, pool: &Pool) -> Result<()> {
        let steps = &self.plan.lanes[lane].steps;
        let mut next = 0;
        while next < steps.len() {
            let at = steps[next];
            let step = &self.plan.steps[at];
            if !step.waits.iter().all(|(other, count)| self.wait(lane, *other, *count)) {
                return Ok(());
            }
            next += 1;
            match &step.kind {
                StepKind::JumpUnless { condition, to } => {
                    // SAFETY: the condition is a planned tensor of one byte.
                    let holds = unsafe { *self.binding.base(*condition) } != 0;
                    while !holds && next < steps.len() && steps[next] < *to {
                        next += 1;
                        self.progress.finish_step(lane);
                    }
                }
                StepKind::Run(instr) => self.run_step(at, step, instr, pool)?,
            }
            self.progress.finish_step(lane);
        }
        Ok(())
    }

    /// Waits until another lane has finished `count` steps. Returns false if the run fails first.
    fn wait(&self, lane: usize, other: usize, count: usize) -> bool {
        if lane != 0 || !self.plan.lanes[other].passes_messages {
            return self.progress.wait(other, count);
        }
        let begin = Instant::now();
        let is_ready = self.progress.wait(other, count);
        self.progress.add_message_wait(begin.elapsed());
        is_ready
    }

    fn run_step(&self, at: usize, step: &Step, instr: &Instr, pool: &Pool) -> Result<()> {
        let ctx = KernelCtx {
            // SAFETY: the plan binds the arguments and the scratch to memory of their size, which
            // outlives the run. Waits keep other lanes away from outputs and from the scratch, and
            // from writing to inputs. `Binding` has marked the inputs that overlap outputs.
            args: unsafe { instr.args.lend(instr.scratch as *mut u8, instr.scratch_bytes) },
            pool,
            step: self.step,
            seed: self.plan.program.seed(),
            talked: self.times.map(|times| times.communication_ns(at)),
        };
        let begin = self.times.map(Times::now);
        (instr.run)(&ctx).map_err(|error| error.at(self.plan.program.describe_op(step.op)))?;
        if let (Some(times), Some(begin)) = (self.times, begin) {
            times.record(at, begin, step.only_communicates);
        }
        if self.check_nan_inf {
            self.check_finite(step, instr)?;
        }
        Ok(())
    }

    #[cold]
    fn check_finite(&self, step: &Step, instr: &Instr) -> Result<()> {
        let op = self.plan.program.op(step.op);
        for (slot, range) in instr.args.outputs().iter().enumerate() {
            for (index, arg) in instr.args.args()[range.clone()].iter().enumerate() {
                // SAFETY: as in `run_step`; the kernel has finished.
                let view = unsafe { arg.view() };
                if let Some((position, value)) = first_non_finite(view) {
                    let name = self.plan.program.var_name(op.outputs[slot][index]);
                    return Err(Error::numeric(format!(
                        "output '{name}' of {} is not finite",
                        op.name()
                    ))
                    .got(format!("{value} at element {position} of shape {}", arg.shape))
                    .at(self.plan.program.describe_op(step.op)));
                }
            }
        }
        Ok(())
    }
}

pub(crate) fn first_non_finite(arg: View<'_>) -> Option<(usize, f64)> {
    let in_use = if arg.rows.is_some() { arg.row_count() * arg.row_len() } else { arg.len() };
    let find = |values: &mut dyn Iterator<Item = f64>| {
        values.take(in_use).enumerate().find(|(_, value)| !value.is_finite())
    };
    match arg.dtype {
        DType::F32 => find(&mut arg.slice::<f32>().iter().map(|v| f64::from(*v))),
        DType::F64 => find(&mut arg.slice::<f64>().iter().copied()),
        DType::F16 => find(&mut arg.slice::<fleet_tensor::f16>().iter().map(|v| v.to_f64())),
        DType::BF16 => find(&mut arg.slice::<fleet_tensor::bf16>().iter().map(|v| v.to_f64())),
        _ => None,
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| text.to_string())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}
