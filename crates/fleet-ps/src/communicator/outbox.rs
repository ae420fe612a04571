//! Queues of gradients, one per table, and the threads that merge and send them.
//!
//! One thread at a time works on a table, so that its gradients are sent in the order in which they
//! were queued.

use super::{CommunicatorOptions, POLL_SPAN, Rates};
use crate::merge::PushExtras;
use crate::thread::Thread;
use crate::{Ids, Push, Servers, Step, UniqueIds};
use fleet_base::sync::{lock, wait, wait_for};
use fleet_base::{Error, Result};
use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Gradients of rows.
pub(super) struct Grads {
    ids: Vec<u64>,
    /// They are of one step, whose ids were merged.
    is_unique: bool,
    grads: Vec<f32>,
    /// One per id, or empty.
    shows: Vec<f32>,
    clicks: Vec<f32>,
    slots: Vec<u32>,
}

/// An item of a queue.
pub(super) enum Item {
    Sparse(Grads),
    /// The sum of `count` gradients. `number` is that of the newest one, counted from 1.
    Dense {
        grad: Vec<f32>,
        number: u64,
        count: usize,
    },
    /// Number of steps made.
    Steps(u32),
}

/// An item, and the first and the last step of this worker that it contains.
struct Due {
    item: Item,
    steps: (u64, u64),
}

impl Item {
    fn gradient_count(&self) -> usize {
        match self {
            Item::Dense { count, .. } => *count,
            Item::Sparse(_) | Item::Steps(_) => 1,
        }
    }
}

/// Called after each dense push: (table, number of the newest gradient in it, gradients in it).
pub(super) type PushCallback = Option<Box<dyn Fn(u32, u64, usize) -> Result<()> + Send + Sync>>;

#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    pub taken: u64,
    pub pushed: u64,
    pub blocked: Duration,
}

pub(super) struct Outbox {
    shared: Arc<Shared>,
    threads: Vec<Thread>,
}

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    servers: Servers,
    options: CommunicatorOptions,
    rates: Rates,
    on_push: PushCallback,
}

#[derive(Default)]
struct State {
    queues: BTreeMap<u32, Queue>,
    /// Callers that wait until everything is sent; senders do not wait for more to merge meanwhile.
    draining: usize,
    closed: bool,
    /// The first failure; nothing is sent after it.
    error: Option<Error>,
    counts: Counts,
    /// The table that was served last.
    last: u32,
    /// Memory of sent gradients.
    spare: Vec<Vec<f32>>,
    /// The last step whose gradients were all handed over.
    made: u64,
    /// An earlier process of this worker has sent some gradients up to this step. Each of these is
    /// sent alone, to the servers that lack it.
    sent_before: u64,
}

/// Limit on the memory kept for later gradients: a few tables, some with queued gradients.
const SPARE_MAX: usize = 32;

#[derive(Default)]
struct Queue {
    items: VecDeque<Due>,
    /// The first step that a thread is sending; none if no thread is.
    busy: Option<u64>,
}

impl Outbox {
    pub fn start(
        servers: Servers,
        options: CommunicatorOptions,
        rates: Rates,
        on_push: PushCallback,
    ) -> Result<Outbox> {
        let (state, changed) = Default::default();
        let shared = Arc::new(Shared { state, changed, servers, options, rates, on_push });
        let mut outbox = Outbox { shared, threads: Vec::new() };
        for _ in 0..options.thread_count {
            let shared = Arc::clone(&outbox.shared);
            outbox.threads.push(Thread::start("ps-send", move || shared.serve())?);
        }
        Ok(outbox)
    }

