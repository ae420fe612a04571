//! Data of a trainer: datasets, loaders and functions that are passed over, epoch by epoch.

use fleet_base::{Error, Result, text};
use fleet_data::{
    Batch, BatchSource, Cursor, DataLoader, Dataset, InMemoryDataset, Loader, Prefetch,
    TensorDataset,
};
use fleet_tensor::Tensor;

/// Data that is passed over once an epoch: a [`Dataset`], a [`Loader`], a [`DataLoader`], or a
/// function ([`from_fn`]). Each worker of a job has its own share.
pub trait Source {
    /// Starts the pass of an epoch, after the batches that a resumed job has made.
    fn pass(&mut self, epoch: u64, from: Position) -> Result<Box<dyn Pass + '_>>;

    /// Returns the number of this worker's batches in a pass after a position, if it is known
    /// before the pass. Workers of a job then agree on a number once an epoch, otherwise in every
    /// step.
    fn batches_after(&self, _from: Position) -> Option<u64> {
        None
    }

    /// Returns a position for another number of workers than the one that saved it. By default it
    /// stays: a batch of all workers together has the same rows.
    fn redistribute(&self, from: Position, _saved: usize, _now: usize) -> Position {
        from
    }
}

/// One pass in progress.
pub trait Pass {
    /// Makes the next batch; returns false at the end of the pass. `feeds` holds an earlier batch,
    /// whose memory may be reused.
    fn next(&mut self, feeds: &mut Feeds) -> Result<bool>;
}

/// Position within a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    /// Number of this worker's batches before the position.
    pub batches: u64,
    /// Position of a [`Loader`], which is valid for any number of workers.
    pub cursor: Option<Cursor>,
}

/// The tensors of a step.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::trainer::Feeds;
/// let mut feeds = Feeds::default();
/// feeds.set("x", Tensor::zeros(DType::F32, [3, 2])?);
/// let [x] = feeds.tensors(["x"])?; // the next batch, in the same memory
/// x.as_mut_slice::<f32>()?[0] = 1.0;
/// assert_eq!((feeds.rows(), feeds.list()[0].0), (3, "x"));
/// # Ok::<(), fleet::Error>(())
/// ```
#[derive(Debug)]
pub struct Feeds {
    form: Form,
    rows: Option<u64>,
    cursor: Option<Cursor>,
}

#[derive(Debug)]
enum Form {
    Named(Vec<(String, Tensor)>),
    Records(Batch),
}

impl Default for Feeds {
    fn default() -> Feeds {
        Feeds { form: Form::Named(Vec::new()), rows: None, cursor: None }
    }
}

impl<const N: usize> From<[(&str, Tensor); N]> for Feeds {
    fn from(tensors: [(&str, Tensor); N]) -> Feeds {
        let named = tensors.map(|(name, tensor)| (name.to_string(), tensor));
        Feeds { form: Form::Named(named.into()), ..Feeds::default() }
    }
}

impl Feeds {
    /// Sets or replaces the tensor of an input.
    pub fn set(&mut self, name: &str, tensor: Tensor) {
        let named = self.named();
        match named.iter_mut().find(|(known, _)| known == name) {
            Some((_, held)) => *held = tensor,
            None => named.push((name.to_string(), tensor)),
        }
    }

    /// Returns the tensors of these inputs, to be filled again.
    pub fn tensors<const N: usize>(&mut self, names: [&str; N]) -> Result<[&mut Tensor; N]> {
        let named = self.named();
        let mut at = [0; N];
        for (at, name) in at.iter_mut().zip(names) {
            let Some(found) = named.iter().position(|(known, _)| known == name) else {
                let hint = text::did_you_mean(name, named.iter().map(|(known, _)| known.as_str()));
                return Err(Error::invalid(format!("the batch has no input '{name}'{hint}"))
                    .help("create the tensor with Feeds::set in the first batch"));
            };
            *at = found;
        }
        match named.get_disjoint_mut(at) {
            Ok(found) => Ok(found.map(|(_, tensor)| tensor)),
            Err(_) => Err(Error::invalid("an input is named twice").got(names.join(", "))),
        }
    }

    /// Returns whether no tensor was set yet, as in the first batch of a pass.
    pub fn is_empty(&self) -> bool {
        self.list().is_empty()
    }

    /// Sets the number of records, where it is not the first dimension of the first tensor.
    pub fn set_rows(&mut self, rows: u64) {
        self.rows = Some(rows);
    }

    /// Returns the number of records, the weight of this batch in means.
    pub fn rows(&self) -> u64 {
        let first = |tensor: &Tensor| match tensor.shape().rank() {
            0 => 1,
            _ => tensor.shape().at(0) as u64,
        };
        self.rows.unwrap_or_else(|| match &self.form {
            Form::Named(named) => named.first().map_or(0, |(_, tensor)| first(tensor)),
            Form::Records(batch) => batch.len() as u64,
        })
    }

    /// Returns names and tensors in the form that a session takes.
    pub fn list(&self) -> Vec<(&str, &Tensor)> {
        match &self.form {
            Form::Named(named) => named.iter().map(|(name, it)| (name.as_str(), it)).collect(),
            Form::Records(batch) => batch.feeds(),
        }
    }

