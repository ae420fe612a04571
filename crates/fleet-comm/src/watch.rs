//! Detects deadlocks between groups. For example, rank 0 waits in group A for a call that rank 1
//! has not made, and rank 1 waits in group B for a call of rank 0. No group can detect this alone.
//!
//! Each rank has a watch thread, which checks periodically. While a call is running and no call
//! starts or ends, the thread publishes in the store the running call and the calls made so far. It
//! then follows the published states of other ranks along the relation "waits for". A deadlock is a
//! cycle that is the same at two checks. Every rank on it must have published again in between that
//! it is stalled. The error goes to all ranks of the cycle and names each call.
//!
//! A rank whose process computes meanwhile may be about to make the missing call. Or its training
//! thread is stalled while other threads read data ahead. These cases look the same from outside,
//! so such a rank counts as stalled only after [`BUSY_FACTOR`] times the span. A wait for a step or
//! an evaluation is therefore not reported, and a deadlock during busy loading is still found.
//!
//! Calls of the training thread need no such delay, because it makes no other call while it is
//! inside one. Suppose that the training thread of rank 0 waits in group A for rank 1, and that of
//! rank 1 waits in group B for rank 0. They wait forever, whatever their processes do, so such a
//! cycle is an error after [`QUICK_TIMEOUT`]. Calls of other threads (loaders that exchange data)
//! are excluded: the missing call would also be made by such a thread, which may still be reading.
//! The calls of one training step use several lanes concurrently. If a rank waits in one lane and
//! another rank waits for it in a second one, its process must also have been idle.

use crate::call::{Kind, Signature};
use crate::options::GroupOptions;
use fleet_base::sync::{lock, wait_while};
use fleet_base::{Error, ErrorCode, Result};
use fleet_net::{Abort, Limits, Member, Store};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::time::{Duration, Instant};

/// Number of checks until an idle rank counts as part of a deadlock.
const CHECKS: u32 = 4;
/// Shortest and longest interval between two checks.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// A process is idle if it uses less than 1/10 of a core.
const IDLE_PART: u32 = 10;
/// Time after which stalled training threads count as deadlocked: two checks.
const QUICK_TIMEOUT: Duration = Duration::from_secs(2);
/// Interval between two checks in a small job. In larger jobs each rank checks less often, so that
/// the load of the store stays the same.
const QUICK_PAUSE: Duration = Duration::from_secs(1);
/// Largest number of ranks of a small job.
const SMALL_JOB_RANKS: u32 = 64;
/// Factor on the span for a rank whose process is busy.
const BUSY_FACTOR: u32 = 5;
/// Maximum number of ranks followed in one check. Cycles are short.
const RANKS_VISITED_MAX: usize = 64;
/// Time to wait for the other ranks of a cycle, which check at least every [`PAUSE_MAX`].
const VERDICT_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of the store. After it, the rank tries again at the next check.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// State of one group of this rank, updated by its calls.
pub(crate) struct Progress {
    name: String,
    /// Whether training steps make the calls of the group.
    in_steps: bool,
    training_thread: Arc<TrainingThread>,
    /// Ranks in the job, by rank in the group.
    ranks: Vec<usize>,
    abort: Abort,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Number of calls started: by all ranks, and messages by peer.
    calls: u64,
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Number of starts and ends of calls.
    changes: u64,
    running: Option<Signature>,
    /// Whether the training thread made the running call.
    by_training_thread: bool,
    /// Set if the running call is part of a deadlock, which other ranks may already know.
    verdict: Option<Error>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent after every statement, even if a thread panicked.
        lock(&self.state)
    }

    pub fn begin(&self, signature: Signature) {
        let by_training_thread = self.training_thread.is_caller(self.in_steps);
        let mut state = self.lock();
        state.by_training_thread = by_training_thread;
        let peer = signature.root as usize;
        *match signature.kind {
            Kind::Send => &mut state.sent[peer],
            Kind::Recv => &mut state.received[peer],
            _ => &mut state.calls,
        } = signature.sequence + 1;
        state.changes += 1;
        state.running = Some(signature);
    }

    pub fn end(&self) {
        let mut state = self.lock();
        state.changes += 1;
        state.running = None;
    }

    /// Returns the verdict on a deadlock, if there is one, instead of the error of a failed call.
    /// That error may only say that other ranks left, because they got the verdict first.
    pub fn with_verdict(&self, error: Error) -> Error {
        match &self.lock().verdict {
            Some(verdict) if error.code() != Some(ErrorCode::Deadlock) => verdict.clone(),
            _ => error,
        }
    }
}