    /// Queues an item of the current step; waits while the table's queue is full.
    pub fn put(&self, table: u32, item: Item) -> Result<()> {
        let mut state = self.with_room(table)?;
        state.counts.taken += u64::from(!matches!(item, Item::Steps(_)));
        let step = state.made + 1;
        state.queue(table).items.push_back(Due { item, steps: (step, step) });
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Queues a dense gradient with its number, or adds it to a queued one if both become one push.
    pub fn put_dense(&self, table: u32, parts: &[&[f32]], number: u64) -> Result<()> {
        let limit = self.shared.options.merge_count_max;
        let mut state = self.with_room(table)?;
        state.counts.taken += 1;
        let step = state.made + 1;
        let limit = if step <= state.sent_before + 1 { 1 } else { limit };
        match state.queue(table).items.back_mut() {
            Some(Due { item: Item::Dense { grad, number: newest, count }, steps })
                if *count < limit =>
            {
                add_parts(grad, parts)?;
                (*newest, *count, steps.1) = (number, *count + 1, step);
            }
            _ => {
                let mut grad = state.memory();
                parts.iter().for_each(|part| grad.extend_from_slice(part));
                let item = Item::Dense { grad, number, count: 1 };
                state.queue(table).items.push_back(Due { item, steps: (step, step) });
            }
        }
        self.shared.changed.notify_all();
        Ok(())
    }

    /// Returns unused memory, empty.
    pub fn memory(&self) -> Vec<f32> {
        lock(&self.shared.state).memory()
    }

    /// Waits while the table's queue is full.
    fn with_room(&self, table: u32) -> Result<MutexGuard<'_, State>> {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        let full = |state: &State| {
            let waiting = state.queues.get(&table).map_or(0, Queue::gradient_count);
            state.error.is_none() && waiting >= shared.options.queue_len_max
        };
        if full(&state) {
            let begun = Instant::now();
            while full(&state) {
                state = wait(&shared.changed, state);
            }
            state.counts.blocked += begun.elapsed();
        }
        state.error.clone().map_or(Ok(state), Err)
    }

    /// Waits until everything is sent and applied.
    pub fn drain(&self) -> Result<()> {
        let shared = &self.shared;
        let mut state = lock(&shared.state);
        state.draining += 1;
        shared.changed.notify_all();
        let is_busy = |state: &State| {
            state.queues.values().any(|queue| queue.busy.is_some() || !queue.items.is_empty())
        };
        while state.error.is_none() && is_busy(&state) {
            state = wait(&shared.changed, state);
        }
        state.draining -= 1;
        state.error.clone().map_or(Ok(()), Err)
    }

    /// Records that all gradients of a step are handed over.
    pub fn end_step(&self, step: u64) {
        let mut state = lock(&self.shared.state);
        state.made = step;
        self.shared.servers.run.completed(state.complete());
    }

    /// Starts to count after step `made`. An earlier process of this worker has sent some gradients
    /// up to step `sent_before`.
    pub fn resume_at(&self, made: u64, sent_before: u64) {
        let mut state = lock(&self.shared.state);
        (state.made, state.sent_before) = (made, sent_before);
    }

    pub fn counts(&self) -> Counts {
        lock(&self.shared.state).counts
    }
}

impl Drop for Outbox {
    /// Drops gradients that were not flushed: the worker ends without waiting for them.
    fn drop(&mut self) {
        lock(&self.shared.state).closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn serve(&self) {
        let mut state = lock(&self.state);
        loop {
            if state.closed || state.error.is_some() {
                return;
            }
            let Some(table) = state.next() else {
                state = wait(&self.changed, state);
                continue;
            };
            let items;
            (state, items) = self.collect(state, table);
            let newest = items.last().map_or(0, |due| due.steps.1);
            drop(state);
            self.changed.notify_all();
            let mut spare = Vec::new();
            let items = items.into_iter().map(|due| due.item).collect();
            let outcome = self.send(newest, table, items, &mut spare);
            state = lock(&self.state);
            let room = SPARE_MAX.saturating_sub(state.spare.len());
            state.spare.extend(spare.into_iter().take(room));
            state.last = table;
            state.counts.pushed += 1;
            match outcome {
                Ok(()) => {
                    state.queue(table).busy = None;
                    self.servers.run.completed(state.complete());
                }
                // The failed items stay in flight, so that no step from theirs on counts as
                // complete.
                Err(error) => {
                    state.error.get_or_insert(error);
                }
            }
            self.changed.notify_all();
        }
    }

    /// Takes gradients of a table; before that, waits a little for more of them if the options say
    /// so.
    fn collect<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        table: u32,
    ) -> (MutexGuard<'a, State>, Vec<Due>) {
        let first = state.queue(table).items.front().map_or(0, |due| due.steps.0);
        state.queue(table).busy = Some(first);
        let limit = if first <= state.sent_before { 1 } else { self.options.merge_count_max };
        let mut waits = 0;
        let mut seen = state.queue(table).gradient_count();
        while seen < limit && waits < self.options.wait_count_max {
            if state.draining > 0 || state.closed {
                break;
            }
            let (back, has_timed_out) = wait_for(&self.changed, state, POLL_SPAN);
            state = back;
            let len = state.queue(table).gradient_count();
            // Only consecutive waits without new gradients count.
            waits = match (len > seen, has_timed_out) {
                (true, _) => 0,
                (false, true) => waits + 1,
                (false, false) => waits,
            };
            seen = len;
        }
        let items = state.queue(table).take(limit);
        (state, items)
    }

