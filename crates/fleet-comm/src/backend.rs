//! Backends, which run collectives: the trait, shared memory on one host, and groups of one rank.

use crate::call::{Call, Work};
use crate::shm;
use fleet_base::{Error, Result};
use fleet_net::{Abort, Deadline, Limits};
use std::time::Duration;

/// Runs the calls of one group, one after another.
pub(crate) trait Backend: Send {
    /// Name of the transport, for messages.
    fn name(&self) -> String;

    /// Runs one call within the bounds. After an error the group cannot be used.
    fn run(&mut self, call: &mut Call<'_>, bounds: &Bounds) -> Result<()>;

    /// Called if the arguments of a call on this rank are invalid. Notifies waiting peers that the
    /// fired token does not reach.
    fn reject_call(&mut self, _: &Error, _: &Bounds) {}
}

/// Limits of a call.
pub(crate) struct Bounds {
    pub timeout: Duration,
    pub abort: Abort,
}

/// Backend for groups whose ranks are all on one host.
pub(crate) struct SharedMemory(pub shm::Engine);

impl Backend for SharedMemory {
    fn name(&self) -> String {
        "shared memory".to_string()
    }

    fn run(&mut self, call: &mut Call<'_>, bounds: &Bounds) -> Result<()> {
        self.0.run(call, &Limits::new(Deadline::within(bounds.timeout), &bounds.abort))
    }
}

/// Backend for groups of one rank.
pub(crate) struct SingleRank;

impl Backend for SingleRank {
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
                return Err(Error::internal("send to own rank"));
            }
        };
        if let (Some(from), Some(to)) = (from, to) {
            from.copy_to(to);
        }
        Ok(())
    }
}
