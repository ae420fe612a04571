//! The data of a job: its files, the fitted features, and the rows of each part as datasets.

use crate::features::{
    Applied, BadLabel, BadRow, Features, Finding, Fit, INPUT_ITEM, SLOT_USER, Scratch, first_id,
    is_fixed,
};
use crate::job::{ColumnPart, Job, Split, TaskKind};
use crate::made;
use crate::origin::Origin;
use crate::parsed::ParsedBlocks;
use crate::raw::{Raw, RawFormat, format_of};
use crate::rows::{BadLabels, JobRows, Share, Window, for_each_row, for_each_row_keeping};
use crate::split::{Part, RowPlan, newest_column};
use fleet::data::{
    BatchLayout, BatchSource, Dataset, DatasetOptions, InMemoryDataset, QueueDataset,
};
use fleet_base::{Error, Result, text};
use fleet_data::{Block, RecordFormat};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The data of a job, before its rows are read.
pub struct JobData {
    job: Job,
    origin: Origin,
    train: Vec<PathBuf>,
    raw: Arc<Raw>,
    /// Raw columns of the training files, from the pass that fits the features.
    kept: ParsedBlocks,
    plan: Arc<RowPlan>,
}

/// Numbers of rows of the training files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Rows to train on, without those whose labels cannot be used.
    pub train: u64,
    /// Rows for validation.
    pub validation: u64,
    /// Rows for the test.
    pub test: u64,
}

/// The result of reading the training rows once.
pub struct Fitted {
    /// The features.
    pub features: Features,
    /// Numbers of rows.
    pub counts: Counts,
    /// Findings about the job.
    pub findings: Vec<Finding>,
}

impl JobData {
    /// Finds the files. If a part is the newest share of the rows, reads the times of all rows.
    pub fn open(job: &Job, origin: &Origin) -> Result<JobData> {
        let train = origin.expand(&job.data.train).map_err(|error| error.at("data.train"))?;
        let Some(first) = train.first() else {
            return Err(Error::invalid("no files to train on").at("data.train"));
        };
        let format = format_of(&job.data, &job.columns, first)?;
        let is_retrieval = job.task == TaskKind::Retrieval;
        let keeps_texts = !job.evaluation.slices.is_empty() || is_retrieval;
        let raw = Arc::new(Raw::new(job, origin, format, keeps_texts, |_| true)?);
        let times = times(job, origin, &train)?;
        let plan = RowPlan::new(&job.data, &raw.names, job.train.seed, &times)?;
        let (job, origin, plan) = (job.clone(), origin.clone(), Arc::new(plan));
        let data = JobData { job, origin, train, raw, kept: ParsedBlocks::default(), plan };
        data.check_own_files()?;
        Ok(data)
    }

    /// Returns the files to train on.
    pub fn files(&self) -> &[PathBuf] {
        &self.train
    }

    /// Returns whether the rows are generated.
    fn is_made(&self) -> bool {
        self.train.first().is_some_and(made::is_made)
    }

