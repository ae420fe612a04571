//! The engine: steps, waits, and the check that all ranks are in the same call.

use super::segment::{Flag, SLOTS, Segment, is_reached};
use super::sys::{self, Process};
use crate::call::{Call, Kind, SIGNATURE_BYTES, Signature, Work, mismatch};
use fleet_base::{Error, Result};
use fleet_net::{Limits, Member, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Tuning parameters.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    /// Time that a wait polls before it sleeps, if no other thread needs its core.
    pub poll_time: Duration,
    /// Number of polls between two offers of the core to other threads.
    pub polls_per_yield: u32,
    /// Number of accepted offers after which a wait sleeps.
    pub yields: u32,
    /// Size limit in bytes of a call that takes one step.
    pub small_bytes_max: usize,
    /// Time after which a stopped peer is an error.
    pub silence_timeout: Duration,
}

pub(crate) struct Engine {
    pub(super) segment: Arc<Segment>,
    pub(super) rank: usize,
    pub(super) size: usize,
    name: String,
    pub(super) members: Vec<Member>,
    processes: Vec<Process>,
    pub(super) tuning: Tuning,
    /// Number of the next step.
    step: u32,
    /// Number of calls so far.
    call: u32,
    /// Number of pair areas used so far, by peer.
    pub(super) sent: Vec<u32>,
    pub(super) received: Vec<u32>,
    /// Buffer for pointers to the slots of a step.
    pub(super) pointers: Vec<*const u8>,
    _hook: fleet_net::Hook,
}

// SAFETY: the pointers are scratch of one call.
unsafe impl Send for Engine {}

impl Engine {
    pub(super) fn new(
        segment: Segment,
        rank: usize,
        name: &str,
        members: Vec<Member>,
        tuning: Tuning,
        abort: &fleet_net::Abort,
    ) -> Engine {
        let size = members.len();
        let segment = Arc::new(segment);
        let weak = Arc::downgrade(&segment);
        let hook = abort.on_fire(move |error| {
            if let Some(segment) = weak.upgrade() {
                segment.set_fault(error);
            }
        });
        Engine {
            segment,
            rank,
            size,
            name: name.to_string(),
            processes: members.iter().map(|member| Process::new(member.pid)).collect(),
            members,
            tuning,
            step: 0,
            call: 0,
            sent: vec![0; size],
            received: vec![0; size],
            pointers: Vec::with_capacity(size),
            _hook: hook,
        }
    }

    /// Runs one call. An error ends the group: it is stored where every rank sees it.
    pub fn run(&mut self, call: &mut Call<'_>, limits: &Limits) -> Result<()> {
        if let Some(fault) = self.segment.fault() {
            return Err(fault);
        }
        let result = match call.signature.kind {
            Kind::Send | Kind::Recv => self.run_pair(call, limits),
            _ => self.run_collective(call, limits),
        };
        if let Err(error) = &result {
            self.segment.set_fault(error);
        }
        result
    }

    fn run_collective(&mut self, call: &mut Call<'_>, limits: &Limits) -> Result<()> {
        let first = self.step;
        let place = self.segment.signature(self.rank, self.call);
        // SAFETY: no rank reads this place before this rank publishes the first step of the call.
        // Ranks that read its previous content have since consumed enough steps.
        unsafe { place.write(call.signature.encode()) };
        let mut run = Run { engine: self, limits, signature: call.signature, first, next: first };
        let result = run.dispatch(&mut call.work).and_then(|()| run.finish());
        let next = run.next;
        self.call = self.call.wrapping_add(1);
        self.step = next;
        result
    }

    pub(super) fn describe(&self, rank: usize) -> String {
        self.members[rank].to_string()
    }

    /// Waits for a counter of `peer`. `waiting` describes the wait in an error.
    #[inline]
    pub(super) fn wait(
        &self,
        flag: Flag<'_>,
        target: u32,
        limits: &Limits,
        peer: usize,
        waiting: &dyn Fn() -> String,
    ) -> Result<()> {
        if flag.reached(target) {
            return Ok(());
        }
        self.wait_longer(flag, target, limits, peer, waiting)
    }

