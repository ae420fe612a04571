//! Requests that clients have made, so that a repeated request is answered but not run again.
//!
//! A client numbers its requests. The server keeps an answer while the client may repeat the
//! request. Every request states a number below which the client will repeat none. Requests of one
//! client may arrive in any order, on any connection, and twice at the same time.

use fleet_base::sync::{lock, wait};
use fleet_base::{Error, Result};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// The sender of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub worker: usize,
    /// The client's own number: a restarted worker is another client.
    pub client: u64,
}

/// Worker number of a caller that is no worker and only makes requests about whole tables. A log
/// has 32 bits for it.
pub(crate) const OPERATOR: usize = u32::MAX as usize;

impl Caller {
    pub fn is_operator(self) -> bool {
        self.worker == OPERATOR
    }
}

impl fmt::Display for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_operator() {
            true => write!(f, "an operator"),
            false => write!(f, "worker {}", self.worker),
        }
    }
}

#[derive(Default)]
pub(crate) struct ClientSessions {
    sessions: Mutex<HashMap<u64, Arc<Session>>>,
}

#[derive(Default)]
struct Session {
    requests: Mutex<Requests>,
    changed: Condvar,
}

#[derive(Default)]
struct Requests {
    /// The client has the answers to all requests below this number.
    done: u64,
    entries: BTreeMap<u64, Entry>,
}

enum Entry {
    Running,
    Done(Result<Vec<u8>>),
}

/// [`Requests::done`] of a client that makes no more requests.
const RETIRED: u64 = u64::MAX;
/// Limit on the answers kept for one client; a client has far fewer threads.
const ENTRIES_MAX: usize = 1024;
/// Limit on the clients remembered: those of many starts of many workers.
const CLIENTS_MAX: usize = 1 << 20;

/// Answers that a client may still ask for again, for snapshots.
#[derive(Clone, Debug)]
pub(crate) struct SessionImage {
    pub client: u64,
    pub done: u64,
    pub answers: Vec<(u64, Result<Vec<u8>>)>,
}

impl ClientSessions {
    /// Returns the answers so far, without those of running requests.
    pub fn image(&self) -> Vec<SessionImage> {
        let sessions = lock(&self.sessions);
        let image = |(client, session): (&u64, &Arc<Session>)| {
            let requests = session.lock();
            let answers = requests.entries.iter().filter_map(|(seq, entry)| match entry {
                Entry::Running => None,
                Entry::Done(result) => Some((*seq, result.clone())),
            });
            SessionImage { client: *client, done: requests.done, answers: answers.collect() }
        };
        sessions.iter().map(image).collect()
    }

    pub fn restore(&self, image: Vec<SessionImage>) {
        let mut sessions = lock(&self.sessions);
        for session in image {
            let entries =
                session.answers.into_iter().map(|(seq, result)| (seq, Entry::Done(result)));
            let requests = Requests { done: session.done, entries: entries.collect() };
            let restored = Session { requests: Mutex::new(requests), changed: Condvar::new() };
            sessions.insert(session.client, Arc::new(restored));
        }
    }

    /// Runs `change` unless the request ran before; the answer is the same every time.
    pub fn once(
        &self,
        caller: Caller,
        (seq, done): (u64, u64),
        answer: &mut Vec<u8>,
        change: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        let session = self.session(caller)?;
        let mut requests = session.lock();
        requests.forget(done);
        if requests.done == RETIRED {
            return Err(Error::invalid("another process has replaced this worker")
                .help("end this process: the other one computes the same steps"));
        }
        if seq < requests.done {
            return Err(Error::invalid("duplicate request after its answer was received")
                .expected(format!("a number of at least {}", requests.done))
                .got(seq));
        }
        loop {
            match requests.entries.get(&seq) {
                None => break,
                Some(Entry::Running) => {
                    requests = wait(&session.changed, requests);
                }
                Some(Entry::Done(result)) => {
                    answer.extend(result.as_ref().map_err(Error::clone)?);
                    return Ok(());
                }
            }
        }
        if requests.entries.len() >= ENTRIES_MAX {
            return Err(Error::exhausted("too many requests in flight from one client")
                .expected(format!("up to {ENTRIES_MAX}")));
        }
        requests.entries.insert(seq, Entry::Running);
        drop(requests);
        let mut run = Run { session: &session, seq, result: None };
        let result = change(answer);
        run.result = Some(result.clone().map(|()| answer.clone()));
        result
    }

