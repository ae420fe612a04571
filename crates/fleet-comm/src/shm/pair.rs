//! Messages between two ranks. They use the areas of the pair and no steps of the group.

use super::engine::Engine;
use super::segment::PAIR_SLOTS;
use crate::call::{Call, Kind, Piece, Signature, Work};
use fleet_base::{Error, Result};
use fleet_kernels::copy::copy;
use fleet_net::Limits;
use std::fmt::Display;

impl Engine {
    pub(super) fn run_pair(&mut self, call: &mut Call<'_>, limits: &Limits) -> Result<()> {
        match call.work {
            Work::Send { to, data } => self.send(to, data, &call.signature, limits),
            Work::Recv { from, into } => self.recv(from, into, &call.signature, limits),
            _ => Err(Error::internal("collective in a point-to-point call")),
        }
    }

    fn send(&mut self, to: usize, data: Piece, own: &Signature, limits: &Limits) -> Result<()> {
        let area = self.segment.layout.pair_slot_bytes();
        let mut step = self.sent[to];
        let mut start = 0;
        loop {
            let free = step.wrapping_add(1).wrapping_sub(PAIR_SLOTS as u32);
            let flag = self.segment.pair_consumed(self.rank, to);
            self.wait(flag, free, limits, to, &|| {
                format!("{own}, waiting for rank {to} to receive")
            })?;
            let bytes = (data.bytes - start).min(area);
            // SAFETY: the receiver has consumed the area and its signature.
            unsafe {
                self.segment.pair_signature(self.rank, to, step).write(own.encode());
                let slot = self.segment.pair_slot(self.rank, to, step);
                copy(data.start.add(start), slot, bytes);
            }
            step = step.wrapping_add(1);
            self.segment.pair_filled(self.rank, to).publish(step);
            start += bytes;
            if start >= data.bytes {
                self.sent[to] = step;
                return Ok(());
            }
        }
    }

    fn recv(&mut self, from: usize, into: Piece, own: &Signature, limits: &Limits) -> Result<()> {
        let area = self.segment.layout.pair_slot_bytes();
        let mut step = self.received[from];
        let mut start = 0;
        loop {
            let flag = self.segment.pair_filled(from, self.rank);
            let next = step.wrapping_add(1);
            self.wait(flag, next, limits, from, &|| {
                format!("{own}, waiting for rank {from} to send")
            })?;
            // SAFETY: the sender has published the area and its signature.
            let theirs = unsafe { self.segment.pair_signature(from, self.rank, step).read() };
            let theirs = Signature::decode(&theirs).ok_or_else(|| {
                Error::internal(format!("rank {from} wrote an invalid signature"))
            })?;
            check_pair(own, &theirs, &self.members[self.rank], &self.members[from])?;
            let bytes = (into.bytes - start).min(area);
            // SAFETY: as above; both sides agree on the size.
            unsafe {
                let slot = self.segment.pair_slot(from, self.rank, step);
                copy(slot, into.start.add(start), bytes);
            }
            step = next;
            self.segment.pair_consumed(from, self.rank).publish(step);
            start += bytes;
            if start >= into.bytes {
                self.received[from] = step;
                return Ok(());
            }
        }
    }
}

/// Checks that a message is the one that its receiver expects.
pub(crate) fn check_pair(
    own: &Signature,
    theirs: &Signature,
    me: &dyn Display,
    peer: &dyn Display,
) -> Result<()> {
    let same = theirs.kind == Kind::Send
        && (own.dtype, own.elements, own.sequence)
            == (theirs.dtype, theirs.elements, theirs.sequence)
        && own.label == theirs.label;
    if same {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "send and receive do not match: {me} calls {own}, {peer} calls {theirs}"
    ))
    .help(
        "sends and receives of a pair must have the same label, type and size, in the same order",
    ))
}
