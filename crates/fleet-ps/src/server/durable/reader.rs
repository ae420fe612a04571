//! Reads a log: its good records, and what follows the first bad one.

use super::damage::Damage;
use super::folder::of_other_version;
use super::record::{
    CLOSE, HeaderFault, LOG_HEADER_BYTES, LogHeader, RECORD_HEADER_BYTES, RecordHeader, VERSION,
    may_be_record,
};
use crate::io_error::io_error;
use crate::server::Caller;
use fleet_base::Result;
use fleet_base::disk::{Access, Disk, DiskFile, DiskReader, read_exact_at};
use std::collections::VecDeque;
use std::io::{BufReader, Read};
use std::path::Path;
use std::sync::Arc;

/// A request of the log.
pub(super) struct Record<'a> {
    /// Offset in its file.
    pub offset: u64,
    pub caller: Caller,
    pub method: u8,
    pub request: &'a [u8],
}

/// Contents of a log.
#[derive(Clone, Debug)]
pub(super) struct LogScan {
    pub header: LogHeader,
    pub record_count: u64,
    /// Sequence number after the last good record.
    pub next: u64,
    /// Length of the header and the good records, in bytes.
    pub good: u64,
    /// Length of the file, in bytes.
    pub total: u64,
    /// Offset of the first record that, by the log's own account, may not have been on disk.
    pub unsynced: u64,
    /// It ends with the record that announces another log.
    pub is_closed: bool,
    /// Whole records after the first bad one.
    pub later: Option<LaterRecords>,
    /// More bytes than [`REST_BYTES_MAX`] follow the good records, so they are not searched.
    pub is_too_long: bool,
}

/// Whole records after a bad one.
#[derive(Clone, Copy, Debug)]
pub(super) struct LaterRecords {
    pub offset: u64,
    pub count: u64,
    /// Records below this number were on disk when the last of these was written.
    pub synced: u64,
}

/// Bytes searched at a time.
const SEARCH_BYTES: usize = 1 << 20;
/// Limit on the bytes searched after the last good record. It is twice the 4 GiB of the default
/// [`log_bytes_max`](super::Durability), where pushes are rejected, plus a longest record of 4 GiB,
/// rounded up. A power cut loses the last seconds, which are far less.
pub(super) const REST_BYTES_MAX: u64 = 16 << 30;

/// Returns the number of zeros at the start of `bytes`.
pub(super) fn zeros(bytes: &[u8]) -> usize {
    // Compares whole blocks, at the speed of memory.
    const BLOCK: [u8; 4096] = [0; 4096];
    let blocks = bytes.chunks_exact(BLOCK.len()).take_while(|block| **block == BLOCK).count();
    let known = blocks * BLOCK.len();
    known + bytes[known..].iter().take_while(|byte| **byte == 0).count()
}

struct Bytes<'a> {
    path: &'a Path,
    file: Arc<dyn DiskFile>,
    total: u64,
    seed: u32,
}

/// Reads the header of a log, or describes its damage.
pub(super) fn read_header(disk: &dyn Disk, path: &Path) -> Result<Result<LogHeader, Damage>> {
    Ok(open(disk, path)?.map(|(_, header)| header))
}

