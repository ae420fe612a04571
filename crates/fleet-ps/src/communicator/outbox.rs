//! Queues of gradients, one a table, and the threads that merge and send them.
//!
//! One thread at a time works on a table, so that its gradients go out in the order in which they came.

use super::{CommunicatorOptions, POLL_SPAN, Rates, lock, spawn};
use crate::{Push, Servers};
use fleet_base::{Error, Result};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Gradients of rows, ready to be queued.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SparseGrads {
    pub ids: Vec<u64>,
    pub grads: Vec<f32>,
    /// One an id, or none at all.
    pub shows: Vec<f32>,
    pub clicks: Vec<f32>,
}

/// What waits to be sent.
pub(super) enum Item {
    Sparse(SparseGrads),
    /// The worker's gradient of this number, counted from 1.
    Dense {
        grad: Vec<f32>,
        number: u64,
    },
    /// Steps that were made.
    Steps(u32),
}

/// Told of each dense push: (table, number of the newest gradient in it, gradients in it).
pub(super) type Told = Option<Box<dyn Fn(u32, u64, usize) -> Result<()> + Send + Sync>>;

#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub taken: u64,
    pub pushed: u64,
    pub blocked: Duration,
}

pub(super) struct Outbox {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    servers: Arc<dyn Servers>,
    options: CommunicatorOptions,
    rates: Rates,
    told: Told,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<u32, Queue>,
    /// Callers that wait for everything to be out: nobody waits for more then.
    draining: usize,
    closed: bool,
    /// The first failure: nothing is sent after it.
    error: Option<Error>,
    counts: Counts,
    /// The table that was served last.
    last: u32,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// A thread is at it.
    busy: bool,
}

impl Outbox {
    pub fn start(
        servers: Arc<dyn Servers>,
        options: CommunicatorOptions,
        rates: Rates,
        told: Told,
    ) -> Result<Outbox> {
        let (state, changed) = Default::default();
        let shared = Arc::new(Shared { state, changed, servers, options, rates, told });
        let mut outbox = Outbox { shared, threads: Vec::new() };
        for _ in 0..options.thread_count {
            let shared = Arc::clone(&outbox.shared);
            outbox.threads.push(spawn("ps-send", move || shared.serve())?);
        }
        Ok(outbox)
    }

    /// Queues something; waits while the table's queue is full.
    pub fn put(&self, table: u32, item: Item) -> Result<()> {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        let full = |state: &State| {
            let len = state.queues.get(&table).map_or(0, |queue| queue.items.len());
            state.error.is_none() && len >= shared.options.queue_len_max
        };
        if full(&state) {
            let begun = Instant::now();
            while full(&state) {
                state = shared.wait(state);
            }
            state.counts.blocked += begun.elapsed();
        }
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        state.counts.taken += u64::from(!matches!(item, Item::Steps(_)));
        state.queues.entry(table).or_default().items.push_back(item);
        shared.changed.notify_all();
        Ok(())
    }

    /// Waits until everything is out and applied.
    pub fn drain(&self) -> Result<()> {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        state.draining += 1;
        shared.changed.notify_all();
        let rests = |state: &State| {
            state.queues.values().any(|queue| queue.busy || !queue.items.is_empty())
        };
        while state.error.is_none() && rests(&state) {
            state = shared.wait(state);
        }
        state.draining -= 1;
        state.error.clone().map_or(Ok(()), Err)
    }

    pub fn counts(&self) -> Counts {
        lock(&self.shared.state).counts
    }
}