    /// Reads the training files and fits the features to the training rows. `rows_max` stops after
    /// this number of rows of all parts. Generated rows are not read if nothing is fitted to them.
    pub fn fit(&self, rows_max: u64) -> Result<Fitted> {
        let mut fit = Fit::new(&self.job, &self.raw.names, self.raw.block())?;
        if rows_max == u64::MAX && self.is_made() && self.plan.is_whole() && is_fixed(&self.job) {
            let train = made::count(&self.train)?;
            let features = Features { rows: train, ..fit.finish(None) };
            let counts = Counts { train, ..Counts::default() };
            return Ok(Fitted { features, counts, findings: Vec::new() });
        }
        let bad = BadLabels::at_most(self.raw.bad_rows_max);
        let mut counts = Counts::default();
        let mut rows = 0;
        let mut spans: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
        let time = self.job.columns.iter().find(|column| column.role == crate::job::Role::Time);
        let time = time.map(|column| self.raw.names.index(&column.name)).transpose()?;
        // As much memory is left for the rows with their features.
        let keep = (rows_max == u64::MAX).then_some((&self.kept, self.job.data.memory_bytes / 2));
        for_each_row_keeping(&self.raw, &self.train, keep, |file, number, block, row| {
            if rows == rows_max {
                return Ok(false);
            }
            rows += 1;
            let part = self.plan.part(file, number, block, row);
            if let Some(seconds) = time.and_then(|at| block.column(at).ids(row)?.first().copied()) {
                let span = spans.entry(name_of(part)).or_insert((seconds, seconds));
                *span = (span.0.min(seconds), span.1.max(seconds));
            }
            match part {
                Part::Train => match fit.add(block, row) {
                    Ok(()) => counts.train += 1,
                    Err(BadRow { fault: BadLabel::NotChosen, .. }) => (),
                    Err(row) => bad.add(row.fault).map_err(|it| self.at_label(it, row))?,
                },
                Part::Validation => counts.validation += 1,
                Part::Test => counts.test += 1,
            }
            Ok(true)
        })?;
        let mut findings = fit.findings();
        if counts.train > 0 {
            self.empty_parts(counts, &mut findings);
        }
        if bad.count() > 0 {
            findings.push(Finding {
                path: "data.bad_rows".to_string(),
                message: format!("{} rows are left out because of their labels", bad.count()),
                help: "look for missing or unknown labels in the data".to_string(),
                is_error: false,
            });
        }
        self.overlap_in_time(&spans, time, &mut findings)?;
        let texts = self.raw.texts.as_deref();
        Ok(Fitted { features: fit.finish(texts), counts, findings })
    }

    /// Names the label that has a fault, if there are several.
    fn at_label(&self, error: Error, row: BadRow) -> Error {
        let names: Vec<&str> = self.job.labels().map(|label| label.name.as_str()).collect();
        row.named(error, &names)
    }

    /// A part of the training files that has no rows cannot measure the model.
    fn empty_parts(&self, counts: Counts, findings: &mut Vec<Finding>) {
        let parts = [
            ("data.validation", &self.job.data.validation, counts.validation),
            ("data.test", &self.job.data.test, counts.test),
        ];
        for (path, split, count) in parts {
            if count == 0 && !matches!(split, None | Some(Split::Files(_))) {
                findings.push(Finding {
                    path: path.to_string(),
                    message: "the part has no rows".to_string(),
                    help: "take a larger share, or an earlier time".to_string(),
                    is_error: true,
                });
            }
        }
    }

    /// A test of the past with a model that has seen the future is better than it will be in use.
    fn overlap_in_time(
        &self,
        spans: &BTreeMap<&str, (i64, i64)>,
        time: Option<usize>,
        findings: &mut Vec<Finding>,
    ) -> Result<()> {
        let Some(train) = spans.get(name_of(Part::Train)) else { return Ok(()) };
        let column = self.job.columns.iter().find(|it| it.role == crate::job::Role::Time);
        let column = column.map(|column| column.name.clone()).unwrap_or_default();
        for part in [Part::Validation, Part::Test] {
            let mut span = spans.get(name_of(part)).copied();
            if let (Some(files), Some(at)) = (self.own_files(part)?, time) {
                for_each_row(&self.raw, &files, |_, _, block, row| {
                    if let Some(seconds) = block.column(at).ids(row).and_then(|ids| ids.first()) {
                        let (first, last) = span.unwrap_or((*seconds, *seconds));
                        span = Some((first.min(*seconds), last.max(*seconds)));
                    }
                    Ok(true)
                })?;
            }
            if let Some((first, _)) = span.filter(|(first, _)| *first < train.1) {
                let name = name_of(part);
                findings.push(Finding {
                    path: format!("data.{name}"),
                    message: format!(
                        "training rows are newer than {name} rows: up to {} and from {first} \
                         ({column})",
                        train.1
                    ),
                    help: format!(
                        "divide by time: {name} = {{ column = \"{column}\", share = 0.2 }}"
                    ),
                    is_error: false,
                });
            }
        }
        Ok(())
    }

