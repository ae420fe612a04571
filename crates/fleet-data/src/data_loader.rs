//! Batches from generators: user code that yields samples, lists of samples, or whole batches.
//!
//! A closure makes a new generator for each pass and is given the part of the work to do. With
//! several threads, each has its own generator. Batches are taken from them in turn, so their order
//! never depends on the threads' speed. A generator may be infinite.

use crate::batch::{Batch, BatchLayout};
use crate::prefetch::{Lanes, reuse};
use fleet_base::output::note;
use fleet_base::{Error, Result};
use fleet_tensor::{DType, RANK_MAX, Tensor};
use std::collections::VecDeque;
use std::sync::Arc;

/// One input of a program, in the form in which samples hold it.
#[derive(Clone, Debug, PartialEq)]
pub struct Feed {
    name: String,
    dtype: DType,
    /// Shape of one sample.
    shape: Vec<usize>,
    scale: f32,
    shift: f32,
}

impl Feed {
    /// Creates an input whose samples have this shape (without the batch dimension).
    pub fn new(name: &str, dtype: DType, shape: impl Into<Vec<usize>>) -> Feed {
        Feed { name: name.to_string(), dtype, shape: shape.into(), scale: 1.0, shift: 0.0 }
    }

    /// Maps bytes that fill an `f32` input to `byte * scale + shift`. This happens only when their
    /// batch is assembled; until then a sample takes a quarter of the memory.
    pub fn scaled(mut self, scale: f32, shift: f32) -> Feed {
        (self.scale, self.shift) = (scale, shift);
        self
    }

