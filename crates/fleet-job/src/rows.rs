//! The rows of a part as records of the model's slots: reads raw columns, keeps the rows of the
//! part and of this worker, and applies the features.

use crate::features::{Applied, BadLabel, Scratch, mixed};
use crate::parsed::ParsedBlocks;
use crate::raw::Raw;
use crate::split::{Part, RowPlan, file_key};
use fleet_base::rng::Sequence;
use fleet_base::{Error, Result};
use fleet_data::{Block, RecordFormat, RecordReader, Schema, Skipped, shuffle_groups};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

/// Rows of a raw block, which is read at once.
const BLOCK_ROWS: usize = 4096;

/// Blocks that are read ahead.
const BLOCKS_AHEAD: usize = 3;

/// Calls a function for each row of some files, with its file, number and place in a block, until
/// it returns false. Another thread reads the files.
pub fn for_each_row(
    raw: &Raw,
    files: &[impl AsRef<Path> + Sync],
    call: impl FnMut(u64, u64, &Block, usize) -> Result<bool>,
) -> Result<()> {
    for_each_row_keeping(raw, files, None, call)
}

/// Like [`for_each_row`]. Keeps the blocks of all files, if they fit into a number of bytes.
pub fn for_each_row_keeping(
    raw: &Raw,
    files: &[impl AsRef<Path> + Sync],
    mut keep: Option<(&ParsedBlocks, u64)>,
    mut call: impl FnMut(u64, u64, &Block, usize) -> Result<bool>,
) -> Result<()> {
    let (send, blocks) = sync_channel(BLOCKS_AHEAD);
    let (give_back, used) = channel();
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            // Without a receiver, no more blocks are needed.
            if let Err(error) = send_blocks(raw, files, &send, &used) {
                let _ = send.send(Err(error));
            }
        });
        let each = || -> Result<()> {
            let (mut current, mut key, mut number, mut held) = (usize::MAX, 0, 0, Vec::new());
            for read in blocks {
                let (index, block) = read?;
                let file = files[index].as_ref();
                if index != current {
                    (current, key, number) = (index, file_key(file), 0);
                }
                for row in 0..block.len() {
                    let place = || format!("{}, row {}", file.display(), number + 1);
                    if !call(key, number, &block, row).map_err(|error| error.at(place()))? {
                        return Ok(());
                    }
                    number += 1;
                }
                let is_end = block.is_empty();
                match keep {
                    Some(_) if !is_end => held.push(block),
                    // The reader may have ended.
                    _ => _ = give_back.send(block),
                }
                if let Some((kept, bytes_max)) = keep
                    && (is_end || held.len() % BLOCKS_CHECKED == 0)
                {
                    let bytes: usize = held.iter().map(Block::bytes).sum();
                    if kept.bytes() + bytes as u64 > bytes_max {
                        kept.clear();
                        (keep, held) = (None, Vec::new());
                    } else if is_end {
                        kept.add(file, std::mem::take(&mut held));
                    }
                }
            }
            Ok(())
        };
        let done = each();
        let ended = reader.join().map_err(|_| Error::internal("the reader of files has panicked"));
        done.and(ended)
    })
}

/// Kept blocks between two checks of their size.
const BLOCKS_CHECKED: usize = 64;

/// Reads files into blocks. After the last one of each file comes an empty one.
fn send_blocks(
    raw: &Raw,
    files: &[impl AsRef<Path>],
    send: &SyncSender<Result<(usize, Block)>>,
    used: &Receiver<Block>,
) -> Result<()> {
    let format = raw.pass();
    for (index, file) in files.iter().enumerate() {
        let mut reader = format.open(file.as_ref())?;
        loop {
            let mut block = used.try_recv().unwrap_or_else(|_| raw.block());
            block.clear();
            let rows = reader.read(BLOCK_ROWS, &mut block)?;
            if send.send(Ok((index, block))).is_err() {
                return Ok(());
            }
            if rows == 0 {
                break;
            }
        }
    }
    Ok(())
}

/// Counts rows that are left out because of their labels.
#[derive(Debug, Default)]
pub struct BadLabels {
    count: AtomicU64,
    max: u64,
}

impl BadLabels {
    /// Permits this number of rows.
    pub fn at_most(max: u64) -> BadLabels {
        BadLabels { count: AtomicU64::new(0), max }
    }

    /// Counts a row, or fails if there are too many.
    pub fn add(&self, bad: BadLabel) -> Result<()> {
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        if before < self.max {
            return Ok(());
        }
        let error = Error::invalid(bad.text()).help(bad.help());
        Err(match before {
            0 => error,
            _ => error.at(format!("{before} rows with such labels were left out before")),
        })
    }

    /// Returns the number of rows that were left out.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// A worker's share of the rows.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// This worker.
    pub own: u64,
    /// Number of workers.
    pub of: u64,
}

impl Share {
    /// All rows.
    pub const ALL: Share = Share { own: 0, of: 1 };
}

/// The order of streamed rows.
#[derive(Clone, Debug)]
pub struct Window {
    /// Rows that are shuffled together.
    pub rows: usize,
    /// Seed of the order.
    pub seed: u64,
    /// The epoch, which changes the order.
    pub epoch: Arc<AtomicU64>,
}

