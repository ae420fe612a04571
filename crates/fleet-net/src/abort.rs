//! A token that fires once, with a reason, and wakes all waiters.
//!
//! There are four ways to wait for it: [`Abort::check`] between steps, [`Abort::flag`] for loops
//! over shared memory, [`Abort::wake_fd`] for `poll`, and [`Abort::on_fire`] for condition
//! variables and futexes.
//!
//! ```
//! use fleet_base::Error;
//! use fleet_net::Abort;
//! let abort = Abort::new();
//! abort.check()?;
//! assert!(abort.fire(Error::unavailable("rank 3 died")));
//! assert!(!abort.fire(Error::unavailable("too late: the first reason stays")));
//! assert_eq!(abort.check().unwrap_err().message(), "rank 3 died");
//! # Ok::<(), Error>(())
//! ```

use fleet_base::sync::{lock, wait_for};
use fleet_base::{Error, Result};
use std::io::{PipeReader, PipeWriter, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

/// An abort token, shared by all threads that must stop together. A clone is the same token.
#[derive(Clone, Default)]
pub struct Abort(Arc<Inner>);

#[derive(Default)]
struct Inner {
    fired: AtomicU32,
    state: Mutex<State>,
    changed: Condvar,
    wake: OnceLock<(PipeReader, PipeWriter)>,
}

type Call = Arc<dyn Fn(&Error) + Send + Sync>;

#[derive(Default)]
struct State {
    reason: Option<Error>,
    hooks: Vec<(u64, Call)>,
    hook_next: u64,
    /// Keeps the hook of a child registered with its parent.
    parent: Option<Hook>,
}

impl Abort {
    /// Returns a token that has not fired.
    pub fn new() -> Abort {
        Abort::default()
    }

    /// A token that fires when this one does. It can also fire alone.
    pub fn child(&self) -> Abort {
        let child = Abort::new();
        let weak = Arc::downgrade(&child.0);
        let hook = self.on_fire(move |reason| {
            if let Some(inner) = weak.upgrade() {
                Abort(inner).fire(reason.clone());
            }
        });
        child.0.lock().parent = Some(hook);
        child
    }

    /// Fires with `reason`. Returns false if it has already fired; the first reason stays.
    pub fn fire(&self, reason: Error) -> bool {
        let hooks = {
            let mut state = self.0.lock();
            if state.reason.is_some() {
                return false;
            }
            state.reason = Some(reason.clone());
            self.0.fired.store(1, Ordering::SeqCst);
            std::mem::take(&mut state.hooks)
        };
        self.0.changed.notify_all();
        self.0.wake_pollers();
        // Run the hooks outside the lock: a hook may take a lock whose holder calls this token.
        for (_, call) in hooks {
            call(&reason);
        }
        true
    }

    /// Returns whether the token has fired.
    #[inline]
    pub fn is_fired(&self) -> bool {
        self.0.fired.load(Ordering::Acquire) != 0
    }

    /// Returns the reason as an error if the token has fired.
    #[inline]
    pub fn check(&self) -> Result<()> {
        if self.is_fired() { Err(self.reason()) } else { Ok(()) }
    }

    /// Returns the reason, if the token has fired.
    pub fn error(&self) -> Option<Error> {
        self.0.lock().reason.clone()
    }

    /// A flag that is not 0 once the token has fired, for loops that poll memory.
    pub fn flag(&self) -> &AtomicU32 {
        &self.0.fired
    }

    /// Calls `call` when the token fires, or now if it has already fired. Dropping the hook
    /// unregisters it; a call that has already started still finishes.
    #[must_use = "dropping the hook unregisters the call"]
    pub fn on_fire(&self, call: impl Fn(&Error) + Send + Sync + 'static) -> Hook {
        let mut state = self.0.lock();
        if let Some(reason) = state.reason.clone() {
            drop(state);
            call(&reason);
            return Hook { owner: Weak::new(), id: 0 };
        }
        let id = state.hook_next;
        state.hook_next += 1;
        state.hooks.push((id, Arc::new(call)));
        Hook { owner: Arc::downgrade(&self.0), id }
    }

    /// A descriptor that becomes and stays readable when the token fires. Do not read from it.
    pub fn wake_fd(&self) -> Result<BorrowedFd<'_>> {
        if self.0.wake.get().is_none() {
            let pipe = std::io::pipe().map_err(|error| {
                Error::exhausted(format!("cannot create a pipe to wake waiters: {error}"))
                    .help("raise the limit on open files (ulimit -n)")
            })?;
            // If another thread was faster, its pipe stays and this one closes.
            let _ = self.0.wake.set(pipe);
            if self.is_fired() {
                self.0.wake_pollers();
            }
        }
        match self.0.wake.get() {
            Some((reader, _)) => Ok(reader.as_fd()),
            None => Err(Error::internal("the wake pipe is missing after its creation")),
        }
    }

    /// Sleeps for `span`. Returns the reason as an error as soon as the token fires.
    pub fn sleep(&self, span: Duration) -> Result<()> {
        let end = Instant::now() + span;
        let mut state = self.0.lock();
        loop {
            if let Some(reason) = &state.reason {
                return Err(reason.clone());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            state = wait_for(&self.0.changed, state, left).0;
        }
    }

    fn reason(&self) -> Error {
        self.error().unwrap_or_else(|| Error::internal("aborted without a reason"))
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No code panics under this lock, and the state is valid after every statement.
        lock(&self.state)
    }

    fn wake_pollers(&self) {
        if let Some((_, writer)) = self.wake.get() {
            // One byte that is never read. The pipe cannot be full, and both ends are still open.
            let _ = (&*writer).write(&[1]);
        }
    }
}

impl std::fmt::Debug for Abort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.error() {
            Some(reason) => write!(f, "Abort(fired: {reason})"),
            None => write!(f, "Abort(not fired)"),
        }
    }
}

/// Registration of a call of [`Abort::on_fire`]. Dropping it unregisters the call.
#[derive(Debug)]
pub struct Hook {
    owner: Weak<Inner>,
    id: u64,
}

impl Drop for Hook {
    fn drop(&mut self) {
        if let Some(inner) = self.owner.upgrade() {
            inner.lock().hooks.retain(|(id, _)| *id != self.id);
        }
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Abort")
    }
}
