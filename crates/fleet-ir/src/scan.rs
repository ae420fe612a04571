//! Checks the counts of a protobuf-form program against the limits before decoding. Decoding turns
//! two bytes of an empty message into about 200 bytes of memory, so a small file could exhaust it.
//!
//! The scan follows the nesting in `proto/program.proto` and looks at nothing else. It stops
//! without an error at malformed bytes, because decoding fails at the same bytes and reports them.

use crate::limits::{BLOCKS_MAX, OPS_MAX, PARTS_MAX, SLOTS_MAX, check_count};
use fleet_base::Result;
use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// Counts over the whole program.
#[derive(Default)]
struct Counts {
    blocks: usize,
    ops: usize,
    parts: usize,
}

/// Returns an error if the bytes encode more blocks, ops or parts than a program may have.
pub(crate) fn check_counts(bytes: &[u8]) -> Result<()> {
    let mut counts = Counts::default();
    messages(bytes, &mut |tag, block| match tag {
        4 => {
            counts.blocks += 1;
            check_count("blocks", counts.blocks, BLOCKS_MAX)?;
            counts.block(block)
        }
        _ => Ok(()),
    })
}

impl Counts {
    fn block(&mut self, bytes: &[u8]) -> Result<()> {
        messages(bytes, &mut |tag, inner| match tag {
            2 => self.add_part(),
            3 => {
                self.ops += 1;
                check_count("ops", self.ops, OPS_MAX)?;
                self.op(inner)
            }
            _ => Ok(()),
        })
    }

    fn op(&mut self, bytes: &[u8]) -> Result<()> {
        let mut by_field = [0; 5];
        messages(bytes, &mut |tag, inner| {
            if !(2..=4).contains(&tag) {
                return Ok(());
            }
            let what =
                ["", "", "input slots of an op", "output slots of an op", "attributes of an op"];
            by_field[tag as usize] += 1;
            check_count(what[tag as usize], by_field[tag as usize], SLOTS_MAX)?;
            self.add_part()?;
            if tag == 4 { self.attr(inner) } else { Ok(()) }
        })
    }

    /// Counts the strings of a string-list attribute.
    fn attr(&mut self, bytes: &[u8]) -> Result<()> {
        messages(bytes, &mut |tag, list| match tag {
            8 => messages(list, &mut |_, _| self.add_part()),
            _ => Ok(()),
        })
    }

    fn add_part(&mut self) -> Result<()> {
        self.parts += 1;
        check_count("variables, slots, attributes and strings", self.parts, PARTS_MAX)
    }
}

/// Calls `take` with the number and content of each length-delimited field of a message.
fn messages(mut bytes: &[u8], take: &mut dyn FnMut(u32, &[u8]) -> Result<()>) -> Result<()> {
    while !bytes.is_empty() {
        let Ok((tag, wire)) = decode_key(&mut bytes) else { return Ok(()) };
        if wire != WireType::LengthDelimited {
            if skip_field(wire, tag, &mut bytes, DecodeContext::default()).is_err() {
                return Ok(());
            }
            continue;
        }
        let Ok(len) = decode_varint(&mut bytes) else { return Ok(()) };
        let Some((inner, rest)) = usize::try_from(len).ok().and_then(|n| bytes.split_at_checked(n))
        else {
            return Ok(());
        };
        bytes = rest;
        take(tag, inner)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encodes a length-delimited field with number `tag`.
    fn field(tag: u8, content: &[u8]) -> Vec<u8> {
        let mut bytes = vec![tag << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut bytes);
        bytes.extend_from_slice(content);
        bytes
    }

    fn check(content: &[u8], count: usize, nest: &[u8], expected: &str) {
        let mut bytes = content.repeat(count);
        for tag in nest.iter().rev() {
            bytes = field(*tag, &bytes);
        }
        match check_counts(&bytes) {
            Ok(()) => assert_eq!("", expected),
            Err(error) => assert_eq!(error.to_string(), expected),
        }
    }

    /// Each message takes two bytes. Decoded, all of them would take gigabytes.
    #[test]
    fn empty_messages_are_counted_before_they_are_decoded() {
        let (block, op, var) = (field(4, &[]), field(3, &[]), field(2, &[]));
        check(&block, BLOCKS_MAX, &[], "");
        check(&block, BLOCKS_MAX + 1, &[], "too many blocks: expected at most 65536, got 65537");
        check(&op, OPS_MAX, &[4], "");
        check(&op, OPS_MAX + 1, &[4], "too many ops: expected at most 1048576, got 1048577");
        let parts = "too many variables, slots, attributes and strings: expected at most 4194304, \
                     got 4194305";
        check(&var, PARTS_MAX, &[4], "");
        check(&var, PARTS_MAX + 1, &[4], parts);
        check(&field(1, &[]), PARTS_MAX, &[4, 3, 4, 8], parts);
        let slots = "too many input slots of an op: expected at most 64, got 65";
        check(&field(2, &[]), 64, &[4, 3], "");
        check(&field(2, &[]), 65, &[4, 3], slots);
        check(&field(3, &[]), 65, &[4, 3], &slots.replace("input", "output"));
        check(&field(4, &[]), 65, &[4, 3], &slots.replace("input slots", "attributes"));
    }

    #[test]
    fn broken_bytes_are_left_to_the_decoder() {
        for bytes in [&[0x22][..], &[0x22, 5, 1], &[0xff; 12], &[0x08], &[0x22, 2, 0x1a, 9]] {
            assert!(check_counts(bytes).is_ok());
        }
    }
}