/// The rows of a part as a format of the files that have them.
#[derive(Clone)]
pub struct JobRows {
    /// The raw columns, for a pass.
    pub raw: Arc<dyn RecordFormat>,
    /// The features.
    pub applied: Arc<Applied>,
    /// The part and its plan; all rows without.
    pub part: Option<(Arc<RowPlan>, Part)>,
    /// The worker's share.
    pub share: Share,
    /// The order; that of the files without.
    pub window: Option<Window>,
    /// Rows that are left out.
    pub bad: Arc<BadLabels>,
}

impl RecordFormat for JobRows {
    fn schema(&self) -> &Arc<Schema> {
        self.applied.schema()
    }

    fn open(&self, path: &Path) -> Result<Box<dyn RecordReader>> {
        let key = file_key(path);
        let order = self.window.as_ref().map(|window| {
            let epoch = window.epoch.load(Ordering::Relaxed);
            Order {
                random: Sequence::new(window.seed ^ key, epoch),
                rows_max: window.rows,
                block: Block::new(self.schema()),
                rows: Vec::new(),
            }
        });
        Ok(Box::new(JobReader {
            reader: self.raw.open(path)?,
            raw: Block::new(self.raw.schema()),
            applied: Arc::clone(&self.applied),
            part: self.part.clone(),
            share: self.share,
            bad: Arc::clone(&self.bad),
            name: path.display().to_string(),
            key,
            number: 0,
            kept: 0,
            at: 0,
            order,
            scratch: Scratch::default(),
        }))
    }

    fn for_pass(&self) -> Option<Arc<dyn RecordFormat>> {
        let raw = self.raw.for_pass()?;
        Some(Arc::new(JobRows { raw, ..self.clone() }))
    }

    fn stop(&self) {
        self.raw.stop();
    }

    fn is_local(&self) -> bool {
        self.raw.is_local()
    }
}

struct JobReader {
    reader: Box<dyn RecordReader>,
    raw: Block,
    applied: Arc<Applied>,
    part: Option<(Arc<RowPlan>, Part)>,
    share: Share,
    bad: Arc<BadLabels>,
    name: String,
    key: u64,
    /// Number of the row at `at` in the file.
    number: u64,
    /// Rows of the part so far.
    kept: u64,
    /// Next row of the raw block.
    at: usize,
    order: Option<Order>,
    scratch: Scratch,
}

/// Rows that are shuffled together.
struct Order {
    random: Sequence,
    rows_max: usize,
    block: Block,
    /// Rows of the block that were not handed out yet, in reverse.
    rows: Vec<u32>,
}

impl JobReader {
    /// Appends rows in the order of the file.
    fn read_rows(&mut self, rows_max: usize, block: &mut Block) -> Result<usize> {
        let before = block.len();
        while block.len() - before < rows_max {
            if self.at == self.raw.len() {
                self.raw.clear();
                self.at = 0;
                if self.reader.read(BLOCK_ROWS, &mut self.raw)? == 0 {
                    break;
                }
            }
            let (row, number) = (self.at, self.number);
            self.at += 1;
            self.number += 1;
            if let Some((plan, part)) = &self.part
                && plan.part(self.key, number, &self.raw, row) != *part
            {
                continue;
            }
            self.kept += 1;
            // All rows of a group are of the same worker.
            let turn = match self.applied.group(&self.raw, row) {
                Some(group) => mixed(group as u64),
                None => self.kept - 1,
            };
            if turn % self.share.of != self.share.own {
                continue;
            }
            let applied = self.applied.apply(&self.raw, row, &mut self.scratch, block);
            if let Err(bad) = applied.map_err(|error| error.at(&self.name))?
                && bad.fault != BadLabel::NotChosen
            {
                let place = format!("{}, row {}", self.name, number + 1);
                let names = self.applied.label_names();
                self.bad.add(bad.fault).map_err(|it| bad.named(it, &names).at(place))?;
            }
        }
        Ok(block.len() - before)
    }
}

impl RecordReader for JobReader {
    fn schema(&self) -> &Arc<Schema> {
        self.applied.schema()
    }

    fn read(&mut self, rows_max: usize, block: &mut Block) -> Result<usize> {
        let Some(mut order) = self.order.take() else { return self.read_rows(rows_max, block) };
        if order.rows.is_empty() {
            order.block.clear();
            self.read_rows(order.rows_max, &mut order.block)?;
            order.rows = (0..order.block.len() as u32).collect();
            match self.applied.group_slot() {
                None => order.random.shuffle(&mut order.rows),
                Some(slot) => {
                    let column = order.block.column(self.applied.schema().index(slot)?);
                    let group = |row: &u32| {
                        column.ids(*row as usize).and_then(|ids| ids.first()).copied().unwrap_or(0)
                    };
                    order.rows.sort_by_cached_key(group);
                    let rows = std::mem::take(&mut order.rows);
                    order.rows = shuffle_groups(rows, group, &mut order.random);
                }
            }
        }
        let count = rows_max.min(order.rows.len());
        for row in order.rows.drain(order.rows.len() - count..) {
            block.append(&order.block, row as usize..row as usize + 1)?;
        }
        self.order = Some(order);
        Ok(count)
    }

    fn skipped(&self) -> Skipped {
        self.reader.skipped()
    }
}