    /// Polls while that is cheap, then sleeps. Waking a thread takes longer than most waits. But a
    /// polling thread may occupy the core that the awaited rank or this rank's computation needs.
    /// The core is therefore offered to other threads between polls, and the duration of an offer
    /// shows whether there are any.
    #[cold]
    fn wait_longer(
        &self,
        flag: Flag<'_>,
        target: u32,
        limits: &Limits,
        peer: usize,
        waiting: &dyn Fn() -> String,
    ) -> Result<()> {
        let begin = Instant::now();
        let mut now = begin;
        let mut accepted = 0;
        while now - begin < self.tuning.poll_time && accepted < self.tuning.yields {
            for _ in 0..self.tuning.polls_per_yield {
                if flag.reached(target) {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            let offered = Instant::now();
            std::thread::yield_now();
            if flag.reached(target) {
                return Ok(());
            }
            now = Instant::now();
            accepted += u32::from(now - offered >= YIELD_ACCEPTED_MIN);
        }
        self.sleep(flag, target, limits, peer, waiting)
    }

    fn sleep(
        &self,
        flag: Flag<'_>,
        target: u32,
        limits: &Limits,
        peer: usize,
        waiting: &dyn Fn() -> String,
    ) -> Result<()> {
        let begin = Instant::now();
        let mut checked = begin;
        loop {
            flag.waiters.fetch_add(1, Ordering::SeqCst);
            let value = flag.word.load(Ordering::SeqCst);
            if !is_reached(value, target) && self.segment.fault().is_none() {
                sys::futex_wait(flag.word, value, CHECK_INTERVAL);
            }
            flag.waiters.fetch_sub(1, Ordering::SeqCst);
            if flag.reached(target) {
                return Ok(());
            }
            let now = Instant::now();
            if now - checked >= CHECK_INTERVAL {
                checked = now;
                self.check_peers(flag, target, limits, peer, now - begin, waiting)?;
            } else if let Some(fault) = self.segment.fault() {
                return Err(fault.at(waiting()));
            }
        }
    }

    /// Checks for reasons to stop waiting.
    fn check_peers(
        &self,
        flag: Flag<'_>,
        target: u32,
        limits: &Limits,
        peer: usize,
        waited: Duration,
        waiting: &dyn Fn() -> String,
    ) -> Result<()> {
        let fault = self.segment.fault().or_else(|| limits.abort.error());
        if let Some(fault) = fault {
            return Err(fault.at(waiting()));
        }
        // A rank that has left or died may have completed its part before.
        let ended = (0..self.size).find_map(|rank| Some((rank, self.end_of(rank)?)));
        if flag.reached(target) {
            return Ok(());
        }
        if let Some((rank, how)) = ended {
            let who = self.describe(rank);
            let error = Error::unavailable(format!("{who} {how}"));
            return Err(error.caused_by(self.members[rank].rank).at(waiting()));
        }
        if waited >= self.tuning.silence_timeout && self.processes[peer].is_stopped() {
            let who = self.describe(peer);
            return Err(Error::unavailable(format!(
                "{who} has been stopped for {} s (SIGSTOP or a debugger)",
                waited.as_secs()
            ))
            .caused_by(self.members[peer].rank)
            .help(format!("resume it with kill -CONT {}", self.members[peer].pid))
            .at(waiting()));
        }
        if limits.deadline.is_past(Time::now()) {
            let who = self.describe(peer);
            return Err(Error::unavailable(format!("the deadline passed while waiting for {who}"))
                .help("raise the timeout of the group if ranks can differ that much in speed")
                .at(waiting()));
        }
        Ok(())
    }

    fn end_of(&self, rank: usize) -> Option<&'static str> {
        if rank == self.rank {
            return None;
        }
        if self.segment.left(rank).load(Ordering::Acquire) != 0 {
            return Some("has left the group");
        }
        self.processes[rank].is_dead().then_some("died")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let left: &AtomicU32 = self.segment.left(self.rank);
        left.store(1, Ordering::Release);
    }
}

/// Minimum duration of an accepted offer. A shorter one is only a system call: no other thread ran.
const YIELD_ACCEPTED_MIN: Duration = Duration::from_micros(5);
/// Interval at which a sleeping wait checks for reasons to stop.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// One running collective.
pub(super) struct Run<'e> {
    pub engine: &'e mut Engine,
    limits: &'e Limits,
    signature: Signature,
    first: u32,
    /// The first step that is not taken yet.
    next: u32,
}

