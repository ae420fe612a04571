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
//! cycle is an error after [`QUICK_SPAN`]. Calls of other threads (loaders that exchange data) are
//! excluded: the missing call would also be made by such a thread, which may still be reading. The
//! calls of one training step use several lanes concurrently. If a rank waits in one lane and
//! another rank waits for it in a second one, its process must also have been idle.

use crate::call::{Kind, Signature};
use crate::world::GroupOptions;
use fleet_base::{Error, ErrorCode, Result};
use fleet_net::{Abort, Limits, Member, Store};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Number of checks until an idle rank counts as part of a deadlock.
const LOOKS: u32 = 4;
/// Shortest and longest interval between two checks.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// A process is idle if it uses less than 1/10 of a core.
const IDLE_PART: u32 = 10;
/// Time after which stalled training threads count as deadlocked: two checks.
const QUICK_SPAN: Duration = Duration::from_secs(2);
/// Interval between two checks in a small job. In larger jobs each rank checks less often, so that
/// the load of the store stays the same.
const QUICK_PAUSE: Duration = Duration::from_secs(1);
/// Largest number of ranks of a small job.
const QUICK_RANKS: u32 = 64;
/// Factor on the span for a rank whose process is busy.
const BUSY_FACTOR: u32 = 5;
/// Maximum number of ranks followed in one check. Cycles are short.
const FOLLOWED_MAX: usize = 64;
/// Time to wait for the other ranks of a cycle, which check at least every [`PAUSE_MAX`].
const HEARD_SPAN: Duration = Duration::from_secs(20);
/// Timeout of the store. After it, the rank tries again at the next check.
const STORE_SPAN: Duration = Duration::from_secs(5);

/// State of one group of this rank, updated by its calls.
pub(crate) struct Progress {
    name: String,
    /// Whether training steps make the calls of the group.
    in_steps: bool,
    trainer: Arc<Trainer>,
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
    flight: Option<Signature>,
    /// Whether the training thread made the running call.
    is_trainers: bool,
    /// Set if the running call is part of a deadlock, which other ranks may already know.
    verdict: Option<Error>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent after every statement, even if a thread panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(&self, signature: Signature) {
        let is_trainers = self.trainer.makes_call(self.in_steps);
        let mut state = self.lock();
        state.is_trainers = is_trainers;
        let peer = signature.root as usize;
        *match signature.kind {
            Kind::Send => &mut state.sent[peer],
            Kind::Recv => &mut state.received[peer],
            _ => &mut state.calls,
        } = signature.sequence + 1;
        state.changes += 1;
        state.flight = Some(signature);
    }

    pub fn end(&self) {
        let mut state = self.lock();
        state.changes += 1;
        state.flight = None;
    }

    /// Returns the verdict on a deadlock, if there is one, instead of the error of a failed call.
    /// That error may only say that other ranks left, because they got the verdict first.
    pub fn judge(&self, error: Error) -> Error {
        match &self.lock().verdict {
            Some(verdict) if error.code() != Some(ErrorCode::Deadlock) => verdict.clone(),
            _ => error,
        }
    }
}

/// The training thread of this rank, if there is exactly one.
#[derive(Default)]
pub(crate) struct Trainer {
    /// Number of the thread; 0 if unknown.
    thread: AtomicU64,
    /// Whether it has made a step, and not only opened the job.
    has_stepped: AtomicBool,
    /// Whether several threads make steps. Then none counts as the training thread.
    are_several: AtomicBool,
}

