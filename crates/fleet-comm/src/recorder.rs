//! The flight recorder keeps a rank's last collectives and writes them to a file after a failure.
//!
//! Comparing the files of all ranks shows which rank is in which call. A line looks like `{"group":
//! "world", "rank": 0, "sequence": 7, "kind": "all_reduce", "label": "fc.w@GRAD", "op": "sum",
//! "dtype": "f32", "elements": 1000, "root": 0, "state": "done", "begin_us": 5071, "us": 37}`.
//! Times are microseconds since the recorder was created.

use crate::call::Signature;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use std::collections::VecDeque;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// Maximum number of collectives kept: a few hundred kilobytes.
pub const RECORDS_MAX: usize = 1000;

/// A flight recorder, shared by the groups of a rank. A clone is the same recorder.
#[derive(Clone)]
pub struct Recorder(Arc<Mutex<History>>);

struct History {
    begin: Instant,
    dump: Option<PathBuf>,
    /// Number of the oldest record kept.
    oldest: u64,
    records: VecDeque<Record>,
}

struct Record {
    group: Arc<str>,
    rank: usize,
    signature: Signature,
    begin_us: u64,
    us: Option<u64>,
    failed: bool,
}

impl Recorder {
    /// Creates a recorder. If a collective fails, the records are written to `dump`, if given.
    pub fn new(dump: Option<PathBuf>) -> Recorder {
        Recorder(Arc::new(Mutex::new(History {
            begin: Instant::now(),
            dump,
            oldest: 0,
            records: VecDeque::with_capacity(RECORDS_MAX),
        })))
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        // The state is consistent after every statement, even if a thread panicked.
        lock(&self.0)
    }

    /// Records the start of a collective. Returns its number for [`Recorder::end`].
    pub(crate) fn begin(&self, group: &Arc<str>, rank: usize, signature: Signature) -> u64 {
        let mut history = self.lock();
        if history.records.len() == RECORDS_MAX {
            history.records.pop_front();
            history.oldest += 1;
        }
        let begin_us = history.begin.elapsed().as_micros() as u64;
        let group = group.clone();
        history.records.push_back(Record {
            group,
            rank,
            signature,
            begin_us,
            us: None,
            failed: false,
        });
        history.oldest + history.records.len() as u64 - 1
    }

    pub(crate) fn end(&self, number: u64, failed: bool) {
        let mut history = self.lock();
        let now = history.begin.elapsed().as_micros() as u64;
        let Some(index) = number.checked_sub(history.oldest) else { return };
        if let Some(record) = history.records.get_mut(index as usize) {
            record.us = Some(now.saturating_sub(record.begin_us));
            record.failed = failed;
        }
    }

    /// The records as JSON lines, oldest first.
    pub fn json_lines(&self) -> String {
        let history = self.lock();
        let mut out = String::new();
        for record in &history.records {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{}", record.json());
        }
        out
    }

    /// Writes the records to `path` atomically.
    pub fn write(&self, path: &Path) -> Result<()> {
        let text = self.json_lines();
        // Another process may write its records to the same path.
        let part = path.with_extension(format!("{}.part", std::process::id()));
        std::fs::write(&part, text).map_err(|error| Error::io("write", &part, &error))?;
        std::fs::rename(&part, path).map_err(|error| Error::io("write", path, &error))
    }

    /// Writes the records to the configured file, if there is one, and returns its path.
    pub(crate) fn dump(&self) -> Option<Result<PathBuf>> {
        let path = self.lock().dump.clone()?;
        Some(self.write(&path).map(|()| path))
    }
}

impl Record {
    fn json(&self) -> String {
        let signature = &self.signature;
        let state = match (self.us, self.failed) {
            (None, _) => "waiting",
            (Some(_), true) => "failed",
            (Some(_), false) => "done",
        };
        let mut line = format!(
            "{{\"group\": {}, \"rank\": {}, \"sequence\": {}, \"kind\": \"{}\", \"label\": {}, ",
            quoted(&self.group),
            self.rank,
            signature.sequence,
            signature.kind,
            quoted(&signature.label.to_string()),
        );
        if let Some(op) = signature.op {
            line += &format!("\"op\": \"{op}\", ");
        }
        line += &format!(
            "\"dtype\": \"{}\", \"elements\": {}, \"root\": {}, \"state\": \"{state}\", \
             \"begin_us\": {}",
            signature.dtype, signature.elements, signature.root, self.begin_us
        );
        if let Some(us) = self.us {
            line += &format!(", \"us\": {us}");
        }
        line + "}"
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            c if (c as u32) < 0x20 => {
                // Writing to a string cannot fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::{Kind, Label};
    use fleet_base::ReduceOp;
    use fleet_tensor::DType;

    #[test]
    fn temporary_files_of_other_processes_are_kept() {
        let folder = std::env::temp_dir().join(format!("fleet-record-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (path, other) = (folder.join("0.jsonl"), folder.join("0.part"));
        std::fs::write(&other, "other").unwrap();
        Recorder::new(None).write(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "other");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 2, "a temporary file was left");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn the_last_thousand_are_kept() {
        let recorder = Recorder::new(None);
        let group: Arc<str> = "a\"b".into();
        for sequence in 0..1500 {
            let number = recorder.begin(
                &group,
                3,
                Signature {
                    sequence,
                    kind: Kind::AllReduce,
                    dtype: DType::F32,
                    op: Some(ReduceOp::Sum),
                    root: 0,
                    elements: 5,
                    digest: 0,
                    label: Label::new("x\ny"),
                },
            );
            if sequence != 1499 {
                recorder.end(number, sequence == 1498);
            }
        }
        let text = recorder.json_lines();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), RECORDS_MAX);
        assert!(
            lines[0].contains("\"sequence\": 500,") && lines[0].contains("\"state\": \"done\"")
        );
        assert!(lines[998].contains("\"state\": \"failed\""));
        assert!(lines[999].contains("\"state\": \"waiting\"") && !lines[999].contains("\"us\""));
        assert!(lines[0].starts_with("{\"group\": \"a\\\"b\", \"rank\": 3,"));
        assert!(lines[0].contains("\"label\": \"x\\u000ay\""));
    }
}
