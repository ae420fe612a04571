//! One pass of a dataset through a program: `train_from_dataset` and `infer_from_dataset`.
//!
//! Reader threads prepare batches ahead of time, in tensors that the plan reads in place. Each step
//! runs on all of the executor's compute threads, and steps run one after another. A pass therefore
//! gives the same numbers on any number of threads. Other systems gain speed from threads that race
//! on the parameters; here the parallelism lies inside the step.

use crate::numbers::format_values;
use crate::terminal::Printer;
use crate::{Fleet, Session};
use fleet_base::{Error, Result};
use fleet_comm::ReduceOp;
use fleet_data::{Batch, BatchSource, Dataset, Prefetch, Skipped};
use fleet_exec::{Executor, Scope};
use fleet_ir::Program;
use fleet_tensor::Tensor;
use std::fmt::Write;
use std::time::{Duration, Instant};

/// Options of one pass of a dataset through a program.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::DatasetRun;
/// use fleet::data::{DatasetOptions, InMemoryDataset, TextFiles};
/// # let path = std::env::temp_dir().join(format!("dataset-run-{}", std::process::id()));
/// # std::fs::write(&path, "1 0.5 1 1.0\n1 1.5 1 3.0\n1 -1 1 -2.0\n").unwrap();
/// let net = Net::new();
/// let (x, y) = (net.data("x", [-1, 1], DType::F32), net.data("y", [-1, 1], DType::F32));
/// let loss = x.fc(1).mse_loss(y, Reduction::Mean);
/// net.minimize(loss, Sgd::new(0.1))?;
/// let loss = loss.name();
/// let mut session = Session::new(net.build()?, ExecOptions::default())?;
///
/// let schema = fleet::slots_of(&session.programs.main, &["x", "y"])?;
/// let files = TextFiles::multi_slot(&schema);
/// let options = DatasetOptions { batch_size: 2, ..DatasetOptions::new(files)? };
/// let mut dataset = InMemoryDataset::new(options)?;
/// dataset.set_filelist([path.clone()])?;
/// dataset.load_into_memory()?;
/// let run = DatasetRun::new().fetch("loss", &loss).print_period(1);
/// let run = run.print(|line| eprintln!("{line}"));
/// let report = session.train_from_dataset(&dataset, run)?;
/// assert_eq!((report.batches, report.records), (2, 3)); // the last, smaller batch counts
/// let report = session.infer_from_dataset(&dataset, DatasetRun::new().fetch("loss", &loss))?;
/// assert!(report.last[0].1.item::<f32>()? >= 0.0);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct DatasetRun<'a> {
    threads: usize,
    ahead: usize,
    first_batch: u64,
    fetch: Vec<(String, String)>,
    /// Fetched after `fetch`, and not printed.
    watched: Vec<(String, String)>,
    print_period: u64,
    print: Box<dyn FnMut(&str) + 'a>,
    debug: bool,
    handler: Option<Handler<'a>>,
    interrupt: Option<Box<Interrupt<'a>>>,
    workers: Option<&'a Fleet>,
}

struct Handler<'a> {
    period: Duration,
    call: Box<Call<'a>>,
}

type Call<'a> = dyn FnMut(&Fetched<'_>) -> Result<()> + 'a;
type Interrupt<'a> = dyn FnMut() -> Result<()> + 'a;

/// The values that a fetch handler gets.
#[derive(Debug)]
pub struct Fetched<'a> {
    /// Completed batches of the pass, including those before [`DatasetRun::resume_at`].
    pub batches: u64,
    /// Records of these batches.
    pub records: u64,
    /// Labels and values of the fetch list.
    pub values: &'a [(String, Tensor)],
}

