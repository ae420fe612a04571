//! Reads a server's folder from its last snapshot to the end of its last log, and judges bad data.
//!
//! A server that starts and `fleet durable inspect` run the same scan with different visitors.
//!
//! * Logs follow each other by life, number and sequence number, beginning with that of the last
//!   snapshot.
//! * A bad record that whole ones follow is damage, unless a power cut explains it: the machine was
//!   rebooted since, and no later record says that the bad one was on disk.
//! * Any other end of the last log is a request that was not written whole. It is cut off.

use super::blocks::BlockReader;
use super::damage::Damage;
use super::epochs::{Epoch, Epochs};
use super::folder::{Files, snapshot_path};
use super::image::SnapshotHead;
use super::log;
use super::reader::{self, LogScan, REST_BYTES_MAX, Record};
use super::record::LogHeader;
use fleet_base::disk::Disk;
use fleet_base::{Error, ErrorKind, Result};
use std::path::{Path, PathBuf};

/// Receives the data that a scan reads.
pub(super) trait Visitor {
    /// Receives the last snapshot, and reads it to its end.
    fn snapshot(&mut self, head: &SnapshotHead, input: &mut BlockReader) -> Result<()>;
    /// Receives a good record, with its offset for errors.
    fn record(&mut self, record: &Record<'_>) -> Result<()>;
}

/// The incomplete end of the last log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The log.
    pub file: PathBuf,
    /// Offset in the file.
    pub offset: u64,
    /// Size of the incomplete end.
    pub bytes: u64,
    /// Whole requests in it. Only a power cut leaves any after an incomplete one.
    pub request_count: u64,
}

#[derive(Clone, Debug, Default)]
pub(super) struct FolderScan {
    pub snapshot: Option<(SnapshotHead, u64)>,
    pub logs: Vec<LogScan>,
    pub epochs: Epochs,
    /// Sequence number after the last good record.
    pub next: u64,
    pub tail: Option<Tail>,
    pub damage: Option<Damage>,
}

impl FolderScan {
    pub fn request_count(&self) -> u64 {
        self.logs.iter().map(|log| log.record_count).sum()
    }

    /// Returns the header of the last log if the log has no record.
    pub fn empty_last(&self) -> Option<&LogHeader> {
        self.logs.last().filter(|log| log.record_count == 0).map(|log| &log.header)
    }
}

/// The folder to read.
pub(super) struct Place<'a> {
    pub disk: &'a dyn Disk,
    pub folder: &'a Path,
    pub life: u64,
}

impl Place<'_> {
    /// Reads the files in `files`; stops at damage, which is part of the result.
    pub fn scan(&self, files: &Files, visitor: &mut dyn Visitor) -> Result<FolderScan> {
        let mut scanner = Scanner { place: self, visitor, found: FolderScan::default() };
        match scanner.read_all(files) {
            Ok(()) => {}
            Err(Fault::Damage(damage)) => scanner.found.damage = Some(damage),
            Err(Fault::Error(error)) => return Err(error),
        }
        Ok(scanner.found)
    }

    /// Returns the damage if a required file is missing.
    fn missing(&self, files: &Files, start: u64) -> Option<Damage> {
        let is_missing = |name: String| {
            let what = format!("{name} is missing");
            Some(Damage::missing(self.folder.join(name), what))
        };
        if files.logs.is_empty() && files.snapshots.is_empty() {
            let path = self.folder.join("log-0");
            return Some(Damage::missing(path, "the folder has neither snapshot nor log"));
        }
        let first_log = files.logs.first().copied().unwrap_or(start);
        if files.snapshots.is_empty() && first_log > 0 {
            return is_missing(format!("snapshot-{first_log}"));
        }
        let last = files.logs.last().copied().unwrap_or(start).max(start);
        let hole = (start..=last).find(|number| files.logs.binary_search(number).is_err())?;
        is_missing(format!("log-{hole}"))
    }

    /// Judges the end of the last log: returns an incomplete end, or the damage.
    fn judge(&self, path: &Path, scan: &LogScan) -> Result<Option<Tail>, Damage> {
        if scan.is_closed {
            let next = log::path(self.folder, scan.header.number + 1);
            let what = format!("it is missing, but {} names it as its successor", path.display());
            return Err(Damage::missing(next, what));
        }
        if scan.good == scan.total {
            return Ok(None);
        }
        if scan.is_too_long {
            let what = format!(
                "{} bytes follow request {}, expected at most {REST_BYTES_MAX}",
                scan.total - scan.good,
                scan.next
            );
            return Err(Damage::new(path, scan.good, what));
        }
        let boot = self.disk.boot();
        let same_boot = boot != 0 && boot == scan.header.boot;
        if let Some(later) = scan.later.filter(|it| same_boot || it.synced > scan.next) {
            let what = format!(
                "request {} is damaged, and {} complete ones follow from byte {}",
                scan.next, later.count, later.offset
            );
            return Err(Damage::new(path, scan.good, what));
        }
        Ok(Some(Tail {
            file: path.to_path_buf(),
            offset: scan.good,
            bytes: scan.total - scan.good,
            request_count: scan.later.map_or(0, |later| later.count),
        }))
    }
}