/// The training thread of this rank, if there is exactly one.
#[derive(Default)]
pub(crate) struct TrainingThread {
    /// Number of the thread; 0 if unknown.
    thread: AtomicU64,
    /// Whether it has made a step, and not only opened the job.
    has_stepped: AtomicBool,
    /// Whether several threads make steps. Then none counts as the training thread.
    are_several: AtomicBool,
}

impl TrainingThread {
    /// Records that the calling thread has opened the job or makes a step.
    pub fn record(&self, makes_step: bool) {
        let own = thread_number();
        let known = self.thread.load(Relaxed);
        if known != own {
            if known != 0 && self.has_stepped.load(Relaxed) {
                self.are_several.store(true, Relaxed);
            }
            self.thread.store(own, Relaxed);
        }
        if makes_step && !self.has_stepped.load(Relaxed) {
            self.has_stepped.store(true, Relaxed);
        }
    }

    /// Whether a call of the current thread is one of the training thread.
    fn is_caller(&self, in_step: bool) -> bool {
        let is_it = in_step || self.thread.load(Relaxed) == thread_number();
        is_it && !self.are_several.load(Relaxed)
    }
}

/// A number of the current thread, unique in the process, from 1.
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static OWN: u64 = NEXT.fetch_add(1, Relaxed);
    }
    OWN.with(|own| *own)
}

/// The watch thread. It runs while a group of this rank exists.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    rank: usize,
    /// Interval between two checks.
    pause: Duration,
    training_thread: Arc<TrainingThread>,
    store: Arc<dyn Store>,
    member: Box<dyn Fn(usize) -> Member + Send + Sync>,
    /// The shortest span of a group, and the groups.
    groups: Mutex<(Duration, Vec<Weak<Progress>>)>,
    is_over: Mutex<bool>,
    wake: Condvar,
}

impl Watch {
    pub fn start(
        (rank, rank_count): (usize, usize),
        training_thread: Arc<TrainingThread>,
        store: Arc<dyn Store>,
        span: Duration,
        member: impl Fn(usize) -> Member + Send + Sync + 'static,
    ) -> Result<Watch> {
        let shared = Arc::new(Shared {
            rank,
            pause: quick_pause(rank_count),
            training_thread,
            store,
            member: Box::new(member),
            groups: Mutex::new((span, Vec::new())),
            is_over: Mutex::new(false),
            wake: Condvar::new(),
        });
        let own = shared.clone();
        let thread = std::thread::Builder::new()
            .name("comm watch".to_string())
            .spawn(move || Checker::new(&own).run(&own))
            .map_err(|error| {
                Error::exhausted(format!("cannot start the deadlock detection thread: {error}"))
            })?;
        Ok(Watch { shared, thread: Some(thread) })
    }

