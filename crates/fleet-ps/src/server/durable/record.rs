//! The bytes of a log: a header, then records without gaps.
//!
//! ```text
//! header                               record
//!  0 "FLEETLOG"                         0 u32 bytes of the request
//!  8 u32 version                        4 u32 CRC-32 of the rest of this header
//! 12 u32 flags                          8 u64 sequence number
//! 16 u64 life of the folder            16 u64 records below this number are on disk
//! 24 u64 number of the log             24 u64 client
//! 32 u64 first sequence number         32 u32 worker
//! 40 u64 epoch                         36 u8 method, 3 bytes 0
//! 48 u64 boot of the machine           40 u32 CRC-32 of the request
//! 56 u32 0                             44 the request
//! 60 u32 CRC-32 of the above
//! ```
//!
//! Everything is little-endian. The checksums of records are seeded with that of the log's header,
//! so that a record of another log is not accepted.

use crate::request::Method;
use crate::server::Caller;

pub(super) const LOG_HEADER_BYTES: usize = 64;
pub(super) const RECORD_HEADER_BYTES: usize = 44;
const MAGIC: &[u8; 8] = b"FLEETLOG";
pub(super) const VERSION: u32 = 1;
/// An operator has accepted the loss of the records after the end of the previous log.
const ACCEPTS_LOSS: u32 = 1;
/// Method of a log's last record: another log follows.
pub(super) const CLOSE: u8 = 255;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LogHeader {
    pub life: u64,
    pub number: u64,
    /// Sequence number of the first record.
    pub first: u64,
    pub epoch: u64,
    /// Boot of the machine on which the log was written; 0 if the system does not report it.
    pub boot: u64,
    pub accepts_loss: bool,
}

impl LogHeader {
    /// Encodes a header; also returns the seed of its records' checksums.
    pub fn encode(&self) -> ([u8; LOG_HEADER_BYTES], u32) {
        let mut bytes = [0; LOG_HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        let flags = if self.accepts_loss { ACCEPTS_LOSS } else { 0 };
        bytes[12..16].copy_from_slice(&flags.to_le_bytes());
        let numbers = [self.life, self.number, self.first, self.epoch, self.boot];
        for (at, number) in numbers.into_iter().enumerate() {
            bytes[16 + at * 8..24 + at * 8].copy_from_slice(&number.to_le_bytes());
        }
        let sum = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&sum.to_le_bytes());
        (bytes, sum)
    }

    /// Decodes a header; also returns the seed of its records' checksums.
    pub fn decode(bytes: &[u8; LOG_HEADER_BYTES]) -> Result<(LogHeader, u32), HeaderFault> {
        if bytes[..8] != *MAGIC {
            return Err(HeaderFault::Damaged("the header does not begin with FLEETLOG"));
        }
        let sum = u32_at(bytes, 60);
        let (version, flags) = (u32_at(bytes, 8), u32_at(bytes, 12));
        if version != VERSION {
            // Another version may have another checksum. If the header is intact except for its
            // version, it is one of this version with a changed byte.
            let mut ours = *bytes;
            ours[8..12].copy_from_slice(&VERSION.to_le_bytes());
            if crc32fast::hash(&ours[..60]) != sum {
                return Err(HeaderFault::Version(version.to_string()));
            }
        }
        if crc32fast::hash(&bytes[..60]) != sum {
            return Err(HeaderFault::Damaged("the checksum of the header is wrong"));
        }
        if flags & !ACCEPTS_LOSS != 0 {
            return Err(HeaderFault::Version(format!("{version} with flags {flags:#x}")));
        }
        let [life, number, first, epoch, boot] = [16, 24, 32, 40, 48].map(|at| u64_at(bytes, at));
        let accepts_loss = flags & ACCEPTS_LOSS != 0;
        Ok((LogHeader { life, number, first, epoch, boot, accepts_loss }, sum))
    }
}

/// Why a header is not that of a readable log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum HeaderFault {
    Damaged(&'static str),
    Version(String),
}

/// The header of a record, which the request follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub len: u32,
    pub sequence: u64,
    /// Records below this number were on disk when this one was written.
    pub synced: u64,
    pub caller: Caller,
    pub method: u8,
    pub request_sum: u32,
}

impl RecordHeader {
    /// Returns the last record of a log, which announces another one. `sequence` is that of the
    /// next record; all before it are on disk.
    pub fn close(sequence: u64) -> RecordHeader {
        RecordHeader {
            len: 0,
            sequence,
            synced: sequence,
            caller: Caller { worker: 0, client: 0 },
            method: CLOSE,
            request_sum: crc32fast::hash(&[]),
        }
    }

    pub fn encode(&self, seed: u32) -> [u8; RECORD_HEADER_BYTES] {
        let mut bytes = [0; RECORD_HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.len.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.synced.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.caller.client.to_le_bytes());
        bytes[32..36].copy_from_slice(&(self.caller.worker as u32).to_le_bytes());
        bytes[36] = self.method;
        bytes[40..].copy_from_slice(&self.request_sum.to_le_bytes());
        let sum = header_sum(&bytes, seed);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Returns none if the bytes are not an intact record header of this log.
    pub fn decode(bytes: &[u8; RECORD_HEADER_BYTES], seed: u32) -> Option<RecordHeader> {
        if bytes[37..40] != [0; 3] || header_sum(bytes, seed) != u32_at(bytes, 4) {
            return None;
        }
        Some(RecordHeader {
            len: u32_at(bytes, 0),
            sequence: u64_at(bytes, 8),
            synced: u64_at(bytes, 16),
            caller: Caller { worker: u32_at(bytes, 32) as usize, client: u64_at(bytes, 24) },
            method: bytes[36],
            request_sum: u32_at(bytes, 40),
        })
    }
}

/// Returns whether a record may begin here, in a search for records with at least the sequence
/// number `next` and at most `len_max` bytes of request. Cheaper than a checksum.
pub(super) fn may_be_record(bytes: &[u8; RECORD_HEADER_BYTES], next: u64, len_max: u64) -> bool {
    let sequence = u64_at(bytes, 8);
    bytes[37..40] == [0; 3]
        && u64::from(u32_at(bytes, 0)) <= len_max
        && sequence >= next
        && u64_at(bytes, 16) <= sequence
        && (bytes[36] == CLOSE || Method::is_known(bytes[36]))
}

fn header_sum(bytes: &[u8; RECORD_HEADER_BYTES], seed: u32) -> u32 {
    let mut sum = crc32fast::Hasher::new_with_initial(seed);
    sum.update(&bytes[..4]);
    sum.update(&bytes[8..]);
    sum.finalize()
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_any_flipped_bit_is_found() {
        let log = LogHeader {
            life: u64::MAX - 1,
            number: 2,
            first: 3 << 40,
            epoch: 4 << 33,
            boot: 5,
            accepts_loss: true,
        };
        let (mut bytes, sum) = log.encode();
        let (read, seed) = LogHeader::decode(&bytes).unwrap();
        assert_eq!((read, seed), (log, sum));
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(LogHeader::decode(&bytes).is_err(), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        let record = RecordHeader {
            len: 7,
            sequence: 1 << 50,
            synced: 9,
            caller: Caller { worker: 3, client: u64::MAX },
            method: 5,
            request_sum: 11,
        };
        let mut bytes = record.encode(seed);
        assert_eq!(RecordHeader::decode(&bytes, seed), Some(record));
        assert_eq!(RecordHeader::decode(&bytes, seed ^ 1), None, "of another log");
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(RecordHeader::decode(&bytes, seed), None, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