    /// Opens the files of the other parts, so that a missing one is found before the training.
    fn check_own_files(&self) -> Result<()> {
        for part in [Part::Validation, Part::Test] {
            for file in self.own_files(part)?.unwrap_or_default() {
                let opened = self.raw.pass().open(&file);
                opened.map_err(|error| error.at(format!("data.{}", name_of(part))))?;
            }
        }
        Ok(())
    }

    /// Returns the files of a part that has files of its own.
    fn own_files(&self, part: Part) -> Result<Option<Vec<PathBuf>>> {
        let split = match part {
            Part::Train => None,
            Part::Validation => self.job.data.validation.as_ref(),
            Part::Test => self.job.data.test.as_ref(),
        };
        let Some(Split::Files(patterns)) = split else { return Ok(None) };
        let files = self.origin.expand(patterns);
        let files = files.map_err(|error| error.at(format!("data.{}", name_of(part))))?;
        let shared = files.iter().find(|file| self.train.contains(file));
        match shared {
            Some(file) => Err(Error::invalid("a file is for training and for another part")
                .got(file.display())
                .at(format!("data.{}", name_of(part)))
                .help("change the patterns so that each file is in one part")),
            None => Ok(Some(files)),
        }
    }

    /// Returns a part's rows as a format, and the files that have them.
    fn rows(
        &self,
        applied: &Arc<Applied>,
        part: Part,
        share: Share,
    ) -> Result<(JobRows, Vec<PathBuf>)> {
        let own = self.own_files(part)?;
        let is_whole = own.is_some() || self.plan.is_whole();
        let mut files = own.as_ref().unwrap_or(&self.train).clone();
        let mut share = share;
        if share.of > 1 && is_whole && self.is_made() && applied.group_slot().is_none() {
            files = made::share(&files, share.own, share.of)?;
            share = Share::ALL;
        }
        let rows = JobRows {
            raw: self.kept.over(self.raw.pass()),
            applied: Arc::clone(applied),
            part: own.is_none().then(|| (Arc::clone(&self.plan), part)),
            share,
            window: None,
            bad: Arc::new(BadLabels::at_most(self.raw.bad_rows_max)),
        };
        Ok((rows, files))
    }

    /// Prepares features for these columns, with the label.
    pub fn apply(&self, features: &Arc<Features>) -> Result<Arc<Applied>> {
        Ok(Arc::new(Applied::new(features, &self.raw.names, true)?))
    }

    /// Returns the place of a column in a raw block.
    pub fn column(&self, name: &str) -> Result<usize> {
        self.raw.names.index(name)
    }

    /// Reads the raw columns of each `every`th row of a part that has a usable label.
    pub fn sample(&self, applied: &Arc<Applied>, part: Part, every: usize) -> Result<Block> {
        let own = self.own_files(part)?;
        let files = own.as_ref().unwrap_or(&self.train);
        let (mut found, mut rows) = (self.raw.block(), 0);
        let (mut scratch, mut slots) = (Scratch::default(), Block::new(applied.schema()));
        for_each_row(&self.raw, files, |file, number, block, row| {
            if own.is_none() && self.plan.part(file, number, block, row) != part {
                return Ok(true);
            }
            slots.clear();
            if applied.apply(block, row, &mut scratch, &mut slots)?.is_ok() {
                if rows % every.max(1) == 0 {
                    found.append(block, row..row + 1)?;
                }
                rows += 1;
            }
            Ok(true)
        })?;
        Ok(found)
    }