    /// Registers a group of this rank. Its calls update the returned state.
    pub fn add(
        &self,
        name: &str,
        ranks: &[usize],
        abort: &Abort,
        options: &GroupOptions,
    ) -> Arc<Progress> {
        let (sent, received) = (vec![0; ranks.len()], vec![0; ranks.len()]);
        let progress = Arc::new(Progress {
            // The published form is lines of fields, so names must not contain control characters.
            name: name.replace(char::is_control, " "),
            in_steps: options.in_steps,
            training_thread: self.shared.training_thread.clone(),
            ranks: ranks.to_vec(),
            abort: abort.clone(),
            state: Mutex::new(State { sent, received, ..State::default() }),
        });
        let mut groups = lock(&self.shared.groups);
        groups.0 = groups.0.min(options.deadlock_timeout);
        groups.1.retain(|group| group.strong_count() > 0);
        groups.1.push(Arc::downgrade(&progress));
        progress
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *lock(&self.shared.is_over) = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, there would be nothing to clean up.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn groups(&self) -> (Duration, Vec<Arc<Progress>>) {
        let groups = lock(&self.groups);
        (groups.0, groups.1.iter().filter_map(Weak::upgrade).collect())
    }

    /// Waits until the next check; false when the watch ends.
    fn pause(&self, span: Duration) -> bool {
        let is_over = lock(&self.is_over);
        !*wait_while(&self.wake, is_over, span, |is_over| !*is_over).0
    }

    fn key(rank: usize) -> String {
        format!("comm/watch/{rank}")
    }

    fn verdict_key(rank: usize) -> String {
        format!("comm/watch/{rank}/verdict")
    }
}

/// State of the watch thread between checks.
struct Checker {
    /// Distinguishes this run from earlier ones whose entries are still in the store.
    nonce: u64,
    check_number: u64,
    changes: u64,
    /// Time since which no call has started or ended.
    stalled_since: Option<Instant>,
    /// Whether the process was busy between any two checks since then.
    busy_now: bool,
    /// The same, measured over longer spans, in which short bursts do not count.
    busy: bool,
    at: Instant,
    cpu: Option<Duration>,
    at_long: Instant,
    cpu_long: Option<Duration>,
    /// The cycle found in the last check.
    last: Vec<Link>,
}

/// One rank of a cycle.
struct Link {
    rank: usize,
    identity: (u64, u64),
    check_number: u64,
    in_steps: bool,
    idle: bool,
    /// The group of its running call, and the call.
    group: String,
    call: String,
}

impl Checker {
    fn new(shared: &Shared) -> Checker {
        use std::hash::BuildHasher;
        let nonce = std::collections::hash_map::RandomState::new().hash_one(shared.rank);
        let cpu = crate::shm::cpu_time();
        let (at, last) = (Instant::now(), Vec::new());
        Checker {
            nonce,
            check_number: 0,
            changes: 0,
            stalled_since: None,
            busy_now: false,
            busy: false,
            at,
            cpu,
            at_long: at,
            cpu_long: cpu,
            last,
        }
    }

    fn run(&mut self, shared: &Shared) {
        loop {
            let pause = (shared.groups().0 / CHECKS).min(shared.pause).clamp(PAUSE_MIN, PAUSE_MAX);
            if !shared.pause(pause) {
                return;
            }
            let (span, groups) = shared.groups();
            let before = self.at;
            if !self.is_stalled(&groups, (span / CHECKS).min(PAUSE_MAX)) {
                (self.stalled_since, self.last) = (None, Vec::new());
                (self.busy_now, self.busy) = (false, false);
                (self.at_long, self.cpu_long) = (self.at, self.cpu);
                continue;
            }
            let since = *self.stalled_since.get_or_insert(before);
            // An access to the store that fails is repeated at the next check.
            let _ = self.check(shared, &groups, (self.at - since, span));
        }
    }

    /// Whether a call is running and none has started or ended since the last check. Also updates
    /// the measurements of CPU time; those for `busy` cover spans of `long`.
    fn is_stalled(&mut self, groups: &[Arc<Progress>], long: Duration) -> bool {
        let (mut changes, mut running_calls) = (0, 0);
        for group in groups {
            let state = group.lock();
            changes += state.changes;
            running_calls += usize::from(state.running.is_some());
        }
        let (now, cpu) = (Instant::now(), crate::shm::cpu_time());
        let idle = |before: Option<Duration>, at: Instant| match (cpu, before) {
            (Some(cpu), Some(before)) => (cpu - before) * IDLE_PART < now - at,
            _ => false,
        };
        let still = running_calls > 0 && changes == self.changes;
        self.busy_now |= !idle(self.cpu, self.at);
        if now - self.at_long >= long {
            self.busy |= !idle(self.cpu_long, self.at_long);
            (self.at_long, self.cpu_long) = (now, cpu);
        }
        (self.changes, self.at, self.cpu) = (changes, now, cpu);
        still
    }