/// Counters and results of a pass.
#[derive(Debug, Default)]
pub struct DatasetReport {
    /// Completed batches of the pass.
    pub batches: u64,
    /// Records of these batches.
    pub records: u64,
    /// Duration of the pass.
    pub seconds: f64,
    /// Part of `seconds` in which training waited for a batch.
    pub data_wait_seconds: f64,
    /// Records of batches that were dropped because another worker had no more batches
    /// ([`DatasetRun::together`]).
    pub records_dropped: u64,
    /// Bad lines that a streaming dataset skipped.
    pub skipped: Skipped,
    /// Labels and values of the fetch list after the last batch; empty if there was no batch.
    pub last: Vec<(String, Tensor)>,
}

impl Default for DatasetRun<'_> {
    fn default() -> Self {
        let mut printer = Printer::stdout();
        DatasetRun {
            threads: 0,
            ahead: DOUBLE_BUFFER,
            first_batch: 0,
            fetch: Vec::new(),
            watched: Vec::new(),
            print_period: PRINT_PERIOD,
            print: Box::new(move |line| printer.line(line)),
            debug: false,
            handler: None,
            interrupt: None,
            workers: None,
        }
    }
}

impl<'a> DatasetRun<'a> {
    /// Uses the number of threads in the dataset's options and fetches nothing.
    pub fn new() -> DatasetRun<'a> {
        DatasetRun::default()
    }

    /// Sets the number of threads that prepare batches; 0 takes the dataset's number.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets how many batches each thread keeps ready beside the one in use; 1 is a double buffer.
    pub fn ahead(mut self, batches: usize) -> Self {
        self.ahead = batches;
        self
    }

    /// Skips the first batches: those that an interrupted pass had completed ([`Fetched::batches`])
    /// when it saved the checkpoint that this pass resumes from. The order of batches does not
    /// depend on timing. With the same files, shuffles and number of threads, no batch is repeated
    /// or lost.
    pub fn resume_at(mut self, batches: u64) -> Self {
        self.first_batch = batches;
        self
    }

    /// Fetches a variable after each batch; `info` is its label in the output.
    pub fn fetch(mut self, info: &str, variable: &str) -> Self {
        self.fetch.push((info.to_string(), variable.to_string()));
        self
    }

    /// Fetches a variable after each batch for the handler and the report, without printing it. Its
    /// value follows those of the variables that are printed.
    pub fn watch(mut self, info: &str, variable: &str) -> Self {
        self.watched.push((info.to_string(), variable.to_string()));
        self
    }

    /// Prints the fetched values after every `batches` batches (default 100); 0 never prints.
    pub fn print_period(mut self, batches: u64) -> Self {
        self.print_period = batches;
        self
    }

    /// Sends printed lines to `print` instead of the standard output.
    pub fn print(mut self, print: impl FnMut(&str) + 'a) -> Self {
        self.print = Box::new(print);
        self
    }

    /// Prints at the end the speed, and how long training waited for data.
    pub fn debug(mut self, debug: bool) -> Self {
        self.debug = debug;
        self
    }

    /// Passes the fetched values to a closure after the first batch that ends a period, and after
    /// the last batch. An error of the closure ends the pass.
    pub fn handler(
        mut self,
        period: Duration,
        call: impl FnMut(&Fetched<'_>) -> Result<()> + 'a,
    ) -> Self {
        self.handler = Some(Handler { period, call: Box::new(call) });
        self
    }

    /// Calls a closure about ten times a second, between steps and while the pass waits for data.
    /// An error of the closure ends the pass.
    pub fn interrupt(mut self, check: impl FnMut() -> Result<()> + 'a) -> Self {
        self.interrupt = Some(Box::new(check));
        self
    }

    /// Ends the pass on all workers once one of them has no more batches. Programs that communicate
    /// in every step need the same number of steps on every worker, and shards are seldom of equal
    /// size.
    pub fn together(mut self, fleet: &'a Fleet) -> Self {
        self.workers = Some(fleet);
        self
    }

    /// Iterates over the labels and names of all fetched variables.
    fn fetched(&self) -> impl Iterator<Item = &(String, String)> {
        self.fetch.iter().chain(&self.watched)
    }
}