    /// Returns the true probability of the label for each row of a part, if rows are generated with
    /// one, and the job predicts it.
    pub fn truth(&self, part: Part) -> Result<Option<Vec<f32>>> {
        let Some(label) = self.job.label().filter(|label| made::predicts(&self.job, label)) else {
            return Ok(None);
        };
        if !self.is_made() {
            return Ok(None);
        }
        let (own, mut job) = (self.own_files(part)?, self.job.clone());
        let name = made::PROBABILITY.to_string();
        job.columns.push(ColumnPart { name: name.clone(), source: name, ..label.clone() });
        // Rules of splits need the other columns, in their places.
        let which = |column: &ColumnPart| own.is_none() || column.name == made::PROBABILITY;
        let raw = Raw::new(&job, &self.origin, RawFormat::Made, false, which)?;
        let at = raw.names.index(made::PROBABILITY)?;
        let mut truth = Vec::new();
        let files = own.as_ref().unwrap_or(&self.train);
        for_each_row(&raw, files, |file, number, block, row| {
            if own.is_some() || self.plan.part(file, number, block, row) == part {
                truth.extend(block.column(at).floats(row).unwrap_or_default());
            }
            Ok(true)
        })?;
        Ok(Some(truth))
    }

    /// Loads a part's rows into memory, with the values of slices or without.
    pub fn load(
        &self,
        applied: &Arc<Applied>,
        part: Part,
        share: Share,
        batch: usize,
        has_slices: bool,
    ) -> Result<InMemoryDataset> {
        let (rows, files) = self.rows(applied, part, share)?;
        let layout = applied.layout(has_slices)?;
        let mut dataset = InMemoryDataset::new(self.options(rows, layout, batch)?)?;
        if let Some(slot) = applied.group_slot() {
            dataset.group_by(slot)?;
        }
        dataset.set_filelist(files)?;
        dataset.load_into_memory()?;
        Ok(dataset)
    }

    /// Streams a part's rows from the files in each epoch.
    pub fn stream(
        &self,
        applied: &Arc<Applied>,
        part: Part,
        share: Share,
        batch: usize,
    ) -> Result<Streamed> {
        let (mut rows, files) = self.rows(applied, part, share)?;
        let epoch = Arc::new(AtomicU64::new(0));
        if part == Part::Train {
            let (rows_max, seed) = (self.job.data.window, self.job.train.seed);
            rows.window = Some(Window { rows: rows_max, seed, epoch: Arc::clone(&epoch) });
        }
        let mut dataset = QueueDataset::new(self.options(rows, applied.layout(false)?, batch)?)?;
        dataset.set_filelist(files)?;
        Ok(Streamed { dataset, epoch })
    }

    /// Calls a function for each block of slots of a part's rows.
    fn for_each_block(
        &self,
        applied: &Arc<Applied>,
        part: Part,
        mut call: impl FnMut(&Block) -> Result<()>,
    ) -> Result<()> {
        let (rows, files) = self.rows(applied, part, Share::ALL)?;
        let mut block = Block::new(applied.schema());
        for file in &files {
            let mut reader = rows.open(file)?;
            loop {
                block.clear();
                if reader.read(BLOCK_ROWS, &mut block)? == 0 {
                    break;
                }
                call(&block)?;
            }
        }
        Ok(())
    }

    /// Returns the first row of a part for each id of a slot.
    pub fn distinct(&self, applied: &Arc<Applied>, part: Part, slot: &str) -> Result<Block> {
        let at = applied.schema().index(slot)?;
        let (mut found, mut known) = (Block::new(applied.schema()), HashSet::new());
        self.for_each_block(applied, part, |block| {
            for row in 0..block.len() {
                if known.insert(first_id(block, at, row)) {
                    found.append(block, row..row + 1)?;
                }
            }
            Ok(())
        })?;
        Ok(found)
    }

    /// Returns the items that each user chose in a part's rows.
    pub fn choices(
        &self,
        applied: &Arc<Applied>,
        part: Part,
    ) -> Result<HashMap<i64, HashSet<i64>>> {
        let schema = applied.schema();
        let (user, item) = (schema.index(SLOT_USER)?, schema.index(INPUT_ITEM)?);
        let mut choices: HashMap<i64, HashSet<i64>> = HashMap::new();
        self.for_each_block(applied, part, |block| {
            for row in 0..block.len() {
                let items = choices.entry(first_id(block, user, row)).or_default();
                items.insert(first_id(block, item, row));
            }
            Ok(())
        })?;
        Ok(choices)
    }

