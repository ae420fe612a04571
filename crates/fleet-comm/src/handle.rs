//! Background collectives. A group has one lane: a thread that starts with the first such call and
//! runs the calls in order.

use fleet_base::sync::{lock, wait};
use fleet_base::{Error, Result};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::ThreadId;

/// Maximum number of queued calls in a lane.
const QUEUE_MAX: usize = 1024;

/// A background call; [`Handle::wait`] returns its result.
#[must_use = "the result of a background call is lost unless the handle is waited for"]
pub struct Handle<R>(Receiver<Result<R>>);

impl<R> Handle<R> {
    /// Waits until the call has ended, and returns its result.
    pub fn wait(self) -> Result<R> {
        self.0.recv().unwrap_or_else(|_| Err(Error::internal("a background collective panicked")))
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The lane of a group. Blocking calls wait until it is empty, so all collectives of a group run in
/// the order in which they were called.
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
        // The state is consistent after every statement, even if a thread panicked.
        lock(&self.state)
    }

    /// Waits for all background calls that were started before.
    pub fn drain(&self) {
        let mut state = self.lock();
        if state.thread == Some(std::thread::current().id()) {
            return;
        }
        while state.pending > 0 {
            state = wait(&self.idle, state);
        }
    }

    /// Starts `work` after all earlier calls of the lane of `group`.
    pub fn start<R: Send + 'static>(
        self: &Arc<Lane>,
        group: &str,
        work: impl FnOnce() -> Result<R> + Send + 'static,
    ) -> Result<Handle<R>> {
        let (result, receiver) = sync_channel(1);
        let lane = self.clone();
        let job: Job = Box::new(move || {
            let _done = Done(lane);
            // The receiver may have been dropped, which is fine.
            let _ = result.send(work());
        });
        let mut state = self.lock();
        let sender = match &state.sender {
            Some(sender) => sender.clone(),
            None => {
                let (sender, jobs) = sync_channel::<Job>(QUEUE_MAX);
                let thread = std::thread::Builder::new()
                    .name(format!("comm {group}"))
                    .spawn(move || jobs.into_iter().for_each(|job| job()))
                    .map_err(|error| {
                        Error::exhausted(format!(
                            "cannot start the background thread of a group: {error}"
                        ))
                    })?;
                state.thread = Some(thread.thread().id());
                state.sender = Some(sender.clone());
                sender
            }
        };
        // Count and send under one lock, so that jobs are in the order in which they are counted.
        state.pending += 1;
        match sender.try_send(job) {
            Ok(()) => Ok(Handle(receiver)),
            Err(TrySendError::Full(_)) => {
                state.pending -= 1;
                Err(Error::exhausted("too many background collectives")
                    .expected(format!("at most {QUEUE_MAX}"))
                    .help("wait for the handles of earlier ones"))
            }
            Err(TrySendError::Disconnected(_)) => {
                state.pending -= 1;
                Err(Error::internal("the background thread of a group has ended"))
            }
        }
    }
}

/// Marks a job as done, even if it panics.
struct Done(Arc<Lane>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.lock().pending -= 1;
        self.0.idle.notify_all();
    }
}