impl Session {
    /// Trains on one pass of a dataset.
    pub fn train_from_dataset(
        &mut self,
        dataset: &dyn Dataset,
        run: DatasetRun<'_>,
    ) -> Result<DatasetReport> {
        check_inputs(&self.programs.main, dataset)?;
        run_steps(dataset, run, false, |batch, _, fetch, out| {
            self.run_into(&batch.feeds(), fetch, out)
        })
    }

    /// Runs the forward part, as for inference, on one pass of a dataset. Only metric counts are
    /// updated.
    pub fn infer_from_dataset(
        &mut self,
        dataset: &dyn Dataset,
        run: DatasetRun<'_>,
    ) -> Result<DatasetReport> {
        check_inputs(self.test_program(), dataset)?;
        run_steps(dataset, run, false, |batch, _, fetch, out| {
            self.evaluate_into(&batch.feeds(), fetch, out)
        })
    }
}

/// Runs one pass of a dataset through a program.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::data::{DatasetOptions, InMemoryDataset, TextFiles};
/// use fleet::{DatasetReport, DatasetRun, Fetched, run_from_dataset};
/// use std::time::Duration;
/// # let path = std::env::temp_dir().join(format!("run-from-dataset-{}", std::process::id()));
/// # std::fs::write(&path, "1 0.5\n1 1.5\n1 -1\n").unwrap();
/// let net = Net::new();
/// let sum = net.data("x", [-1, 1], DType::F32).sum();
/// let (sum, main) = (sum.name(), net.build()?.main);
/// let files = TextFiles::multi_slot(&fleet::slots_of(&main, &["x"])?);
/// let options = DatasetOptions { batch_size: 1, ..DatasetOptions::new(files)? };
/// let mut dataset = InMemoryDataset::new(options)?;
/// dataset.set_filelist([path.clone()])?;
/// dataset.load_into_memory()?;
///
/// // Resumes a pass after its first batch, and calls the handler after every step.
/// let mut seen = Vec::new();
/// let record = |fetched: &Fetched<'_>| {
///     seen.push((fetched.batches, fetched.values[0].1.item::<f32>()?));
///     Ok(())
/// };
/// let run = DatasetRun::new().watch("sum", &sum).handler(Duration::ZERO, record);
/// let run = run.threads(1).ahead(2).resume_at(1).print_period(0).debug(false);
/// let (mut executor, mut scope) = (Executor::new(ExecOptions::default()), Scope::new());
/// let report: DatasetReport =
///     run_from_dataset(&mut executor, &main, &mut scope, &dataset, run)?;
/// assert_eq!(report.batches, 2);
/// assert_eq!(seen, [(2, 1.5), (3, -1.0)]);
/// # std::fs::remove_file(&path).unwrap();
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn run_from_dataset(
    executor: &mut Executor,
    program: &Program,
    scope: &mut Scope,
    dataset: &dyn Dataset,
    run: DatasetRun<'_>,
) -> Result<DatasetReport> {
    run_batches(program, dataset, run, |batch, names, out| {
        executor.run_into(program, scope, &batch.feeds(), names, out)
    })
}

/// Runs one pass of a dataset with a step of the caller, which gets a batch, the names to fetch,
/// and the output for their values. The dataset must fill every input of `program`.
///
/// ```
/// use fleet::prelude::*;
/// use fleet::data::TensorDataset;
/// let net = Net::new();
/// let sum = net.data("x", [-1, 1], DType::F32).sum();
/// let (sum, main) = (sum.name(), net.build()?.main);
/// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3, 1])?;
/// let dataset = TensorDataset::new([("x".into(), x)], 2)?;
/// let (mut executor, mut scope) = (Executor::new(ExecOptions::default()), Scope::new());
/// let run = DatasetRun::new().fetch("sum", &sum);
/// let report = fleet::run_batches(&main, &dataset, run, |batch, fetch, out| {
///     executor.run_into(&main, &mut scope, &batch.feeds(), fetch, out)
/// })?;
/// assert_eq!((report.batches, report.last[0].1.item::<f32>()?), (2, 3.0));
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn run_batches(
    program: &Program,
    dataset: &dyn Dataset,
    run: DatasetRun<'_>,
    mut step: impl FnMut(&Batch, &[&str], &mut Vec<Tensor>) -> Result<()>,
) -> Result<DatasetReport> {
    check_inputs(program, dataset)?;
    run_steps(dataset, run, false, |batch, _, fetch, out| step(batch, fetch, out))
}