impl Run<'_> {
    fn dispatch(&mut self, work: &mut Work<'_>) -> Result<()> {
        let (signature, size) = (self.signature, self.engine.size);
        let dtype = signature.dtype;
        let op = || signature.op.ok_or_else(|| Error::internal("a reduction without an operation"));
        let root = signature.root as usize;
        let small = self.engine.tuning.small_bytes_max;
        match work {
            Work::AllReduce { data, .. } if data.bytes <= small || size == 1 => {
                self.small_reduce(*data, dtype, op()?, None)
            }
            Work::Reduce { data, .. } if data.bytes <= small || size == 1 => {
                self.small_reduce(*data, dtype, op()?, Some(root))
            }
            Work::AllReduce { data, done } => {
                let done = done.take();
                self.large_reduce(*data, dtype, op()?, None, done)
            }
            Work::Reduce { data, done } => {
                let done = done.take();
                match size {
                    2 => self.reduce_of_two(*data, dtype, op()?, root, done),
                    _ => self.large_reduce(*data, dtype, op()?, Some(root), done),
                }
            }
            Work::ReduceScatter { input, output } => {
                self.reduce_scatter(*input, *output, dtype, op()?)
            }
            Work::AllGather { input, output, counts } => self.all_gather(*input, *output, counts),
            Work::Broadcast { data } => self.broadcast(*data, root),
            Work::Scatter { input, output } => self.scatter(*input, *output, root),
            Work::Gather { input, output } => self.gather(*input, *output, root),
            Work::AllToAll { input, output, sends, receives } => {
                self.all_to_all(*input, *output, sends, receives)
            }
            Work::Barrier => self.barrier(),
            Work::Send { .. } | Work::Recv { .. } => {
                Err(Error::internal("point-to-point message in a collective"))
            }
        }
    }

    /// Takes `count` steps, the same ones on every rank. Returns the first.
    pub fn take(&mut self, count: usize) -> u32 {
        let first = self.next;
        self.next = self.next.wrapping_add(count as u32);
        first
    }

    /// Waits until this rank's slot of `step` is free, and returns it.
    pub fn free_slot(&mut self, step: u32) -> Result<*mut u8> {
        let target = step.wrapping_add(1).wrapping_sub(SLOTS as u32);
        for peer in 0..self.engine.size {
            if peer != self.engine.rank {
                let flag = self.engine.segment.consumed(peer);
                self.engine.wait(flag, target, self.limits, peer, &|| self.waiting(peer))?;
            }
        }
        Ok(self.engine.segment.slot(self.engine.rank, step))
    }

    /// Announces that this rank's slot of `step` is filled.
    pub fn publish(&mut self, step: u32) {
        self.engine.segment.filled(self.engine.rank).publish(step.wrapping_add(1));
    }

    /// Waits until `peer` has filled its slot of `step`, and returns it.
    #[inline]
    pub fn slot_of(&mut self, peer: usize, step: u32) -> Result<*const u8> {
        if peer != self.engine.rank {
            let flag = self.engine.segment.filled(peer);
            let target = step.wrapping_add(1);
            self.engine.wait(flag, target, self.limits, peer, &|| self.waiting(peer))?;
            if step == self.first {
                self.check(peer)?;
            }
        }
        Ok(self.engine.segment.slot(peer, step))
    }

    /// Collects the slots of all ranks for `step` in the engine's `pointers`.
    pub fn all_slots(&mut self, step: u32) -> Result<()> {
        self.engine.pointers.clear();
        for peer in 0..self.engine.size {
            let slot = self.slot_of(peer, step)?;
            self.engine.pointers.push(slot);
        }
        Ok(())
    }

    /// Announces that this rank has finished reading the slots of `step`.
    pub fn consume(&mut self, step: u32) {
        self.engine.segment.consumed(self.engine.rank).publish(step.wrapping_add(1));
    }

    /// Checks the ranks that have started a call. After a call that waits for one rank only, the
    /// others may still be in another call.
    fn finish(&mut self) -> Result<()> {
        if !self.signature.kind.is_rooted() {
            return Ok(());
        }
        for peer in 0..self.engine.size {
            let started = self.engine.segment.filled(peer).reached(self.first.wrapping_add(1));
            if peer != self.engine.rank && started {
                self.check(peer)?;
            }
        }
        Ok(())
    }

    /// Compares the signature of `peer`, which has published the first step of the call.
    fn check(&self, peer: usize) -> Result<()> {
        let engine = &*self.engine;
        let place = engine.segment.signature(peer, engine.call);
        // SAFETY: the peer wrote it before it published the step. It is overwritten only several
        // calls later.
        let bytes: [u8; SIGNATURE_BYTES] = unsafe { place.read() };
        if bytes == self.signature.encode() {
            return Ok(());
        }
        let (own, other) = (engine.describe(engine.rank), engine.describe(peer));
        let Some(theirs) = Signature::decode(&bytes) else {
            return Err(Error::internal(format!("{other} wrote an invalid signature")));
        };
        let (mut a, mut b) = ((own.as_str(), &self.signature), (other.as_str(), &theirs));
        if peer < engine.rank {
            std::mem::swap(&mut a, &mut b);
        }
        Err(mismatch(&engine.name, a, b))
    }

    /// Describes a wait of this call, for errors.
    fn waiting(&self, peer: usize) -> String {
        let engine = &*self.engine;
        let started = self.first.wrapping_add(1);
        let (mut joined, mut missing) = (Vec::new(), Vec::new());
        for rank in 0..engine.size {
            let is_in = rank == engine.rank || engine.segment.filled(rank).reached(started);
            if is_in { &mut joined } else { &mut missing }.push(rank.to_string());
        }
        let missing = match missing.is_empty() {
            true => "all ranks joined".to_string(),
            false => {
                format!("joined: {}; missing: {}", joined.join(" "), missing.join(" "))
            }
        };
        format!(
            "{} in group '{}', rank {} of {} waiting for rank {peer} ({missing})",
            self.signature, engine.name, engine.rank, engine.size
        )
    }
}