impl Trainer {
    /// Records that the calling thread has opened the job or makes a step.
    pub fn is_here(&self, makes_step: bool) {
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
    fn makes_call(&self, in_step: bool) -> bool {
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
    trainer: Arc<Trainer>,
    store: Arc<dyn Store>,
    member: Box<dyn Fn(usize) -> Member + Send + Sync>,
    /// The shortest span of a group, and the groups.
    groups: Mutex<(Duration, Vec<Weak<Progress>>)>,
    over: Mutex<bool>,
    wake: Condvar,
}

impl Watch {
    pub fn start(
        (rank, rank_count): (usize, usize),
        trainer: Arc<Trainer>,
        store: Arc<dyn Store>,
        span: Duration,
        member: impl Fn(usize) -> Member + Send + Sync + 'static,
    ) -> Result<Watch> {
        let shared = Arc::new(Shared {
            rank,
            pause: quick_pause(rank_count),
            trainer,
            store,
            member: Box::new(member),
            groups: Mutex::new((span, Vec::new())),
            over: Mutex::new(false),
            wake: Condvar::new(),
        });
        let own = shared.clone();
        let thread = std::thread::Builder::new()
            .name("comm watch".to_string())
            .spawn(move || Looks::new(&own).run(&own))
            .map_err(|error| {
                Error::exhausted(format!(
                    "cannot start the thread that looks for deadlocks: {error}"
                ))
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
            trainer: self.shared.trainer.clone(),
            ranks: ranks.to_vec(),
            abort: abort.clone(),
            state: Mutex::new(State { sent, received, ..State::default() }),
        });
        let mut groups = self.shared.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.0 = groups.0.min(options.deadlock);
        groups.1.retain(|group| group.strong_count() > 0);
        groups.1.push(Arc::downgrade(&progress));
        progress
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        *self.shared.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.wake.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic; if it did, there would be nothing to clean up.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn groups(&self) -> (Duration, Vec<Arc<Progress>>) {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        (groups.0, groups.1.iter().filter_map(Weak::upgrade).collect())
    }

    /// Waits until the next check; false when the watch ends.
    fn pause(&self, span: Duration) -> bool {
        let over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.wake.wait_timeout_while(over, span, |over| !*over);
        !*waited.unwrap_or_else(PoisonError::into_inner).0
    }

    fn key(rank: usize) -> String {
        format!("comm/watch/{rank}")
    }

    fn verdict_key(rank: usize) -> String {
        format!("comm/watch/{rank}/verdict")
    }
}

/// State of the watch thread between checks.
struct Looks {
    /// Distinguishes this run from earlier ones whose entries are still in the store.
    nonce: u64,
    beat: u64,
    changes: u64,
    /// Time since which no call has started or ended.
    still_since: Option<Instant>,
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
    beat: u64,
    in_steps: bool,
    idle: bool,
    /// The group of its running call, and the call.
    group: String,
    call: String,
}

impl Looks {
    fn new(shared: &Shared) -> Looks {
        use std::hash::BuildHasher;
        let nonce = std::collections::hash_map::RandomState::new().hash_one(shared.rank);
        let cpu = crate::shm::cpu_time();
        let (at, last) = (Instant::now(), Vec::new());
        Looks {
            nonce,
            beat: 0,
            changes: 0,
            still_since: None,
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
            let pause = (shared.groups().0 / LOOKS).min(shared.pause).clamp(PAUSE_MIN, PAUSE_MAX);
            if !shared.pause(pause) {
                return;
            }
            let (span, groups) = shared.groups();
            let before = self.at;
            if !self.stands_still(&groups, (span / LOOKS).min(PAUSE_MAX)) {
                (self.still_since, self.last) = (None, Vec::new());
                (self.busy_now, self.busy) = (false, false);
                (self.at_long, self.cpu_long) = (self.at, self.cpu);
                continue;
            }
            let since = *self.still_since.get_or_insert(before);
            // An access to the store that fails is repeated at the next check.
            let _ = self.look(shared, &groups, (self.at - since, span));
        }
    }

    /// Whether a call is running and none has started or ended since the last check. Also updates
    /// the measurements of CPU time; those for `busy` cover spans of `long`.
    fn stands_still(&mut self, groups: &[Arc<Progress>], long: Duration) -> bool {
        let (mut changes, mut flights) = (0, 0);
        for group in groups {
            let state = group.lock();
            changes += state.changes;
            flights += usize::from(state.flight.is_some());
        }
        let (now, cpu) = (Instant::now(), crate::shm::cpu_time());
        let idle = |before: Option<Duration>, at: Instant| match (cpu, before) {
            (Some(cpu), Some(before)) => (cpu - before) * IDLE_PART < now - at,
            _ => false,
        };
        let still = flights > 0 && changes == self.changes;
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
    fn look(
        &mut self,
        shared: &Shared,
        groups: &[Arc<Progress>],
        (stood, span): (Duration, Duration),
    ) -> Result<()> {
        let limits = Limits::within(STORE_SPAN);
        self.beat += 1;
        let own = View {
            identity: (self.nonce, self.changes),
            beat: self.beat,
            ripe: match () {
                () if stood >= if self.busy { span * BUSY_FACTOR } else { span } => Ripe::Fully,
                () if stood >= QUICK_SPAN.min(span) => Ripe::Quick,
                () => Ripe::No,
            },
            idle: !self.busy_now,
            groups: groups.iter().map(|group| Standing::of(group)).collect(),
        };
        shared.store.set(&Shared::key(shared.rank), own.encode().as_bytes(), &limits)?;
        let names: Vec<String> = own.groups.iter().map(|group| group.name.clone()).collect();
        if let Some(text) = self.verdict(shared, &limits)? {
            judge(groups, &names, &text);
            shared.store.delete(&Shared::verdict_key(shared.rank), &limits)?;
            end(groups);
            return Ok(());
        }
        if own.ripe == Ripe::No {
            return Ok(());
        }
        let mut known: HashMap<usize, Option<View>> = HashMap::new();
        let mut ask = |rank: usize, least: Ripe| {
            if let Entry::Vacant(unknown) = known.entry(rank) {
                let bytes = shared.store.get(&Shared::key(rank), &limits)?.unwrap_or_default();
                unknown.insert(View::decode(&String::from_utf8_lossy(&bytes)));
            }
            Ok(known[&rank].clone().filter(|view| view.ripe >= least))
        };
        let ripe = own.ripe;
        let mut cycle = find_cycle(shared.rank, own.clone(), true, |rank| ask(rank, Ripe::Quick))?;
        if cycle.is_empty() && ripe == Ripe::Fully {
            cycle = find_cycle(shared.rank, own, false, |rank| ask(rank, Ripe::Fully))?;
        }
        let stands = !cycle.is_empty()
            && cycle.len() == self.last.len()
            && cycle.iter().zip(&self.last).all(|(now, then)| {
                now.rank == then.rank && now.identity == then.identity && now.beat > then.beat
            });
        self.last = cycle;
        if !stands {
            return Ok(());
        }
        let text = self.describe(shared);
        judge(groups, &[self.last[0].group.clone()], &text);
        let told = self.tell(shared, &text);
        end(groups);
        told
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
    fn tell(&self, shared: &Shared, text: &str) -> Result<()> {
        let limits = Limits::within(STORE_SPAN);
        let others = || self.last.iter().filter(|link| link.rank != shared.rank);
        for link in others() {
            let verdict = format!("{} {}\n{text}", link.identity.0, link.identity.1);
            shared.store.set(&Shared::verdict_key(link.rank), verdict.as_bytes(), &limits)?;
        }
        let begin = Instant::now();
        while begin.elapsed() < HEARD_SPAN && shared.pause(PAUSE_MIN) {
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
        let mut text = String::from("ranks wait for each other in different groups: ");
        for (index, link) in self.last.iter().enumerate() {
            let next = &self.last[(index + 1) % self.last.len()];
            // Writing to a string cannot fail.
            let _ = write!(
                text,
                "{}{} is in {} of group '{}' and waits for rank {}",
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
fn judge(groups: &[Arc<Progress>], names: &[String], text: &str) {
    for group in groups {
        let mut state = group.lock();
        if names.contains(&group.name) && state.flight.is_some() {
            let error = Error::invalid(text).with_code(ErrorCode::Deadlock).help(
                "collectives of different groups must be called in the same order on every rank",
            );
            state.verdict = Some(error);
        }
    }
}

/// Ends the calls that are part of a deadlock.
fn end(groups: &[Arc<Progress>]) {
    for group in groups {
        let verdict = group.lock().verdict.clone();
        if let Some(verdict) = verdict {
            group.abort.fire(verdict);
        }
    }
}

/// Whether a rank has been stalled long enough to be part of a deadlock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ripe {
    No,
    /// Long enough for a deadlock among training threads.
    Quick,
    /// Long enough for any deadlock.
    Fully,
}

/// The published state of a rank.
#[derive(Clone)]
struct View {
    /// Id of the run, and number of starts and ends. If equal, no call started or ended.
    identity: (u64, u64),
    beat: u64,
    ripe: Ripe,
    /// Whether the process has been idle since then.
    idle: bool,
    groups: Vec<Standing>,
}

/// The state of a rank in one group.
#[derive(Clone)]
struct Standing {
    name: String,
    in_steps: bool,
    ranks: Vec<usize>,
    calls: u64,
    sent: Vec<u64>,
    received: Vec<u64>,
    flight: Option<Flight>,
}

#[derive(Clone)]
struct Flight {
    kind: Kind,
    is_trainers: bool,
    root: usize,
    sequence: u64,
    text: String,
}

impl Standing {
    fn of(group: &Progress) -> Standing {
        let state = group.lock();
        Standing {
            name: group.name.clone(),
            in_steps: group.in_steps,
            ranks: group.ranks.clone(),
            calls: state.calls,
            sent: state.sent.clone(),
            received: state.received.clone(),
            flight: state.flight.map(|call| Flight {
                kind: call.kind,
                is_trainers: state.is_trainers,
                root: call.root as usize,
                sequence: call.sequence,
                text: call.to_string().replace(char::is_control, " "),
            }),
        }
    }

    /// Whether this rank's call waits for the rank at `place` of the group, in state `theirs`.
    fn waits_for(&self, own: usize, place: usize, theirs: Option<&Standing>) -> bool {
        let Some(flight) = &self.flight else { return false };
        // A rank that is not the root waits for the root only; a message involves two ranks.
        let pair = matches!(flight.kind, Kind::Send | Kind::Recv);
        if place == own
            || (pair || flight.kind.is_rooted() && own != flight.root) && place != flight.root
        {
            return false;
        }
        let Some(theirs) = theirs else { return true };
        let of = |counts: &[u64]| counts.get(own).copied().unwrap_or(0);
        let begun = match flight.kind {
            Kind::Send => of(&theirs.received),
            Kind::Recv => of(&theirs.sent),
            _ => theirs.calls,
        };
        begun <= flight.sequence
    }
}

impl View {
    /// Encodes the state as lines of fields: `run changes beat ripe idle`, then one line per group.
    fn encode(&self) -> String {
        let (run, changes) = self.identity;
        let (ripe, idle) = (self.ripe as u8, u8::from(self.idle));
        let mut text = format!("{run} {changes} {} {ripe} {idle}\n", self.beat);
        for group in &self.groups {
            let (kind, is_trainers, root, sequence, call) = match &group.flight {
                Some(it) => (it.kind as u8, it.is_trainers, it.root, it.sequence, &*it.text),
                None => (0, false, 0, 0, ""),
            };
            let flags = 2 * u8::from(group.in_steps) + u8::from(is_trainers);
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
    fn decode(text: &str) -> Option<View> {
        let mut lines = text.lines();
        let mut head = lines.next()?.split(' ').map(|word| word.parse::<u64>().ok());
        let (run, changes, beat) = (head.next()??, head.next()??, head.next()??);
        let ripe = match head.next()?? {
            0 => Ripe::No,
            1 => Ripe::Quick,
            _ => Ripe::Fully,
        };
        let idle = head.next()?? != 0;
        let groups = lines.map(decode_standing).collect::<Option<Vec<_>>>()?;
        Some(View { identity: (run, changes), beat, ripe, idle, groups })
    }
}

fn decode_standing(line: &str) -> Option<Standing> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, ranks, calls, sent, received, flags, kind, root, sequence, call] = fields[..] else {
        return None;
    };
    let flags: u8 = flags.parse().ok()?;
    let flight = match kind.parse().ok()? {
        0 => None,
        number => Some(Flight {
            kind: Kind::numbered(number)?,
            is_trainers: flags & 1 != 0,
            root: root.parse().ok()?,
            sequence: sequence.parse().ok()?,
            text: call.to_string(),
        }),
    };
    let ranks: Vec<usize> = split(ranks)?;
    Some(Standing {
        name: name.to_string(),
        in_steps: flags & 2 != 0,
        ranks,
        calls: calls.parse().ok()?,
        sent: split(sent)?,
        received: split(received)?,
        flight,
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
    own: View,
    is_quick: bool,
    mut ask: impl FnMut(usize) -> Result<Option<View>>,
) -> Result<Vec<Link>> {
    let mut views: HashMap<usize, Option<View>> = HashMap::from([(start, Some(own))]);
    // Ranks in search order, each with the index of the rank that waits for it and the group.
    let mut met: Vec<(usize, usize, String)> = vec![(start, 0, String::new())];
    let mut next = 0;
    while next < met.len() && met.len() <= FOLLOWED_MAX {
        let rank = met[next].0;
        let flights: Vec<(String, Vec<usize>)> = match &views[&rank] {
            None => Vec::new(),
            Some(view) => {
                let counts = |flight: &Flight| flight.is_trainers || !is_quick;
                let under_way =
                    view.groups.iter().filter(|group| group.flight.as_ref().is_some_and(counts));
                under_way.map(|group| (group.name.clone(), group.ranks.clone())).collect()
            }
        };
        for (name, ranks) in flights {
            let Some(place) = ranks.iter().position(|other| *other == rank) else { continue };
            for (index, peer) in ranks.iter().enumerate() {
                if *peer != start && met.iter().any(|(rank, _, _)| rank == peer) {
                    continue;
                }
                if !views.contains_key(peer) && views.len() <= FOLLOWED_MAX {
                    let view = ask(*peer)?;
                    views.insert(*peer, view);
                }
                // A rank without a published state is running; its calls are unknown.
                let Some(Some(theirs)) = views.get(peer) else { continue };
                let Some(Some(view)) = views.get(&rank) else { continue };
                let standing = |view: &'_ View| view.groups.iter().position(|g| g.name == name);
                let Some(mine) = standing(view).map(|at| &view.groups[at]) else { continue };
                let other = standing(theirs).map(|at| &theirs.groups[at]);
                if !mine.waits_for(place, index, other) {
                    continue;
                }
                if *peer == start {
                    let cycle = way_back(&met, next, &name, &views);
                    return Ok(if is_quick && !is_proof(&cycle) { Vec::new() } else { cycle });
                }
                met.push((*peer, next, name.clone()));
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
    let ranks = u32::try_from(rank_count).unwrap_or(u32::MAX).max(QUICK_RANKS);
    QUICK_PAUSE.saturating_mul(ranks) / QUICK_RANKS
}

/// The cycle from the start to the rank at `last`, which waits for the start in `group`.
fn way_back(
    met: &[(usize, usize, String)],
    last: usize,
    group: &str,
    views: &HashMap<usize, Option<View>>,
) -> Vec<Link> {
    let (mut links, mut at, mut group) = (Vec::new(), last, group.to_string());
    loop {
        let (rank, before, name) = &met[at];
        if let Some(Some(view)) = views.get(rank) {
            let standing = view.groups.iter().find(|standing| standing.name == group);
            let flight = standing.and_then(|standing| standing.flight.as_ref());
            let call = flight.map(|flight| flight.text.clone()).unwrap_or_default();
            let (identity, beat, idle) = (view.identity, view.beat, view.idle);
            let in_steps = standing.is_some_and(|standing| standing.in_steps);
            links.push(Link { rank: *rank, identity, beat, in_steps, idle, group, call });
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

    fn standing(name: &str, ranks: &[usize], calls: u64, flight: Option<Flight>) -> Standing {
        let none = vec![0; ranks.len()];
        let (name, ranks) = (name.to_string(), ranks.to_vec());
        let in_steps = false;
        Standing { name, in_steps, ranks, calls, sent: none.clone(), received: none, flight }
    }

    fn call(kind: Kind, root: usize) -> Option<Flight> {
        Some(Flight { kind, is_trainers: false, root, sequence: 0, text: format!("{kind} #0") })
    }

    fn view(rank: usize, groups: Vec<Standing>) -> View {
        View { identity: (7, rank as u64), beat: 1, ripe: Ripe::Fully, idle: true, groups }
    }

    /// The ranks of the cycle that rank 0 finds. States are encoded and decoded on the way.
    fn cycle(views: &[Option<Vec<Standing>>]) -> Vec<(usize, String)> {
        let texts: Vec<Option<String>> = views
            .iter()
            .enumerate()
            .map(|(rank, groups)| {
                let again = |group: &Standing| {
                    let groups = vec![group.copy()];
                    let line = view(0, groups).encode();
                    decode_standing(line.lines().nth(1).expect("a line")).expect("a standing")
                };
                let groups = groups.as_ref()?;
                Some(view(rank, groups.iter().map(again).collect()).encode())
            })
            .collect();
        let get = |rank: usize| texts[rank].as_deref().and_then(View::decode);
        let own = get(0).expect("rank 0 says something");
        let links = find_cycle(0, own, false, |rank| Ok(get(rank))).expect("nobody fails");
        links.into_iter().map(|link| (link.rank, link.group)).collect()
    }

    impl Standing {
        fn copy(&self) -> Standing {
            let flight =
                self.flight.as_ref().map(|flight| Flight { text: flight.text.clone(), ..*flight });
            standing(&self.name, &self.ranks, self.calls, flight)
        }
    }

    #[test]
    fn who_waits_for_each_other_is_found() {
        let all = || call(Kind::AllReduce, 0);
        let in_a = || vec![standing("a", &[0, 1], 1, all()), standing("b", &[0, 1], 0, None)];
        let in_b = || vec![standing("a", &[0, 1], 0, None), standing("b", &[0, 1], 1, all())];
        let named = |list: &[(usize, &str)]| -> Vec<(usize, String)> {
            list.iter().map(|(rank, name)| (*rank, name.to_string())).collect()
        };
        assert_eq!(cycle(&[Some(in_a()), Some(in_b())]), named(&[(0, "a"), (1, "b")]));
        // No deadlock: rank 1 computes; is in the same call; or has made the call and waits in a
        // group of ranks that are not stalled.
        assert!(cycle(&[Some(in_a()), None]).is_empty());
        assert!(cycle(&[Some(in_a()), Some(in_a())]).is_empty());
        let made = vec![standing("a", &[0, 1], 1, None), standing("b", &[0, 1], 1, all())];
        assert!(cycle(&[Some(in_a()), Some(made)]).is_empty());
        // A cycle of three ranks. Each pair has a group of its own.
        let pair = |name, ranks: [usize; 2]| vec![standing(name, &ranks, 1, all())];
        assert_eq!(
            cycle(&[Some(pair("x", [0, 1])), Some(pair("y", [1, 2])), Some(pair("z", [2, 0]))]),
            named(&[(0, "x"), (1, "y"), (2, "z")])
        );
        // A rank that is not the root of a broadcast waits for the root only.
        let told = |root| vec![standing("a", &[0, 1, 2], 1, call(Kind::Broadcast, root))];
        let other = || vec![standing("b", &[0, 1], 1, all())];
        assert!(cycle(&[Some(told(2)), Some(other()), None]).is_empty());
        assert_eq!(cycle(&[Some(told(1)), Some(other()), None]).len(), 2);
        // Two ranks that receive from each other in one group.
        let receives = |from| vec![standing("a", &[0, 1], 0, call(Kind::Recv, from))];
        assert_eq!(cycle(&[Some(receives(1)), Some(receives(0))]).len(), 2);
    }

    /// Whether a cycle of two ranks is a quick one, if each waits in its own group for the other.
    /// The arguments are flags of both groups and whether the processes are idle.
    fn is_quick(in_steps: [bool; 2], is_trainers: [bool; 2], idle: bool) -> bool {
        let of = |rank: usize| {
            let group = |index: usize, name: &str| {
                let flight = call(Kind::AllReduce, 0).filter(|_| index == rank);
                let is_trainers = is_trainers[rank];
                let flight = flight.map(|flight| Flight { is_trainers, ..flight });
                let calls = u64::from(index == rank);
                Standing { in_steps: in_steps[index], ..standing(name, &[0, 1], calls, flight) }
            };
            let view =
                View { idle, ripe: Ripe::Quick, ..view(rank, vec![group(0, "a"), group(1, "b")]) };
            View::decode(&view.encode()).expect("a view")
        };
        let links = find_cycle(0, of(0), true, |rank| Ok(Some(of(rank)))).expect("nobody fails");
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
        let trainer = Trainer::default();
        let elsewhere = |work: &(dyn Fn() -> bool + Sync)| {
            std::thread::scope(|scope| scope.spawn(work).join().expect("no panic"))
        };
        trainer.is_here(false);
        assert!(trainer.makes_call(false) && !elsewhere(&|| trainer.makes_call(false)));
        assert!(elsewhere(&|| trainer.makes_call(true)), "lanes of a step are its thread's");
        let steps = || {
            trainer.is_here(true);
            trainer.makes_call(false)
        };
        assert!(elsewhere(&steps), "the thread that opened the job need not train");
        assert!(!trainer.makes_call(false));
        assert!(!elsewhere(&steps) && !elsewhere(&|| trainer.makes_call(true)), "two that train");
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
            assert!(View::decode(text).is_none(), "{text}");
        }
    }
}
