//! The scheduler: which rank runs, the time, and the next event.

use super::network::Link;
use super::{Clock, Fault, Options};
use crate::memory::Scratch;
use crate::mesh::timeout_error;
use crate::{Abort, Limits, Member, Time, Transfer};
use fleet_base::rng::Sequence;
use fleet_base::sync::{lock, wait};
use fleet_base::{Error, Result};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap};
use std::panic::resume_unwind;
use std::sync::{Condvar, Mutex, MutexGuard};
use std::thread::ThreadId;
use std::time::Duration;

/// How a rank ends in the middle of its work. It is the payload of the unwinding panic.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Death {
    Crashed,
    Hung,
}

#[derive(Clone, Copy)]
pub(super) struct Rank {
    pub(super) rank: usize,
    pub(super) thread: ThreadId,
}

pub(super) struct World {
    options: Options,
    clock: Clock,
    aborts: Vec<Abort>,
    state: Mutex<State>,
    turns: Vec<Condvar>,
}

struct State {
    random: Sequence,
    ranks: Vec<RankState>,
    /// The rank that runs; `None` before the start and after the end.
    turn: Option<usize>,
    events: BinaryHeap<Reverse<(Time, u64, usize)>>,
    pending: HashMap<usize, Event>,
    event_next: usize,
    names: HashMap<String, usize>,
    meshes: Vec<MeshState>,
    digest: u64,
    /// Whether no event is left while a rank still waits.
    stuck: bool,
}

struct MeshState {
    members: Vec<usize>,
    /// Links by (from, to), ranks in the job.
    links: BTreeMap<(usize, usize), Link>,
    broken: HashMap<usize, Error>,
}

#[derive(Default)]
struct RankState {
    phase: Phase,
    steps: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    Ready,
    Waiting,
    Over,
}

enum Event {
    Arrive {
        mesh: usize,
        from: usize,
        to: usize,
        number: u64,
        data: Vec<u8>,
    },
    /// Rank `at` is notified that its connections with `gone` are closed.
    Close {
        at: usize,
        gone: usize,
    },
    Notice {
        at: usize,
        gone: usize,
        how: Death,
    },
    Timer {
        rank: usize,
    },
}

impl World {
    pub(super) fn new(options: &Options) -> World {
        let size = options.hosts.len();
        let state = State {
            random: Sequence::new(options.seed, 0),
            ranks: (0..size).map(|_| RankState::default()).collect(),
            turn: None,
            events: BinaryHeap::new(),
            pending: HashMap::new(),
            event_next: 0,
            names: HashMap::new(),
            meshes: Vec::new(),
            digest: 0xcbf2_9ce4_8422_2325,
            stuck: false,
        };
        World {
            options: options.clone(),
            clock: Clock::default(),
            aborts: (0..size).map(|_| Abort::new()).collect(),
            state: Mutex::new(state),
            turns: (0..size).map(|_| Condvar::new()).collect(),
        }
    }

    pub(super) fn now(&self) -> Time {
        self.clock.now()
    }

    pub(super) fn size(&self) -> usize {
        self.options.hosts.len()
    }

    pub(super) fn abort(&self, rank: usize) -> Abort {
        self.aborts[rank].clone()
    }

    pub(super) fn member(&self, rank: usize) -> Member {
        let host = &self.options.hosts[rank];
        Member { rank, host: host.clone(), host_id: host.clone(), pid: 1000 + rank as u32 }
    }

    pub(super) fn steps(&self) -> Vec<u64> {
        self.lock().ranks.iter().map(|rank| rank.steps).collect()
    }

    pub(super) fn digest(&self) -> u64 {
        self.lock().digest
    }

    /// Starts the run. All threads must have been started.
    pub(super) fn start(&self) {
        self.schedule_next(&mut self.lock());
    }

    pub(super) fn await_turn(&self, rank: usize) {
        drop(self.wait_turn(self.lock(), rank));
    }

    /// Ends the work of a rank. Its connections close after the delivery of the bytes it has sent.
    pub(super) fn finish(&self, rank: usize) {
        let mut state = self.lock();
        self.close_all(&mut state, rank);
        state.ranks[rank].phase = Phase::Over;
        self.schedule_next(&mut state);
    }