    /// Returns the position of a loader after this batch.
    pub(super) fn cursor(&self) -> Option<Cursor> {
        self.cursor
    }

    fn named(&mut self) -> &mut Vec<(String, Tensor)> {
        if !matches!(self.form, Form::Named(_)) {
            *self = Feeds::default();
        }
        match &mut self.form {
            Form::Named(named) => named,
            Form::Records(_) => unreachable!("replaced above"),
        }
    }
}

/// Returns a position for workers whose batches keep their size, so that all of them together make
/// fewer or more rows a step.
fn redistributed(from: Position, saved: usize, now: usize) -> Position {
    Position { batches: from.batches * saved as u64 / now.max(1) as u64, ..from }
}

impl<S: Source + ?Sized> Source for &mut S {
    fn pass(&mut self, epoch: u64, from: Position) -> Result<Box<dyn Pass + '_>> {
        (**self).pass(epoch, from)
    }

    fn batches_after(&self, from: Position) -> Option<u64> {
        (**self).batches_after(from)
    }

    fn redistribute(&self, from: Position, saved: usize, now: usize) -> Position {
        (**self).redistribute(from, saved, now)
    }
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn pass(&mut self, epoch: u64, from: Position) -> Result<Box<dyn Pass + '_>> {
        (**self).pass(epoch, from)
    }

    fn batches_after(&self, from: Position) -> Option<u64> {
        (**self).batches_after(from)
    }

    fn redistribute(&self, from: Position, saved: usize, now: usize) -> Position {
        (**self).redistribute(from, saved, now)
    }
}

/// Batches that each reader thread of a dataset keeps ready beside the one in use.
const AHEAD: usize = 1;

/// Every epoch has the same batches, in the order of the dataset. A [`Loader`] and a `&mut`
/// reference to an [`InMemoryDataset`] shuffle each epoch.
impl<D: Dataset + ?Sized> Source for &D {
    fn pass(&mut self, _: u64, from: Position) -> Result<Box<dyn Pass + '_>> {
        dataset_pass(*self, from)
    }

    fn batches_after(&self, from: Position) -> Option<u64> {
        Some(self.batch_count()?.saturating_sub(from.batches))
    }

    fn redistribute(&self, from: Position, saved: usize, now: usize) -> Position {
        redistributed(from, saved, now)
    }
}

fn dataset_pass<D: Dataset + ?Sized>(dataset: &D, from: Position) -> Result<Box<dyn Pass + '_>> {
    let mut batches = Prefetch::start(dataset.sources(0)?, dataset.layout(), AHEAD)?;
    let mut batch = Batch::new(dataset.layout());
    for skipped in 0..from.batches {
        if !batches.next_batch(&mut batch)? {
            return Err(past_end(skipped, from.batches));
        }
    }
    Ok(Box::new(DatasetPass { batches, empty: Some(batch), dataset }))
}

/// Every epoch has its own order, which follows from the seed and the epoch. Training with
/// `&mut dataset` shuffles, and training with `&dataset` does not.
impl Source for InMemoryDataset {
    fn pass(&mut self, epoch: u64, from: Position) -> Result<Box<dyn Pass + '_>> {
        self.shuffle_for_epoch(epoch);
        dataset_pass(self, from)
    }

    fn batches_after(&self, from: Position) -> Option<u64> {
        Source::batches_after(&self, from)
    }

    fn redistribute(&self, from: Position, saved: usize, now: usize) -> Position {
        redistributed(from, saved, now)
    }
}

/// Every epoch has its own order, if the dataset has a seed ([`TensorDataset::shuffle_by`]).
impl Source for TensorDataset {
    fn pass(&mut self, epoch: u64, from: Position) -> Result<Box<dyn Pass + '_>> {
        self.start_epoch(epoch);
        dataset_pass(self, from)
    }

    fn batches_after(&self, from: Position) -> Option<u64> {
        Source::batches_after(&self, from)
    }

    fn redistribute(&self, from: Position, saved: usize, now: usize) -> Position {
        redistributed(from, saved, now)
    }
}

struct DatasetPass<'d, D: ?Sized> {
    batches: Prefetch,
    empty: Option<Batch>,
    dataset: &'d D,
}

impl<D: Dataset + ?Sized> Pass for DatasetPass<'_, D> {
    fn next(&mut self, feeds: &mut Feeds) -> Result<bool> {
        let empty = &mut self.empty;
        let layout = self.dataset.layout();
        let batch = records(feeds, || empty.take().unwrap_or_else(|| Batch::new(layout)));
        self.batches.next_batch(batch)
    }
}

/// Returns the batch of records in the feeds, which `make` creates if there is none.
fn records(feeds: &mut Feeds, make: impl FnOnce() -> Batch) -> &mut Batch {
    if !matches!(feeds.form, Form::Records(_)) {
        *feeds = Feeds { form: Form::Records(make()), ..Feeds::default() };
    }
    match &mut feeds.form {
        Form::Records(batch) => batch,
        Form::Named(_) => unreachable!("replaced above"),
    }
}

