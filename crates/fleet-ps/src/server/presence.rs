//! Presence of workers: the connections of each, and when the server last heard from it.
//!
//! A worker that dies loses its connections at once. One that is stopped, or whose host is
//! unreachable, keeps them but falls silent. Workers send heartbeats every few seconds, whatever
//! else they do.

use super::Caller;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_net::Time;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

/// Time without a connection after which a worker counts as gone. Lost connections are restored
/// within a second or two, and live workers send a heartbeat every two. The limit holds too for
/// workers that do not reconnect to a restarted server.
pub(crate) const RECONNECT_GRACE: Duration = Duration::from_secs(6);
/// Silence after which a connected worker counts as stopped or unreachable.
pub(crate) const WORKER_TIMEOUT: Duration = Duration::from_secs(30);

/// State of a worker as a server sees it, and for how long; see [`SignKind`] for the span.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WorkerSign {
    pub kind: SignKind,
    pub span: Duration,
}

/// The numbers are those of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignKind {
    /// It has not connected since this server started; the span is since the start.
    NeverConnected = 0,
    /// It is connected; the span is since the server last heard from it.
    Connected = 1,
    /// It was connected; the span is since its last connection closed.
    Disconnected = 2,
    /// It had connected to the previous process of this server but not to this one; the span is
    /// since this process listens.
    NotReconnected = 3,
}

pub(crate) struct Presence {
    /// Time when the server began to listen, in nanoseconds of the clock.
    began: AtomicU64,
    /// Silence after which a worker is lost, in nanoseconds.
    silent_after: AtomicU64,
    workers: Vec<WorkerPresence>,
}

#[derive(Default)]
struct WorkerPresence {
    connections: AtomicUsize,
    /// Time when the server last heard from it, in nanoseconds of the clock; 0 if never.
    last: AtomicU64,
    /// Steps of every process of this worker, by client number.
    processes: Mutex<Vec<(u64, u64)>>,
}

/// Limit on the processes of one worker whose steps are kept. Beyond it, only the latest ones
/// count.
const PROCESSES_MAX: usize = 256;

impl Presence {
    pub fn new(worker_count: usize) -> Presence {
        let workers = (0..worker_count).map(|_| WorkerPresence::default()).collect();
        let silent_after = AtomicU64::new(WORKER_TIMEOUT.as_nanos() as u64);
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

    pub fn connected(&self, worker: usize) {
        self.hear(worker, |seen| _ = seen.connections.fetch_add(1, SeqCst));
    }

    /// Records the steps that a process of a worker has made since it started.
    pub fn set_steps(&self, caller: Caller, steps: u64) {
        let Some(seen) = self.workers.get(caller.worker) else { return };
        let mut processes = lock(&seen.processes);
        match processes.iter_mut().find(|(client, _)| *client == caller.client) {
            Some((_, known)) => *known = steps.max(*known),
            None => processes.push((caller.client, steps)),
        }
        if processes.len() > PROCESSES_MAX {
            processes.remove(0);
        }
    }

    /// Records that a worker resumes after its earlier processes: `made` of their steps count, and
    /// steps that it repeats count as its own.
    pub fn adopt(&self, caller: Caller, made: u64) {
        let Some(seen) = self.workers.get(caller.worker) else { return };
        self.set_steps(caller, 0);
        let mut processes = lock(&seen.processes);
        processes.iter_mut().for_each(|(_, steps)| *steps = 0);
        if let Some((_, steps)) = processes.first_mut() {
            *steps = made;
        }
    }

    /// Returns the steps that a worker has made, and the number of its processes.
    pub fn steps(&self, worker: usize) -> (u64, usize) {
        let Some(seen) = self.workers.get(worker) else { return (0, 0) };
        let processes = lock(&seen.processes);
        (processes.iter().fold(0, |sum, (_, steps)| steps.saturating_add(sum)), processes.len())
    }

    pub fn disconnected(&self, worker: usize) {
        self.hear(worker, |seen| _ = seen.connections.fetch_sub(1, SeqCst));
    }

    pub fn heard_from(&self, worker: usize) {
        self.hear(worker, |_| ());
    }

    fn hear(&self, worker: usize, change: impl Fn(&WorkerPresence)) {
        // Numbers of workers that the job does not have are rejected elsewhere.
        let Some(seen) = self.workers.get(worker) else { return };
        seen.last.store(Time::now().nanos().max(1), SeqCst);
        change(seen);
    }

    #[cfg(feature = "grpc")]
    pub fn connections(&self, worker: usize) -> usize {
        self.workers.get(worker).map_or(0, |seen| seen.connections.load(SeqCst))
    }

    pub fn sign(&self, worker: usize) -> WorkerSign {
        let now = Time::now();
        let never = WorkerSign {
            kind: SignKind::NeverConnected,
            span: now.since(Time::from_nanos(self.began.load(SeqCst))),
        };
        let Some(seen) = self.workers.get(worker) else { return never };
        match (seen.last.load(SeqCst), seen.connections.load(SeqCst)) {
            (0, _) => never,
            (last, count) => {
                let kind = if count == 0 { SignKind::Disconnected } else { SignKind::Connected };
                WorkerSign { kind, span: now.since(Time::from_nanos(last)) }
            }
        }
    }
}

impl WorkerSign {
    /// Returns whether a worker of a job that has begun is lost; `silent_after` is the longest
    /// silence.
    pub fn is_lost(self, silent_after: Duration) -> bool {
        let bound = match self.kind {
            SignKind::Disconnected | SignKind::NotReconnected => RECONNECT_GRACE.min(silent_after),
            SignKind::Connected => silent_after,
            SignKind::NeverConnected => return false,
        };
        self.span >= bound
    }