    pub(super) fn open(&self, name: &str, members: &[usize]) -> Result<usize> {
        let mut state = self.lock();
        if let Some(&mesh) = state.names.get(name) {
            let known = &state.meshes[mesh].members;
            if known != members {
                return Err(Error::invalid(format!(
                    "mesh '{name}' was opened with other members by another rank"
                ))
                .expected(format!("{known:?}"))
                .got(format!("{members:?}")));
            }
            return Ok(mesh);
        }
        let mesh = state.meshes.len();
        let mut links = BTreeMap::new();
        for &from in members {
            for &to in members.iter().filter(|to| **to != from) {
                let mut link = Link::default();
                if state.ranks[from].phase == Phase::Over || state.ranks[to].phase == Phase::Over {
                    link.closed = Some("had already ended".to_string());
                }
                links.insert((from, to), link);
            }
        }
        let members = members.to_vec();
        state.meshes.push(MeshState { members, links, broken: HashMap::new() });
        state.names.insert(name.to_string(), mesh);
        Ok(mesh)
    }

    pub(super) fn transfer(
        &self,
        rank: usize,
        mesh: usize,
        members: &[usize],
        ops: &mut [Transfer<'_>],
        limits: &Limits,
    ) -> Result<()> {
        let mut state = self.lock();
        let step = state.ranks[rank].steps;
        state.ranks[rank].steps += 1;
        state = self.apply_faults(state, rank, step, mesh, members, ops);
        if let Some(error) = state.meshes[mesh].broken.get(&rank) {
            return Err(error.clone());
        }
        let mut done = vec![0; ops.len()];
        let mut scratch = Scratch::new();
        if let Some(time) = limits.deadline.time() {
            self.schedule(&mut state, time, Event::Timer { rank });
        }
        loop {
            self.progress(&mut state, rank, mesh, members, ops, &mut done, &mut scratch, None);
            if ops.iter().zip(&done).all(|(op, done)| op.bytes() == *done) {
                return Ok(());
            }
            if let Some(error) = self.wait_error(&state, rank, mesh, members, ops, &done, limits) {
                let broken = error.clone().at("an earlier transfer, which broke the mesh");
                state.meshes[mesh].broken.insert(rank, broken);
                return Err(error);
            }
            state.ranks[rank].phase = Phase::Waiting;
            self.schedule_next(&mut state);
            state = self.wait_turn(state, rank);
        }
    }

    /// Applies the faults of the options to `rank`. Does not return if the rank dies or hangs.
    fn apply_faults<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        rank: usize,
        step: u64,
        mesh: usize,
        members: &[usize],
        ops: &mut [Transfer<'_>],
    ) -> MutexGuard<'s, State> {
        let mut gone = None;
        for fault in &self.options.faults {
            match *fault {
                Fault::Crash { rank: who, step: when } if (who, when) == (rank, step) => {
                    gone = Some(Death::Crashed);
                }
                Fault::Hang { rank: who, step: when } if (who, when) == (rank, step) => {
                    gone = Some(Death::Hung);
                }
                Fault::Cut { rank: who, step: when, peer } if (who, when) == (rank, step) => {
                    self.cut(&mut state, rank, peer);
                }
                _ => {}
            }
        }
        let Some(how) = gone else { return state };
        // A part of the step is still sent.
        let mut left: usize = ops.iter().filter(|op| op.is_send()).map(Transfer::bytes).sum();
        left = state.random.below(left as u64 + 1) as usize;
        let mut done = vec![0; ops.len()];
        let limit = Some(&mut left);
        self.progress(&mut state, rank, mesh, members, ops, &mut done, &mut Scratch::new(), limit);
        let (notice, low) = match how {
            Death::Crashed => {
                self.close_all(&mut state, rank);
                (self.options.notice_death, Duration::ZERO)
            }
            Death::Hung => (self.options.notice_hang, self.options.notice_hang / 2),
        };
        for at in (0..self.size()).filter(|at| *at != rank) {
            let time = self.now().plus(self.draw(&mut state.random, low, notice));
            self.schedule(&mut state, time, Event::Notice { at, gone: rank, how });
        }
        state.ranks[rank].phase = Phase::Over;
        self.schedule_next(&mut state);
        drop(state);
        resume_unwind(Box::new(how))
    }

