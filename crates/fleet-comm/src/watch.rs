//! Ranks that wait for each other in different groups: rank 0 in a call of group A that rank 1 has not
//! made, rank 1 in a call of group B that rank 0 has not made. No group sees that by itself.
//!
//! A thread of each rank looks now and then. While a call is under way and no call begins or ends, it
//! publishes in the store what the rank waits in and which calls it has made; and it follows, through what
//! others have published, who waits for whom. A way back to itself that is the same at two looks, between
//! which every rank on it has said that it still stands, is a deadlock: an error on all of them that names
//! each call.
//!
//! A process that computes meanwhile may be about to make the call that others wait for. Or it reads data
//! ahead, and its thread of training stands. From outside these look the same, so such a rank counts as
//! standing only after [`BUSY_FACTOR`] times the span: waiting for a step or an evaluation is no deadlock,
//! and a deadlock beside busy loaders is found all the same.

use crate::call::{Kind, Signature};
use fleet_base::{Error, Result};
use fleet_net::{Abort, Limits, Member, Store};
use std::collections::HashMap;
use std::fmt::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Looks until a rank that does nothing is part of a deadlock.
const LOOKS: u32 = 4;
/// Pauses between two looks.
const PAUSE_MIN: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// A process that uses less of a core than one part in this many does nothing.
const IDLE_PART: u32 = 10;
/// How many times as long a process must stand that does something else meanwhile.
const BUSY_FACTOR: u32 = 5;
/// Ranks that are followed at one look; a cycle is short.
const FOLLOWED_MAX: usize = 64;
/// How long the others of a cycle are waited for: they look at least every [`PAUSE_MAX`].
const HEARD_SPAN: Duration = Duration::from_secs(20);
/// A store that does not answer for this long is asked again at the next look.
const STORE_SPAN: Duration = Duration::from_secs(5);

/// What one group of this rank is doing; written by its calls.
pub(crate) struct Progress {
    name: String,
    /// Ranks of the job, by rank of the group.
    ranks: Vec<usize>,
    abort: Abort,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Calls that have begun: of all ranks, and messages by peer.
    calls: u64,
    sent: Vec<u64>,
    received: Vec<u64>,
    /// Begins and ends.
    changes: u64,
    flight: Option<Signature>,
    /// The call under way is part of a deadlock, of which others may know already.
    verdict: Option<Error>,
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A state is whole between statements, whoever panicked.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn begin(&self, signature: Signature) {
        let mut state = self.lock();
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

    /// The error of a call that ended with `error`: where others were told of a deadlock first, they
    /// may have left before this rank's token fired.
    pub fn judge(&self, error: Error) -> Error {
        match &self.lock().verdict {
            Some(verdict) if verdict.message() != error.message() => verdict.clone(),
            _ => error,
        }
    }
}

/// The thread that looks, as long as a group of this rank lives.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: Option<std::thread::JoinHandle<()>>,
}

struct Shared {
    rank: usize,
    store: Arc<dyn Store>,
    member: Box<dyn Fn(usize) -> Member + Send + Sync>,
    /// The shortest span that a group asked for, and the groups.
    groups: Mutex<(Duration, Vec<Weak<Progress>>)>,
    over: Mutex<bool>,
    wake: Condvar,
}