    /// Does one check. `stood` is the time since a call started or ended, and `span` the time after
    /// which that may be a deadlock.
    fn check(
        &mut self,
        shared: &Shared,
        groups: &[Arc<Progress>],
        (stalled_for, span): (Duration, Duration),
    ) -> Result<()> {
        let limits = Limits::within(STORE_TIMEOUT);
        self.check_number += 1;
        let own = RankState {
            identity: (self.nonce, self.changes),
            check_number: self.check_number,
            stalled: match () {
                () if stalled_for >= if self.busy { span * BUSY_FACTOR } else { span } => {
                    Stalled::Full
                }
                () if stalled_for >= QUICK_TIMEOUT.min(span) => Stalled::Quick,
                () => Stalled::No,
            },
            idle: !self.busy_now,
            groups: groups.iter().map(|group| GroupState::of(group)).collect(),
        };
        shared.store.set(&Shared::key(shared.rank), own.encode().as_bytes(), &limits)?;
        let names: Vec<String> = own.groups.iter().map(|group| group.name.clone()).collect();
        if let Some(text) = self.verdict(shared, &limits)? {
            set_verdict(groups, &names, &text);
            shared.store.delete(&Shared::verdict_key(shared.rank), &limits)?;
            fire_verdicts(groups);
            return Ok(());
        }
        if own.stalled == Stalled::No {
            return Ok(());
        }
        let mut known: HashMap<usize, Option<RankState>> = HashMap::new();
        let mut fetch = |rank: usize, least: Stalled| {
            if let Entry::Vacant(unknown) = known.entry(rank) {
                let bytes = shared.store.get(&Shared::key(rank), &limits)?.unwrap_or_default();
                unknown.insert(RankState::decode(&String::from_utf8_lossy(&bytes)));
            }
            Ok(known[&rank].clone().filter(|state| state.stalled >= least))
        };
        let stalled = own.stalled;
        let mut cycle =
            find_cycle(shared.rank, own.clone(), true, |rank| fetch(rank, Stalled::Quick))?;
        if cycle.is_empty() && stalled == Stalled::Full {
            cycle = find_cycle(shared.rank, own, false, |rank| fetch(rank, Stalled::Full))?;
        }
        let is_same = !cycle.is_empty()
            && cycle.len() == self.last.len()
            && cycle.iter().zip(&self.last).all(|(now, then)| {
                now.rank == then.rank
                    && now.identity == then.identity
                    && now.check_number > then.check_number
            });
        self.last = cycle;
        if !is_same {
            return Ok(());
        }
        let text = self.describe(shared);
        set_verdict(groups, &[self.last[0].group.clone()], &text);
        let sent = self.send_verdict(shared, &text);
        fire_verdicts(groups);
        sent
    }

    /// The verdict of another rank on a cycle, if it concerns the calls that are running now.
    fn verdict(&self, shared: &Shared, limits: &Limits) -> Result<Option<String>> {
        let verdict = shared.store.get(&Shared::verdict_key(shared.rank), limits)?;
        let text = String::from_utf8_lossy(&verdict.unwrap_or_default()).into_owned();
        let (identity, text) = text.split_once('\n').unwrap_or_default();
        Ok((identity == format!("{} {}", self.nonce, self.changes)).then(|| text.to_string()))
    }

    /// Sends the verdict to the other ranks of the cycle, and waits briefly until they have read
    /// it. This rank may exit after its error, and the others would only see that.
    fn send_verdict(&self, shared: &Shared, text: &str) -> Result<()> {
        let limits = Limits::within(STORE_TIMEOUT);
        let others = || self.last.iter().filter(|link| link.rank != shared.rank);
        for link in others() {
            let verdict = format!("{} {}\n{text}", link.identity.0, link.identity.1);
            shared.store.set(&Shared::verdict_key(link.rank), verdict.as_bytes(), &limits)?;
        }
        let begin = Instant::now();
        while begin.elapsed() < VERDICT_TIMEOUT && shared.pause(PAUSE_MIN) {
            // Another rank may have found the same cycle at the same time.
            shared.store.delete(&Shared::verdict_key(shared.rank), &limits)?;
            let mut open = false;
            for link in others() {
                open |= shared.store.get(&Shared::verdict_key(link.rank), &limits)?.is_some();
            }
            if !open {
                break;
            }
        }
        Ok(())
    }

    fn describe(&self, shared: &Shared) -> String {
        let mut text = String::from("deadlock: ranks wait for each other in different groups: ");
        for (index, link) in self.last.iter().enumerate() {
            let next = &self.last[(index + 1) % self.last.len()];
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "{}{} calls {} of group '{}' and waits for rank {}",
                if index == 0 { "" } else { ", " },
                (shared.member)(link.rank),
                link.call,
                link.group,
                next.rank
            );
        }
        text
    }
}

