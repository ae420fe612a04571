//! Presence of workers: the connections of each, and when the server last heard from it.
//!
//! A worker that dies loses its connections at once. One that is stopped, or whose host is
//! unreachable, keeps them but falls silent. Workers send heartbeats every few seconds, whatever
//! else they do.

use super::{Caller, lock};
use fleet_base::{Error, Result};
use fleet_net::Time;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Time without a connection after which a worker counts as gone. Lost connections are restored
/// within a second or two, and live workers send a heartbeat every two. The limit holds too for
/// workers that do not reconnect to a restarted server.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(6);
/// Silence after which a connected worker counts as stopped or unreachable.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(30);

/// State of a worker as a server sees it, and for how long; see [`SignKind`] for the span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sign {
    pub kind: SignKind,
    pub span: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignKind {
    /// It has not connected since this server started; the span is since the start.
    NeverCame,
    /// It is connected; the span is since the server last heard from it.
    Here,
    /// It was connected; the span is since its last connection closed.
    Gone,
    /// It had connected to the previous process of this server but not to this one; the span is
    /// since this process listens.
    NotBack,
}

pub(crate) struct Presence {
    /// Time when the server began to listen, in nanoseconds of the clock.
    began: AtomicU64,
    /// Silence after which a worker is lost, in nanoseconds.
    silent_after: AtomicU64,
    workers: Vec<Seen>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    /// Time when the server last heard from it, in nanoseconds of the clock; 0 if never.
    last: AtomicU64,
    /// Steps of every process of this worker, by client number.
    lives: Mutex<Vec<(u64, u64)>>,
}

/// Limit on the processes of one worker whose steps are kept. Beyond it, only the latest ones
/// count.
const LIVES_MAX: usize = 256;

impl Presence {
    pub fn new(worker_count: usize) -> Presence {
        let workers = (0..worker_count).map(|_| Seen::default()).collect();
        let silent_after = AtomicU64::new(SILENT_AFTER.as_nanos() as u64);
        Presence { began: AtomicU64::new(Time::now().nanos()), silent_after, workers }
    }

    pub fn set_silent_after(&self, span: Duration) {
        let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
        self.silent_after.store(nanos, SeqCst);
    }

    pub fn silent_after(&self) -> Duration {
        Duration::from_nanos(self.silent_after.load(SeqCst))
    }

    /// Starts the time of absence: workers are not absent while the server loads its tables.
    pub fn begin(&self) {
        self.began.store(Time::now().nanos(), SeqCst);
    }

    pub fn came(&self, worker: usize) {
        self.hear(worker, |seen| _ = seen.connections.fetch_add(1, SeqCst));
    }

    /// Records the steps that a process of a worker has made since it started.
    pub fn has_made(&self, caller: Caller, steps: u64) {
        let Some(seen) = self.workers.get(caller.worker) else { return };
        let mut lives = lock(&seen.lives);
        match lives.iter_mut().find(|(client, _)| *client == caller.client) {
            Some((_, known)) => *known = steps.max(*known),
            None => lives.push((caller.client, steps)),
        }
        if lives.len() > LIVES_MAX {
            lives.remove(0);
        }
    }

    /// Records that a worker resumes after its earlier processes: `made` of their steps count, and
    /// steps that it repeats count as its own.
    pub fn goes_on(&self, caller: Caller, made: u64) {
        let Some(seen) = self.workers.get(caller.worker) else { return };
        self.has_made(caller, 0);
        let mut lives = lock(&seen.lives);
        lives.iter_mut().for_each(|(_, steps)| *steps = 0);
        if let Some((_, steps)) = lives.first_mut() {
            *steps = made;
        }
    }

    /// Returns the steps that a worker has made, and the number of its processes.
    pub fn made(&self, worker: usize) -> (u64, usize) {
        let Some(seen) = self.workers.get(worker) else { return (0, 0) };
        let lives = lock(&seen.lives);
        (lives.iter().fold(0, |sum, (_, steps)| steps.saturating_add(sum)), lives.len())
    }

    pub fn left(&self, worker: usize) {
        self.hear(worker, |seen| _ = seen.connections.fetch_sub(1, SeqCst));
    }

    pub fn heard(&self, worker: usize) {
        self.hear(worker, |_| ());
    }

    fn hear(&self, worker: usize, change: impl Fn(&Seen)) {
        // Numbers of workers that the job does not have are rejected elsewhere.
        let Some(seen) = self.workers.get(worker) else { return };
        seen.last.store(Time::now().nanos().max(1), SeqCst);
        change(seen);
    }

    #[cfg(feature = "grpc")]
    pub fn connections(&self, worker: usize) -> usize {
        self.workers.get(worker).map_or(0, |seen| seen.connections.load(SeqCst))
    }