impl Watch {
    pub fn start(
        rank: usize,
        store: Arc<dyn Store>,
        span: Duration,
        member: impl Fn(usize) -> Member + Send + Sync + 'static,
    ) -> Result<Watch> {
        let shared = Arc::new(Shared {
            rank,
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

    /// A group of this rank; its calls report to what is given back.
    pub fn add(&self, name: &str, ranks: &[usize], abort: &Abort, span: Duration) -> Arc<Progress> {
        let (sent, received) = (vec![0; ranks.len()], vec![0; ranks.len()]);
        let progress = Arc::new(Progress {
            // The form that is published is lines of fields.
            name: name.replace(char::is_control, " "),
            ranks: ranks.to_vec(),
            abort: abort.clone(),
            state: Mutex::new(State { sent, received, ..State::default() }),
        });
        let mut groups = self.shared.groups.lock().unwrap_or_else(PoisonError::into_inner);
        groups.0 = groups.0.min(span);
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
            // It panics nowhere; were it to, nobody is left to tell.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn groups(&self) -> (Duration, Vec<Arc<Progress>>) {
        let groups = self.groups.lock().unwrap_or_else(PoisonError::into_inner);
        (groups.0, groups.1.iter().filter_map(Weak::upgrade).collect())
    }

    /// Waits for the next look; false at the end.
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

/// What the thread remembers between looks.
struct Looks {
    /// Tells this run from earlier ones whose words are still in the store.
    nonce: u64,
    beat: u64,
    changes: u64,
    /// Looks since the last change, and whether the process did something at one of them.
    still: u32,
    busy: bool,
    at: Instant,
    cpu: Option<Duration>,
    /// The cycle of the last look.
    last: Vec<Link>,
}

/// One rank of a cycle.
struct Link {
    rank: usize,
    identity: (u64, u64),
    beat: u64,
    /// The group of the call that it is in, and the call.
    group: String,
    call: String,
}

impl Looks {
    fn new(shared: &Shared) -> Looks {
        use std::hash::BuildHasher;
        let nonce = std::collections::hash_map::RandomState::new().hash_one(shared.rank);
        let cpu = crate::shm::cpu_time();
        let (at, last) = (Instant::now(), Vec::new());
        Looks { nonce, beat: 0, changes: 0, still: 0, busy: false, at, cpu, last }
    }

    fn run(&mut self, shared: &Shared) {
        loop {
            let pause = (shared.groups().0 / LOOKS).clamp(PAUSE_MIN, PAUSE_MAX);
            if !shared.pause(pause) {
                return;
            }
            let (_, groups) = shared.groups();
            if !self.stands_still(&groups) {
                (self.still, self.busy, self.last) = (0, false, Vec::new());
                continue;
            }
            self.still += 1;
            // What cannot be asked or told now is asked and told at the next look.
            let _ = self.look(shared, &groups);
        }
    }

    /// Nothing began or ended since the last look, and something is under way.
    fn stands_still(&mut self, groups: &[Arc<Progress>]) -> bool {
        let (mut changes, mut flights) = (0, 0);
        for group in groups {
            let state = group.lock();
            changes += state.changes;
            flights += usize::from(state.flight.is_some());
        }
        let (now, cpu) = (Instant::now(), crate::shm::cpu_time());
        let idle = match (cpu, self.cpu) {
            (Some(cpu), Some(before)) => (cpu - before) * IDLE_PART < now - self.at,
            _ => false,
        };
        let still = flights > 0 && changes == self.changes;
        self.busy |= !idle;
        (self.changes, self.at, self.cpu) = (changes, now, cpu);
        still
    }

    fn look(&mut self, shared: &Shared, groups: &[Arc<Progress>]) -> Result<()> {
        let limits = Limits::within(STORE_SPAN);
        self.beat += 1;
        let own = View {
            identity: (self.nonce, self.changes),
            beat: self.beat,
            ripe: self.still >= if self.busy { BUSY_FACTOR * LOOKS } else { LOOKS },
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
        if !own.ripe {
            return Ok(());
        }
        let cycle = find_cycle(shared.rank, own, |rank| {
            let bytes = shared.store.get(&Shared::key(rank), &limits)?.unwrap_or_default();
            Ok(View::decode(&String::from_utf8_lossy(&bytes)).filter(|view| view.ripe))
        })?;
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

    /// What another rank of a cycle has found, when it is about what this one is in now.
    fn verdict(&self, shared: &Shared, limits: &Limits) -> Result<Option<String>> {
        let verdict = shared.store.get(&Shared::verdict_key(shared.rank), limits)?;
        let text = String::from_utf8_lossy(&verdict.unwrap_or_default()).into_owned();
        let (identity, text) = text.split_once('\n').unwrap_or_default();
        Ok((identity == format!("{} {}", self.nonce, self.changes)).then(|| text.to_string()))
    }

    /// Tells the others of the cycle, and waits a moment until they know: after its error this rank may
    /// end, and they would see only that.
    fn tell(&self, shared: &Shared, text: &str) -> Result<()> {
        let limits = Limits::within(STORE_SPAN);
        let others = || self.last.iter().filter(|link| link.rank != shared.rank);
        for link in others() {
            let verdict = format!("{} {}\n{text}", link.identity.0, link.identity.1);
            shared.store.set(&Shared::verdict_key(link.rank), verdict.as_bytes(), &limits)?;
        }
        let begin = Instant::now();
        while begin.elapsed() < HEARD_SPAN && shared.pause(PAUSE_MIN) {
            // They may have found the same at the same time.
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

/// The calls under way in the groups named are part of a deadlock.
fn judge(groups: &[Arc<Progress>], names: &[String], text: &str) {
    for group in groups {
        let mut state = group.lock();
        if names.contains(&group.name) && state.flight.is_some() {
            state.verdict = Some(Error::invalid(text).help(
                "collectives of different groups must be called in the same order on every rank",
            ));
        }
    }
}

/// Calls that are part of a deadlock are over.
fn end(groups: &[Arc<Progress>]) {
    for group in groups {
        let verdict = group.lock().verdict.clone();
        if let Some(verdict) = verdict {
            group.abort.fire(verdict);
        }
    }
}

/// What a rank says of itself.
struct View {
    /// Run, and begins and ends so far: equal where nothing has happened.
    identity: (u64, u64),
    beat: u64,
    /// It has stood for long enough to be part of a deadlock.
    ripe: bool,
    groups: Vec<Standing>,
}

/// How far a rank is in one group.
struct Standing {
    name: String,
    ranks: Vec<usize>,
    calls: u64,
    sent: Vec<u64>,
    received: Vec<u64>,
    flight: Option<Flight>,
}

struct Flight {
    kind: Kind,
    root: usize,
    sequence: u64,
    text: String,
}

impl Standing {
    fn of(group: &Progress) -> Standing {
        let state = group.lock();
        Standing {
            name: group.name.clone(),
            ranks: group.ranks.clone(),
            calls: state.calls,
            sent: state.sent.clone(),
            received: state.received.clone(),
            flight: state.flight.map(|call| Flight {
                kind: call.kind,
                root: call.root as usize,
                sequence: call.sequence,
                text: call.to_string().replace(char::is_control, " "),
            }),
        }
    }

    /// Whether the rank at `place` of the group, which stands as `theirs`, keeps this one waiting.
    fn waits_for(&self, own: usize, place: usize, theirs: Option<&Standing>) -> bool {
        let Some(flight) = &self.flight else { return false };
        // Who is no root waits for the root alone; a message is between two.
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
    /// Lines of fields: `run changes beat ripe`, then a line a group.
    fn encode(&self) -> String {
        let (run, changes) = self.identity;
        let mut text = format!("{run} {changes} {} {}\n", self.beat, u8::from(self.ripe));
        for group in &self.groups {
            let (kind, root, sequence, call) = match &group.flight {
                Some(flight) => (flight.kind as u8, flight.root, flight.sequence, &*flight.text),
                None => (0, 0, 0, ""),
            };
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{}\t{}\t{}\t{}\t{}\t{kind}\t{root}\t{sequence}\t{call}",
                group.name,
                joined(&group.ranks),
                group.calls,
                joined(&group.sent),
                joined(&group.received)
            );
        }
        text
    }

    /// `None` for what no rank of this version wrote.
    fn decode(text: &str) -> Option<View> {
        let mut lines = text.lines();
        let mut head = lines.next()?.split(' ').map(|word| word.parse::<u64>().ok());
        let (run, changes, beat) = (head.next()??, head.next()??, head.next()??);
        let ripe = head.next()?? != 0;
        let groups = lines.map(decode_standing).collect::<Option<Vec<_>>>()?;
        Some(View { identity: (run, changes), beat, ripe, groups })
    }
}

fn decode_standing(line: &str) -> Option<Standing> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [name, ranks, calls, sent, received, kind, root, sequence, call] = fields[..] else {
        return None;
    };
    let flight = match kind.parse().ok()? {
        0 => None,
        number => Some(Flight {
            kind: Kind::numbered(number)?,
            root: root.parse().ok()?,
            sequence: sequence.parse().ok()?,
            text: call.to_string(),
        }),
    };
    let ranks: Vec<usize> = split(ranks)?;
    Some(Standing {
        name: name.to_string(),
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

/// The shortest way from `start` back to itself along who waits for whom; empty when there is none.
fn find_cycle(
    start: usize,
    own: View,
    mut ask: impl FnMut(usize) -> Result<Option<View>>,
) -> Result<Vec<Link>> {
    let mut views: HashMap<usize, Option<View>> = HashMap::from([(start, Some(own))]);
    // Ranks in the order in which they were met, each with the place of who waits for it and the group.
    let mut met: Vec<(usize, usize, String)> = vec![(start, 0, String::new())];
    let mut next = 0;
    while next < met.len() && met.len() <= FOLLOWED_MAX {
        let rank = met[next].0;
        let flights: Vec<(String, Vec<usize>)> = match &views[&rank] {
            None => Vec::new(),
            Some(view) => {
                let under_way = view.groups.iter().filter(|group| group.flight.is_some());
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
                // Who says nothing is at work, and nothing is known of what it has begun.
                let Some(Some(theirs)) = views.get(peer) else { continue };
                let Some(Some(view)) = views.get(&rank) else { continue };
                let standing = |view: &'_ View| view.groups.iter().position(|g| g.name == name);
                let Some(mine) = standing(view).map(|at| &view.groups[at]) else { continue };
                let other = standing(theirs).map(|at| &theirs.groups[at]);
                if !mine.waits_for(place, index, other) {
                    continue;
                }
                if *peer == start {
                    return Ok(way_back(&met, next, &name, &views));
                }
                met.push((*peer, next, name.clone()));
            }
        }
        next += 1;
    }
    Ok(Vec::new())
}

/// From the start to the rank met at `last`, which waits for the start in `group`.
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
            let flight = view.groups.iter().find(|standing| standing.name == group);
            let flight = flight.and_then(|standing| standing.flight.as_ref());
            let call = flight.map(|flight| flight.text.clone()).unwrap_or_default();
            let (identity, beat) = (view.identity, view.beat);
            links.push(Link { rank: *rank, identity, beat, group, call });
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
        Standing { name, ranks, calls, sent: none.clone(), received: none, flight }
    }

    fn call(kind: Kind, root: usize) -> Option<Flight> {
        Some(Flight { kind, root, sequence: 0, text: format!("{kind} #0") })
    }

    fn view(rank: usize, groups: Vec<Standing>) -> View {
        View { identity: (7, rank as u64), beat: 1, ripe: true, groups }
    }

    /// The ranks of the cycle that rank 0 finds; views travel as text.
    fn cycle(views: &[Option<Vec<Standing>>]) -> Vec<(usize, String)> {
        let texts: Vec<Option<String>> = views
            .iter()
            .enumerate()
            .map(|(rank, groups)| {
                let again = |group: &Standing| {
                    let groups = vec![group.copy()];
                    let line = View { identity: (0, 0), beat: 0, ripe: true, groups }.encode();
                    decode_standing(line.lines().nth(1).expect("a line")).expect("a standing")
                };
                let groups = groups.as_ref()?;
                Some(view(rank, groups.iter().map(again).collect()).encode())
            })
            .collect();
        let get = |rank: usize| texts[rank].as_deref().and_then(View::decode);
        let own = get(0).expect("rank 0 says something");
        let links = find_cycle(0, own, |rank| Ok(get(rank))).expect("nobody fails");
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
        // Rank 1 computes; is in the same call; has made the call and waits elsewhere for nobody here.
        assert!(cycle(&[Some(in_a()), None]).is_empty());
        assert!(cycle(&[Some(in_a()), Some(in_a())]).is_empty());
        let made = vec![standing("a", &[0, 1], 1, None), standing("b", &[0, 1], 1, all())];
        assert!(cycle(&[Some(in_a()), Some(made)]).is_empty());
        // Around three, each pair with a group of its own.
        let pair = |name, ranks: [usize; 2]| vec![standing(name, &ranks, 1, all())];
        assert_eq!(
            cycle(&[Some(pair("x", [0, 1])), Some(pair("y", [1, 2])), Some(pair("z", [2, 0]))]),
            named(&[(0, "x"), (1, "y"), (2, "z")])
        );
        // A rank that is not the root of a broadcast waits for the root alone.
        let told = |root| vec![standing("a", &[0, 1, 2], 1, call(Kind::Broadcast, root))];
        let other = || vec![standing("b", &[0, 1], 1, all())];
        assert!(cycle(&[Some(told(2)), Some(other()), None]).is_empty());
        assert_eq!(cycle(&[Some(told(1)), Some(other()), None]).len(), 2);
        // Two that receive from each other in one group.
        let receives = |from| vec![standing("a", &[0, 1], 0, call(Kind::Recv, from))];
        assert_eq!(cycle(&[Some(receives(1)), Some(receives(0))]).len(), 2);
    }

    #[test]
    fn words_of_others_are_not_trusted() {
        for text in ["", "x", "1 2 3", "1 2 3 1\nline", "1 2 3 1\na\t0\t1\t0\t0\t99\t0\t0\tx"] {
            assert!(View::decode(text).is_none(), "{text}");
        }
    }
}