    /// Returns the text of a category that was read.
    pub fn text(&self, column: &str, hash: u64) -> Result<String> {
        self.raw.text(self.raw.names.index(column)?, hash)
    }

    fn options(
        &self,
        rows: JobRows,
        layout: Arc<BatchLayout>,
        batch: usize,
    ) -> Result<DatasetOptions> {
        Ok(DatasetOptions {
            layout,
            batch_size: batch,
            threads: self.threads(),
            seed: self.job.train.seed,
            ..DatasetOptions::new(rows)?
        })
    }

    fn threads(&self) -> usize {
        match self.job.data.threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            threads => threads,
        }
    }

    /// Returns whether the rows of a part fit into the job's memory. Raw columns give way to them.
    pub fn fits(&self, applied: &Applied, rows: u64) -> bool {
        let bytes = |slot: &fleet_data::Slot| match slot.kind {
            fleet_data::SlotKind::Floats => 4 * slot.width().unwrap_or(SEVERAL_VALUES),
            fleet_data::SlotKind::Ids => 8 * slot.width().unwrap_or(SEVERAL_VALUES),
        };
        let row: usize = applied.schema().slots().iter().map(bytes).sum();
        let needed = rows.saturating_mul((row + ORDER_BYTES) as u64);
        let limit = self.job.data.memory_bytes;
        if needed.saturating_add(self.kept.bytes()) > limit {
            self.kept.clear();
        }
        needed <= limit
    }
}

/// Rows that are read at once.
const BLOCK_ROWS: usize = 4096;
/// Assumed number of values of a feature with several.
const SEVERAL_VALUES: usize = 16;
/// Memory of a row besides its values: its place in the order.
const ORDER_BYTES: usize = 8;

/// Rows that are read from files in each epoch, in another order each time.
pub struct Streamed {
    dataset: QueueDataset,
    epoch: Arc<AtomicU64>,
}

impl Streamed {
    /// Sets the number of rows of a batch.
    pub fn set_batch(&mut self, batch: usize) -> Result<()> {
        self.dataset.update_settings(|settings| settings.batch_size = batch)
    }

    /// Sets the epoch, by which rows are shuffled.
    pub fn set_epoch(&self, epoch: u64) {
        self.epoch.store(epoch, Ordering::Relaxed);
    }
}

impl Dataset for Streamed {
    fn layout(&self) -> &Arc<BatchLayout> {
        self.dataset.layout()
    }

    fn sources(&self, threads: usize) -> Result<Vec<Box<dyn BatchSource>>> {
        self.dataset.sources(threads)
    }
}

/// Returns the sorted times of all rows, if a part is the newest share of them.
fn times(job: &Job, origin: &Origin, files: &[PathBuf]) -> Result<Vec<i64>> {
    let Some(column) = newest_column(&job.data) else { return Ok(Vec::new()) };
    let Some(first) = files.first() else { return Ok(Vec::new()) };
    let format = format_of(&job.data, &job.columns, first)?;
    let raw = Raw::new(job, origin, format, false, |other| other.name == column)?;
    let mut times = Vec::new();
    for_each_row(&raw, files, |_, _, block, row| {
        times.extend(block.column(0).ids(row).and_then(|ids| ids.first()));
        Ok(true)
    })?;
    times.sort_unstable();
    Ok(times)
}

/// Returns the name of a part in the job file.
pub fn name_of(part: Part) -> &'static str {
    match part {
        Part::Train => "train",
        Part::Validation => "validation",
        Part::Test => "test",
    }
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = |count: u64| text::count(count as f64);
        write!(f, "{} rows to train on", count(self.train))?;
        for (rows, what) in [(self.validation, "validation"), (self.test, "test")] {
            if rows > 0 {
                write!(f, ", {} for {what}", count(rows))?;
            }
        }
        Ok(())
    }
}
