//! A Parquet file in an object store. Its footer, which describes the layout of the file, is
//! downloaded when the file is opened. The needed columns of each row group are downloaded before
//! they are read.

use super::errors::damaged;
use crate::object_stores::{ObjectParts, ObjectStores};
use ::parquet::errors::ParquetError;
use ::parquet::file::reader::{ChunkReader, Length};
use bytes::buf::Reader;
use bytes::{Buf, Bytes};
use fleet_base::Result;
use fleet_base::sync::lock;
use std::sync::{Arc, Mutex};

#[derive(Clone)]
pub struct Object(Arc<Buffers>);

struct Buffers {
    parts: ObjectParts,
    /// Parts that are in memory: start offset and bytes.
    held: Mutex<Vec<(u64, Bytes)>>,
}

impl Object {
    pub fn open(stores: &ObjectStores, url: &str) -> Result<Object> {
        let parts = stores.parts(url)?;
        let tail = parts.size().min(TAIL_BYTES);
        let start = parts.size() - tail;
        let object = Object(Arc::new(Buffers { parts, held: Mutex::default() }));
        object.download([(start, tail)]).map_err(|error| error.at(url))?;
        Ok(object)
    }

    /// Downloads these parts (start and length) and drops all others.
    pub fn download(&self, parts: impl IntoIterator<Item = (u64, u64)>) -> Result<()> {
        let size = self.0.parts.size();
        let mut ranges = Vec::new();
        for (start, length) in parts {
            let end = start.checked_add(length).filter(|end| *end <= size).ok_or_else(damaged)?;
            if length > 0 {
                ranges.push(start..end);
            }
        }
        let starts: Vec<u64> = ranges.iter().map(|range| range.start).collect();
        let got = if ranges.is_empty() { Vec::new() } else { self.0.parts.get(ranges)? };
        let mut held = lock(&self.0.held);
        *held = starts.into_iter().zip(got).collect();
        Ok(())
    }

    /// Returns the bytes in memory that start at this offset.
    fn buffered_from(&self, start: u64) -> Option<Bytes> {
        let held = lock(&self.0.held);
        held.iter().find_map(|(from, bytes)| {
            let skipped = usize::try_from(start.checked_sub(*from)?).ok()?;
            (skipped < bytes.len()).then(|| bytes.slice(skipped..))
        })
    }
}

impl Length for Object {
    fn len(&self) -> u64 {
        self.0.parts.size()
    }
}

impl ChunkReader for Object {
    type T = Reader<Bytes>;

    fn get_read(&self, start: u64) -> Result<Reader<Bytes>, ParquetError> {
        let held = self
            .buffered_from(start)
            .map_or_else(|| self.get_bytes(start, self.len().saturating_sub(start) as usize), Ok)?;
        Ok(held.reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        if length == 0 {
            return Ok(Bytes::new());
        }
        if let Some(held) = self.buffered_from(start)
            && held.len() >= length
        {
            return Ok(held.slice(..length));
        }
        let ours = |error| ParquetError::External(Box::new(error));
        let end = start.checked_add(length as u64).filter(|end| *end <= self.len());
        let end = end.ok_or_else(|| ours(damaged()))?;
        let mut got = self.0.parts.get(std::iter::once(start..end)).map_err(ours)?;
        got.pop().ok_or_else(|| ours(damaged()))
    }
}

/// Large enough for the footers of most files, so that one request suffices.
const TAIL_BYTES: u64 = 64 << 10;