/// Marks the running calls of the named groups as part of a deadlock.
fn set_verdict(groups: &[Arc<Progress>], names: &[String], text: &str) {
    for group in groups {
        let mut state = group.lock();
        if names.contains(&group.name) && state.running.is_some() {
            let error = Error::invalid(text).with_code(ErrorCode::Deadlock).help(
                "collectives of different groups must be called in the same order on every rank",
            );
            state.verdict = Some(error);
        }
    }
}

/// Ends the calls that are part of a deadlock.
fn fire_verdicts(groups: &[Arc<Progress>]) {
    for group in groups {
        let verdict = group.lock().verdict.clone();
        if let Some(verdict) = verdict {
            group.abort.fire(verdict);
        }
    }
}

/// Whether a rank has been stalled long enough to be part of a deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stalled {
    No,
    /// Long enough for a deadlock among training threads.
    Quick,
    /// Long enough for any deadlock.
    Full,
}

/// The published state of a rank.
#[derive(Clone)]
struct RankState {
    /// Id of the run, and number of starts and ends. If equal, no call started or ended.
    identity: (u64, u64),
    check_number: u64,
    stalled: Stalled,
    /// Whether the process has been idle since then.
    idle: bool,
    groups: Vec<GroupState>,
}

/// The state of a rank in one group.
#[derive(Clone)]
struct GroupState {
    name: String,
    in_steps: bool,
    ranks: Vec<usize>,
    calls: u64,
    sent: Vec<u64>,
    received: Vec<u64>,
    running: Option<RunningCall>,
}

#[derive(Clone)]
struct RunningCall {
    kind: Kind,
    by_training_thread: bool,
    root: usize,
    sequence: u64,
    text: String,
}

impl GroupState {
    fn of(group: &Progress) -> GroupState {
        let state = group.lock();
        GroupState {
            name: group.name.clone(),
            in_steps: group.in_steps,
            ranks: group.ranks.clone(),
            calls: state.calls,
            sent: state.sent.clone(),
            received: state.received.clone(),
            running: state.running.map(|call| RunningCall {
                kind: call.kind,
                by_training_thread: state.by_training_thread,
                root: call.root as usize,
                sequence: call.sequence,
                text: call.to_string().replace(char::is_control, " "),
            }),
        }
    }

    /// Whether this rank's call waits for the rank at `place` of the group, in state `theirs`.
    fn waits_for(&self, own: usize, place: usize, theirs: Option<&GroupState>) -> bool {
        let Some(running) = &self.running else { return false };
        // A rank that is not the root waits for the root only; a message involves two ranks.
        let pair = matches!(running.kind, Kind::Send | Kind::Recv);
        if place == own
            || (pair || running.kind.is_rooted() && own != running.root) && place != running.root
        {
            return false;
        }
        let Some(theirs) = theirs else { return true };
        let of = |counts: &[u64]| counts.get(own).copied().unwrap_or(0);
        let begun = match running.kind {
            Kind::Send => of(&theirs.received),
            Kind::Recv => of(&theirs.sent),
            _ => theirs.calls,
        };
        begun <= running.sequence
    }
}

impl RankState {
    /// Encodes the state as lines of fields: `run changes check stalled idle`, then one line per
    /// group.
    fn encode(&self) -> String {
        let (run, changes) = self.identity;
        let (stalled, idle) = (self.stalled as u8, u8::from(self.idle));
        let mut text = format!("{run} {changes} {} {stalled} {idle}\n", self.check_number);
        for group in &self.groups {
            let (kind, by_training_thread, root, sequence, call) = match &group.running {
                Some(it) => (it.kind as u8, it.by_training_thread, it.root, it.sequence, &*it.text),
                None => (0, false, 0, 0, ""),
            };
            let flags = 2 * u8::from(group.in_steps) + u8::from(by_training_thread);
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{}\t{}\t{}\t{}\t{}\t{flags}\t{kind}\t{root}\t{sequence}\t{call}",
                group.name,
                joined(&group.ranks),
                group.calls,
                joined(&group.sent),
                joined(&group.received)
            );
        }
        text
    }

    /// Decodes a state; `None` for a text that no rank of this version writes.
    fn decode(text: &str) -> Option<RankState> {
        let mut lines = text.lines();
        let mut head = lines.next()?.split(' ').map(|word| word.parse::<u64>().ok());
        let (run, changes, check_number) = (head.next()??, head.next()??, head.next()??);
        let stalled = match head.next()?? {
            0 => Stalled::No,
            1 => Stalled::Quick,
            _ => Stalled::Full,
        };
        let idle = head.next()?? != 0;
        let groups = lines.map(decode_group).collect::<Option<Vec<_>>>()?;
        Some(RankState { identity: (run, changes), check_number, stalled, idle, groups })
    }
}

