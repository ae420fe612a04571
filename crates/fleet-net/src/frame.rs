//! Frames: a header of 24 bytes with a length, then a payload of that length.
//!
//! ```text
//! 0  u32 length of the payload     8  u64 id (of a request)
//! 4  u8  kind                      16 u32 CRC-32 of header and payload, 0 without
//! 5  u8  flags (1: with a CRC)     20 u32 reserved, 0
//! 6  u16 reserved, 0
//! ```
//!
//! The length is checked against a limit before memory is allocated, and memory grows with the
//! bytes received, not with the announced length.

use crate::stream::Stream;
use fleet_base::{Error, Result};
use std::io::{ErrorKind as Io, Read};

pub(crate) const FRAME_HEADER_BYTES: usize = 24;
const FLAG_CRC: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) length: u32,
    pub(crate) kind: u8,
    pub(crate) id: u64,
    pub(crate) crc: Option<u32>,
}

impl FrameHeader {
    /// Builds the header of a payload that consists of `parts`.
    pub(crate) fn of(kind: u8, id: u64, parts: &[&[u8]], checksum: bool) -> FrameHeader {
        let length = parts.iter().map(|part| part.len()).sum::<usize>() as u32;
        let mut header = FrameHeader { length, kind, id, crc: None };
        if checksum {
            header.crc = Some(header.checksum(parts));
        }
        header
    }

    pub(crate) fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4] = self.kind;
        bytes[5] = if self.crc.is_some() { FLAG_CRC } else { 0 };
        bytes[8..16].copy_from_slice(&self.id.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.crc.unwrap_or(0).to_le_bytes());
        bytes
    }

    /// Rejects malformed headers and payloads longer than `bytes_max`.
    pub(crate) fn decode(
        bytes: &[u8; FRAME_HEADER_BYTES],
        bytes_max: usize,
    ) -> Result<FrameHeader> {
        let word = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let (length, flags) = (word(0), bytes[5]);
        let is_changed = flags & FLAG_CRC == 0 && word(16) != 0;
        if is_changed || flags & !FLAG_CRC != 0 || bytes[6] != 0 || bytes[7] != 0 || word(20) != 0 {
            return Err(Error::unavailable("invalid frame header from peer"));
        }
        if length as usize > bytes_max {
            return Err(Error::exhausted("frame from peer is too long")
                .expected(format!("up to {bytes_max} bytes"))
                .got(length));
        }
        let id = u64::from(word(8)) | u64::from(word(12)) << 32;
        let crc = (flags & FLAG_CRC != 0).then(|| word(16));
        Ok(FrameHeader { length, kind: bytes[4], id, crc })
    }

    fn checksum(&self, parts: &[&[u8]]) -> u32 {
        let mut crc = crc32fast::Hasher::new();
        crc.update(&self.length.to_le_bytes());
        crc.update(&[self.kind]);
        crc.update(&self.id.to_le_bytes());
        parts.iter().for_each(|part| crc.update(part));
        crc.finalize()
    }

    /// Checks the payload against the CRC, if the sender included one.
    pub(crate) fn check(&self, payload: &[u8]) -> Result<()> {
        match self.crc {
            Some(crc) if crc != self.checksum(&[payload]) => {
                Err(Error::unavailable("frame is corrupt: checksum mismatch")
                    .help("memory, a network card or a switch may be faulty"))
            }
            _ => Ok(()),
        }
    }
}

/// Reads frames from a non-blocking stream, in pieces of any size.
pub(crate) struct FrameReader {
    bytes_max: usize,
    start: [u8; FRAME_HEADER_BYTES],
    start_bytes: usize,
    header: Option<FrameHeader>,
    payload: Vec<u8>,
    payload_bytes: usize,
    /// Whether the frame has been returned.
    complete: bool,
}

/// Bytes allocated at first for a long payload.
const PAYLOAD_STEP: usize = 256 << 10;

impl FrameReader {
    pub(crate) fn new(bytes_max: usize) -> FrameReader {
        FrameReader {
            bytes_max,
            start: [0; FRAME_HEADER_BYTES],
            start_bytes: 0,
            header: None,
            payload: Vec::new(),
            payload_bytes: 0,
            complete: false,
        }
    }

    /// Returns the next frame and its payload; see [`FrameReader::next`].
    pub(crate) fn read(&mut self, stream: &Stream) -> Result<Option<(FrameHeader, Vec<u8>)>> {
        let Some(header) = self.next(stream)? else { return Ok(None) };
        let mut payload = std::mem::take(&mut self.payload);
        payload.truncate(header.length as usize);
        Ok(Some((header, payload)))
    }

    /// Provides memory for the next payloads, unless there already is some. Long payloads then need
    /// no new allocation.
    pub(crate) fn reuse(&mut self, memory: Vec<u8>) {
        if self.payload.is_empty() {
            self.payload = memory;
        }
    }