    fn width(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The values of one sample for one input.
#[derive(Clone, Debug, PartialEq)]
pub enum Field {
    /// Floats, for an input of floats.
    Floats(Vec<f32>),
    /// Integers, for an input of integers.
    Ids(Vec<i64>),
    /// Bytes such as pixels, for an input of bytes or floats.
    Bytes(Vec<u8>),
}

macro_rules! fields {
    ($($from:ty: $value:ident => $field:expr;)*) => {$(
        impl From<$from> for Field {
            fn from($value: $from) -> Field {
                $field
            }
        }
    )*};
}

fields! {
    Vec<f32>: values => Field::Floats(values);
    Vec<i64>: values => Field::Ids(values);
    Vec<u8>: values => Field::Bytes(values);
    f32: value => Field::Floats(vec![value]);
    i64: value => Field::Ids(vec![value]);
}

impl Field {
    fn len(&self) -> usize {
        match self {
            Field::Floats(values) => values.len(),
            Field::Ids(values) => values.len(),
            Field::Bytes(values) => values.len(),
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Field::Floats(_) => "floats",
            Field::Ids(_) => "ids",
            Field::Bytes(_) => "bytes",
        }
    }
}

/// A field for each input.
pub type FieldSample = Vec<Field>;

/// The share of a pass that one generator yields; for example samples `index`, `index + count`, ..
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Number of this generator, from 0.
    pub index: usize,
    /// Number of generators of the pass.
    pub count: usize,
}

/// Prefetch settings of a loader.
#[derive(Clone, Debug, PartialEq)]
pub struct DataLoaderOptions {
    /// Make batches ahead of time, in threads. Otherwise each batch is made on request.
    pub use_double_buffer: bool,
    /// Batches that each thread keeps ready.
    pub capacity: usize,
    /// Number of generators, each in its own thread.
    pub threads: usize,
    /// Documented: run the generators in processes. Here they run in threads, which need no
    /// processes to use all cores; the loader prints a note.
    pub use_multiprocess: bool,
}

impl Default for DataLoaderOptions {
    /// One thread, two batches ready.
    fn default() -> Self {
        DataLoaderOptions {
            use_double_buffer: true,
            capacity: 2,
            threads: 1,
            use_multiprocess: false,
        }
    }
}

/// Returns the batches of generators.
///
/// ```
/// use fleet_data::{Batch, DataLoader, DataLoaderOptions, Feed};
/// use fleet_tensor::DType;
/// let image = Feed::new("image", DType::F32, [4]).scaled(1.0 / 255.0, 0.0);
/// let feeds = [image, Feed::new("label", DType::I64, [1])];
/// let mut loader = DataLoader::from_generator(feeds, DataLoaderOptions::default())?;
/// loader.set_sample_generator(2, false, |_part| {
///     (0..5i64).map(|n| Ok(vec![vec![255u8 * (n % 2) as u8; 4].into(), n.into()]))
/// })?;
///
/// // As an iterator of one pass ..
/// let mut sizes = Vec::new();
/// for batch in loader.batches()? {
///     sizes.push(batch?.len());
/// }
/// assert_eq!(sizes, [2, 2, 1]);
///
/// // .. or with start and reset; a batch is filled again and again.
/// let mut batch = Batch::new(loader.layout());
/// for _pass in 0..2 {
///     loader.start()?;
///     while loader.next(&mut batch)? {
///         let pixels = batch.feeds()[0].1.as_slice::<f32>()?;
///         assert!(pixels.iter().all(|pixel| [0.0, 1.0].contains(pixel)));
///     }
///     loader.reset();
/// }
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub struct DataLoader {
    feeds: Arc<Vec<Feed>>,
    layout: Arc<BatchLayout>,
    options: DataLoaderOptions,
    make: Option<Arc<Make>>,
    pass: Option<Pass>,
    taken: u64,
}

/// Fills the next batch; returns false at the end.
type Fill = Box<dyn FnMut(&mut Batch) -> Result<bool>>;
type Make = dyn Fn(Part) -> Fill + Send + Sync;

impl DataLoader {
    /// Creates a loader of these inputs; samples hold their fields in the same order.
    pub fn from_generator(
        feeds: impl IntoIterator<Item = Feed>,
        options: DataLoaderOptions,
    ) -> Result<DataLoader> {
        let feeds: Vec<Feed> = feeds.into_iter().collect();
        if feeds.is_empty() {
            return Err(Error::invalid("loader has no inputs"));
        }
        for (name, value, max) in [
            ("capacity", options.capacity, CAPACITY_MAX),
            ("threads", options.threads, THREADS_MAX),
        ] {
            if value == 0 || value > max {
                return Err(Error::invalid(format!("{name} of the loader is out of range"))
                    .expected(format!("1 to {max}"))
                    .got(value));
            }
        }
        for feed in &feeds {
            if !matches!(feed.dtype, DType::F32 | DType::I64 | DType::U8) {
                return Err(Error::unsupported(format!(
                    "samples cannot fill input '{}'",
                    feed.name
                ))
                .expected("f32, i64 or u8")
                .got(feed.dtype)
                .help("yield whole batches (set_batch_generator), or cast in the program"));
            }
            if feed.shape.len() >= RANK_MAX {
                return Err(Error::unsupported(format!(
                    "input '{}' has too many dimensions",
                    feed.name
                ))
                .got(feed.shape.len() + 1));
            }
        }
        if options.use_multiprocess {
            note("use_multiprocess: the generators of a loader run in threads, not in processes");
        }
        let inputs = feeds.iter().map(|feed| (feed.name.as_str(), feed.dtype, &feed.shape[..]));
        let layout = BatchLayout::of_tensors(inputs);
        Ok(DataLoader { feeds: Arc::new(feeds), layout, options, make: None, pass: None, taken: 0 })
    }

    /// Returns the inputs of its batches.
    pub fn layout(&self) -> &Arc<BatchLayout> {
        &self.layout
    }