fn decode_group(line: &str) -> Option<GroupState> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, ranks, calls, sent, received, flags, kind, root, sequence, call] = fields[..] else {
        return None;
    };
    let flags: u8 = flags.parse().ok()?;
    let running = match kind.parse().ok()? {
        0 => None,
        number => Some(RunningCall {
            kind: Kind::from_number(number)?,
            by_training_thread: flags & 1 != 0,
            root: root.parse().ok()?,
            sequence: sequence.parse().ok()?,
            text: call.to_string(),
        }),
    };
    let ranks: Vec<usize> = split(ranks)?;
    Some(GroupState {
        name: name.to_string(),
        in_steps: flags & 2 != 0,
        ranks,
        calls: calls.parse().ok()?,
        sent: split(sent)?,
        received: split(received)?,
        running,
    })
}

fn joined<T: ToString>(numbers: &[T]) -> String {
    numbers.iter().map(T::to_string).collect::<Vec<_>>().join(",")
}

fn split<T: std::str::FromStr>(text: &str) -> Option<Vec<T>> {
    text.split(',').map(|number| number.parse().ok()).collect()
}

/// Finds the shortest cycle from `start` along the relation "waits for"; empty if there is none. A
/// quick cycle contains only calls of training threads.
fn find_cycle(
    start: usize,
    own: RankState,
    is_quick: bool,
    mut fetch: impl FnMut(usize) -> Result<Option<RankState>>,
) -> Result<Vec<Link>> {
    let mut states: HashMap<usize, Option<RankState>> = HashMap::from([(start, Some(own))]);
    // Ranks in search order, each with the index of the rank that waits for it and the group.
    let mut visited: Vec<(usize, usize, String)> = vec![(start, 0, String::new())];
    let mut next = 0;
    while next < visited.len() && visited.len() <= RANKS_VISITED_MAX {
        let rank = visited[next].0;
        let running_calls: Vec<(String, Vec<usize>)> = match &states[&rank] {
            None => Vec::new(),
            Some(state) => {
                let counts = |running: &RunningCall| running.by_training_thread || !is_quick;
                let under_way =
                    state.groups.iter().filter(|group| group.running.as_ref().is_some_and(counts));
                under_way.map(|group| (group.name.clone(), group.ranks.clone())).collect()
            }
        };
        for (name, ranks) in running_calls {
            let Some(place) = ranks.iter().position(|other| *other == rank) else { continue };
            for (index, peer) in ranks.iter().enumerate() {
                if *peer != start && visited.iter().any(|(rank, _, _)| rank == peer) {
                    continue;
                }
                if !states.contains_key(peer) && states.len() <= RANKS_VISITED_MAX {
                    let state = fetch(*peer)?;
                    states.insert(*peer, state);
                }
                // A rank without a published state is running; its calls are unknown.
                let Some(Some(theirs)) = states.get(peer) else { continue };
                let Some(Some(state)) = states.get(&rank) else { continue };
                let group_state =
                    |state: &'_ RankState| state.groups.iter().position(|g| g.name == name);
                let Some(mine) = group_state(state).map(|at| &state.groups[at]) else { continue };
                let other = group_state(theirs).map(|at| &theirs.groups[at]);
                if !mine.waits_for(place, index, other) {
                    continue;
                }
                if *peer == start {
                    let cycle = cycle_from(&visited, next, &name, &states);
                    return Ok(if is_quick && !is_proof(&cycle) { Vec::new() } else { cycle });
                }
                visited.push((*peer, next, name.clone()));
            }
        }
        next += 1;
    }
    Ok(Vec::new())
}

/// Whether no training thread of a cycle can still make the missing call. A rank that waits in a
/// step may make another call of that step, unless its process is idle.
fn is_proof(cycle: &[Link]) -> bool {
    let count = cycle.len();
    let into = |index: usize| &cycle[(index + count - 1) % count];
    (0..count).all(|at| cycle[at].idle || !cycle[at].in_steps || !into(at).in_steps)
}