    /// Returns the next frame, or `None` if its rest has not arrived yet. The payload stays here
    /// until the next call, which reuses its memory. The end of the stream is an error.
    pub(crate) fn next(&mut self, mut stream: &Stream) -> Result<Option<FrameHeader>> {
        if self.complete {
            (self.complete, self.header) = (false, None);
            (self.start_bytes, self.payload_bytes) = (0, 0);
        }
        loop {
            let into = match &self.header {
                None => &mut self.start[self.start_bytes..],
                Some(header) => {
                    let length = header.length as usize;
                    if self.payload_bytes == length {
                        break;
                    }
                    if self.payload_bytes == self.payload.len() {
                        let more = self.payload.len().max(PAYLOAD_STEP);
                        self.payload.resize(length.min(self.payload.len() + more), 0);
                    }
                    let end = length.min(self.payload.len());
                    &mut self.payload[self.payload_bytes..end]
                }
            };
            let count = match stream.read(into) {
                Ok(0) => return Err(crate::socket::closed()),
                Ok(count) => count,
                Err(error) if error.kind() == Io::WouldBlock => return Ok(None),
                Err(error) if error.kind() == Io::Interrupted => continue,
                Err(error) => return Err(crate::socket::lost(&error)),
            };
            if self.header.is_some() {
                self.payload_bytes += count;
            } else {
                self.start_bytes += count;
                if self.start_bytes == FRAME_HEADER_BYTES {
                    self.header = Some(FrameHeader::decode(&self.start, self.bytes_max)?);
                }
            }
        }
        let Some(header) = self.header else { return Ok(None) };
        header.check(&self.payload[..self.payload_bytes])?;
        self.complete = true;
        Ok(Some(header))
    }

    /// The payload of the last frame that [`FrameReader::next`] returned.
    pub(crate) fn payload(&self) -> &[u8] {
        &self.payload[..self.payload_bytes]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn headers() {
        let header = FrameHeader::of(7, u64::MAX - 1, &[b"ab", b"c"], true);
        assert_eq!(FrameHeader::decode(&header.encode(), 3).unwrap(), header);
        header.check(b"abc").unwrap();
        assert!(header.check(b"abd").is_err());
        assert!(FrameHeader { id: 3, ..header }.check(b"abc").is_err());
        assert!(FrameHeader::decode(&header.encode(), 2).is_err());
        let mut bytes = header.encode();
        bytes[6] = 1;
        assert!(FrameHeader::decode(&bytes, 3).is_err());
    }

    #[test]
    fn no_changed_bit_passes() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let header = FrameHeader::of(7, 1 << 40, &[b"rows"], true).encode();
        let sent: Vec<u8> = header.iter().chain(b"rows").copied().collect();
        for bit in 0..sent.len() * 8 {
            let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (receiver, _) = listener.accept().unwrap();
            let mut changed = sent.clone();
            changed[bit / 8] ^= 1 << (bit % 8);
            sender.write_all(&changed).unwrap();
            drop(sender);
            // The socket blocks, so a frame that announces more bytes than were sent ends with the
            // connection.
            let read = FrameReader::new(1 << 20).read(&Stream::plain(receiver));
            assert!(read.is_err(), "bit {bit}: {read:?}");
        }
    }

    #[test]
    fn frames_come_in_pieces() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (receiver, _) = listener.accept().unwrap();
        receiver.set_nonblocking(true).unwrap();
        let receiver = Stream::plain(receiver);
        let payload: Vec<u8> = (0..PAYLOAD_STEP * 3 + 5).map(|at| at as u8).collect();
        let mut bytes = Vec::new();
        for part in [&payload[..], b"", b"x"] {
            bytes.extend(FrameHeader::of(1, part.len() as u64, &[part], true).encode());
            bytes.extend(part);
        }
        let writer = std::thread::spawn(move || {
            for piece in bytes.chunks(100_003) {
                sender.write_all(piece).unwrap();
            }
            sender
        });
        let mut reader = FrameReader::new(payload.len());
        let mut lengths = Vec::new();
        while lengths.len() < 3 {
            match reader.read(&receiver).unwrap() {
                Some((header, got)) => {
                    assert_eq!(header.id as usize, got.len());
                    assert!(payload.starts_with(&got) || got == b"x");
                    lengths.push(got.len());
                }
                None => {
                    let limits = crate::Limits::within(std::time::Duration::from_secs(60));
                    let flags = rustix::event::PollFlags::IN;
                    crate::socket::wait(&receiver, flags, &limits).unwrap();
                }
            }
        }
        assert_eq!(lengths, [payload.len(), 0, 1]);
        drop(writer.join().unwrap());
        assert!(reader.read(&receiver).is_err());
    }
}
