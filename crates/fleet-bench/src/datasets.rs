//! The stages of a dataset one by one, over click logs in four files: text into memory, a shuffle,
//! batches for a program. The peers are Paddle's dataset, and polars for tables.

use crate::measure::{Options, print_rates};
use fleet::data::{
    ColumnFiles, ColumnSpec, Csv, CsvColumn, DataFormat, DatasetOptions, InMemoryDataset, TextFiles,
};
use fleet::prelude::*;
use fleet::{DatasetRun, feed_layout};
use fleet_synth::{CtrConfig, Made, Make, MakeFormat, MakeKind};
use std::path::Path;
use std::time::Instant;

/// Loads MultiSlot text into memory: bytes per second.
pub fn load(options: &Options) -> Result<()> {
    in_folder(options, "MB/s", MakeFormat::MultiSlot, |made, rates| {
        let dataset = InMemoryDataset::new(multi_slot(made, options)?)?;
        load_again(dataset, made, rates)
    })
}

/// Loads a table into memory: bytes per second.
pub fn csv_load(options: &Options) -> Result<()> {
    in_folder(options, "MB/s", MakeFormat::Csv, |made, rates| {
        let dense = (0..13)
            .map(|at| (format!("dense_input_{at}"), CsvColumn::Float("dense_input".to_string())));
        let ids = (1..=26).map(|slot| format!("C{slot}")).chain(["label".to_string()]);
        let ids = ids.map(|name| (name.clone(), CsvColumn::Id(name)));
        let files = TextFiles::lines(Csv::new(dense.chain(ids))?.with_header());
        let base = DatasetOptions::new(files)?;
        let dataset = InMemoryDataset::new(DatasetOptions { threads: options.threads, ..base })?;
        load_again(dataset, made, rates)
    })
}

/// Loads the same table by the names of its columns, with hashed ids: bytes per second.
pub fn columns_load(options: &Options) -> Result<()> {
    in_folder(options, "MB/s", MakeFormat::Csv, |made, rates| {
        let dense = (0..13).map(|at| ColumnSpec::number(format!("dense_input_{at}")));
        let ids = (1..=26).map(|slot| ColumnSpec::category(format!("C{slot}")));
        let columns = dense.chain(ids).chain([ColumnSpec::number("label")]);
        let base = DatasetOptions::new(ColumnFiles::new(DataFormat::csv(), columns)?)?;
        let dataset = InMemoryDataset::new(DatasetOptions { threads: options.threads, ..base })?;
        load_again(dataset, made, rates)
    })
}

/// Shuffles records: records per second.
pub fn shuffle(options: &Options) -> Result<()> {
    in_folder(options, "records/s", MakeFormat::MultiSlot, |made, rates| {
        let mut dataset = loaded(made, options)?;
        rates.sample(|| {
            dataset.local_shuffle();
            Ok(ROWS as f64)
        })
    })
}

/// Runs shuffled records through a program that computes almost nothing: records per second.
pub fn batches(options: &Options) -> Result<()> {
    in_folder(options, "records/s", MakeFormat::MultiSlot, |made, rates| {
        let net = Net::new();
        net.data("dense_input", [-1, 13], DType::F32).mean();
        let ids = made.schema.slots()[1..].iter();
        let ids: Vec<Var<'_>> = ids.map(|slot| net.data(&slot.name, [-1, 1], DType::I64)).collect();
        net.concat(&ids, 1).cast(DType::F32).mean();
        let mut session = Session::new(net.build()?, options.exec())?;
        let layout = feed_layout(&session.programs.main, &made.schema)?;
        let from = DatasetOptions { layout, batch_size: 2048, ..multi_slot(made, options)? };
        let mut dataset = InMemoryDataset::new(from)?;
        dataset.set_filelist(&made.files)?;
        dataset.load_into_memory()?;
        dataset.local_shuffle();
        rates.sample(|| {
            let report = session.infer_from_dataset(&dataset, DatasetRun::new())?;
            Ok(report.records as f64)
        })
    })
}

/// Rates of repeated work.
struct Rates {
    steps: usize,
    warmup: usize,
    list: Vec<f64>,
}

impl Rates {
    /// Records the amount that each call has done, divided by the seconds that it took.
    fn sample(&mut self, mut work: impl FnMut() -> Result<f64>) -> Result<()> {
        for step in 0..self.warmup + self.steps {
            let begin = Instant::now();
            let amount = work()?;
            if step >= self.warmup {
                self.list.push(amount / begin.elapsed().as_secs_f64());
            }
        }
        Ok(())
    }
}

fn in_folder(
    options: &Options,
    unit: &str,
    format: MakeFormat,
    work: impl FnOnce(&Made, &mut Rates) -> Result<()>,
) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("fleet-bench-data-{}", std::process::id()));
    let (steps, warmup) = options.counts(5, 1);
    let mut rates = Rates { steps, warmup, list: Vec::new() };
    let outcome = make(&folder, format).and_then(|made| work(&made, &mut rates));
    // The files are used up; a failure to remove them does not affect the result.
    let _ = std::fs::remove_dir_all(&folder);
    outcome?;
    print_rates(options, unit, rates.list);
    Ok(())
}

fn make(folder: &Path, format: MakeFormat) -> Result<Made> {
    let kind = MakeKind::Ctr(CtrConfig::criteo_like());
    let folder = folder.to_path_buf();
    Make { kind, format, first_row: 0, rows: ROWS, shards: FILES, folder }.write()
}

fn multi_slot(made: &Made, options: &Options) -> Result<DatasetOptions> {
    let from = DatasetOptions::new(TextFiles::multi_slot(&made.schema))?;
    Ok(DatasetOptions { threads: options.threads, ..from })
}

fn loaded(made: &Made, options: &Options) -> Result<InMemoryDataset> {
    let mut dataset = InMemoryDataset::new(multi_slot(made, options)?)?;
    dataset.set_filelist(&made.files)?;
    dataset.load_into_memory()?;
    Ok(dataset)
}

fn load_again(mut dataset: InMemoryDataset, made: &Made, rates: &mut Rates) -> Result<()> {
    dataset.set_filelist(&made.files)?;
    let size = |path| std::fs::metadata(path).map_or(0, |metadata| metadata.len());
    let bytes: u64 = made.files.iter().map(size).sum();
    rates.sample(|| {
        dataset.release_memory();
        dataset.load_into_memory()?;
        Ok(bytes as f64 / 1e6)
    })
}

const ROWS: u64 = 200_000;
const FILES: u64 = 4;
