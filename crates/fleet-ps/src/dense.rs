//! One server's part of the dense parameters, flattened into one row, with their optimizer.
//!
//! In the asynchronous modes every push is applied on receipt. In the synchronous mode pushes are
//! summed, and [`DenseTable::apply_pending`] applies their mean once all trainers have pushed.
//!
//! Gradients computed from old parameters can be corrected (DC-ASGD). The table remembers what each
//! worker last read, and applies a push as `g + g² (now - read)`. That is the gradient at the
//! present parameters if the curvature along each parameter is the square of its gradient.

use crate::row_rule::{How, init_state, state_len, update};
use crate::{NonFinite, Rule, TableStats, finite};
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use fleet_kernels::optim::Run;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

/// When pushes are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Update {
    /// Each push, on receipt.
    #[default]
    OnReceipt,
    /// The mean of the pushes, at [`DenseTable::apply_pending`].
    Deferred,
}

/// Size and rules of one server's part of a dense table.
#[derive(Clone, Debug, PartialEq)]
pub struct DenseConfig {
    /// Number of the table in the job.
    pub table_id: u32,
    /// Number of elements on this server ([`dense_range`](crate::dense_range)); may be 0.
    pub len: usize,
    /// The optimizer.
    pub rule: Rule,
    /// When pushes are applied.
    pub update: Update,
    /// Treatment of gradients that are NaN or infinite.
    pub non_finite: NonFinite,
    /// Number of workers whose gradients are corrected; 0 for none. Each costs a copy of the
    /// parameters.
    pub corrected_workers: usize,
}

/// The parameters of one server. They start at 0; worker 0 sets the initial values.
///
/// ```
/// use fleet_ps::{DenseConfig, DenseTable, NonFinite, Rule, Update, rule::Sgd};
/// let table = DenseTable::new(DenseConfig {
///     table_id: 0,
///     len: 2,
///     rule: Rule::Sgd(Sgd { lr: 0.5 }),
///     update: Update::Deferred,
///     non_finite: NonFinite::Refuse,
///     corrected_workers: 0,
/// })?;
/// table.set(&[1.0, 1.0])?;
/// table.push(&[1.0, 0.0])?;
/// table.push(&[3.0, 0.0])?;
/// assert_eq!(table.apply_pending(), 2); // the mean of two pushes, applied once
/// let mut values = [0.0; 2];
/// table.pull(&mut values)?;
/// assert_eq!(values, [0.0, 1.0]);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct DenseTable {
    config: DenseConfig,
    inner: Mutex<Inner>,
}

/// Parameters and optimizer state of a dense table at one moment.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DenseImage {
    pub values: Vec<f32>,
    /// `blocks` blocks with a number for each parameter, then numbers that all parameters share.
    pub state: Vec<f32>,
    pub blocks: usize,
}

/// The part of a dense table that a snapshot of its server keeps.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DenseRuntime {
    pub rate_scale: f32,
    /// Number of the pending pushes.
    pub push_count: u64,
    pub values: Vec<f32>,
    pub state: Vec<f32>,
    /// Sum of the pending pushes.
    pub sum: Vec<f32>,
    /// The parameters that each worker last read, if its gradients are corrected; empty before it
    /// reads.
    pub read: Vec<Vec<f32>>,
    /// The parameters were loaded from a save.
    pub is_loaded: bool,
}

impl DenseImage {
    /// Returns `len` parameters as they are before the first push.
    pub fn empty(rule: &Rule, len: usize) -> DenseImage {
        let mut state = vec![0.0; state_len(rule, len)];
        init_state(rule, len, &mut state);
        let blocks = state_len(rule, 2) - state_len(rule, 1);
        DenseImage { values: vec![0.0; len], state, blocks }
    }
}

impl DenseRuntime {
    fn new(config: &DenseConfig) -> DenseRuntime {
        let DenseImage { values, state, .. } = DenseImage::empty(&config.rule, config.len);
        let sum_len = if config.update == Update::Deferred { config.len } else { 0 };
        DenseRuntime {
            rate_scale: 1.0,
            push_count: 0,
            values,
            state,
            sum: vec![0.0; sum_len],
            read: vec![Vec::new(); config.corrected_workers],
            is_loaded: false,
        }
    }
}

struct Inner {
    kept: DenseRuntime,
    /// Counts since the table was made.
    stats: TableStats,
    /// Updates made.
    updates: u64,
    /// By worker, the updates made before it last read.
    read_at: HashMap<usize, u64>,
}

impl DenseTable {
    /// Returns a table of zeros. Fails if a number of the rule is invalid.
    pub fn new(config: DenseConfig) -> Result<DenseTable> {
        config
            .rule
            .check()
            .map_err(|error| error.at(format!("dense table {}", config.table_id)))?;
        let kept = DenseRuntime::new(&config);
        let (stats, updates, read_at) = Default::default();
        Ok(DenseTable { config, inner: Mutex::new(Inner { kept, stats, updates, read_at }) })
    }

