//! Requests that clients have made, so that a repeated request is answered but not run again.
//!
//! A client numbers its requests. The server keeps an answer while the client may repeat the
//! request. Every request states a number below which the client will repeat none. Requests of one
//! client may arrive in any order, on any connection, and twice at the same time.

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
pub(crate) struct Ledger {
    clients: Mutex<HashMap<u64, Arc<Client>>>,
}

#[derive(Default)]
struct Client {
    page: Mutex<Page>,
    changed: Condvar,
}

#[derive(Default)]
struct Page {
    /// The client has the answers to all requests below this number.
    done: u64,
    entries: BTreeMap<u64, Entry>,
}

enum Entry {
    Running,
    Done(Result<Vec<u8>>),
}

/// [`Page::done`] of a client that makes no more requests.
const RETIRED: u64 = u64::MAX;
/// Limit on the answers kept for one client; a client has far fewer threads.
const ENTRIES_MAX: usize = 1024;
/// Limit on the clients remembered: those of many starts of many workers.
const CLIENTS_MAX: usize = 1 << 20;

/// Answers that clients may still ask for again, for snapshots.
#[derive(Clone, Debug, Default)]
pub(crate) struct LedgerImage {
    pub pages: Vec<PageImage>,
}

/// One client's part of a [`LedgerImage`].
#[derive(Clone, Debug)]
pub(crate) struct PageImage {
    pub client: u64,
    pub done: u64,
    pub answers: Vec<(u64, Result<Vec<u8>>)>,
}

impl Ledger {
    /// Returns the answers so far, without those of running requests.
    pub fn image(&self) -> LedgerImage {
        let clients = self.clients.lock().unwrap_or_else(|poison| poison.into_inner());
        let page = |(number, client): (&u64, &Arc<Client>)| {
            let page = client.lock();
            let answers = page.entries.iter().filter_map(|(seq, entry)| match entry {
                Entry::Running => None,
                Entry::Done(result) => Some((*seq, result.clone())),
            });
            PageImage { client: *number, done: page.done, answers: answers.collect() }
        };
        LedgerImage { pages: clients.iter().map(page).collect() }
    }

    pub fn restore(&self, image: LedgerImage) {
        let mut clients = self.clients.lock().unwrap_or_else(|poison| poison.into_inner());
        for page in image.pages {
            let entries = page.answers.into_iter().map(|(seq, result)| (seq, Entry::Done(result)));
            let page_of = Page { done: page.done, entries: entries.collect() };
            let client = Client { page: Mutex::new(page_of), changed: Condvar::new() };
            clients.insert(page.client, Arc::new(client));
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
        let client = self.client(caller)?;
        let mut page = client.lock();
        page.forget(done);
        if page.done == RETIRED {
            return Err(Error::invalid("another process has taken this worker's place")
                .help("end this one: what it computes is computed by the other"));
        }
        if seq < page.done {
            return Err(Error::invalid("a request came again after its answer had been received")
                .expected(format!("a number from {} on", page.done))
                .got(seq));
        }
        loop {
            match page.entries.get(&seq) {
                None => break,
                Some(Entry::Running) => {
                    page = client.changed.wait(page).unwrap_or_else(|poison| poison.into_inner());
                }
                Some(Entry::Done(result)) => {
                    answer.extend(result.as_ref().map_err(Error::clone)?);
                    return Ok(());
                }
            }
        }
        if page.entries.len() >= ENTRIES_MAX {
            return Err(Error::exhausted("a client has too many requests on the way")
                .expected(format!("up to {ENTRIES_MAX}")));
        }
        page.entries.insert(seq, Entry::Running);
        drop(page);
        let mut run = Run { client: &client, seq, result: None };
        let result = change(answer);
        run.result = Some(result.clone().map(|()| answer.clone()));
        result
    }

    /// Retires a client whose worker is another process now: drops its answers and rejects its
    /// requests.
    pub fn retire(&self, client: u64) {
        let clients = self.clients.lock().unwrap_or_else(|poison| poison.into_inner());
        if let Some(client) = clients.get(&client) {
            client.lock().forget(RETIRED);
        }
    }

    fn client(&self, caller: Caller) -> Result<Arc<Client>> {
        let mut clients = self.clients.lock().unwrap_or_else(|poison| poison.into_inner());
        if clients.len() >= CLIENTS_MAX && !clients.contains_key(&caller.client) {
            return Err(Error::exhausted("too many clients have asked this server")
                .expected(format!("up to {CLIENTS_MAX}")));
        }
        Ok(clients.entry(caller.client).or_default().clone())
    }
}

impl Client {
    fn lock(&self) -> MutexGuard<'_, Page> {
        // A page is consistent between statements.
        self.page.lock().unwrap_or_else(|poison| poison.into_inner())
    }
}

impl Page {
    fn forget(&mut self, done: u64) {
        self.done = self.done.max(done);
        let done = self.done;
        self.entries.retain(|seq, entry| *seq >= done || matches!(entry, Entry::Running));
    }
}

/// A running request. If it panics, its entry is removed, so that no repetition waits for it.
struct Run<'a> {
    client: &'a Client,
    seq: u64,
    result: Option<Result<Vec<u8>>>,
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let mut page = self.client.lock();
        match self.result.take() {
            Some(result) => drop(page.entries.insert(self.seq, Entry::Done(result))),
            None => drop(page.entries.remove(&self.seq)),
        }
        self.client.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    const CALLER: Caller = Caller { worker: 0, client: 5 };

    #[test]
    fn a_request_runs_once_in_whatever_order_it_comes() {
        let (ledger, runs) = (Ledger::default(), AtomicU64::new(0));
        let ask = |seq: u64, done: u64| {
            let mut answer = Vec::new();
            let result = ledger.once(CALLER, (seq, done), &mut answer, |answer| {
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
        assert!(ask(3, 1).is_err(), "it was answered for good");
        assert_eq!(ask(5, 4).unwrap(), 5);
        assert_eq!(runs.load(SeqCst), 5);
    }

    #[test]
    fn answers_of_a_retired_client_go() {
        let ledger = Ledger::default();
        let ask = || ledger.once(CALLER, (7, 0), &mut Vec::new(), |_| Ok(()));
        ask().unwrap();
        assert_eq!(ledger.image().pages[0].answers.len(), 1);
        ledger.retire(CALLER.client);
        assert!(ledger.image().pages[0].answers.is_empty());
        let error = ask().unwrap_err();
        assert!(error.message().contains("taken this worker's place"), "{error}");
        let restored = Ledger::default();
        restored.restore(ledger.image());
        restored.once(CALLER, (8, 0), &mut Vec::new(), |_| Ok(())).unwrap_err();
    }

    #[test]
    fn a_copy_that_comes_meanwhile_waits_for_the_answer() {
        let ledger = Ledger::default();
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
                ledger.once(CALLER, (0, 0), &mut answer, change).unwrap();
            });
            started.wait();
            let copy = scope.spawn(|| {
                let mut answer = Vec::new();
                let never = |_: &mut Vec<u8>| panic!("it ran twice");
                ledger.once(CALLER, (0, 0), &mut answer, never).unwrap();
                answer
            });
            go.wait();
            assert_eq!(copy.join().unwrap(), [9]);
        });
    }
}
