//! Steps, waits, and the check that all ranks are in the same call.

use super::segment::{Flag, SLOTS, Segment, is_reached};
use super::sys::{self, Process};
use crate::call::{Call, Kind, SIGNATURE_BYTES, Signature, Work, mismatch};
use fleet_base::{Error, Result};
use fleet_net::{Limits, Member, Time};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// What may be set by those who measure.
#[derive(Clone, Debug)]
pub(crate) struct Tuning {
    /// How long a wait looks before it sleeps, when nobody else wants its core.
    pub poll: Duration,
    /// Looks between two offers of the core to others.
    pub looks: u32,
    /// A wait sleeps after this many offers that somebody took.
    pub offers: u32,
    /// A call up to this many bytes goes in one step.
    pub small_bytes_max: usize,
    /// A peer that is stopped for longer than this is an error.
    pub silence: Duration,
}

pub(crate) struct Engine {
    pub(super) segment: Arc<Segment>,
    pub(super) rank: usize,
    pub(super) size: usize,
    name: String,
    members: Vec<Member>,
    processes: Vec<Process>,
    pub(super) tuning: Tuning,
    /// The next step of the stream.
    step: u32,
    /// Calls so far.
    call: u32,
    /// Areas of pairs so far, by peer.
    pub(super) sent: Vec<u32>,
    pub(super) received: Vec<u32>,
    /// Room for pointers to the slots of a step.
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
                segment.poison(error);
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

    /// Runs one call. An error ends the group: it is written where every rank sees it.
    pub fn run(&mut self, call: &mut Call<'_>, limits: &Limits) -> Result<()> {
        if let Some(fault) = self.segment.fault() {
            return Err(fault);
        }
        let result = match call.signature.kind {
            Kind::Send | Kind::Recv => self.run_pair(call, limits),
            _ => self.run_collective(call, limits),
        };
        if let Err(error) = &result {
            self.segment.poison(error);
        }
        result
    }

