//! What runs collectives: one trait, and the way through memory that ranks of a host share.

use crate::call::{Call, Work};
use crate::shm;
use fleet_base::{Error, Result};
use fleet_net::{Abort, Deadline, Limits};
use std::time::Duration;

/// Runs the calls of one group, one after the other.
pub(crate) trait Backend: Send {
    /// For people: what carries the data.
    fn name(&self) -> String;

    /// Runs one call within the bounds. After an error the group is over.
    fn run(&mut self, call: &mut Call<'_>, bounds: &Bounds) -> Result<()>;

    /// This rank was called with arguments that make no call: tells those who wait for it, where
    /// the fired token does not reach them.
    fn refuse(&mut self, _: &Error, _: &Bounds) {}
}

/// What ends a call that does not end by itself.
pub(crate) struct Bounds {
    pub span: Duration,
    pub abort: Abort,
}

/// All ranks on one host.
pub(crate) struct SharedMemory(pub shm::Engine);

impl Backend for SharedMemory {
    fn name(&self) -> String {
        "shared memory".to_string()
    }

    fn run(&mut self, call: &mut Call<'_>, bounds: &Bounds) -> Result<()> {
        self.0.run(call, &Limits::new(Deadline::within(bounds.span), &bounds.abort))
    }
}

/// A group of one rank.
pub(crate) struct Solo;

impl Backend for Solo {
    fn name(&self) -> String {
        "one rank".to_string()
    }

    fn run(&mut self, call: &mut Call<'_>, bounds: &Bounds) -> Result<()> {
        bounds.abort.check()?;
        let (from, to) = match &call.work {
            Work::AllReduce { .. }
            | Work::Reduce { .. }
            | Work::Broadcast { .. }
            | Work::Barrier => return Ok(()),
            Work::ReduceScatter { input, output } | Work::AllToAll { input, output, .. } => {
                (Some(*input), Some(*output))
            }
            Work::AllGather { input, output, .. } | Work::Scatter { input, output } => {
                (*input, Some(*output))
            }
            Work::Gather { input, output } => (Some(*input), *output),
            Work::Send { .. } | Work::Recv { .. } => {
                return Err(Error::internal("a message of a rank to itself"));
            }
        };
        if let (Some(from), Some(to)) = (from, to) {
            // SAFETY: both are the caller's and were checked to be as long; they may be the same.
            unsafe { std::ptr::copy(from.start, to.start, to.bytes.min(from.bytes)) };
        }
        Ok(())
    }
}