fn past_end(count: u64, from: u64) -> Error {
    Error::invalid("resume position is past the last batch of the pass")
        .expected(format!("at most {count}"))
        .got(from)
        .help("resume with the data that the checkpoint was made with")
}

/// Epochs are those of the loader: each has its own order. The loader's ranks and those of the job
/// must be the same.
impl Source for Loader {
    fn pass(&mut self, epoch: u64, from: Position) -> Result<Box<dyn Pass + '_>> {
        if self.layout().is_none() {
            return Err(Error::invalid("the samples of the loader have no layout")
                .help("implement Samples::batch_layout, which a trainer creates batches from"));
        }
        match from.cursor {
            Some(cursor) => self.resume(cursor)?,
            None => {
                let start = Cursor { epoch, taken: 0, ..self.cursor() };
                self.resume(start)?;
                let mut feeds = Feeds::default();
                let mut pass = LoaderPass(self);
                for skipped in 0..from.batches {
                    if !pass.next(&mut feeds)? {
                        return Err(past_end(skipped, from.batches));
                    }
                }
            }
        }
        Ok(Box::new(LoaderPass(self)))
    }

    fn batches_after(&self, from: Position) -> Option<u64> {
        Some(match from.cursor {
            Some(cursor) => Loader::batches_after(self, cursor.taken),
            None => Loader::batches_after(self, 0).saturating_sub(from.batches),
        })
    }
}

struct LoaderPass<'l>(&'l mut Loader);

impl Pass for LoaderPass<'_> {
    fn next(&mut self, feeds: &mut Feeds) -> Result<bool> {
        let Some(layout) = self.0.layout().cloned() else {
            return Err(Error::internal("the samples of the loader have lost their layout"));
        };
        let more = self.0.next(records(feeds, || Batch::new(&layout)))?;
        feeds.cursor = Some(self.0.cursor());
        Ok(more)
    }
}

/// Every epoch starts the generators anew.
impl Source for DataLoader {
    fn pass(&mut self, _: u64, from: Position) -> Result<Box<dyn Pass + '_>> {
        self.reset();
        self.start_behind(from.batches)?;
        Ok(Box::new(GeneratorPass(self)))
    }

    fn redistribute(&self, from: Position, saved: usize, now: usize) -> Position {
        redistributed(from, saved, now)
    }
}

struct GeneratorPass<'l>(&'l mut DataLoader);

impl Pass for GeneratorPass<'_> {
    fn next(&mut self, feeds: &mut Feeds) -> Result<bool> {
        let layout = self.0.layout().clone();
        self.0.next(records(feeds, || Batch::new(&layout)))
    }
}

impl Drop for GeneratorPass<'_> {
    fn drop(&mut self) {
        self.0.reset();
    }
}

/// Data that a function makes: see [`from_fn`].
pub struct FromFn<F> {
    make: F,
    batch_count: Option<u64>,
}

/// Returns data of a function, which gets the number of the epoch, the number of the batch in it,
/// and the feeds to fill. It returns false at the end of an epoch.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::trainer::{Feeds, Position, Source, from_fn};
/// let mut data = from_fn(|epoch, batch, feeds| {
///     let x = [(epoch * 100 + batch) as f32];
///     feeds.set("x", Tensor::from_slice(&x, [1, 1])?);
///     Ok(batch < 3)
/// });
/// let mut feeds = Feeds::default();
/// let mut pass = data.pass(2, Position { batches: 1, ..Position::default() })?;
/// assert!(pass.next(&mut feeds)?);
/// assert_eq!(feeds.list()[0].1.item::<f32>()?, 201.0);
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn from_fn<F: FnMut(u64, u64, &mut Feeds) -> Result<bool>>(make: F) -> FromFn<F> {
    FromFn { make, batch_count: None }
}

impl<F> FromFn<F> {
    pub(super) fn into_parts(self) -> (F, Option<u64>) {
        (self.make, self.batch_count)
    }

    /// Ends each epoch after this many batches, whatever the function returns.
    pub fn batches(self, count: u64) -> FromFn<F> {
        FromFn { batch_count: Some(count), ..self }
    }
}

impl<F: FnMut(u64, u64, &mut Feeds) -> Result<bool>> Source for FromFn<F> {
    fn pass(&mut self, epoch: u64, from: Position) -> Result<Box<dyn Pass + '_>> {
        Ok(Box::new(FnPass { data: self, epoch, batch: from.batches }))
    }

    fn batches_after(&self, from: Position) -> Option<u64> {
        Some(self.batch_count?.saturating_sub(from.batches))
    }
}

struct FnPass<'d, F> {
    data: &'d mut FromFn<F>,
    epoch: u64,
    batch: u64,
}

impl<F: FnMut(u64, u64, &mut Feeds) -> Result<bool>> Pass for FnPass<'_, F> {
    fn next(&mut self, feeds: &mut Feeds) -> Result<bool> {
        if self.data.batch_count.is_some_and(|count| self.batch >= count) {
            return Ok(false);
        }
        let more = (self.data.make)(self.epoch, self.batch, feeds)?;
        self.batch += u64::from(more);
        Ok(more)
    }
}