    /// Makes batches of `batch_size` samples that `reader` yields one by one. The last batch may be
    /// smaller, or is dropped if `drop_last` is set.
    pub fn set_sample_generator<I>(
        &mut self,
        batch_size: usize,
        drop_last: bool,
        reader: impl Fn(Part) -> I + Send + Sync + 'static,
    ) -> Result<()>
    where
        I: Iterator<Item = Result<FieldSample>> + 'static,
    {
        if batch_size == 0 || batch_size > BATCH_MAX {
            return Err(Error::invalid("batch size is out of range")
                .expected(format!("1 to {BATCH_MAX}"))
                .got(batch_size));
        }
        self.set_sample_list_generator(move |part| {
            let mut samples = reader(part);
            std::iter::from_fn(move || {
                let list: Result<Vec<FieldSample>> = samples.by_ref().take(batch_size).collect();
                match list {
                    Ok(list) if list.is_empty() || (drop_last && list.len() < batch_size) => None,
                    list => Some(list),
                }
            })
        });
        Ok(())
    }

    /// Makes batches of the lists of samples that `reader` yields.
    pub fn set_sample_list_generator<I>(
        &mut self,
        reader: impl Fn(Part) -> I + Send + Sync + 'static,
    ) where
        I: Iterator<Item = Result<Vec<FieldSample>>> + 'static,
    {
        let (feeds, layout) = (Arc::clone(&self.feeds), Arc::clone(&self.layout));
        self.set(move |part| {
            let (mut lists, feeds, layout) = (reader(part), feeds.clone(), layout.clone());
            Box::new(move |batch| match lists.next() {
                None => Ok(false),
                Some(list) => assemble(&feeds, &layout, &list?, batch).map(|()| true),
            })
        });
    }

    /// Uses the batches that `reader` yields: a tensor for each input.
    pub fn set_batch_generator<I>(&mut self, reader: impl Fn(Part) -> I + Send + Sync + 'static)
    where
        I: Iterator<Item = Result<Vec<Tensor>>> + 'static,
    {
        let (feeds, layout) = (Arc::clone(&self.feeds), Arc::clone(&self.layout));
        self.set(move |part| {
            let (mut batches, feeds, layout) = (reader(part), feeds.clone(), layout.clone());
            Box::new(move |batch| {
                let Some(tensors) = batches.next() else { return Ok(false) };
                let tensors = tensors?;
                check_batch(&feeds, &tensors)?;
                batch.set_dense(&layout, tensors).map(|()| true)
            })
        });
    }

    fn set(&mut self, make: impl Fn(Part) -> Fill + Send + Sync + 'static) {
        self.reset();
        self.make = Some(Arc::new(make));
    }

    /// Starts a pass.
    pub fn start(&mut self) -> Result<()> {
        self.start_behind(0)
    }

    /// Starts a pass after its first `batches` batches, which are made and discarded. A resumed job
    /// passes the count that [`DataLoader::taken`] returned before.
    pub fn start_behind(&mut self, batches: u64) -> Result<()> {
        if self.pass.is_some() {
            return Err(Error::invalid("the loader is already started")
                .help("call reset first, also at the end of a pass"));
        }
        let Some(make) = &self.make else {
            return Err(Error::invalid("the loader has no generator").help(
                "call set_sample_generator, set_sample_list_generator or set_batch_generator first",
            ));
        };
        self.pass = Some(Pass::start(make, &self.options, &self.layout)?);
        self.taken = 0;
        let mut batch = Batch::new(&self.layout);
        while self.taken < batches {
            if !self.next(&mut batch)? {
                let error = Error::invalid("the generators end before the batch to resume at");
                return Err(error.expected(format!("{batches} batches")).got(self.taken));
            }
        }
        Ok(())
    }

    /// Ends the pass at any point.
    pub fn reset(&mut self) {
        self.pass = None;
    }

    /// Returns the number of batches of this pass that were handed out, without those made ahead. A
    /// checkpoint keeps it together with the number of the pass.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Swaps the next batch into `batch`; returns false at the end of the pass.
    pub fn next(&mut self, batch: &mut Batch) -> Result<bool> {
        let Some(pass) = &mut self.pass else {
            return Err(Error::invalid("the loader is not started").help("call start first"));
        };
        let more = pass.next(batch)?;
        self.taken += u64::from(more);
        Ok(more)
    }

    /// Returns one pass as an iterator, which resets the loader when it is dropped.
    pub fn batches(&mut self) -> Result<Batches<'_>> {
        self.start()?;
        Ok(Batches { loader: self, ended: false })
    }
}

/// One pass of a [`DataLoader`]; ends after an error.
pub struct Batches<'l> {
    loader: &'l mut DataLoader,
    ended: bool,
}

