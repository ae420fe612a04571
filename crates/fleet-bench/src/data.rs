//! Reading of records: bytes of text per second on one thread, and the loss of training speed from
//! reading text.

use crate::measure::{Options, print_rates};
use fleet::data::{
    BatchLayout, Block, Dataset, DatasetOptions, InMemoryDataset, Input, LineReader, MultiSlot,
    QueueDataset, Schema, Slot, TextFiles,
};
use fleet::{DType, DatasetRun, Error, Result};
use fleet_synth::{Ctr, CtrConfig};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

/// Parses 100,000 lines of a click log (235 bytes each) into columns, repeatedly.
pub fn multislot_parse(options: &Options) -> Result<()> {
    let clicks = Ctr::new(CtrConfig::criteo_like())?;
    let mut text = Vec::new();
    clicks.write_lines(0..LINES, &mut text)?;
    let schema = schema_of(&clicks)?;
    let mut block = Block::new(&schema);
    let (steps, warmup) = options.counts(40, 5);
    let mut rates = Vec::with_capacity(steps);
    for step in 0..warmup + steps {
        block.clear();
        let begin = Instant::now();
        let mut reader = LineReader::new(&text[..], "memory", MultiSlot::new(&schema));
        let rows = reader.read(usize::MAX, &mut block)?;
        let seconds = begin.elapsed().as_secs_f64();
        assert_eq!(rows as u64, LINES);
        if step >= warmup {
            rates.push(text.len() as f64 / seconds / 1e6);
        }
    }
    print_rates(options, "MB/s", rates);
    Ok(())
}

/// Returns the slots of a click log, as the documented reader writes it.
fn schema_of(clicks: &Ctr) -> Result<Arc<Schema>> {
    let ids = (1..=clicks.slot_count()).map(|slot| Slot::ragged_ids(format!("C{slot}")));
    let dense = Slot::dense_floats("dense_input", [clicks.dense_count()]);
    let label = Slot::dense_ids("label", [1]);
    Schema::new(std::iter::once(dense).chain(ids).chain([label]))
}

/// Trains wide & deep on the same records from text files and from memory, in alternate passes. The
/// result is the speed from text, relative to that from memory.
pub fn wide_deep_text_vs_memory(options: &Options) -> Result<()> {
    let mut session = crate::wide_deep::session(options, &crate::wide_deep::TableRule::Sgd)?;
    let (passes, warmup) = options.counts(10, 1);
    let shares = text_vs_memory(0, passes, warmup, |dataset| {
        Ok(session.train_from_dataset(dataset, DatasetRun::new())?.seconds)
    })?;
    print_rates(options, "%", shares);
    Ok(())
}

/// Returns the speed from text in percent of that from memory, for the files of a worker. `pass`
/// trains on a dataset and returns the seconds that it took.
pub fn text_vs_memory(
    rank: u64,
    passes: usize,
    warmup: usize,
    pass: impl FnMut(&dyn Dataset) -> Result<f64>,
) -> Result<Vec<f64>> {
    let clicks = Ctr::new(CtrConfig::criteo_like())?;
    let folder = std::env::temp_dir().join(format!("fleet-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(|error| Error::io("create", &folder, &error))?;
    let outcome = Sources::write(&clicks, &folder, rank)
        .and_then(|sources| sources.compare(passes, warmup, pass));
    // The files are used up; a failure to remove them does not affect the result.
    let _ = std::fs::remove_dir_all(&folder);
    outcome
}

/// The same records in memory and in text files.
struct Sources {
    memory: InMemoryDataset,
    text: QueueDataset,
}

impl Sources {
    /// Writes the files of a worker.
    fn write(clicks: &Ctr, folder: &Path, rank: u64) -> Result<Sources> {
        let mut files = Vec::new();
        for file in rank * FILES..(rank + 1) * FILES {
            let (path, mut text) = (folder.join(format!("part-{file}")), Vec::new());
            clicks.write_lines(file * FILE_LINES..(file + 1) * FILE_LINES, &mut text)?;
            std::fs::write(&path, text).map_err(|error| Error::io("write", &path, &error))?;
            files.push(path);
        }
        let schema = schema_of(clicks)?;
        let ids = schema.slots().iter().map(|slot| &slot.name).filter(|name| name.starts_with('C'));
        let layout = BatchLayout::new(
            &schema,
            [
                Input::new("dense_input", ["dense_input"]),
                Input::new("sparse_input", ids).padded(1, 0.0),
                Input::new("label", ["label"]).dtype(DType::F32),
            ],
        )?;
        let from = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
        let from = DatasetOptions { layout, batch_size: 2048, ..from };
        let mut memory = InMemoryDataset::new(from.clone())?;
        memory.set_filelist(&files)?;
        memory.load_into_memory()?;
        let mut text = QueueDataset::new(from)?;
        text.set_filelist(&files)?;
        Ok(Sources { memory, text })
    }

    /// Returns the speed from text in percent of that from memory, in alternate passes; `pass`
    /// returns seconds.
    fn compare(
        &self,
        passes: usize,
        warmup: usize,
        mut pass: impl FnMut(&dyn Dataset) -> Result<f64>,
    ) -> Result<Vec<f64>> {
        let mut shares = Vec::with_capacity(passes);
        for at in 0..warmup + passes {
            let (memory, text) = (pass(&self.memory)?, pass(&self.text)?);
            if at >= warmup {
                shares.push(100.0 * memory / text);
            }
        }
        Ok(shares)
    }
}

const LINES: u64 = 100_000;
/// Files of a worker; a pass over all of them takes about a second.
const FILES: u64 = 4;
const FILE_LINES: u64 = 8 * 2048;
