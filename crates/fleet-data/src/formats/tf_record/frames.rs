//! The frames of TFRecord files: length (8 bytes, little endian), checksum of the length, data,
//! checksum of the data. Both checksums are CRC-32C, masked by a rotation and an addition, so that
//! data which itself contains CRCs is still well protected.

use fleet_base::{Error, Result, text};
use std::io::Read;

/// Reads the frames of a file one after the other.
pub(crate) struct Frames<R> {
    from: R,
    name: String,
    /// Number of the record being read, from 1.
    record: u64,
    bytes: Vec<u8>,
}

impl<R: Read> Frames<R> {
    /// Returns the frames of a file, which errors call `name`.
    pub fn new(from: R, name: &str) -> Frames<R> {
        Frames { from, name: name.to_string(), record: 0, bytes: Vec::new() }
    }

    /// Returns the data of the current frame.
    pub fn data(&self) -> &[u8] {
        &self.bytes
    }

    /// Adds the place of the current frame to an error.
    pub fn at(&self, error: Error) -> Error {
        error.at(format!("{}, record {}", self.name, self.record))
    }

    /// Reads the next frame; returns false at the end. After an error in the inner result, the next
    /// frame is still readable.
    pub fn next_frame(&mut self) -> Result<Result<bool>> {
        self.record += 1;
        self.take(LENGTH_BYTES + CHECK_BYTES)?;
        if self.bytes.is_empty() {
            return Ok(Ok(false));
        }
        let damaged = || Error::invalid("file ends within a TFRecord");
        let (length, check) = self.bytes.split_first_chunk::<LENGTH_BYTES>().ok_or_else(damaged)?;
        let check = <[u8; CHECK_BYTES]>::try_from(check).map_err(|_| damaged())?;
        if masked_crc(length) != u32::from_le_bytes(check) {
            return Err(Error::invalid("wrong checksum of the length of a TFRecord")
                .help("check whether the file is damaged, or not a TFRecord file"));
        }
        let length = u64::from_le_bytes(*length);
        if length > RECORD_BYTES_MAX {
            return Err(Error::exhausted("TFRecord is too large")
                .expected(format!("at most {}", text::bytes(RECORD_BYTES_MAX)))
                .got(text::bytes(length)));
        }
        self.take(length as usize + CHECK_BYTES)?;
        if self.bytes.len() < length as usize + CHECK_BYTES {
            return Err(damaged());
        }
        let (data, check) = self.bytes.split_last_chunk::<CHECK_BYTES>().ok_or_else(damaged)?;
        let good = masked_crc(data) == u32::from_le_bytes(*check);
        self.bytes.truncate(length as usize);
        Ok(if good { Ok(true) } else { Err(Error::invalid("wrong checksum of a TFRecord")) })
    }

    /// Reads up to `count` bytes. Memory grows with the bytes received, not with the length
    /// claimed.
    fn take(&mut self, count: usize) -> Result<()> {
        self.bytes.clear();
        let mut part = self.from.by_ref().take(count as u64);
        part.read_to_end(&mut self.bytes)
            .map_err(|error| Error::unavailable(format!("cannot read {}: {error}", self.name)))?;
        Ok(())
    }
}

pub(super) fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(MASK)
}

const LENGTH_BYTES: usize = 8;
const CHECK_BYTES: usize = 4;
/// Constant that masking adds to a rotated checksum.
const MASK: u32 = 0xa282_ead8;
/// Large enough for images of a few megapixels, or a hundred million ids.
const RECORD_BYTES_MAX: u64 = 256 << 20;