/// Runs one pass with the caller's `step`. Its arguments are a batch, the next batch if
/// `looks_ahead` and there is one, the names to fetch, and the output for their values.
pub(crate) fn run_steps(
    dataset: &dyn Dataset,
    run: DatasetRun<'_>,
    looks_ahead: bool,
    mut step: impl FnMut(&Batch, Option<&Batch>, &[&str], &mut Vec<Tensor>) -> Result<()>,
) -> Result<DatasetReport> {
    let mut batches = Prefetch::start(dataset.sources(run.threads)?, dataset.layout(), run.ahead)?;
    let mut pass = Pass::new(run);
    let names: Vec<String> = pass.run.fetched().map(|(_, name)| name.clone()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let (mut batch, mut out) = (Batch::new(dataset.layout()), Vec::new());
    pass.skip_batches(&mut batches, &mut batch)?;
    let mut next = Batch::new(dataset.layout());
    let mut more = pass.next(&mut batches, &mut batch)?;
    while more {
        let ahead = looks_ahead && pass.next(&mut batches, &mut next)?;
        step(&batch, ahead.then_some(&next), &names, &mut out)
            .map_err(|error| error.at(format!("batch {} of the dataset", pass.done() + 1)))?;
        pass.after_step(batch.len() as u64, &mut out)?;
        more = match looks_ahead {
            true => ahead,
            false => pass.next(&mut batches, &mut batch)?,
        };
        if ahead {
            std::mem::swap(&mut batch, &mut next);
        }
    }
    pass.end(&batches)
}

/// A pass in progress.
struct Pass<'a> {
    run: DatasetRun<'a>,
    report: DatasetReport,
    begin: Instant,
    handled: Instant,
    /// Time of the last check for an interrupt between two steps.
    checked: Instant,
    /// Number of batches when the handler was last called.
    seen: u64,
}

