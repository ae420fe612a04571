//! Who is there: the connections of every worker, and when it was heard last.
//!
//! A worker that dies loses its connections at once; one that is stopped, or whose host is gone,
//! keeps them and says nothing any more. Workers say that they live every few seconds, whatever
//! else they do.

use super::{Caller, lock};
use fleet_base::{Error, Result};
use fleet_net::Time;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Connections break and are made again within a second or two, and whoever lives says so every
/// two: who has none for so long is gone, and so is who does not come for so long to a server that
/// was started again.
pub(crate) const GONE_AFTER: Duration = Duration::from_secs(6);
/// Whoever is not heard of for so long is stopped, or out of reach.
pub(crate) const SILENT_AFTER: Duration = Duration::from_secs(30);

/// What a server knows of a worker, and for how long it has been so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sign {
    pub kind: SignKind,
    pub span: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignKind {
    /// It has not connected since this server began.
    NeverCame,
    /// It is connected; the span is since it was heard.
    Here,
    /// It was connected; the span is since its last connection closed.
    Gone,
    /// It had come to the process before this one, and has not come to this one; the span is since
    /// that listens.
    NotBack,
}

pub(crate) struct Presence {
    /// Nanoseconds of the clock.
    began: AtomicU64,
    /// Nanoseconds without a sign of life after which a worker is lost.
    silent_after: AtomicU64,
    workers: Vec<Seen>,
}

#[derive(Default)]
struct Seen {
    connections: AtomicUsize,
    /// Nanoseconds of the clock; 0: never.
    last: AtomicU64,
    /// Steps of every process that was this worker, by the number of its client.
    lives: Mutex<Vec<(u64, u64)>>,
}

/// Starts of one worker whose steps are kept; a job that starts one more often counts the last of
/// them only.
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

    /// The server listens from now on: what it had to load first is nobody's absence.
    pub fn begin(&self) {
        self.began.store(Time::now().nanos(), SeqCst);
    }

    pub fn came(&self, worker: usize) {
        self.hear(worker, |seen| _ = seen.connections.fetch_add(1, SeqCst));
    }

    /// A worker says how many steps it has made, in all since it was started.
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

    /// A worker goes on where its earlier processes came to: `made` of their steps count, and those
    /// that it makes again count as its own.
    pub fn goes_on(&self, caller: Caller, made: u64) {
        let Some(seen) = self.workers.get(caller.worker) else { return };
        self.has_made(caller, 0);
        let mut lives = lock(&seen.lives);
        lives.iter_mut().for_each(|(_, steps)| *steps = 0);
        if let Some((_, steps)) = lives.first_mut() {
            *steps = made;
        }
    }

    /// Steps that a worker has made, and how often it was started.
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
        // Whoever says a number that is none of the job's is refused elsewhere.
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
    /// Whether a worker of a job that has begun is lost, at the latest after so long without a
    /// sign.
    pub fn is_lost(self, silent_after: Duration) -> bool {
        let bound = match self.kind {
            SignKind::Gone | SignKind::NotBack => GONE_AFTER.min(silent_after),
            SignKind::Here => silent_after,
            SignKind::NeverCame => return false,
        };
        self.span >= bound
    }

    /// Of one who is waited for.
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

    /// As a message has it.
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
        // Who has never come may still come, however long that takes.
        assert!(!presence.sign(7).is_lost(Duration::ZERO));
        let not_back = Sign { kind: SignKind::NotBack, span: GONE_AFTER };
        assert!(not_back.is_lost(SILENT_AFTER));
    }

    /// A worker that is started again begins to count anew; what it had made before stays.
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
        // The third goes on behind step 6 of the others, of which 8 were told.
        presence.goes_on(Caller { worker: 1, client: 9 }, 6);
        presence.has_made(Caller { worker: 1, client: 9 }, 2);
        assert_eq!(presence.made(1), (8, 3));
    }
}