impl Iterator for Batches<'_> {
    type Item = Result<Batch>;

    fn next(&mut self) -> Option<Result<Batch>> {
        if self.ended {
            return None;
        }
        let mut batch = Batch::new(&self.loader.layout);
        match self.loader.next(&mut batch) {
            Ok(true) => Some(Ok(batch)),
            outcome => {
                self.ended = true;
                outcome.err().map(Err)
            }
        }
    }
}

impl Drop for Batches<'_> {
    fn drop(&mut self) {
        self.loader.reset();
    }
}

/// The unfinished generators of a pass, which take turns.
enum Pass {
    /// The next batch comes from the front.
    Inline(VecDeque<Fill>),
    Threads(Lanes<Batch>),
}

impl Pass {
    fn start(
        make: &Arc<Make>,
        options: &DataLoaderOptions,
        layout: &Arc<BatchLayout>,
    ) -> Result<Pass> {
        let parts = (0..options.threads).map(|index| Part { index, count: options.threads });
        if !options.use_double_buffer {
            return Ok(Pass::Inline(parts.map(|part| make(part)).collect()));
        }
        let mut lanes = Lanes::new(Error::invalid("a generator thread panicked"));
        for part in parts {
            let (make, layout) = (Arc::clone(make), Arc::clone(layout));
            lanes.add(options.capacity, move || {
                let mut fill = make(part);
                move |used| {
                    let mut batch = reuse(used, &layout);
                    Ok(fill(&mut batch)?.then_some(batch))
                }
            })?;
        }
        Ok(Pass::Threads(lanes))
    }

    fn next(&mut self, batch: &mut Batch) -> Result<bool> {
        let fills = match self {
            Pass::Threads(lanes) => return lanes.next(batch),
            Pass::Inline(fills) => fills,
        };
        while let Some(mut fill) = fills.pop_front() {
            if fill(batch)? {
                fills.push_back(fill);
                return Ok(true);
            }
        }
        Ok(false)
    }
}

/// Places samples side by side in the batch's tensors, which are reused if they fit.
fn assemble(
    feeds: &[Feed],
    layout: &BatchLayout,
    samples: &[FieldSample],
    batch: &mut Batch,
) -> Result<()> {
    for (at, sample) in samples.iter().enumerate() {
        if sample.len() != feeds.len() {
            return Err(Error::invalid(format!(
                "wrong number of fields in sample {at} of a batch"
            ))
            .expected(feeds.len())
            .got(sample.len()));
        }
    }
    let tensors = batch.dense(layout, samples.len())?;
    for (index, (feed, tensor)) in feeds.iter().zip(tensors).enumerate() {
        for (at, sample) in samples.iter().enumerate() {
            place(feed, &sample[index], tensor, at).map_err(|error| {
                error.at(format!("sample {at} of a batch, input '{}'", feed.name))
            })?;
        }
    }
    Ok(())
}