impl<'a> Pass<'a> {
    fn new(run: DatasetRun<'a>) -> Pass<'a> {
        let now = Instant::now();
        let report = DatasetReport::default();
        Pass { run, report, begin: now, handled: now, checked: now, seen: 0 }
    }

    /// Skips the batches that an earlier pass has completed.
    fn skip_batches(&mut self, batches: &mut Prefetch, batch: &mut Batch) -> Result<()> {
        for skipped in 0..self.run.first_batch {
            if !batches.next_batch(batch)? {
                return Err(Error::invalid("resume position is past the dataset's last batch")
                    .expected(format!("at most {skipped}"))
                    .got(self.run.first_batch));
            }
        }
        Ok(())
    }

    /// Returns the number of completed batches of the whole pass.
    fn done(&self) -> u64 {
        self.run.first_batch + self.report.batches
    }

    /// Reads the next batch. Returns false if this worker has no more batches or, with
    /// [`DatasetRun::together`], if any worker has none.
    fn next(&mut self, batches: &mut Prefetch, batch: &mut Batch) -> Result<bool> {
        let begin = Instant::now();
        let outcome = match &mut self.run.interrupt {
            Some(check) if begin.duration_since(self.checked) >= CHECK_PERIOD => {
                self.checked = begin;
                check().and_then(|()| batches.next_batch_or(batch, check))
            }
            Some(check) => batches.next_batch_or(batch, check),
            None => batches.next_batch(batch),
        };
        self.report.data_wait_seconds += begin.elapsed().as_secs_f64();
        let Some(fleet) = self.run.workers else { return outcome };
        // After an error here the others must not wait: they learn that there is no batch.
        let mine = f64::from(u8::from(matches!(outcome, Ok(true))));
        let all = fleet.util().all_reduce(&[mine], ReduceOp::Min);
        let more = outcome?;
        let together = all?[0] > 0.0;
        if more && !together {
            self.report.records_dropped += batch.len() as u64;
            while batches.next_batch(batch)? {
                self.report.records_dropped += batch.len() as u64;
            }
        }
        Ok(together)
    }

    fn after_step(&mut self, records: u64, out: &mut [Tensor]) -> Result<()> {
        self.report.batches += 1;
        self.report.records += records;
        let period = self.run.print_period;
        let prints = period > 0 && self.done().is_multiple_of(period) && !self.run.fetch.is_empty();
        let handles =
            self.run.handler.as_ref().is_some_and(|it| self.handled.elapsed() >= it.period);
        self.keep(out);
        if prints {
            let line = self.line();
            (self.run.print)(&line);
        }
        if handles { self.handle() } else { Ok(()) }
    }

    /// Swaps the fetched tensors with those of the step before, which the next step overwrites.
    fn keep(&mut self, out: &mut [Tensor]) {
        if self.report.last.is_empty() {
            let labels = self.run.fetched().map(|(info, _)| (info.clone(), Tensor::empty()));
            self.report.last = labels.collect();
        }
        for ((_, last), fetched) in self.report.last.iter_mut().zip(out) {
            std::mem::swap(last, fetched);
        }
    }

    fn line(&self) -> String {
        let mut line = format!("batch {}", self.done());
        for (info, value) in &self.report.last[..self.run.fetch.len()] {
            // Writing to a string cannot fail.
            let _ = write!(line, ", {info}: {}", format_values(value));
        }
        line
    }

    fn handle(&mut self) -> Result<()> {
        let batches = self.done();
        let Some(handler) = &mut self.run.handler else { return Ok(()) };
        (self.handled, self.seen) = (Instant::now(), self.report.batches);
        let DatasetReport { records, last, .. } = &self.report;
        (handler.call)(&Fetched { batches, records: *records, values: last })
    }

    fn end(mut self, batches: &Prefetch) -> Result<DatasetReport> {
        if self.seen < self.report.batches {
            self.handle()?;
        }
        self.report.seconds = self.begin.elapsed().as_secs_f64();
        self.report.skipped = batches.skipped();
        if self.run.debug {
            let DatasetReport { batches, records, seconds, data_wait_seconds, .. } = &self.report;
            let line = format!(
                "{batches} batches, {records} records in {seconds:.1} s ({:.0} records/s); \
                 waited {data_wait_seconds:.1} s for data",
                *records as f64 / seconds.max(f64::MIN_POSITIVE)
            );
            (self.run.print)(&line);
        }
        Ok(self.report)
    }
}

/// Checks that the dataset fills every input of the program, before threads are started.
pub(crate) fn check_inputs(program: &Program, dataset: &dyn Dataset) -> Result<()> {
    let given: Vec<&str> = dataset.layout().names().collect();
    let missing = program.vars().find(|(_, var)| var.is_data && !given.contains(&&*var.name));
    match missing {
        None => Ok(()),
        Some((_, var)) => {
            let hint = fleet_base::text::did_you_mean(&var.name, given.iter().copied());
            Err(Error::invalid(format!("the dataset's layout has no input '{}'{hint}", var.name))
                .expected(format!("{}{}", var.dtype, var.shape))
                .got(format!("batches of {}", given.join(", ")))
                .help("give the dataset a layout with this input: feed_layout, BatchLayout::new"))
        }
    }
}

/// One batch ready beside the one in use.
const DOUBLE_BUFFER: usize = 1;
const PRINT_PERIOD: u64 = 100;
/// Interval between two checks for an interrupt.
const CHECK_PERIOD: Duration = Duration::from_millis(100);