/// Interval between two checks, longer in jobs with many ranks.
fn quick_pause(rank_count: usize) -> Duration {
    let ranks = u32::try_from(rank_count).unwrap_or(u32::MAX).max(SMALL_JOB_RANKS);
    QUICK_PAUSE.saturating_mul(ranks) / SMALL_JOB_RANKS
}

/// The cycle from the start to the rank at `last`, which waits for the start in `group`.
fn cycle_from(
    met: &[(usize, usize, String)],
    last: usize,
    group: &str,
    states: &HashMap<usize, Option<RankState>>,
) -> Vec<Link> {
    let (mut links, mut at, mut group) = (Vec::new(), last, group.to_string());
    loop {
        let (rank, before, name) = &met[at];
        if let Some(Some(state)) = states.get(rank) {
            let group_state = state.groups.iter().find(|group_state| group_state.name == group);
            let running = group_state.and_then(|group_state| group_state.running.as_ref());
            let call = running.map(|running| running.text.clone()).unwrap_or_default();
            let (identity, check_number, idle) = (state.identity, state.check_number, state.idle);
            let in_steps = group_state.is_some_and(|group_state| group_state.in_steps);
            links.push(Link { rank: *rank, identity, check_number, in_steps, idle, group, call });
        }
        if at == 0 {
            break;
        }
        (at, group) = (*before, name.clone());
    }
    links.reverse();
    links
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group_state(
        name: &str,
        ranks: &[usize],
        calls: u64,
        running: Option<RunningCall>,
    ) -> GroupState {
        let none = vec![0; ranks.len()];
        let (name, ranks) = (name.to_string(), ranks.to_vec());
        let in_steps = false;
        GroupState { name, in_steps, ranks, calls, sent: none.clone(), received: none, running }
    }

    fn call(kind: Kind, root: usize) -> Option<RunningCall> {
        Some(RunningCall {
            kind,
            by_training_thread: false,
            root,
            sequence: 0,
            text: format!("{kind} #0"),
        })
    }

    fn state(rank: usize, groups: Vec<GroupState>) -> RankState {
        RankState {
            identity: (7, rank as u64),
            check_number: 1,
            stalled: Stalled::Full,
            idle: true,
            groups,
        }
    }

    /// The ranks of the cycle that rank 0 finds. States are encoded and decoded on the way.
    fn cycle(states: &[Option<Vec<GroupState>>]) -> Vec<(usize, String)> {
        let texts: Vec<Option<String>> = states
            .iter()
            .enumerate()
            .map(|(rank, groups)| {
                let again = |group: &GroupState| {
                    let groups = vec![group.copy()];
                    let line = state(0, groups).encode();
                    decode_group(line.lines().nth(1).expect("a line")).expect("a group state")
                };
                let groups = groups.as_ref()?;
                Some(state(rank, groups.iter().map(again).collect()).encode())
            })
            .collect();
        let get = |rank: usize| texts[rank].as_deref().and_then(RankState::decode);
        let own = get(0).expect("rank 0 has published its state");
        let links = find_cycle(0, own, false, |rank| Ok(get(rank))).expect("no lookup fails");
        links.into_iter().map(|link| (link.rank, link.group)).collect()
    }

    impl GroupState {
        fn copy(&self) -> GroupState {
            let running = self
                .running
                .as_ref()
                .map(|running| RunningCall { text: running.text.clone(), ..*running });
            group_state(&self.name, &self.ranks, self.calls, running)
        }
    }

    #[test]
    fn who_waits_for_each_other_is_found() {
        let all = || call(Kind::AllReduce, 0);
        let in_a = || vec![group_state("a", &[0, 1], 1, all()), group_state("b", &[0, 1], 0, None)];
        let in_b = || vec![group_state("a", &[0, 1], 0, None), group_state("b", &[0, 1], 1, all())];
        let named = |list: &[(usize, &str)]| -> Vec<(usize, String)> {
            list.iter().map(|(rank, name)| (*rank, name.to_string())).collect()
        };
        assert_eq!(cycle(&[Some(in_a()), Some(in_b())]), named(&[(0, "a"), (1, "b")]));
        // No deadlock: rank 1 computes; is in the same call; or has made the call and waits in a
        // group of ranks that are not stalled.
        assert!(cycle(&[Some(in_a()), None]).is_empty());
        assert!(cycle(&[Some(in_a()), Some(in_a())]).is_empty());
        let made = vec![group_state("a", &[0, 1], 1, None), group_state("b", &[0, 1], 1, all())];
        assert!(cycle(&[Some(in_a()), Some(made)]).is_empty());
        // A cycle of three ranks. Each pair has a group of its own.
        let pair = |name, ranks: [usize; 2]| vec![group_state(name, &ranks, 1, all())];
        assert_eq!(
            cycle(&[Some(pair("x", [0, 1])), Some(pair("y", [1, 2])), Some(pair("z", [2, 0]))]),
            named(&[(0, "x"), (1, "y"), (2, "z")])
        );
        // A rank that is not the root of a broadcast waits for the root only.
        let broadcast = |root| vec![group_state("a", &[0, 1, 2], 1, call(Kind::Broadcast, root))];
        let other = || vec![group_state("b", &[0, 1], 1, all())];
        assert!(cycle(&[Some(broadcast(2)), Some(other()), None]).is_empty());
        assert_eq!(cycle(&[Some(broadcast(1)), Some(other()), None]).len(), 2);
        // Two ranks that receive from each other in one group.
        let receives = |from| vec![group_state("a", &[0, 1], 0, call(Kind::Recv, from))];
        assert_eq!(cycle(&[Some(receives(1)), Some(receives(0))]).len(), 2);
    }

    /// Whether a cycle of two ranks is a quick one, if each waits in its own group for the other.
    /// The arguments are flags of both groups and whether the processes are idle.
    fn is_quick(in_steps: [bool; 2], by_training_thread: [bool; 2], idle: bool) -> bool {
        let of = |rank: usize| {
            let group = |index: usize, name: &str| {
                let running = call(Kind::AllReduce, 0).filter(|_| index == rank);
                let by_training_thread = by_training_thread[rank];
                let running = running.map(|running| RunningCall { by_training_thread, ..running });
                let calls = u64::from(index == rank);
                GroupState {
                    in_steps: in_steps[index],
                    ..group_state(name, &[0, 1], calls, running)
                }
            };
            let state = RankState {
                idle,
                stalled: Stalled::Quick,
                ..state(rank, vec![group(0, "a"), group(1, "b")])
            };
            RankState::decode(&state.encode()).expect("a rank state")
        };
        let links = find_cycle(0, of(0), true, |rank| Ok(Some(of(rank)))).expect("no lookup fails");
        links.len() == 2
    }

    #[test]
    fn training_threads_that_wait_for_each_other_need_no_patience() {
        // A barrier that one rank calls alone while the other makes a step.
        assert!(is_quick([false, true], [true, true], false));
        // The call of a loader proves nothing: a loader on the other rank may be about to make it.
        assert!(!is_quick([false, true], [false, true], true));
        // Two lanes of one step: the awaited lane may still compute.
        assert!(!is_quick([true, true], [true, true], false));
        assert!(is_quick([true, true], [true, true], true));
    }

    #[test]
    fn one_thread_trains_or_none_is_known_to() {
        let trainer = TrainingThread::default();
        let elsewhere = |work: &(dyn Fn() -> bool + Sync)| {
            std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
        };
        trainer.record(false);
        assert!(trainer.is_caller(false) && !elsewhere(&|| trainer.is_caller(false)));
        assert!(
            elsewhere(&|| trainer.is_caller(true)),
            "lanes of a step belong to the training thread"
        );
        let steps = || {
            trainer.record(true);
            trainer.is_caller(false)
        };
        assert!(elsewhere(&steps), "another thread than the one that opened the job may train");
        assert!(!trainer.is_caller(false));
        assert!(
            !elsewhere(&steps) && !elsewhere(&|| trainer.is_caller(true)),
            "two training threads"
        );
    }

    #[test]
    fn large_jobs_look_rarely() {
        assert_eq!((quick_pause(2), quick_pause(64)), (QUICK_PAUSE, QUICK_PAUSE));
        assert_eq!(quick_pause(640), QUICK_PAUSE * 10);
    }

    #[test]
    fn words_of_others_are_not_trusted() {
        let wrong_kind = "1 2 3 1 1\na\t0\t1\t0\t0\t3\t99\t0\t0\tx";
        for text in ["", "x", "1 2 3", "1 2 3 1", "1 2 3 1 1\nline", wrong_kind] {
            assert!(RankState::decode(text).is_none(), "{text}");
        }
    }
}
