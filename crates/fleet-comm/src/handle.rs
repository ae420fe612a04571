//! Collectives in the background: a group has one lane, a thread that is started with the first
//! such call and runs them in their order.

use crate::Group;
use fleet_base::{Error, Result};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

/// Calls that may wait in a lane; whoever starts more waits.
const QUEUE_MAX: usize = 1024;

/// A call that is under way; [`Handle::wait`] gives its result.
#[must_use = "a call in the background is lost unless somebody waits for it"]
pub struct Handle<R>(Receiver<Result<R>>);

impl<R> Handle<R> {
    pub fn wait(self) -> Result<R> {
        self.0
            .recv()
            .unwrap_or_else(|_| Err(Error::internal("a collective in the background panicked")))
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The lane of a group. Blocking calls wait until it is empty, so that the order of a group's
/// collectives is the order in which they were called, whichever form they have.
#[derive(Default)]
pub(crate) struct Lane {
    state: Mutex<State>,
    idle: Condvar,
}

#[derive(Default)]
struct State {
    sender: Option<SyncSender<Job>>,
    thread: Option<ThreadId>,
    pending: usize,
}

impl Lane {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A state is whole between statements, whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until calls in the background that were started before have ended.
    pub fn drain(&self) {
        let mut state = self.lock();
        if state.thread == Some(std::thread::current().id()) {
            return;
        }
        while state.pending > 0 {
            state = self.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub fn start<R: Send + 'static>(
        group: &Group,
        work: impl FnOnce(&Group) -> Result<R> + Send + 'static,
    ) -> Result<Handle<R>> {
        let (result, receiver) = sync_channel(1);
        let own = group.clone();
        let job: Job = Box::new(move || {
            let done = Done(own);
            // Nobody may be waiting any more, which is fine.
            let _ = result.send(work(&done.0));
        });
        let mut state = group.lane().lock();
        let sender = match &state.sender {
            Some(sender) => sender.clone(),
            None => {
                let (sender, jobs) = sync_channel::<Job>(QUEUE_MAX);
                let thread = std::thread::Builder::new()
                    .name(format!("comm {}", group.name()))
                    .spawn(move || jobs.into_iter().for_each(|job| job()))
                    .map_err(|error| {
                        Error::exhausted(format!("cannot start the lane of a group: {error}"))
                    })?;
                state.thread = Some(thread.thread().id());
                state.sender = Some(sender.clone());
                sender
            }
        };
        // Counted and sent under the lock: jobs are in the order of their counting.
        state.pending += 1;
        match sender.try_send(job) {
            Ok(()) => Ok(Handle(receiver)),
            Err(TrySendError::Full(_)) => {
                state.pending -= 1;
                Err(Error::exhausted("too many collectives wait in the background")
                    .expected(format!("at most {QUEUE_MAX}"))
                    .help("wait for the handles of earlier ones"))
            }
            Err(TrySendError::Disconnected(_)) => {
                state.pending -= 1;
                Err(Error::internal("the lane of a group is gone"))
            }
        }
    }
}

/// Counts a job as done, also when it panics.
struct Done(Group);

impl Drop for Done {
    fn drop(&mut self) {
        let lane = self.0.lane();
        lane.lock().pending -= 1;
        lane.idle.notify_all();
    }
}
