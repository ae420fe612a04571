//! `fleet trace`: shows the time shares of a traced step, rank by rank, and the exposed
//! communication.
//!
//! The files come from `fleet run --trace`, `fleetrun demo:NAME --trace` and programs that use
//! `Executor::trace`.

use clap::Args;
use fleet_base::output::{ExitReason, Output};
use fleet_base::{Error, Result, input};
use fleet_exec::{Span, Trace};
use fleet_format::write_file;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct TraceArgs {
    /// Traces of one run, one file per rank, or folders of such files
    #[arg(value_name = "FILE.json", required = true)]
    files: Vec<PathBuf>,
    /// Write the traces of all ranks to one file, for chrome://tracing or Perfetto
    #[arg(long, value_name = "FILE.json")]
    join: Option<PathBuf>,
    /// Number of longest ops to list per rank
    #[arg(long, value_name = "N", default_value_t = 3)]
    top: usize,
}

pub fn run(args: &TraceArgs, out: &mut Output) -> Result<(), ExitReason> {
    let mut traces: BTreeMap<usize, Trace> = BTreeMap::new();
    for file in files(&args.files)? {
        let bytes = input::read(&file, "a trace", FILE_BYTES_MAX)?;
        let text = String::from_utf8(bytes).map_err(|error| {
            Error::invalid("the trace is not UTF-8").at(file.display()).caused(error)
        })?;
        let read = Trace::from_chrome_json(&text).map_err(|error| error.at(file.display()))?;
        if read.is_empty() {
            return Err(Error::invalid("the trace contains no op").at(file.display()).into());
        }
        for (rank, trace) in read {
            if traces.insert(rank, trace).is_some() {
                return Err(Error::invalid(format!("duplicate trace of rank {rank}"))
                    .expected("traces of one run, one file per rank")
                    .at(file.display())
                    .into());
            }
        }
    }
    let traces: Vec<(usize, Trace)> = traces.into_iter().collect();
    for (rank, trace) in &traces {
        out.line(format!("rank {rank}: {}", trace.shares()))?;
        for span in longest(trace, args.top) {
            let (ms, kind) = ((span.end_us - span.begin_us) * 1e-3, kind(span));
            out.line(format!("  {ms:>9.3} ms  {kind:<13}  {}", shortened(&span.detail)))?;
        }
    }
    match &args.join {
        Some(path) => Ok(write_file(path, Trace::join(&traces).as_bytes())?),
        None => Ok(()),
    }
}

/// Maximum size of a trace file: about a million ops of one step. Reading it takes ten times as
/// much memory.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Maximum length of an op's printed detail; the file holds all of it.
const DETAIL_CHARS_MAX: usize = 120;

fn shortened(detail: &str) -> String {
    match detail.char_indices().nth(DETAIL_CHARS_MAX) {
        Some((end, _)) => format!("{} ..", &detail[..end]),
        None => detail.to_string(),
    }
}

fn kind(span: &Span) -> &'static str {
    match (span.talked_us > 0.0, span.lane) {
        (true, _) => "communication",
        (false, 0) => "compute",
        (false, _) => "other lane",
    }
}

fn longest(trace: &Trace, count: usize) -> Vec<&Span> {
    let mut spans: Vec<&Span> = trace.spans.iter().collect();
    let length = |span: &Span| span.end_us - span.begin_us;
    spans.sort_by(|a, b| length(b).total_cmp(&length(a)));
    spans.truncate(count);
    spans
}

/// Returns the files, with folders replaced by their files in order of name.
fn files(given: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for path in given {
        match path.is_dir() {
            true => found.extend(in_folder(path)?),
            false => found.push(path.clone()),
        }
    }
    Ok(found)
}

fn in_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder).map_err(|error| Error::io("read", folder, &error))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.extension().is_some_and(|it| it == "json"));
    files.sort();
    match files.is_empty() {
        true => {
            Err(Error::invalid("no trace in the folder").expected("*.json").at(folder.display()))
        }
        false => Ok(files),
    }
}