    /// Describes a worker that a barrier waits for.
    pub fn describe(self) -> String {
        let seconds = self.span.as_secs_f64();
        match self.kind {
            SignKind::NeverConnected => "not connected yet".to_string(),
            SignKind::Disconnected => format!("closed its last connection {seconds:.1} s ago"),
            SignKind::Connected => format!("last heartbeat {seconds:.1} s ago"),
            SignKind::NotReconnected => {
                format!("not reconnected since the server restarted {seconds:.1} s ago")
            }
        }
    }

    pub fn loss_text(self) -> String {
        let seconds = self.span.as_secs_f64();
        match self.kind {
            SignKind::NeverConnected => format!("has not connected for {seconds:.1} s"),
            SignKind::Disconnected => {
                format!("is lost: it closed its last connection {seconds:.1} s ago")
            }
            SignKind::NotReconnected => format!(
                "is lost: it has not reconnected since the server restarted {seconds:.1} s ago"
            ),
            SignKind::Connected => format!(
                "is unresponsive: no heartbeat for {seconds:.1} s (its process is stopped, or its \
                 host is unreachable)"
            ),
        }
    }

    /// Returns the numbers that encode it in messages.
    pub fn numbers(self) -> [u32; 2] {
        [self.kind as u32, u32::try_from(self.span.as_millis()).unwrap_or(u32::MAX)]
    }

    pub fn from_numbers([kind, milliseconds]: [u32; 2]) -> Result<WorkerSign> {
        let kind = match kind {
            0 => SignKind::NeverConnected,
            1 => SignKind::Connected,
            2 => SignKind::Disconnected,
            3 => SignKind::NotReconnected,
            _ => return Err(Error::internal("malformed answer of a server").got(kind)),
        };
        Ok(WorkerSign { kind, span: Duration::from_millis(milliseconds.into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_and_goes_is_known() {
        let presence = Presence::new(2);
        assert_eq!(presence.sign(1).kind, SignKind::NeverConnected);
        presence.connected(1);
        presence.connected(1);
        presence.disconnected(1);
        assert_eq!(presence.sign(1).kind, SignKind::Connected);
        presence.disconnected(1);
        let sign = presence.sign(1);
        assert_eq!(sign.kind, SignKind::Disconnected);
        assert!(!sign.is_lost(WORKER_TIMEOUT) && sign.is_lost(Duration::ZERO));
        assert!(WorkerSign { span: RECONNECT_GRACE, ..sign }.is_lost(WORKER_TIMEOUT));
        assert!(
            !WorkerSign { span: RECONNECT_GRACE, kind: SignKind::Connected }
                .is_lost(WORKER_TIMEOUT)
        );
        presence.heard_from(7);
        assert_eq!(presence.sign(7).kind, SignKind::NeverConnected);
        let sent = WorkerSign { span: Duration::from_millis(1500), ..sign };
        assert_eq!(WorkerSign::from_numbers(sent.numbers()).unwrap(), sent);
        assert!(WorkerSign::from_numbers([4, 0]).is_err());
        // A worker that has never connected may still do so, however long it takes.
        assert!(!presence.sign(7).is_lost(Duration::ZERO));
        let not_reconnected = WorkerSign { kind: SignKind::NotReconnected, span: RECONNECT_GRACE };
        assert!(not_reconnected.is_lost(WORKER_TIMEOUT));
    }

    /// A restarted worker counts from 0; the steps of its earlier processes stay.
    #[test]
    fn steps_are_those_of_all_starts() {
        let presence = Presence::new(2);
        for (client, steps) in [(7, 0), (7, 5), (8, 0), (7, 4), (8, 3), (8, 3)] {
            presence.set_steps(Caller { worker: 1, client }, steps);
        }
        presence.set_steps(Caller { worker: 9, client: 1 }, 5);
        assert_eq!(
            (presence.steps(1), presence.steps(0), presence.steps(9)),
            ((8, 2), (0, 0), (0, 0))
        );
        // Client 9 resumes after step 6 of the others, which had reported 8.
        presence.adopt(Caller { worker: 1, client: 9 }, 6);
        presence.set_steps(Caller { worker: 1, client: 9 }, 2);
        assert_eq!(presence.steps(1), (8, 3));
    }
}