    fn run_collective(&mut self, call: &mut Call<'_>, limits: &Limits) -> Result<()> {
        let first = self.step;
        let place = self.segment.signature(self.rank, self.call);
        // SAFETY: nobody reads this place before the first step of the call is published, and those
        // who read what was there before have consumed at least as many steps since.
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

    /// Waits for a counter of `peer`; `waiting` says for what, when it fails.
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

    /// Looks while that costs nobody anything, then sleeps. To wake a thread takes longer than most
    /// waits, but a core that is burnt looking may be the one that the awaited rank, or the own
    /// computation, needs: so the core is offered to others between looks, and how long the offer
    /// takes tells whether there are any.
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
        let mut taken = 0;
        while now - begin < self.tuning.poll && taken < self.tuning.offers {
            for _ in 0..self.tuning.looks {
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
            taken += u32::from(now - offered >= TAKEN_MIN);
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
        let mut looked = begin;
        loop {
            flag.waiters.fetch_add(1, Ordering::SeqCst);
            let value = flag.word.load(Ordering::SeqCst);
            if !is_reached(value, target) && self.segment.fault().is_none() {
                sys::futex_wait(flag.word, value, LOOK_EVERY);
            }
            flag.waiters.fetch_sub(1, Ordering::SeqCst);
            if flag.reached(target) {
                return Ok(());
            }
            let now = Instant::now();
            if now - looked >= LOOK_EVERY {
                looked = now;
                self.look(flag, target, limits, peer, now - begin, waiting)?;
            } else if let Some(fault) = self.segment.fault() {
                return Err(fault.at(waiting()));
            }
        }
    }

    /// The reasons to wait no longer.
    fn look(
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
        // A rank that left or died may have done its part before.
        let gone = (0..self.size).find_map(|rank| Some((rank, self.gone(rank)?)));
        if flag.reached(target) {
            return Ok(());
        }
        if let Some((rank, how)) = gone {
            let who = self.describe(rank);
            let error = Error::unavailable(format!("{who} {how}"));
            return Err(error.caused_by(self.members[rank].rank).at(waiting()));
        }
        if waited >= self.tuning.silence && self.processes[peer].is_stopped() {
            let who = self.describe(peer);
            return Err(Error::unavailable(format!(
                "{who} is stopped (SIGSTOP or a debugger) and was silent for {} s",
                waited.as_secs()
            ))
            .caused_by(self.members[peer].rank)
            .help(format!("kill -CONT {} if it was meant to go on", self.members[peer].pid))
            .at(waiting()));
        }
        if limits.deadline.is_past(Time::now()) {
            let who = self.describe(peer);
            return Err(Error::unavailable(format!("the deadline passed while waiting for {who}"))
                .help("raise the timeout of the group if ranks may really be that far apart")
                .at(waiting()));
        }
        Ok(())
    }

    fn gone(&self, rank: usize) -> Option<&'static str> {
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

/// An offer of the core that comes back sooner was not taken: a system call, and nothing else ran.
const TAKEN_MIN: Duration = Duration::from_micros(5);
/// A sleeping wait looks at the reasons to give up this often.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// One collective under way.
pub(super) struct Run<'e> {
    pub engine: &'e mut Engine,
    limits: &'e Limits,
    signature: Signature,
    first: u32,
    /// The step after the last that was given out.
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
            Work::Reduce { data } if data.bytes <= small || size == 1 => {
                self.small_reduce(*data, dtype, op()?, Some(root))
            }
            Work::AllReduce { data, done } => {
                let done = done.take();
                self.large_reduce(*data, dtype, op()?, None, done)
            }
            Work::Reduce { data } => self.large_reduce(*data, dtype, op()?, Some(root), None),
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
                Err(Error::internal("a message between two ranks in the stream of all"))
            }
        }
    }

    /// Takes `count` steps of the stream, the same on every rank; gives the first.
    pub fn take(&mut self, count: usize) -> u32 {
        let first = self.next;
        self.next = self.next.wrapping_add(count as u32);
        first
    }

    /// Waits until the own slot of `step` is free, and gives it.
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

    /// The own slot of `step` holds what it should.
    pub fn publish(&mut self, step: u32) {
        self.engine.segment.filled(self.engine.rank).publish(step.wrapping_add(1));
    }

    /// Waits until `peer` has written its slot of `step`, and gives it.
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

    /// The slots of all ranks for `step`, in the engine's `pointers`.
    pub fn all_slots(&mut self, step: u32) -> Result<()> {
        self.engine.pointers.clear();
        for peer in 0..self.engine.size {
            let slot = self.slot_of(peer, step)?;
            self.engine.pointers.push(slot);
        }
        Ok(())
    }

    /// The others' slots of `step` will not be read any more.
    pub fn consume(&mut self, step: u32) {
        self.engine.segment.consumed(self.engine.rank).publish(step.wrapping_add(1));
    }

    /// Where one rank's data was waited for alone the others may still be in another call: those
    /// that have begun are checked.
    fn finish(&mut self) -> Result<()> {
        if !self.signature.kind.is_rooted() {
            return Ok(());
        }
        for peer in 0..self.engine.size {
            let begun = self.engine.segment.filled(peer).reached(self.first.wrapping_add(1));
            if peer != self.engine.rank && begun {
                self.check(peer)?;
            }
        }
        Ok(())
    }

    /// Compares the signature of `peer`, which has published the first step of the call.
    fn check(&self, peer: usize) -> Result<()> {
        let engine = &*self.engine;
        let place = engine.segment.signature(peer, engine.call);
        // SAFETY: the peer wrote it before it published the step, and it is written again only some
        // calls later.
        let bytes: [u8; SIGNATURE_BYTES] = unsafe { place.read() };
        if bytes == self.signature.encode() {
            return Ok(());
        }
        let (own, other) = (engine.describe(engine.rank), engine.describe(peer));
        let Some(theirs) = Signature::decode(&bytes) else {
            return Err(Error::internal(format!("{other} wrote no signature of a collective")));
        };
        let (mut a, mut b) = ((own.as_str(), &self.signature), (other.as_str(), &theirs));
        if peer < engine.rank {
            std::mem::swap(&mut a, &mut b);
        }
        Err(mismatch(&engine.name, a, b))
    }

    /// What a wait in this call says when it fails.
    fn waiting(&self, peer: usize) -> String {
        let engine = &*self.engine;
        let begun = self.first.wrapping_add(1);
        let (mut joined, mut missing) = (Vec::new(), Vec::new());
        for rank in 0..engine.size {
            let is_in = rank == engine.rank || engine.segment.filled(rank).reached(begun);
            if is_in { &mut joined } else { &mut missing }.push(rank.to_string());
        }
        let missing = match missing.is_empty() {
            true => "all ranks had joined".to_string(),
            false => {
                format!("ranks that had joined: {}; not: {}", joined.join(" "), missing.join(" "))
            }
        };
        format!(
            "{} in group '{}', rank {} of {} waiting for rank {peer} ({missing})",
            self.signature, engine.name, engine.rank, engine.size
        )
    }
}
