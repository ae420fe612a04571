//! Streaming: data comes in hours of days. After each hour, the tables of the servers are saved for
//! serving: whole in a day's first hour, then the rows that changed. At the end of a day, rows that
//! are not used are deleted.
//!
//! `fleetrun --server_num=1 --worker_num=2 target/release/examples/streaming [HOURS] [FOLDER]`

use fleet::prelude::*;
use fleet::ps::{SaveFormat, SaveMode};
use fleet_synth::{Ctr, CtrConfig};
use std::fmt::Write;
use std::path::Path;

#[allow(dead_code)] // the part that trains
mod click_tables;

const DAYS: [&str; 2] = ["20210222", "20210223"];
const INPUTS: [&str; 4] = ["dense", "ids", "click", "show"];
/// Records of a worker in an hour.
const RECORDS: usize = 2048;
const BATCH: usize = 256;

/// Days and hours in order. A job that is stopped begins with the next one.
fn schedule(hours: u64) -> Vec<(&'static str, u64)> {
    DAYS.iter().flat_map(|day| (0..hours).map(move |hour| (*day, hour))).collect()
}

/// Writes a worker's records of an hour, as the collection of logs would.
fn write_hour(clicks: &Ctr, path: &Path, first: u64) -> Result<()> {
    let (mut dense, mut click) = (vec![0.0f32; RECORDS * 13], vec![0.0f32; RECORDS]);
    let mut ids = vec![0i64; RECORDS * 26];
    clicks.fill_batch(&mut dense, &mut ids, &mut click, first)?;
    let mut text = String::new();
    for at in 0..RECORDS {
        let words = |count: usize, values: &mut dyn Iterator<Item = String>| {
            format!("{count} {}", values.collect::<Vec<_>>().join(" "))
        };
        let dense = words(13, &mut dense[at * 13..][..13].iter().map(f32::to_string));
        let ids = words(26, &mut ids[at * 26..][..26].iter().map(i64::to_string));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{dense} {ids} 1 {} 1 1", click[at]);
    }
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(|error| Error::io("create", folder, &error))?;
    std::fs::write(path, text).map_err(|error| Error::io("write", path, &error))
}

/// Starts to load an hour. The records in memory stay until the load is done.
fn preload(dataset: &mut InMemoryDataset, folder: &Path, hour: u64, own: usize) -> Result<()> {
    dataset.set_filelist([folder.join(format!("{{date}}/{hour}/part-{own}"))])?;
    dataset.preload_into_memory()
}

/// Trains as one process of a job, and returns the number of rows of each save.
pub fn train_in(folder: &Path, hours: u64) -> Result<Vec<u64>> {
    let fleet = Fleet::parameter_server()?;
    let (clicks, net) = (Ctr::new(CtrConfig::small())?, Net::new());
    let loss = click_tables::network(&net, clicks.row_count());
    let optimizer = fleet.distributed_optimizer(Adam::new(1e-3), &click_tables::strategy()?);
    let job = optimizer.minimize_on_servers(&net, loss)?;
    if fleet.is_server() {
        fleet.init_server(&job)?.run()?;
        return Ok(Vec::new());
    }
    let loss = loss.name();
    let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::default())?;
    let (own, all) = (fleet.worker_index(), fleet.worker_num());
    let schedule = schedule(hours);
    for (number, (day, hour)) in schedule.iter().enumerate() {
        let first = ((number * all + own) * RECORDS) as u64;
        write_hour(&clicks, &folder.join(format!("{day}/{hour}/part-{own}")), first)?;
    }

    let schema = fleet::slots_of(&worker.session.programs.main, &INPUTS)?;
    let options = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
    let mut dataset = InMemoryDataset::new(DatasetOptions { batch_size: BATCH, ..options })?;
    let mut saved_rows = Vec::new();
    dataset.set_date(DAYS[0])?;
    preload(&mut dataset, folder, 0, own)?;
    for (at, (day, hour)) in schedule.iter().enumerate() {
        dataset.wait_preload_done()?;
        dataset.local_shuffle();
        if let Some((day, hour)) = schedule.get(at + 1) {
            dataset.set_date(day)?;
            preload(&mut dataset, folder, *hour, own)?;
        }
        let run = DatasetRun::new().fetch("loss", &loss).print_period(0);
        let report = worker.train_from_dataset(&dataset, run)?;
        let loss = report.last.first().map_or(Ok(f32::NAN), |(_, value)| value.item::<f32>())?;
        worker.flush()?;
        worker.barrier()?; // all workers have trained the hour
        if fleet.is_first_worker() {
            let mode = if *hour == 0 { SaveMode::Base } else { SaveMode::Delta };
            let to = folder.join(format!("model/{day}/{hour}"));
            let saved = worker.save_persistables(&to, mode, SaveFormat::Text)?;
            let rows = saved.row_count;
            println!("{day} {hour}: loss {loss:.4}; saved {rows} rows and numbers ({mode:?})");
            saved_rows.push(rows);
            if *hour + 1 == hours {
                println!("{day}: deleted {} rows that are not used", worker.shrink(None)?);
            }
        }
        worker.barrier()?; // no worker trains on while the first one saves
    }
    worker.stop()?;
    Ok(saved_rows)
}

/// Trains on this many hours of each day, in a temporary folder.
pub fn train(hours: u64) -> Result<()> {
    let folder = std::env::temp_dir().join(format!("fleet-streaming-{}", std::process::id()));
    let outcome = train_in(&folder, hours);
    // Remaining files are harmless.
    let _ = std::fs::remove_dir_all(&folder);
    let rows = outcome?;
    // A whole save has more rows than one of an hour's changes.
    match rows.len() == DAYS.len() * hours as usize && (hours < 2 || rows[hours as usize] > rows[1])
    {
        true => Ok(()),
        false => Err(Error::internal("unexpected saves").got(format!("{rows:?}"))),
    }
}

fn main() -> Result<()> {
    let mut args = std::env::args().skip(1);
    let hours = args.next().map_or(Ok(4), |hours| hours.parse())?;
    match args.next() {
        Some(folder) => train_in(Path::new(&folder), hours).map(drop),
        None => train(hours),
    }
}