    /// Retires a client whose worker is another process now: drops its answers and rejects its
    /// requests.
    pub fn retire(&self, client: u64) {
        let sessions = lock(&self.sessions);
        if let Some(session) = sessions.get(&client) {
            session.lock().forget(RETIRED);
        }
    }

    fn session(&self, caller: Caller) -> Result<Arc<Session>> {
        let mut sessions = lock(&self.sessions);
        if sessions.len() >= CLIENTS_MAX && !sessions.contains_key(&caller.client) {
            return Err(Error::exhausted("too many clients on this server")
                .expected(format!("up to {CLIENTS_MAX}")));
        }
        Ok(sessions.entry(caller.client).or_default().clone())
    }
}

impl Session {
    fn lock(&self) -> MutexGuard<'_, Requests> {
        // The requests are consistent between statements.
        lock(&self.requests)
    }
}

impl Requests {
    fn forget(&mut self, done: u64) {
        self.done = self.done.max(done);
        let done = self.done;
        self.entries.retain(|seq, entry| *seq >= done || matches!(entry, Entry::Running));
    }
}

/// A running request. If it panics, its entry is removed, so that no repetition waits for it.
struct Run<'a> {
    session: &'a Session,
    seq: u64,
    result: Option<Result<Vec<u8>>>,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let mut requests = self.session.lock();
        match self.result.take() {
            Some(result) => drop(requests.entries.insert(self.seq, Entry::Done(result))),
            None => drop(requests.entries.remove(&self.seq)),
        }
        self.session.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    const CALLER: Caller = Caller { worker: 0, client: 5 };

    #[test]
    fn a_request_runs_once_in_whatever_order_it_comes() {
        let (sessions, runs) = (ClientSessions::default(), AtomicU64::new(0));
        let ask = |seq: u64, done: u64| {
            let mut answer = Vec::new();
            let result = sessions.once(CALLER, (seq, done), &mut answer, |answer| {
                runs.fetch_add(1, SeqCst);
                answer.extend(seq.to_le_bytes());
                match seq {
                    4 => Err(Error::numeric("bad")),
                    _ => Ok(()),
                }
            });
            result.map(|()| u64::from_le_bytes(answer.try_into().unwrap()))
        };
        for _ in 0..3 {
            for seq in [3, 1, 2] {
                assert_eq!(ask(seq, 1).unwrap(), seq);
            }
            assert_eq!(ask(4, 1).unwrap_err().message(), "bad");
        }
        assert_eq!(runs.load(SeqCst), 4);
        assert_eq!(ask(5, 4).unwrap(), 5);
        assert!(ask(3, 1).is_err(), "its answer was received");
        assert_eq!(ask(5, 4).unwrap(), 5);
        assert_eq!(runs.load(SeqCst), 5);
    }

    #[test]
    fn answers_of_a_retired_client_go() {
        let sessions = ClientSessions::default();
        let ask = || sessions.once(CALLER, (7, 0), &mut Vec::new(), |_| Ok(()));
        ask().unwrap();
        assert_eq!(sessions.image()[0].answers.len(), 1);
        sessions.retire(CALLER.client);
        assert!(sessions.image()[0].answers.is_empty());
        let error = ask().unwrap_err();
        assert!(error.message().contains("replaced this worker"), "{error}");
        let restored = ClientSessions::default();
        restored.restore(sessions.image());
        restored.once(CALLER, (8, 0), &mut Vec::new(), |_| Ok(())).unwrap_err();
    }

    #[test]
    fn a_copy_that_comes_meanwhile_waits_for_the_answer() {
        let sessions = ClientSessions::default();
        let (started, go) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut answer = Vec::new();
                let change = |answer: &mut Vec<u8>| {
                    started.wait();
                    go.wait();
                    answer.push(9);
                    Ok(())
                };
                sessions.once(CALLER, (0, 0), &mut answer, change).unwrap();
            });
            started.wait();
            let copy = scope.spawn(|| {
                let mut answer = Vec::new();
                let never = |_: &mut Vec<u8>| panic!("it ran twice");
                sessions.once(CALLER, (0, 0), &mut answer, never).unwrap();
                answer
            });
            go.wait();
            assert_eq!(copy.join().unwrap(), [9]);
        });
    }
}