    /// Moves the bytes that can be moved now. `budget` limits the bytes to send; with a budget,
    /// nothing is received.
    #[allow(clippy::too_many_arguments, reason = "parts of the state that the caller has split")]
    fn progress(
        &self,
        state: &mut State,
        rank: usize,
        mesh: usize,
        members: &[usize],
        ops: &mut [Transfer<'_>],
        done: &mut [usize],
        scratch: &mut Scratch,
        mut budget: Option<&mut usize>,
    ) {
        for index in 0..ops.len() {
            let earlier = (0..index).any(|other| {
                ops[other].peer() == ops[index].peer()
                    && ops[other].is_send() == ops[index].is_send()
                    && done[other] < ops[other].bytes()
            });
            if earlier {
                continue;
            }
            let peer = members[ops[index].peer()];
            let left = ops[index].bytes() - done[index];
            if let Transfer::Send { data, .. } = &ops[index] {
                let mut left = left;
                while left > 0 {
                    let allowed = budget.as_deref().copied().unwrap_or(left);
                    let count = self.send(state, mesh, rank, peer, data, done[index], allowed);
                    if count == 0 {
                        break;
                    }
                    done[index] += count;
                    left -= count;
                    if let Some(budget) = &mut budget {
                        **budget -= count;
                    }
                }
            } else if budget.is_none() {
                let Some(link) = state.meshes[mesh].links.get_mut(&(peer, rank)) else { continue };
                let mut count = left.min(link.ready());
                match &mut ops[index] {
                    Transfer::Recv { into, .. } => {
                        link.take(&mut into[done[index]..done[index] + count]);
                    }
                    Transfer::Fold { unit, sink, .. } => {
                        count = count / *unit * *unit;
                        let piece = &mut scratch.aligned()[..count];
                        link.take(piece);
                        if count > 0 {
                            sink(done[index], piece);
                        }
                    }
                    Transfer::Send { .. } => {}
                }
                done[index] += count;
                if count > 0 {
                    wake(state, peer);
                }
            }
        }
    }

    /// Sends one segment of `data` from `start`; returns its length.
    #[allow(clippy::too_many_arguments, reason = "parts of the state that the caller has split")]
    fn send(
        &self,
        state: &mut State,
        mesh: usize,
        from: usize,
        to: usize,
        data: &[u8],
        start: usize,
        allowed: usize,
    ) -> usize {
        let options = &self.options;
        let Some(link) = state.meshes[mesh].links.get_mut(&(from, to)) else { return 0 };
        let room = link.room(options.pipe_bytes).min(data.len() - start).min(allowed);
        if room == 0 || link.closed.is_some() {
            return 0;
        }
        let most = room.min(options.segment_bytes_max);
        let count = 1 + state.random.below(most as u64) as usize;
        // Most segments are full: short ones make runs slow and find few more bugs.
        let count = if state.random.below(8) == 0 { count } else { most };
        let number = link.push(count);
        let mut copies = 1;
        if state.random.unit() < options.duplication {
            copies += 1;
        }
        for _ in 0..copies {
            let mut span = self.draw(&mut state.random, options.delay_min, options.delay_max);
            while state.random.unit() < options.loss {
                span += options.resend_delay;
            }
            let data = data[start..start + count].to_vec();
            let event = Event::Arrive { mesh, from, to, number, data };
            self.schedule(state, self.now().plus(span), event);
        }
        count
    }

    /// The error of a wait that cannot succeed; `None` if it can.
    #[allow(clippy::too_many_arguments, reason = "parts of the state that the caller has split")]
    fn wait_error(
        &self,
        state: &State,
        rank: usize,
        mesh: usize,
        members: &[usize],
        ops: &[Transfer<'_>],
        done: &[usize],
        limits: &Limits,
    ) -> Option<Error> {
        if let Err(error) = limits.abort.check() {
            return Some(error);
        }
        let waiting: Vec<_> = ops
            .iter()
            .zip(done)
            .filter(|(op, done)| op.bytes() > **done)
            .map(|(op, done)| (self.member(members[op.peer()]), op.is_send(), *done, op.bytes()))
            .collect();
        let links = &state.meshes[mesh].links;
        for (peer, ..) in &waiting {
            let ends = [(peer.rank, rank), (rank, peer.rank)];
            if let Some(how) = ends.iter().find_map(|end| links.get(end)?.closed.as_ref()) {
                return Some(Error::unavailable(format!("{peer} {how}")));
            }
        }
        if limits.deadline.is_past(self.now()) {
            return Some(timeout_error(&waiting));
        }
        state.stuck.then(|| {
            timeout_error(&waiting)
                .at("the simulator: deadlock, every rank waits and no event is pending")
        })
    }

    fn cut(&self, state: &mut State, a: usize, b: usize) {
        for mesh in &mut state.meshes {
            for ends in [(a, b), (b, a)] {
                if let Some(link) = mesh.links.get_mut(&ends) {
                    link.cut = true;
                }
            }
        }
        for (at, gone) in [(a, b), (b, a)] {
            let span = self.draw(&mut state.random, Duration::ZERO, self.options.delay_max * 2);
            self.schedule(state, self.now().plus(span), Event::Close { at, gone });
        }
    }

    fn close_all(&self, state: &mut State, rank: usize) {
        for at in (0..self.size()).filter(|at| *at != rank) {
            // Mostly after the delivery of all bytes in flight, including resent segments.
            let low = self.options.delay_max;
            let span = self.draw(&mut state.random, low, self.options.resend_delay * 4);
            self.schedule(state, self.now().plus(span), Event::Close { at, gone: rank });
        }
    }

    fn schedule(&self, state: &mut State, time: Time, event: Event) {
        let id = state.event_next;
        state.event_next += 1;
        let order = state.random.next_u64();
        state.pending.insert(id, event);
        state.events.push(Reverse((time, order, id)));
    }

    fn draw(&self, random: &mut Sequence, low: Duration, high: Duration) -> Duration {
        let width = high.saturating_sub(low).as_nanos() as u64;
        low + Duration::from_nanos(random.below(width + 1))
    }

    /// Gives the turn to a rank that can run. Processes events until there is one.
    fn schedule_next(&self, state: &mut State) {
        loop {
            let ready: Vec<usize> = (0..state.ranks.len())
                .filter(|rank| state.ranks[*rank].phase == Phase::Ready)
                .collect();
            if !ready.is_empty() {
                let next = ready[state.random.below(ready.len() as u64) as usize];
                state.turn = Some(next);
                self.turns[next].notify_one();
                return;
            }
            if state.ranks.iter().all(|rank| rank.phase == Phase::Over) {
                state.turn = None;
                return;
            }
            match state.events.pop() {
                Some(Reverse((time, _, id))) => {
                    self.clock.set(time.max(self.now()));
                    if let Some(event) = state.pending.remove(&id) {
                        self.process_event(state, time, event);
                    }
                }
                None => {
                    state.stuck = true;
                    (0..state.ranks.len()).for_each(|rank| wake(state, rank));
                }
            }
        }
    }

    fn process_event(&self, state: &mut State, time: Time, event: Event) {
        let mark = match event {
            Event::Arrive { mesh, from, to, number, data } => {
                let link = state.meshes[mesh].links.get_mut(&(from, to));
                if link.is_some_and(|link| link.arrive(number, &data)) {
                    wake(state, to);
                }
                [1, from as u64, to as u64, number]
            }
            Event::Close { at, gone } => {
                for mesh in &mut state.meshes {
                    for (ends, link) in &mut mesh.links {
                        if *ends == (gone, at) || *ends == (at, gone) {
                            link.closed.get_or_insert_with(|| "closed the connection".to_string());
                        }
                    }
                }
                wake(state, at);
                [2, at as u64, gone as u64, 0]
            }
            Event::Notice { at, gone, how } => {
                let how_text = match how {
                    Death::Crashed => "died (killed by signal 9)",
                    Death::Hung => "has been unresponsive for too long",
                };
                self.aborts[at]
                    .fire(Error::unavailable(format!("{} {how_text}", self.member(gone))));
                wake(state, at);
                [3, at as u64, gone as u64, 0]
            }
            Event::Timer { rank } => {
                wake(state, rank);
                [4, rank as u64, 0, 0]
            }
        };
        for word in mark.into_iter().chain([time.nanos()]) {
            state.digest = (state.digest ^ word).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn wait_turn<'s>(
        &'s self,
        mut state: MutexGuard<'s, State>,
        rank: usize,
    ) -> MutexGuard<'s, State> {
        while state.turn != Some(rank) {
            state = wait(&self.turns[rank], state);
        }
        state
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A sink that panics leaves the state consistent, and the test fails anyway.
        lock(&self.state)
    }
}

fn wake(state: &mut State, rank: usize) {
    if state.ranks[rank].phase == Phase::Waiting {
        state.ranks[rank].phase = Phase::Ready;
    }
}