/// Writes a sample's field to its row.
fn place(feed: &Feed, field: &Field, tensor: &mut Tensor, row: usize) -> Result<()> {
    let width = feed.width();
    if field.len() != width {
        return Err(Error::invalid("wrong number of values in a field")
            .expected(format!("{width} ({:?})", feed.shape))
            .got(field.len()));
    }
    let rows = row * width..(row + 1) * width;
    match (field, feed.dtype) {
        (Field::Floats(from), DType::F32) => tensor.as_mut_slice()?[rows].copy_from_slice(from),
        (Field::Ids(from), DType::I64) => tensor.as_mut_slice()?[rows].copy_from_slice(from),
        (Field::Bytes(from), DType::U8) => tensor.as_mut_slice()?[rows].copy_from_slice(from),
        (Field::Bytes(from), DType::F32) => {
            let to = tensor.as_mut_slice::<f32>()?[rows].iter_mut();
            to.zip(from).for_each(|(to, byte)| *to = f32::from(*byte) * feed.scale + feed.shift);
        }
        (other, dtype) => {
            return Err(Error::invalid("wrong type of values in a field")
                .expected(dtype)
                .got(other.kind()));
        }
    }
    Ok(())
}

fn check_batch(feeds: &[Feed], tensors: &[Tensor]) -> Result<()> {
    if tensors.len() != feeds.len() {
        return Err(Error::invalid("wrong number of tensors in a batch")
            .expected(feeds.len())
            .got(tensors.len()));
    }
    for (feed, tensor) in feeds.iter().zip(tensors) {
        let shape: Vec<i64> = feed.shape.iter().map(|size| *size as i64).collect();
        let fits = tensor.shape().dims().get(1..).is_some_and(|rest| rest == shape);
        if tensor.dtype() != feed.dtype || !fits {
            return Err(Error::invalid(format!("batch does not match input '{}'", feed.name))
                .expected(format!("{} of a batch of {:?}", feed.dtype, feed.shape))
                .got(format!("{}{}", tensor.dtype(), tensor.shape())));
        }
    }
    Ok(())
}