impl Drop for Outbox {
    /// What was not flushed is lost, with the worker that did not want to wait for it.
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A panic has been reported by its thread.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if state.closed || state.error.is_some() {
                return;
            }
            let Some(table) = state.next() else {
                state = self.wait(state);
                continue;
            };
            let items;
            (state, items) = self.collect(state, table);
            drop(state);
            self.changed.notify_all();
            let outcome = self.send(table, items);
            state = lock(&self.state);
            state.last = table;
            state.queue(table).busy = false;
            state.counts.pushed += 1;
            if let Err(error) = outcome {
                state.error.get_or_insert(error);
            }
            self.changed.notify_all();
        }
    }

    /// Takes gradients of a table, and waits a little for more of them where that is wanted.
    fn collect<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        table: u32,
    ) -> (MutexGuard<'a, State>, Vec<Item>) {
        state.queue(table).busy = true;
        let limit = self.options.merge_count_max;
        let mut waits = 0;
        let mut seen = state.queue(table).items.len();
        while seen < limit && waits < self.options.wait_count_max {
            if state.draining > 0 || state.closed {
                break;
            }
            let (back, outcome) =
                self.changed.wait_timeout(state, POLL_SPAN).unwrap_or_else(PoisonError::into_inner);
            state = back;
            let len = state.queue(table).items.len();
            // Only waits in a row without news count.
            waits = match (len > seen, outcome.timed_out()) {
                (true, _) => 0,
                (false, true) => waits + 1,
                (false, false) => waits,
            };
            seen = len;
        }
        let queue = state.queue(table);
        let count = queue.items.len().min(limit);
        let items = queue.items.drain(..count).collect();
        (state, items)
    }

    /// Sends gradients of one table as one.
    fn send(&self, table: u32, items: Vec<Item>) -> Result<()> {
        let mut sparse: Option<SparseGrads> = None;
        let mut dense: Option<(Vec<f32>, u64, usize)> = None;
        let (mut steps, merged) = (0, items.len());
        for item in items {
            match item {
                Item::Sparse(more) => match &mut sparse {
                    None => sparse = Some(more),
                    Some(sum) => sum.extend(more),
                },
                Item::Dense { grad, number } => match &mut dense {
                    None => dense = Some((grad, number, 1)),
                    Some((sum, newest, count)) => {
                        sum.iter_mut().zip(&grad).for_each(|(sum, grad)| *sum += grad);
                        (*newest, *count) = (number, *count + 1);
                    }
                },
                Item::Steps(more) => steps += more,
            }
        }
        if self.options.averages && merged > 1 {
            let share = 1.0 / merged as f32;
            let grads = sparse.iter_mut().map(|sum| &mut sum.grads);
            for grads in grads.chain(dense.iter_mut().map(|(sum, ..)| sum)) {
                grads.iter_mut().for_each(|grad| *grad *= share);
            }
        }
        if let Some(grads) = sparse {
            self.servers.push_sparse(table, grads.as_push())?;
        }
        if let Some((grad, newest, count)) = dense {
            self.servers.push_dense(table, &grad)?;
            if let Some(told) = &self.told {
                told(table, newest, count)?;
            }
        }
        if steps > 0 {
            let all = self.servers.push_steps(table, steps)?;
            self.rates.set(&*self.servers, all)?;
        }
        Ok(())
    }
}

impl State {
    fn queue(&mut self, table: u32) -> &mut Queue {
        self.queues.entry(table).or_default()
    }

    /// A table with something to send, the ones behind the last served first.
    fn next(&self) -> Option<u32> {
        let waits = |(_, queue): &(&u32, &Queue)| !queue.busy && !queue.items.is_empty();
        let behind = self.queues.range(self.last.saturating_add(1)..).find(waits);
        behind.or_else(|| self.queues.iter().find(waits)).map(|(table, _)| *table)
    }
}

impl SparseGrads {
    /// Adds another step's; whoever has shows has them for all.
    fn extend(&mut self, more: SparseGrads) {
        let SparseGrads { ids, grads, shows, clicks } = more;
        let fill = |own: &mut Vec<f32>, other: Vec<f32>, had: usize, comes: usize, value: f32| {
            if own.is_empty() && other.is_empty() {
                return;
            }
            own.resize(had, value);
            own.extend(other);
            own.resize(had + comes, value);
        };
        let (had, comes) = (self.ids.len(), ids.len());
        fill(&mut self.shows, shows, had, comes, 1.0);
        fill(&mut self.clicks, clicks, had, comes, 0.0);
        self.ids.extend(ids);
        self.grads.extend(grads);
    }

    fn as_push(&self) -> Push<'_> {
        Push {
            shows: (!self.shows.is_empty()).then_some(self.shows.as_slice()),
            clicks: (!self.clicks.is_empty()).then_some(self.clicks.as_slice()),
            ..Push::new(&self.ids, &self.grads)
        }
    }
}