    /// Returns the size and rules of the table.
    pub fn config(&self) -> &DenseConfig {
        &self.config
    }

    /// Sets the factor on the rule's learning rate.
    pub fn set_rate_scale(&self, scale: f32) -> Result<()> {
        finite::check_rate_scale(scale).map_err(|error| error.at(self.place()))?;
        self.lock().kept.rate_scale = scale;
        Ok(())
    }

    /// Overwrites the parameters; the optimizer keeps its state.
    pub fn set(&self, values: &[f32]) -> Result<()> {
        self.check_len("values", values.len())?;
        self.lock().kept.values.copy_from_slice(values);
        Ok(())
    }

    /// Sets the parameters that a job begins with, unless a save was loaded. Returns whether they
    /// were set.
    pub fn begin(&self, values: &[f32]) -> Result<bool> {
        self.check_len("values", values.len())?;
        let kept = &mut self.lock().kept;
        if !kept.is_loaded {
            kept.values.copy_from_slice(values);
        }
        Ok(!kept.is_loaded)
    }

    /// Copies the parameters to `out`, which must have their number.
    pub fn pull(&self, out: &mut [f32]) -> Result<()> {
        self.copy_to(out).map(drop)
    }

    /// Like [`DenseTable::pull`], for a worker whose next gradients are computed from these
    /// parameters.
    pub fn pull_by(&self, worker: usize, out: &mut [f32]) -> Result<()> {
        let mut inner = self.copy_to(out)?;
        let updates = inner.updates;
        inner.read_at.insert(worker, updates);
        if let Some(read) = inner.kept.read.get_mut(worker) {
            read.clear();
            read.extend_from_slice(out);
        }
        Ok(())
    }

    fn copy_to(&self, out: &mut [f32]) -> Result<MutexGuard<'_, Inner>> {
        self.check_len("out", out.len())?;
        let mut inner = self.lock();
        out.copy_from_slice(&inner.kept.values);
        inner.stats.pulled += 1;
        Ok(inner)
    }

    /// Pushes a gradient.
    pub fn push(&self, grad: &[f32]) -> Result<()> {
        self.push_by(usize::MAX, grad)
    }

    /// Pushes a worker's gradient. If the table corrects gradients, it is corrected for the changes
    /// since that worker last read.
    pub fn push_by(&self, worker: usize, grad: &[f32]) -> Result<()> {
        self.check_len("grad", grad.len())?;
        let name = |at: usize| format!("element {at}");
        let screened = finite::screen(self.config.non_finite, grad, name);
        let mut inner = self.lock();
        let (grad, bad) = screened.map_err(|error| {
            inner.stats.non_finite += grad.iter().filter(|value| !value.is_finite()).count() as u64;
            error.at(self.place())
        })?;
        inner.stats.non_finite += bad;
        inner.kept.push_count += 1;
        inner.stats.pushed += 1;
        inner.measure(worker);
        let grad = inner.corrected(worker, grad);
        match self.config.update {
            Update::OnReceipt => {
                inner.apply(&self.config.rule, &grad);
                inner.kept.push_count = 0;
            }
            Update::Deferred => {
                inner.kept.sum.iter_mut().zip(&grad[..]).for_each(|(sum, g)| *sum += g);
            }
        }
        Ok(())
    }

    /// Applies the mean of the pushes since the last call; returns their number.
    pub fn apply_pending(&self) -> u64 {
        let mut inner = self.lock();
        let count = std::mem::take(&mut inner.kept.push_count);
        if count > 0 {
            let mut mean = std::mem::take(&mut inner.kept.sum);
            mean.iter_mut().for_each(|value| *value /= count as f32);
            inner.apply(&self.config.rule, &mean);
            mean.fill(0.0);
            inner.kept.sum = mean;
        }
        count
    }

    /// Drops the pending pushes.
    pub(crate) fn discard(&self) {
        let kept = &mut self.lock().kept;
        kept.sum.fill(0.0);
        kept.push_count = 0;
    }

    /// Returns the number of pending pushes.
    pub(crate) fn queued(&self) -> u64 {
        self.lock().kept.push_count
    }

    /// Resets parameters, optimizer and held pushes to their initial state; the rate scale stays.
    pub fn clear(&self) {
        let mut inner = self.lock();
        let rate_scale = inner.kept.rate_scale;
        inner.kept = DenseRuntime { rate_scale, ..DenseRuntime::new(&self.config) };
        inner.read_at.clear();
    }

    pub(crate) fn image(&self) -> DenseImage {
        let empty = DenseImage::empty(&self.config.rule, 0);
        let kept = &self.lock().kept;
        DenseImage { values: kept.values.clone(), state: kept.state.clone(), ..empty }
    }

    pub(crate) fn runtime(&self) -> DenseRuntime {
        self.lock().kept.clone()
    }

    pub(crate) fn set_runtime(&self, runtime: DenseRuntime) -> Result<()> {
        self.check_len("values", runtime.values.len())?;
        let kept = &mut self.lock().kept;
        let lens = |it: &DenseRuntime| (it.state.len(), it.sum.len(), it.read.len());
        let whole = |read: &Vec<f32>| read.is_empty() || read.len() == self.config.len;
        if lens(&runtime) != lens(kept) || !runtime.read.iter().all(whole) {
            return Err(self.error("stored state does not fit the table"));
        }
        *kept = runtime;
        Ok(())
    }

    /// Overwrites parameters and state with those of a save.
    pub(crate) fn restore(&self, image: DenseImage) -> Result<()> {
        self.check_len("values", image.values.len())?;
        let kept = &mut self.lock().kept;
        if image.state.len() != kept.state.len() {
            let error = self.error("the state of a rule has the wrong length");
            return Err(error.expected(kept.state.len()).got(image.state.len()));
        }
        (kept.values, kept.state) = (image.values, image.state);
        kept.is_loaded = true;
        Ok(())
    }

    pub(crate) fn stats(&self) -> TableStats {
        let inner = self.lock();
        let DenseRuntime { values, state, sum, read, .. } = &inner.kept;
        let read: usize = read.iter().map(Vec::len).sum();
        let bytes = (values.len() + state.len() + sum.len() + read) as u64 * 4;
        TableStats { payload_bytes: bytes, held_bytes: bytes, ..inner.stats }
    }

    /// Returns how many gradients were NaN or infinite.
    pub fn non_finite(&self) -> u64 {
        self.lock().stats.non_finite
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        lock(&self.inner)
    }

    fn check_len(&self, what: &str, len: usize) -> Result<()> {
        if len == self.config.len {
            return Ok(());
        }
        let error = self.error(&format!("{what} has the wrong length"));
        Err(error.expected(self.config.len).got(len))
    }

    fn error(&self, message: &str) -> Error {
        Error::invalid(message).at(self.place())
    }

    fn place(&self) -> String {
        format!("dense table {}", self.config.table_id)
    }
}