/// Limit of the batch size; larger values most likely mean one batch for the whole data set.
const BATCH_MAX: usize = 1 << 24;
/// Limit of the batches ahead; more only take memory.
const CAPACITY_MAX: usize = 1024;
const THREADS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn feeds() -> [Feed; 2] {
        [Feed::new("x", DType::F32, [2]).scaled(0.5, 1.0), Feed::new("n", DType::I64, [1])]
    }

    fn sample(n: i64) -> FieldSample {
        vec![vec![n as u8, 1].into(), n.into()]
    }

    /// Loader over samples index, index + count, .. of each part.
    fn loader(options: DataLoaderOptions, total: i64, drop_last: bool) -> DataLoader {
        let mut loader = DataLoader::from_generator(feeds(), options).unwrap();
        let reader =
            move |part: Part| (part.index as i64..total).step_by(part.count).map(|n| Ok(sample(n)));
        loader.set_sample_generator(3, drop_last, reader).unwrap();
        loader
    }

    fn ids(batch: &Batch) -> Vec<i64> {
        batch.tensors()[1].to_vec().unwrap()
    }

    #[test]
    fn passes_are_the_same_with_and_without_threads() {
        for threads in 1..=3 {
            let run = |use_double_buffer: bool, capacity: usize| -> Vec<Vec<i64>> {
                // The documented switch changes nothing but a note.
                let use_multiprocess = threads == 2;
                let options =
                    DataLoaderOptions { use_double_buffer, capacity, threads, use_multiprocess };
                let mut loader = loader(options, 20, false);
                let first: Vec<_> = loader.batches().unwrap().map(|it| ids(&it.unwrap())).collect();
                let mut batch = Batch::new(loader.layout());
                let mut second = Vec::new();
                loader.start().unwrap();
                assert!(loader.start().is_err());
                while loader.next(&mut batch).unwrap() {
                    assert_eq!(batch.feeds()[0].0, "x");
                    let x: Vec<f32> = batch.tensors()[0].to_vec().unwrap();
                    assert_eq!(x[0], ids(&batch)[0] as f32 * 0.5 + 1.0);
                    second.push(ids(&batch));
                }
                assert!(!loader.next(&mut batch).unwrap());
                loader.reset();
                assert!(loader.next(&mut batch).is_err());
                assert_eq!(first, second);
                first
            };
            let here = run(false, 1);
            assert_eq!(here, run(true, 1));
            assert_eq!(here, run(true, 4));
            let mut all: Vec<i64> = here.concat();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..20), "{threads} threads");
        }
    }

    #[test]
    fn a_pass_goes_on_behind_what_was_taken() {
        let mut whole = loader(DataLoaderOptions { threads: 2, ..Default::default() }, 31, true);
        let all: Vec<_> = whole.batches().unwrap().map(|it| ids(&it.unwrap())).collect();
        assert!(all.iter().all(|batch| batch.len() == 3));
        let mut batch = Batch::new(whole.layout());
        whole.start().unwrap();
        (0..4).for_each(|_| assert!(whole.next(&mut batch).unwrap()));
        let taken = whole.taken();
        assert_eq!(taken, 4);
        let mut resumed = loader(DataLoaderOptions { threads: 2, ..Default::default() }, 31, true);
        resumed.start_behind(taken).unwrap();
        let mut rest = Vec::new();
        while resumed.next(&mut batch).unwrap() {
            rest.push(ids(&batch));
        }
        assert_eq!(rest, all[4..]);
        resumed.reset();
        assert!(resumed.start_behind(100).unwrap_err().to_string().contains("100 batches"));
    }

    #[test]
    fn generators_may_go_on_for_ever_and_yield_lists_or_batches() {
        let mut loader = DataLoader::from_generator(feeds(), DataLoaderOptions::default()).unwrap();
        loader.set_sample_list_generator(|_| (0..).map(|n| Ok(vec![sample(n % 50); 2])));
        let sizes: Vec<usize> =
            loader.batches().unwrap().take(10).map(|batch| batch.unwrap().len()).collect();
        assert_eq!(sizes, [2; 10]);
        let tensors = |n: i64| -> Result<Vec<Tensor>> {
            Ok(vec![Tensor::zeros(DType::F32, [n, 2])?, Tensor::zeros(DType::I64, [n, 1])?])
        };
        loader.set_batch_generator(move |_| (1..4).map(tensors));
        let sizes: Vec<usize> = loader.batches().unwrap().map(|it| it.unwrap().len()).collect();
        assert_eq!(sizes, [1, 2, 3]);
        loader.set_batch_generator(|_| std::iter::once(Ok(vec![Tensor::empty()])));
        assert!(loader.batches().unwrap().next().unwrap().is_err());
    }

    #[test]
    fn mistakes_of_generators_are_errors() {
        let message = |sample: Result<FieldSample>| {
            let mut loader =
                DataLoader::from_generator(feeds(), DataLoaderOptions::default()).unwrap();
            let reader = move |_| std::iter::once(sample.clone());
            loader.set_sample_generator(1, false, reader).unwrap();
            let error = loader.batches().unwrap().next().unwrap().unwrap_err();
            error.to_string()
        };
        assert!(message(Ok(vec![7i64.into()])).contains("wrong number of fields"));
        let wrong = message(Ok(vec![vec![1.0f32; 3].into(), 7i64.into()]));
        assert!(
            wrong.contains("expected 2 ([2]), got 3") && wrong.contains("input 'x'"),
            "{wrong}"
        );
        assert!(message(Ok(vec![vec![1i64; 2].into(), 7i64.into()])).contains("got ids"));
        assert_eq!(message(Err(Error::invalid("the file is missing"))), "the file is missing");
        let mut empty = DataLoader::from_generator(feeds(), DataLoaderOptions::default()).unwrap();
        assert!(empty.start().unwrap_err().to_string().contains("no generator"));
        assert!(empty.set_sample_generator(0, false, |_| std::iter::empty()).is_err());
        let none = DataLoaderOptions { capacity: 0, ..Default::default() };
        assert!(DataLoader::from_generator(feeds(), none).is_err());
        let halves = [Feed::new("x", DType::F16, [1])];
        assert!(DataLoader::from_generator(halves, DataLoaderOptions::default()).is_err());
    }
}