/// A scan in progress.
struct Scanner<'a> {
    place: &'a Place<'a>,
    visitor: &'a mut dyn Visitor,
    found: FolderScan,
}

impl Scanner<'_> {
    fn read_all(&mut self, files: &Files) -> Result<(), Fault> {
        let start = files.snapshots.last().copied().unwrap_or(0);
        if let Some(damage) = self.place.missing(files, start) {
            return Err(damage.into());
        }
        if start > 0 {
            self.read_snapshot(start)?;
        }
        let last = files.logs.last().copied().unwrap_or(start);
        (start..=last).try_for_each(|number| self.read_log(number, number == last))
    }

    fn read_snapshot(&mut self, number: u64) -> Result<(), Fault> {
        let path = snapshot_path(self.place.folder, number);
        let mut input = BlockReader::open(self.place.disk, &path)?;
        let head = SnapshotHead::read(&mut input).map_err(|error| match error.kind() {
            ErrorKind::Invalid => Damage::new(&path, 0, "its first block is damaged").into(),
            _ => Fault::Error(error),
        })?;
        if head.life != self.place.life || head.number != number {
            let what = format!("it is snapshot {} of another folder, or was renamed", head.number);
            return Err(Damage::new(&path, 0, what).into());
        }
        if let Err(error) = self.visitor.snapshot(&head, &mut input) {
            return Err(match input.damage.take() {
                Some(damage) => damage.into(),
                None => error.at(path.display()).into(),
            });
        }
        self.found.next = head.first;
        self.found.epochs = head.epochs.clone();
        self.found.snapshot = Some((head, input.total()));
        Ok(())
    }

    fn read_log(&mut self, number: u64, is_last: bool) -> Result<(), Fault> {
        let path = log::path(self.place.folder, number);
        // The header is checked first, so that the records of a log that does not fit are not
        // visited.
        let header = reader::read_header(self.place.disk, &path)??;
        if header.life != self.place.life || header.number != number {
            let what = format!("it is log {} of another folder, or was renamed", header.number);
            return Err(Damage::new(&path, 0, what).into());
        }
        if header.first != self.found.next {
            return self.does_not_follow(&path, &header, is_last);
        }
        let scan = reader::read(self.place.disk, &path, &mut |record| {
            let place = || format!("byte {} of {}", record.offset, path.display());
            self.visitor.record(record).map_err(|error| error.at(place()))
        })??;
        let LogHeader { epoch: id, first, accepts_loss, .. } = header;
        if self.found.epochs.list().last().is_none_or(|last| last.id != id) {
            self.found.epochs.push(Epoch { id, first, accepts_loss });
        }
        self.found.next = scan.next;
        let judged = if is_last { self.place.judge(&path, &scan) } else { Ok(None) };
        self.found.logs.push(scan);
        self.found.tail = judged?;
        Ok(())
    }

    /// Judges a log that does not begin where the previous one ends.
    fn does_not_follow(
        &mut self,
        path: &Path,
        header: &LogHeader,
        is_last: bool,
    ) -> Result<(), Fault> {
        let expected = self.found.next;
        let wrong_start = || {
            let what = format!("it begins at request {}, expected {expected}", header.first);
            Damage::new(path, 0, what)
        };
        let before = self.found.logs.last().ok_or_else(wrong_start)?;
        let earlier = log::path(self.place.folder, before.header.number);
        if header.first > expected {
            let what = format!(
                "it ends at request {expected}, but {} begins at {}",
                path.display(),
                header.first
            );
            return Err(Damage::new(earlier, before.good, what).into());
        }
        // A failed rotation: the previous log grew on, and this one stayed empty.
        let empty = reader::read(self.place.disk, path, &mut |_| Ok(()))?;
        let is_empty = empty.is_ok_and(|scan| scan.good == scan.total && scan.record_count == 0);
        if !(is_last && is_empty && !before.is_closed) {
            return Err(wrong_start().into());
        }
        self.found.tail = self.place.judge(&earlier, before)?;
        Ok(())
    }
}

/// Why a scan ends early: damage is part of its result, other errors are not.
enum Fault {
    Damage(Damage),
    Error(Error),
}

impl From<Damage> for Fault {
    fn from(damage: Damage) -> Fault {
        Fault::Damage(damage)
    }
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        Fault::Error(error)
    }
}
