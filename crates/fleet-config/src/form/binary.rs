//! Protobuf's binary form, read and written by prost. Before prost reads, the bytes are checked
//! against the schema, because prost silently skips unknown fields, and settings would be lost.

use super::document::join;
use crate::reflect::{Field, Kind, Shape};
use crate::schema::DistributedStrategy;
use fleet_base::{Error, Result};
use prost::Message;

pub fn write(strategy: &DistributedStrategy) -> Vec<u8> {
    strategy.encode_to_vec()
}

/// Merges `bytes` into `strategy`, which stays unchanged if they are broken.
pub fn merge(strategy: &mut DistributedStrategy, bytes: &[u8]) -> Result<()> {
    Walk { bytes, at: 0 }.message(DistributedStrategy::describe(), bytes.len(), "")?;
    let mut merged = strategy.clone();
    merged.merge(bytes).map_err(|error| Error::invalid(format!("invalid binary form: {error}")))?;
    *strategy = merged;
    Ok(())
}

struct Walk<'b> {
    bytes: &'b [u8],
    at: usize,
}

const VARINT: u64 = 0;
const FIXED64: u64 = 1;
const DELIMITED: u64 = 2;
const FIXED32: u64 = 5;

impl Walk<'_> {
    /// Checks a message. The recursion ends, because shapes are a tree with few levels.
    fn message(&mut self, shape: &'static Shape, end: usize, path: &str) -> Result<()> {
        while self.at < end {
            let start = self.at;
            let key = self.varint(end)?;
            let (number, wire) = (key >> 3, key & 7);
            let field = u32::try_from(number).ok().and_then(|number| shape.numbered(number));
            let Some(field) = field else {
                let message = format!("{} has no field with the number {number}", shape.name);
                return Err(Error::invalid(message)
                    .at(format!("byte {start} of the binary form"))
                    .help(
                        "check that the file is a strategy, and not from a newer version of Fleet",
                    ));
            };
            self.field(field, wire, end, &join(path, field.name))?;
        }
        Ok(())
    }

    fn field(&mut self, field: &Field, wire: u64, end: usize, path: &str) -> Result<()> {
        let own = match field.kind {
            Kind::Float => FIXED32,
            Kind::Double => FIXED64,
            Kind::Text | Kind::Message(_) => DELIMITED,
            _ => VARINT,
        };
        let packed = wire == DELIMITED && own != DELIMITED && field.repeated;
        if wire != own && !packed {
            return Err(Error::invalid(format!("wrong type of {path}"))
                .expected(field.kind.name())
                .got(format!("wire type {wire}"))
                .at(format!("byte {} of the binary form", self.at)));
        }
        match wire {
            DELIMITED => {
                let start = self.at;
                let length = self.varint(end)?;
                let length = usize::try_from(length).ok().filter(|len| *len <= end - self.at);
                let Some(length) = length else { return Err(self.cut(start)) };
                if let Kind::Message(shape) = field.kind {
                    return self.message(shape(), self.at + length, path);
                }
                self.at += length;
            }
            FIXED32 | FIXED64 => {
                let length = if wire == FIXED32 { 4 } else { 8 };
                if end - self.at < length {
                    return Err(self.cut(self.at));
                }
                self.at += length;
            }
            _ => {
                let value = self.varint(end)?;
                if let Kind::Enum(shape) = field.kind
                    && i32::try_from(value).ok().and_then(|value| shape.name_of(value)).is_none()
                {
                    return Err(Error::invalid(format!("unknown value of {path}"))
                        .expected(format!("a value of the enum {}", shape.name))
                        .got(value));
                }
            }
        }
        Ok(())
    }

    fn varint(&mut self, end: usize) -> Result<u64> {
        let start = self.at;
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            if self.at >= end {
                return Err(self.cut(start));
            }
            let byte = self.bytes[self.at];
            self.at += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Error::invalid("invalid binary form: a number is too long")
            .at(format!("byte {start} of the binary form")))
    }

    fn cut(&self, at: usize) -> Error {
        Error::invalid("the binary form is truncated").at(format!("byte {at} of the binary form"))
    }
}