    pub fn sign(&self, worker: usize) -> Sign {
        let now = Time::now();
        let never = Sign {
            kind: SignKind::NeverCame,
            span: now.since(Time::from_nanos(self.began.load(SeqCst))),
        };
        let Some(seen) = self.workers.get(worker) else { return never };
        match (seen.last.load(SeqCst), seen.connections.load(SeqCst)) {
            (0, _) => never,
            (last, count) => {
                let kind = if count == 0 { SignKind::Gone } else { SignKind::Here };
                Sign { kind, span: now.since(Time::from_nanos(last)) }
            }
        }
    }
}

impl Sign {
    /// Returns whether a worker of a job that has begun is lost; `silent_after` is the longest
    /// silence.
    pub fn is_lost(self, silent_after: Duration) -> bool {
        let bound = match self.kind {
            SignKind::Gone | SignKind::NotBack => GONE_AFTER.min(silent_after),
            SignKind::Here => silent_after,
            SignKind::NeverCame => return false,
        };
        self.span >= bound
    }

    /// Describes a worker that a barrier waits for.
    pub fn brief(self) -> String {
        let seconds = self.span.as_secs_f64();
        match self.kind {
            SignKind::NeverCame => "it has not come yet".to_string(),
            SignKind::Gone => format!("it closed its last connection {seconds:.1} s ago"),
            SignKind::Here => format!("it gave a sign of life {seconds:.1} s ago"),
            SignKind::NotBack => {
                format!("it has not come to a server that was started again {seconds:.1} s ago")
            }
        }
    }

    pub fn text(self) -> String {
        let seconds = self.span.as_secs_f64();
        match self.kind {
            SignKind::NeverCame => format!("has not come for {seconds:.1} s"),
            SignKind::Gone => {
                format!("is gone: it closed its last connection {seconds:.1} s before")
            }
            SignKind::NotBack => format!(
                "is gone: it has not come since the server was started again, {seconds:.1} s before"
            ),
            SignKind::Here => format!(
                "has been silent for {seconds:.1} s: the process is stopped or its host cannot be \
                 reached"
            ),
        }
    }

    /// Returns the numbers that encode it in messages.
    pub fn numbers(self) -> [u32; 2] {
        let kind = match self.kind {
            SignKind::NeverCame => 0,
            SignKind::Here => 1,
            SignKind::Gone => 2,
            SignKind::NotBack => 3,
        };
        [kind, u32::try_from(self.span.as_millis()).unwrap_or(u32::MAX)]
    }

    pub fn from_numbers([kind, milliseconds]: [u32; 2]) -> Result<Sign> {
        let kind = match kind {
            0 => SignKind::NeverCame,
            1 => SignKind::Here,
            2 => SignKind::Gone,
            3 => SignKind::NotBack,
            _ => return Err(Error::internal("a server's answer is not understood").got(kind)),
        };
        Ok(Sign { kind, span: Duration::from_millis(milliseconds.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_and_goes_is_known() {
        let presence = Presence::new(2);
        assert_eq!(presence.sign(1).kind, SignKind::NeverCame);
        presence.came(1);
        presence.came(1);
        presence.left(1);
        assert_eq!(presence.sign(1).kind, SignKind::Here);
        presence.left(1);
        let sign = presence.sign(1);
        assert_eq!(sign.kind, SignKind::Gone);
        assert!(!sign.is_lost(SILENT_AFTER) && sign.is_lost(Duration::ZERO));
        assert!(Sign { span: GONE_AFTER, ..sign }.is_lost(SILENT_AFTER));
        assert!(!Sign { span: GONE_AFTER, kind: SignKind::Here }.is_lost(SILENT_AFTER));
        presence.heard(7);
        assert_eq!(presence.sign(7).kind, SignKind::NeverCame);
        let told = Sign { span: Duration::from_millis(1500), ..sign };
        assert_eq!(Sign::from_numbers(told.numbers()).unwrap(), told);
        assert!(Sign::from_numbers([4, 0]).is_err());
        // A worker that has never connected may still do so, however long it takes.
        assert!(!presence.sign(7).is_lost(Duration::ZERO));
        let not_back = Sign { kind: SignKind::NotBack, span: GONE_AFTER };
        assert!(not_back.is_lost(SILENT_AFTER));
    }

    /// A restarted worker counts from 0; the steps of its earlier processes stay.
    #[test]
    fn steps_are_those_of_all_starts() {
        let presence = Presence::new(2);
        for (client, steps) in [(7, 0), (7, 5), (8, 0), (7, 4), (8, 3), (8, 3)] {
            presence.has_made(Caller { worker: 1, client }, steps);
        }
        presence.has_made(Caller { worker: 9, client: 1 }, 5);
        assert_eq!(
            (presence.made(1), presence.made(0), presence.made(9)),
            ((8, 2), (0, 0), (0, 0))
        );
        // Client 9 resumes after step 6 of the others, which had reported 8.
        presence.goes_on(Caller { worker: 1, client: 9 }, 6);
        presence.has_made(Caller { worker: 1, client: 9 }, 2);
        assert_eq!(presence.made(1), (8, 3));
    }
}
