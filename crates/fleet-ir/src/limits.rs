//! What a program read from outside may be at most, and how its blocks hang together. Both readers
//! and the verifier hold to it.

use crate::{BlockId, Program};
use fleet_base::{Error, Result};
use std::collections::HashSet;

/// Bytes of a program's text or protobuf form. A ResNet-50 training program has about 0.3 MB; this
/// leaves room for a thousand times that, and keeps every count below `u32`.
pub(crate) const PROGRAM_BYTES_MAX: usize = 256 << 20;

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

/// Which blocks belong to an op already: a block belongs to one, which stands in the block around it.
/// That makes the blocks a tree, so that no walk over them runs in a circle.
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
