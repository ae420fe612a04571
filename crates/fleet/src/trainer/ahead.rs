//! Batches of a function that are made ahead of time, by a thread of its own.

use super::source::{Feeds, FromFn, Pass, Position, Source};
use fleet_base::{Error, Result};
use std::mem::replace;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread::JoinHandle;

/// Data of a function that runs ahead of training: see [`FromFn::ahead`].
pub struct Ahead<F> {
    make: Arc<F>,
    batch_count: Option<u64>,
    ahead: usize,
}

impl<F: Fn(u64, u64, &mut Feeds) -> Result<bool> + Send + Sync + 'static> FromFn<F> {
    /// Calls the function on a thread of its own, which keeps up to `batches` batches ready (at
    /// least 1). Training then does not wait for data that takes less time than a step.
    ///
    /// ```
    /// use fleet::prelude::*;
    /// use fleet::trainer::{Feeds, Position, Source, from_fn};
    /// let make = |_, batch: u64, feeds: &mut Feeds| {
    ///     feeds.set("x", Tensor::from_slice(&[batch as f32], [1, 1])?);
    ///     Ok(batch < 3)
    /// };
    /// let mut data = from_fn(make).ahead(2);
    /// let (mut pass, mut feeds) = (data.pass(0, Position::default())?, Feeds::default());
    /// for batch in 0..3 {
    ///     assert!(pass.next(&mut feeds)?);
    ///     assert_eq!(feeds.list()[0].1.item::<f32>()?, batch as f32);
    /// }
    /// assert!(!pass.next(&mut feeds)?);
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn ahead(self, batches: usize) -> Ahead<F> {
        let (make, batch_count) = self.into_parts();
        Ahead { make: Arc::new(make), batch_count, ahead: batches.max(1) }
    }
}

impl<F: Fn(u64, u64, &mut Feeds) -> Result<bool> + Send + Sync + 'static> Source for Ahead<F> {
    fn pass(&mut self, epoch: u64, from: Position) -> Result<Box<dyn Pass + '_>> {
        let (make, end) = (Arc::clone(&self.make), self.batch_count.unwrap_or(u64::MAX));
        let (full, ready) = sync_channel(self.ahead - 1);
        let (used, empty) = channel::<Feeds>();
        let work = move || {
            for batch in from.batches..end {
                let mut feeds = empty.try_recv().unwrap_or_default();
                let made = match make(epoch, batch, &mut feeds) {
                    Ok(false) => return,
                    Ok(true) => Ok(feeds),
                    Err(error) => Err(error),
                };
                let is_last = made.is_err();
                // If nothing receives the batch, the pass has ended.
                if full.send(made).is_err() || is_last {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name("fleet-batches".into()).spawn(work);
        let thread = thread
            .map_err(|error| Error::exhausted("cannot start a thread for batches").got(error))?;
        Ok(Box::new(AheadPass { ready: Some(ready), used, thread: Some(thread) }))
    }

    fn batches_after(&self, from: Position) -> Option<u64> {
        Some(self.batch_count?.saturating_sub(from.batches))
    }
}

struct AheadPass {
    ready: Option<Receiver<Result<Feeds>>>,
    used: Sender<Feeds>,
    thread: Option<JoinHandle<()>>,
}

impl Pass for AheadPass {
    fn next(&mut self, feeds: &mut Feeds) -> Result<bool> {
        let Some(Ok(made)) = self.ready.as_ref().map(Receiver::recv) else {
            let panicked = self.thread.take().is_some_and(|thread| thread.join().is_err());
            return match panicked {
                true => Err(Error::invalid("the function that makes batches panicked")),
                false => Ok(false),
            };
        };
        let old = replace(feeds, made?);
        // The thread may have made its last batch already.
        let _ = self.used.send(old);
        Ok(true)
    }
}

impl Drop for AheadPass {
    fn drop(&mut self) {
        // Without a receiver, the thread stops at its next batch.
        self.ready = None;
        if let Some(thread) = self.thread.take() {
            // A panic does not matter to a training that has stopped.
            let _ = thread.join();
        }
    }
}