    /// Sends gradients of one table as one push; their memory goes to `spare`.
    fn send(
        &self,
        newest: u64,
        table: u32,
        items: Vec<Item>,
        spare: &mut Vec<Vec<f32>>,
    ) -> Result<()> {
        let (servers, step) = (&*self.servers.tables, Step::new(newest));
        let mut sparse: Option<Grads> = None;
        let mut dense: Option<(Vec<f32>, u64, usize)> = None;
        let (mut steps, merged) = (0, items.iter().map(Item::gradient_count).sum::<usize>());
        for item in items {
            match item {
                Item::Sparse(more) => match &mut sparse {
                    None => sparse = Some(more),
                    Some(sum) => spare.push(sum.extend(more)),
                },
                Item::Dense { grad, number, count: more } => match &mut dense {
                    None => dense = Some((grad, number, more)),
                    Some((sum, newest, count)) => {
                        add_parts(sum, &[&grad])?;
                        (*newest, *count) = (number, *count + more);
                        spare.push(grad);
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
            servers.push_sparse(table, step, grads.as_push())?;
            // The memory of many merged gradients is far larger than the next gradient needs.
            if merged == 1 {
                spare.push(grads.grads);
            }
        }
        if let Some((grad, newest, count)) = dense {
            servers.push_dense(table, step, &grad)?;
            spare.push(grad);
            if let Some(on_push) = &self.on_push {
                on_push(table, newest, count)?;
            }
        }
        if steps > 0 {
            let all = servers.push_steps(table, step, steps)?;
            self.rates.set(servers, all)?;
        }
        Ok(())
    }
}

impl State {
    fn queue(&mut self, table: u32) -> &mut Queue {
        self.queues.entry(table).or_default()
    }

    fn memory(&mut self) -> Vec<f32> {
        let mut memory = self.spare.pop().unwrap_or_default();
        memory.clear();
        memory
    }

    /// Returns the last step whose gradients are all applied.
    fn complete(&self) -> u64 {
        let first = |queue: &Queue| queue.busy.or(queue.items.front().map(|due| due.steps.0));
        let open = self.queues.values().filter_map(first).min();
        open.map_or(self.made, |open| self.made.min(open.saturating_sub(1)))
    }

    /// Returns a table with something to send; tables after the last served one come first.
    fn next(&self) -> Option<u32> {
        let waits = |(_, queue): &(&u32, &Queue)| queue.busy.is_none() && !queue.items.is_empty();
        let after = self.queues.range(self.last.saturating_add(1)..).find(waits);
        after.or_else(|| self.queues.iter().find(waits)).map(|(table, _)| *table)
    }
}

impl Queue {
    fn gradient_count(&self) -> usize {
        self.items.iter().map(|due| due.item.gradient_count()).sum()
    }

    /// Takes the oldest items, of up to `limit` gradients.
    fn take(&mut self, limit: usize) -> Vec<Due> {
        let (mut items, mut left) = (Vec::new(), limit);
        while let Some(count) = self.items.front().map(|due| due.item.gradient_count())
            && count <= left
        {
            left -= count;
            items.extend(self.items.pop_front());
        }
        items
    }
}

/// Adds the parts of a dense gradient, which are laid end to end.
fn add_parts(sum: &mut [f32], parts: &[&[f32]]) -> Result<()> {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    if len != sum.len() {
        return Err(Error::invalid("gradients of a dense table differ in length")
            .expected(sum.len())
            .got(len));
    }
    let mut rest = sum;
    for part in parts {
        let (own, others) = rest.split_at_mut(part.len());
        own.iter_mut().zip(*part).for_each(|(sum, grad)| *sum += grad);
        rest = others;
    }
    Ok(())
}

fn owned<T: Clone>(values: Option<Cow<'_, [T]>>) -> Vec<T> {
    values.map_or(Vec::new(), Cow::into_owned)
}

/// Appends the values of `added` ids to those of `had` ids. Ids without a value get `value`, unless
/// no id has one.
fn append<T: Copy>(own: &mut Vec<T>, other: Vec<T>, had: usize, added: usize, value: T) {
    if own.is_empty() && other.is_empty() {
        return;
    }
    own.resize(had, value);
    own.extend(other);
    own.resize(had + added, value);
}

impl Grads {
    pub fn of(ids: UniqueIds<'_>, grads: Vec<f32>, extras: PushExtras<'_>) -> Grads {
        let (shows, clicks, slots) =
            (owned(extras.shows), owned(extras.clicks), owned(extras.slots));
        Grads { ids: ids.to_vec(), is_unique: true, grads, shows, clicks, slots }
    }

    /// Adds another step's gradients. If either has shows, all ids get shows. Returns the memory of
    /// `more`.
    fn extend(&mut self, more: Grads) -> Vec<f32> {
        let Grads { ids, grads, shows, clicks, slots, .. } = more;
        let (had, added) = (self.ids.len(), ids.len());
        append(&mut self.shows, shows, had, added, 1.0);
        append(&mut self.clicks, clicks, had, added, 0.0);
        append(&mut self.slots, slots, had, added, 0);
        self.ids.extend(ids);
        self.is_unique = false;
        self.grads.extend_from_slice(&grads);
        grads
    }

    fn as_push(&self) -> Push<'_> {
        let ids = match self.is_unique {
            true => Ids::Unique(UniqueIds::assume(&self.ids)),
            false => Ids::Any(&self.ids),
        };
        Push {
            shows: (!self.shows.is_empty()).then_some(self.shows.as_slice()),
            clicks: (!self.clicks.is_empty()).then_some(self.clicks.as_slice()),
            slots: (!self.slots.is_empty()).then_some(self.slots.as_slice()),
            ..Push::new(ids, &self.grads)
        }
    }
}