impl Inner {
    /// Measures the staleness of a push.
    fn measure(&mut self, worker: usize) {
        let Some(at) = self.read_at.get(&worker) else { return };
        let staleness = self.updates - at;
        self.stats.staleness_sum += staleness;
        self.stats.staleness_max = self.stats.staleness_max.max(staleness);
    }

    /// Returns g + g² (now - read): DC-ASGD with λ = 1.
    fn corrected<'g>(&self, worker: usize, grad: Cow<'g, [f32]>) -> Cow<'g, [f32]> {
        let Some(read) = self.kept.read.get(worker).filter(|read| read.len() == grad.len()) else {
            return grad;
        };
        let mut grad = grad.into_owned();
        for ((grad, now), read) in grad.iter_mut().zip(&self.kept.values).zip(read) {
            *grad += *grad * *grad * (now - read);
        }
        Cow::Owned(grad)
    }

    fn apply(&mut self, rule: &Rule, grad: &[f32]) {
        self.updates += 1;
        let kept = &mut self.kept;
        if kept.values.is_empty() {
            return;
        }
        let run = Run { weights: &mut kept.values, state: &mut kept.state, grad };
        let how = How { rate_scale: kept.rate_scale, bounds: [f32::NEG_INFINITY, f32::INFINITY] };
        update(rule, run, 1.0, how);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::{Adam, Sgd};

    fn config(rule: Rule, update: Update, len: usize) -> DenseConfig {
        let non_finite = NonFinite::Refuse;
        DenseConfig { table_id: 4, len, rule, update, non_finite, corrected_workers: 0 }
    }

    fn values(table: &DenseTable) -> Vec<f32> {
        let mut out = vec![f32::NAN; table.config().len];
        table.pull(&mut out).unwrap();
        out
    }

    /// However the parameters are divided, Adam advances its powers once per push.
    #[test]
    fn adam_is_the_same_on_any_number_of_servers() {
        let rule = Rule::Adam(Adam { lr: 0.01, ..Adam::default() });
        let grads: Vec<Vec<f32>> =
            (0..5).map(|push| (0..23).map(|i| (i * push) as f32 - 30.0).collect()).collect();
        let run = |servers: usize| -> Vec<f32> {
            let mut all = Vec::new();
            for server in 0..servers {
                let range = crate::dense_range(23, server, servers);
                let table = DenseTable::new(config(rule, Update::OnReceipt, range.len())).unwrap();
                grads.iter().for_each(|grad| table.push(&grad[range.clone()]).unwrap());
                all.extend(values(&table));
            }
            all
        };
        let whole = run(1);
        assert_eq!(whole, run(2));
        assert_eq!(whole, run(30), "some servers have nothing");
        let first = DenseTable::new(config(rule, Update::OnReceipt, 1)).unwrap();
        first.push(&[0.3]).unwrap();
        assert!((values(&first)[0] + 0.01).abs() < 1e-6, "the first step is the rate");
    }

    #[test]
    fn a_pour_of_n_workers_is_one_step_of_the_mean() {
        let rule = Rule::Adam(Adam::default());
        let deferred = DenseTable::new(config(rule, Update::Deferred, 3)).unwrap();
        let alone = DenseTable::new(config(rule, Update::OnReceipt, 3)).unwrap();
        for step in 0..4 {
            for worker in [1.0, 2.0, 6.0] {
                deferred.push(&[worker, -worker, worker * step as f32]).unwrap();
            }
            assert_eq!((deferred.apply_pending(), deferred.apply_pending()), (3, 0));
            alone.push(&[3.0, -3.0, 3.0 * step as f32]).unwrap();
        }
        assert_eq!(values(&deferred), values(&alone));
    }

    /// Counts the updates between a worker's read and its push, by any worker; none if all workers
    /// wait for each other.
    #[test]
    fn staleness_is_what_the_parameters_of_a_push_lacked() {
        let sgd = Rule::Sgd(Sgd { lr: 0.5 });
        for (update, sum, max) in [(Update::OnReceipt, 3, 2), (Update::Deferred, 0, 0)] {
            let table = DenseTable::new(config(sgd, update, 1)).unwrap();
            let mut out = [0.0];
            table.push_by(1, &[1.0]).unwrap();
            (0..2).for_each(|worker| table.pull_by(worker, &mut out).unwrap());
            for worker in [0, 0, 1] {
                table.push_by(worker, &[1.0]).unwrap();
            }
            table.pull_by(1, &mut out).unwrap();
            table.push_by(1, &[1.0]).unwrap();
            table.apply_pending();
            table.pull_by(1, &mut out).unwrap();
            table.push_by(1, &[1.0]).unwrap();
            let stats = table.stats();
            assert_eq!((stats.pushed, stats.staleness_sum, stats.staleness_max), (6, sum, max));
        }
    }

    /// Two workers read at the same time. The second one's gradient is of parameters that the first
    /// one has changed by then.
    #[test]
    fn gradients_of_old_parameters_are_corrected() {
        let sgd = Rule::Sgd(Sgd { lr: 0.5 });
        let config = DenseConfig { corrected_workers: 2, ..config(sgd, Update::OnReceipt, 2) };
        let table = DenseTable::new(config).unwrap();
        table.set(&[1.0, -1.0]).unwrap();
        table.push_by(1, &[2.0, 0.0]).unwrap();
        assert_eq!(values(&table), [0.0, -1.0], "a worker that has read nothing is not corrected");
        let mut out = [0.0; 2];
        (0..2).for_each(|worker| table.pull_by(worker, &mut out).unwrap());
        table.push_by(0, &[1.0, 2.0]).unwrap();
        assert_eq!(values(&table), [-0.5, -2.0], "nothing had changed");
        // 3 + 9 (-0.5 - 0) = -1.5; -1 + 1 (-2 - -1) = -2.
        table.push_by(1, &[3.0, -1.0]).unwrap();
        assert_eq!(values(&table), [0.25, -1.0]);
        // Worker 0 last read before its own push: 1 + 1 (0.25 - 0) = 1.25.
        table.push_by(0, &[1.0, 0.0]).unwrap();
        assert_eq!(values(&table), [-0.375, -1.0]);
        let kept = table.runtime();
        table.push_by(1, &[1.0, 1.0]).unwrap();
        let after = values(&table);
        table.set_runtime(kept).unwrap();
        table.push_by(1, &[1.0, 1.0]).unwrap();
        assert_eq!(values(&table), after, "the read parameters are kept with the table");
    }

    #[test]
    fn bad_pushes_change_nothing() {
        let table =
            DenseTable::new(config(Rule::Sgd(Sgd::default()), Update::OnReceipt, 2)).unwrap();
        let error = table.push(&[1.0]).unwrap_err().to_string();
        assert!(error.contains("expected 2, got 1\n  at dense table 4"), "{error}");
        let error = table.push(&[1.0, f32::NAN]).unwrap_err().to_string();
        assert!(error.contains("got NaN for element 1"), "{error}");
        assert_eq!((values(&table), table.non_finite()), (vec![0.0; 2], 1));
    }
}