/// Visits the good records of a log. The damage returned is that of its header.
pub(super) fn read(
    disk: &dyn Disk,
    path: &Path,
    visit: &mut dyn FnMut(&Record<'_>) -> Result<()>,
) -> Result<Result<LogScan, Damage>> {
    let (bytes, header) = match open(disk, path)? {
        Ok(opened) => opened,
        Err(damage) => return Ok(Err(damage)),
    };
    let mut scan = bytes.records(header, visit)?;
    if scan.good < bytes.total && !scan.is_closed {
        scan.is_too_long = bytes.total - scan.good > REST_BYTES_MAX;
        scan.later = bytes.later(&scan, &mut |_| Ok(()))?;
    }
    Ok(Ok(scan))
}

/// Visits the whole records after the first bad one.
pub(super) fn read_later(
    disk: &dyn Disk,
    path: &Path,
    visit: &mut dyn FnMut(&Record<'_>) -> Result<()>,
) -> Result<()> {
    let Ok((bytes, header)) = open(disk, path)? else { return Ok(()) };
    let scan = bytes.records(header, &mut |_| Ok(()))?;
    bytes.later(&scan, visit).map(drop)
}

fn open<'a>(disk: &dyn Disk, path: &'a Path) -> Result<Result<(Bytes<'a>, LogHeader), Damage>> {
    let file = disk.open(path, Access::Read).map_err(io_error("read", path))?;
    let total = file.len().map_err(io_error("read", path))?;
    let mut header = [0; LOG_HEADER_BYTES];
    if total < header.len() as u64 {
        let what = format!("the header is truncated: {total} of {LOG_HEADER_BYTES} bytes");
        return Ok(Err(Damage::new(path, total, what)));
    }
    read_exact_at(&*file, 0, &mut header).map_err(io_error("read", path))?;
    let (header, seed) = match LogHeader::decode(&header) {
        Ok(header) => header,
        Err(HeaderFault::Version(version)) => {
            return Err(of_other_version(path, &VERSION.to_string(), &version));
        }
        Err(HeaderFault::Damaged(what)) => return Ok(Err(Damage::new(path, 0, what))),
    };
    Ok(Ok((Bytes { path, file, total, seed }, header)))
}

impl Bytes<'_> {
    fn records(
        &self,
        header: LogHeader,
        visit: &mut dyn FnMut(&Record<'_>) -> Result<()>,
    ) -> Result<LogScan> {
        let mut scan = LogScan {
            header,
            record_count: 0,
            next: header.first,
            good: LOG_HEADER_BYTES as u64,
            total: self.total,
            unsynced: LOG_HEADER_BYTES as u64,
            is_closed: false,
            later: None,
            is_too_long: false,
        };
        let file = DiskReader::new(self.file.clone());
        let mut reader = BufReader::with_capacity(1 << 20, file);
        reader.read_exact(&mut [0; LOG_HEADER_BYTES]).map_err(io_error("read", self.path))?;
        let (mut head, mut request) = ([0; RECORD_HEADER_BYTES], Vec::new());
        // Sequence numbers and end offsets of records that may not be on disk.
        let mut recent: VecDeque<(u64, u64)> = VecDeque::new();
        loop {
            let left = self.total - scan.good;
            if left < RECORD_HEADER_BYTES as u64 {
                return Ok(scan);
            }
            reader.read_exact(&mut head).map_err(io_error("read", self.path))?;
            let known = RecordHeader::decode(&head, self.seed);
            let Some(record) = known.filter(|record| record.sequence == scan.next) else {
                return Ok(scan);
            };
            let bytes = RECORD_HEADER_BYTES as u64 + u64::from(record.len);
            if left < bytes {
                return Ok(scan);
            }
            request.resize(record.len as usize, 0);
            reader.read_exact(&mut request).map_err(io_error("read", self.path))?;
            if crc32fast::hash(&request) != record.request_sum {
                return Ok(scan);
            }
            if record.method == CLOSE {
                scan.good += bytes;
                scan.is_closed = true;
                return Ok(scan);
            }
            let RecordHeader { sequence, caller, method, .. } = record;
            let offset = scan.good;
            visit(&Record { offset, caller, method, request: &request })?;
            scan.good += bytes;
            scan.next += 1;
            scan.record_count += 1;
            recent.push_back((sequence, scan.good));
            while let Some((_, end)) = recent.front().filter(|(at, _)| *at < record.synced) {
                scan.unsynced = *end;
                recent.pop_front();
            }
        }
    }

    /// Searches whole records after the first bad one, whose length cannot be trusted. A record may
    /// begin at every byte, except in holes and long runs of zeros. If too much follows, nothing is
    /// searched.
    fn later(
        &self,
        scan: &LogScan,
        visit: &mut dyn FnMut(&Record<'_>) -> Result<()>,
    ) -> Result<Option<LaterRecords>> {
        let mut found: Option<LaterRecords> = None;
        let mut at = scan.good;
        let (mut window, mut start) = (Vec::new(), 0);
        if self.total - at > REST_BYTES_MAX {
            return Ok(None);
        }
        while at + RECORD_HEADER_BYTES as u64 <= self.total {
            let inside =
                at >= start && at + RECORD_HEADER_BYTES as u64 <= start + window.len() as u64;
            if !inside {
                let data = self.file.data_from(at).map_err(io_error("read", self.path))?;
                let Some(data) = data else { break };
                // The first bytes of a record's header may be zeros.
                at = at.max((data + 1).saturating_sub(RECORD_HEADER_BYTES as u64));
                let len = (self.total - at).min(SEARCH_BYTES as u64) as usize;
                window.resize(len, 0);
                read_exact_at(&*self.file, at, &mut window).map_err(io_error("read", self.path))?;
                start = at;
            }
            let rest = &window[(at - start) as usize..];
            let head = &rest[..RECORD_HEADER_BYTES];
            if head == [0; RECORD_HEADER_BYTES] {
                at += (zeros(rest) + 1 - RECORD_HEADER_BYTES) as u64;
                continue;
            }
            let Some((record, request)) = self.record_at(at, head, scan)? else {
                at += 1;
                continue;
            };
            if record.method != CLOSE {
                let RecordHeader { caller, method, .. } = record;
                visit(&Record { offset: at, caller, method, request: &request })?;
            }
            let later = found.get_or_insert(LaterRecords { offset: at, count: 0, synced: 0 });
            later.count += 1;
            later.synced = later.synced.max(record.synced);
            at += RECORD_HEADER_BYTES as u64 + u64::from(record.len);
        }
        Ok(found)
    }

    /// Reads the whole record at an offset, if there is one.
    fn record_at(
        &self,
        at: u64,
        head: &[u8],
        scan: &LogScan,
    ) -> Result<Option<(RecordHeader, Vec<u8>)>> {
        let Ok(head) = <&[u8; RECORD_HEADER_BYTES]>::try_from(head) else { return Ok(None) };
        let begin = at + RECORD_HEADER_BYTES as u64;
        if !may_be_record(head, scan.next, self.total - begin) {
            return Ok(None);
        }
        let Some(record) = RecordHeader::decode(head, self.seed) else { return Ok(None) };
        let mut request = vec![0; record.len as usize];
        read_exact_at(&*self.file, begin, &mut request).map_err(io_error("read", self.path))?;
        let is_whole = crc32fast::hash(&request) == record.request_sum;
        Ok(is_whole.then_some((record, request)))
    }
}
