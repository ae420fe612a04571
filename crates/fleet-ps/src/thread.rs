//! Threads that end with their owners.

use fleet_base::{Error, Result};
use std::thread::{Builder, JoinHandle};

/// A thread that is waited for when this is dropped.
pub(crate) struct Thread(Option<JoinHandle<()>>);

impl Thread {
    pub fn start(name: &str, body: impl FnOnce() + Send + 'static) -> Result<Thread> {
        match Builder::new().name(name.into()).spawn(body) {
            Ok(thread) => Ok(Thread(Some(thread))),
            Err(error) => Err(Error::exhausted(format!("cannot start a thread: {error}"))),
        }
    }

    /// Lets the thread end by itself.
    pub fn detach(mut self) {
        self.0 = None;
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic has been reported by its thread.
            let _ = thread.join();
        }
    }
}
