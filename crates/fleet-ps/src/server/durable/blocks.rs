//! The body of a snapshot: blocks, each with its length and checksum, and an empty block at the
//! end.
//!
//! A checksum covers the number of its block, so that no block can be taken for another one.

use super::damage::Damage;
use crate::io_error::io_error;
use fleet_base::disk::{Access, Disk, DiskFile, DiskReader, read_exact_at};
use fleet_base::file::AtomicFile;
use fleet_base::{Error, Result};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Length of every block but the last, in bytes.
const BLOCK_BYTES: usize = 1 << 20;
const HEADER_BYTES: usize = 8;

pub(super) struct BlockWriter {
    file: AtomicFile,
    block: Vec<u8>,
    number: u32,
    pub bytes: u64,
}

impl BlockWriter {
    pub fn new(file: AtomicFile) -> BlockWriter {
        BlockWriter { file, block: Vec::with_capacity(BLOCK_BYTES), number: 0, bytes: 0 }
    }

    fn end_block(&mut self) -> io::Result<()> {
        let mut header = [0; HEADER_BYTES];
        header[..4].copy_from_slice(&(self.block.len() as u32).to_le_bytes());
        header[4..].copy_from_slice(&sum(self.number, &self.block).to_le_bytes());
        self.file.write_all(&header)?;
        self.file.write_all(&self.block)?;
        self.bytes += (HEADER_BYTES + self.block.len()) as u64;
        self.number = self.number.wrapping_add(1);
        self.block.clear();
        Ok(())
    }

    /// Writes the last blocks and gives the file its final name; returns its size in bytes.
    pub fn commit(mut self, path: &Path) -> Result<u64> {
        let mut ended = Ok(());
        if !self.block.is_empty() {
            ended = self.end_block();
        }
        let ended = ended.and_then(|()| self.end_block());
        ended.map_err(io_error("write", path))?;
        self.file.commit()?;
        Ok(self.bytes)
    }
}

impl Write for BlockWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(BLOCK_BYTES - self.block.len());
        self.block.extend_from_slice(&bytes[..count]);
        if self.block.len() == BLOCK_BYTES {
            self.end_block()?;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

pub(super) struct BlockReader {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    reader: BufReader<DiskReader>,
    block: Vec<u8>,
    /// Checksum in the header of the block.
    expected: u32,
    at: usize,
    number: u32,
    /// Offset of the next block.
    offset: u64,
    total: u64,
    is_over: bool,
    /// The damage behind an error, if the file is damaged.
    pub damage: Option<Damage>,
}

impl BlockReader {
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<BlockReader> {
        let file: Arc<dyn DiskFile> =
            disk.open(path, Access::Read).map_err(io_error("read", path))?;
        let total = file.len().map_err(io_error("read", path))?;
        Ok(BlockReader {
            path: path.to_path_buf(),
            file: file.clone(),
            reader: BufReader::with_capacity(1 << 20, DiskReader::new(file)),
            block: Vec::new(),
            expected: 0,
            at: 0,
            number: 0,
            offset: 0,
            total,
            is_over: false,
            damage: None,
        })
    }

    /// Returns the first bytes of the first block, whatever its checksum; none if the file is
    /// shorter.
    pub fn peek<const N: usize>(&self) -> Result<Option<[u8; N]>> {
        let mut bytes = [0; N];
        if self.total < (HEADER_BYTES + N) as u64 {
            return Ok(None);
        }
        read_exact_at(&*self.file, HEADER_BYTES as u64, &mut bytes)
            .map_err(io_error("read", &self.path))?;
        Ok(Some(bytes))
    }

    /// Returns whether the first block, just read, would be intact if it began with these bytes.
    pub fn is_whole_with(&mut self, start: &[u8]) -> bool {
        if self.block.len() < start.len() {
            return false;
        }
        self.block[..start.len()].copy_from_slice(start);
        sum(0, &self.block) == self.expected
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn total(&self) -> u64 {
        self.total
    }

    /// Records damage at the current block and returns its error.
    pub fn damaged(&mut self, what: impl Into<String>) -> Error {
        let damage = Damage::new(&self.path, self.offset, what);
        self.damage.get_or_insert(damage.clone());
        damage.into()
    }

    fn next_block(&mut self) -> Result<()> {
        let left = self.total - self.offset;
        if self.is_over || left < HEADER_BYTES as u64 {
            return Err(self.damaged("unexpected end of file"));
        }
        let mut header = [0; HEADER_BYTES];
        self.reader.read_exact(&mut header).map_err(io_error("read", &self.path))?;
        let word =
            |at| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let len = word(0) as usize;
        self.expected = word(4);
        if len > BLOCK_BYTES {
            return Err(self.damaged(format!("a block of {len} bytes is too long")));
        }
        if left - (HEADER_BYTES as u64) < len as u64 {
            return Err(self.damaged("it ends in the middle of a block"));
        }
        self.block.resize(len, 0);
        self.reader.read_exact(&mut self.block).map_err(io_error("read", &self.path))?;
        if sum(self.number, &self.block) != self.expected {
            return Err(self.damaged(format!("the checksum of block {} is wrong", self.number)));
        }
        (self.at, self.is_over) = (0, len == 0);
        self.number = self.number.wrapping_add(1);
        self.offset += (HEADER_BYTES + len) as u64;
        Ok(())
    }

    pub fn fill(&mut self, mut bytes: &mut [u8]) -> Result<()> {
        while !bytes.is_empty() {
            if self.at == self.block.len() {
                self.next_block()?;
                continue;
            }
            let count = bytes.len().min(self.block.len() - self.at);
            bytes[..count].copy_from_slice(&self.block[self.at..][..count]);
            self.at += count;
            bytes = &mut bytes[count..];
        }
        Ok(())
    }

    /// Checks the blocks that were not read, and the end.
    pub fn check_rest(&mut self) -> Result<()> {
        while !self.is_over {
            self.next_block()?;
        }
        match self.offset == self.total {
            true => Ok(()),
            false => Err(self.damaged(format!("{} bytes after its end", self.total - self.offset))),
        }
    }

    /// Checks the end, after everything was read.
    pub fn end(&mut self) -> Result<()> {
        match self.at == self.block.len() {
            true => {
                self.check_rest_is_empty()?;
                self.check_rest()
            }
            false => Err(self.damaged("unexpected data after its tables")),
        }
    }

    fn check_rest_is_empty(&mut self) -> Result<()> {
        self.next_block()?;
        match self.is_over {
            true => Ok(()),
            false => Err(self.damaged("unexpected data after its tables")),
        }
    }
}

pub(super) fn sum(number: u32, block: &[u8]) -> u32 {
    let mut sum = crc32fast::Hasher::new();
    sum.update(&number.to_le_bytes());
    sum.update(&(block.len() as u32).to_le_bytes());
    sum.update(block);
    sum.finalize()
}
