//! What a program read from outside may be at most, and how its blocks hang together. Both readers
//! and the verifier hold to it.

use crate::{BlockId, Program};
use fleet_base::{Error, Result, text};
use std::collections::HashSet;

/// Bytes of a program's text or protobuf form. A ResNet-50 training program has about 0.3 MB; this
/// is two hundred times that, and keeps every count below `u32`.
pub const PROGRAM_BYTES_MAX: usize = 64 << 20;

/// Ops of a program, in all its blocks. The largest models that we know have some 100,000; an op
/// takes some 300 bytes of memory, and two bytes of a protobuf form can state one.
pub(crate) const OPS_MAX: usize = 1 << 20;

/// Blocks of a program: a conditional block for each of many parameters.
pub(crate) const BLOCKS_MAX: usize = 1 << 16;

/// Variables, slots, attributes and texts in lists of a program's protobuf form, all together. Each
/// takes up to 200 bytes of memory, and two bytes of the form can state one.
pub(crate) const PARTS_MAX: usize = 1 << 22;

/// Slots that one op may name on one side, and attributes. No op has more than 20; readers compare
/// each name with those before it.
pub(crate) const SLOTS_MAX: usize = 64;

/// Bytes that a name may have: far more than a generated one needs, few enough that a hostile file
/// cannot make the search for the nearest name slow.
pub(crate) const NAME_BYTES_MAX: usize = 1024;

/// Blocks around a block. Walks over blocks are recursive.
pub(crate) const BLOCK_DEPTH_MAX: usize = 32;

/// Blocks between a block and the root, at most [`BLOCK_DEPTH_MAX`] are counted.
pub(crate) fn depth(program: &Program, block: BlockId) -> usize {
    let parents = std::iter::successors(Some(block), |block| {
        program.block(*block).parent.filter(|parent| program.has_block(*parent))
    });
    parents.take(BLOCK_DEPTH_MAX + 2).count() - 1
}

/// Which blocks belong to an op already: a block belongs to one, which stands in the block around
/// it. That makes the blocks a tree, so that no walk over them runs in a circle.
#[derive(Default)]
pub(crate) struct BlockOwners(HashSet<BlockId>);

impl BlockOwners {
    /// An op of `around` has `inner` as its sub-block.
    pub fn claim(&mut self, program: &Program, around: BlockId, inner: BlockId) -> Result<()> {
        if !program.has_block(inner) {
            return Err(Error::invalid(format!("the program has no {inner}"))
                .expected(format!("one of {} blocks", program.block_count())));
        }
        match program.block(inner).parent {
            Some(parent) if parent == around => {}
            parent => {
                let parent = parent.map_or("nothing".to_string(), |parent| parent.to_string());
                return Err(Error::invalid(format!("{inner} cannot belong to an op of {around}"))
                    .expected(format!("a block in {around}"))
                    .got(format!("one in {parent}")));
            }
        }
        if !self.0.insert(inner) {
            return Err(Error::invalid(format!("{inner} belongs to two ops"))
                .help("give each op a block of its own"));
        }
        Ok(())
    }
}

/// Refuses more of something than a program may have.
pub(crate) fn check_count(what: &str, count: usize, limit: usize) -> Result<()> {
    if count <= limit {
        return Ok(());
    }
    Err(Error::invalid(format!("too many {what}")).expected(format!("at most {limit}")).got(count))
}

/// Refuses a program of too many bytes.
pub(crate) fn check_bytes(bytes: usize) -> Result<()> {
    if bytes <= PROGRAM_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid("the program is too large")
        .expected(format!("at most {}", text::bytes(PROGRAM_BYTES_MAX as u64)))
        .got(text::bytes_over(bytes as u64, PROGRAM_BYTES_MAX as u64)))
}
