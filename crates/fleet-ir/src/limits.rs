//! Limits on programs read from files and peers, and the rule that blocks form a tree. Both readers
//! and the verifier enforce them.

use crate::{BlockId, Program};
use fleet_base::{Error, Result, text};
use std::collections::HashSet;

/// Size limit of a program's text or protobuf form, in bytes. A ResNet-50 training program takes
/// about 0.3 MB. The limit is 200 times that, and keeps every count below `u32::MAX`.
pub const PROGRAM_BYTES_MAX: usize = 64 << 20;

/// Limit on the number of ops in all blocks of a program. The largest known models have about
/// 100,000. An op takes about 300 bytes of memory, but two bytes of the protobuf form can encode
/// one.
pub(crate) const OPS_MAX: usize = 1 << 20;

/// Limit on the number of blocks of a program: enough for a conditional block for each of many
/// parameters.
pub(crate) const BLOCKS_MAX: usize = 1 << 16;

/// Limit on the total number of variables, slots, attributes and list strings in a program's
/// protobuf form. Each takes up to 200 bytes of memory, but two bytes of the form can encode one.
pub(crate) const PARTS_MAX: usize = 1 << 22;

/// Limit on the input slots, the output slots and the attributes of one op, each. No op has more
/// than 20. Readers compare each name with all earlier ones, which takes quadratic time.
pub(crate) const SLOTS_MAX: usize = 64;

/// Limit on the nesting depth of blocks. Walks over blocks are recursive.
pub(crate) const BLOCK_DEPTH_MAX: usize = 32;

/// Returns the number of blocks around `block`. The count stops at [`BLOCK_DEPTH_MAX`] + 1, so that
/// a cycle of parents ends too.
pub(crate) fn depth(program: &Program, block: BlockId) -> usize {
    let parents = std::iter::successors(Some(block), |block| {
        program.block(*block).parent.filter(|parent| program.has_block(*parent))
    });
    parents.take(BLOCK_DEPTH_MAX + 2).count() - 1
}

/// The blocks that already belong to an op. Each block belongs to at most one op, and that op is in
/// the block's parent. This makes the blocks a tree, so that no walk over them cycles.
#[derive(Default)]
pub(crate) struct BlockOwners(HashSet<BlockId>);

impl BlockOwners {
    /// Records that an op of `around` has `inner` as its sub-block.
    pub fn claim(&mut self, program: &Program, around: BlockId, inner: BlockId) -> Result<()> {
        if !program.has_block(inner) {
            return Err(Error::invalid(format!("the program has no {inner}"))
                .expected(format!("one of {} blocks", program.block_count())));
        }
        match program.block(inner).parent {
            Some(parent) if parent == around => {}
            parent => {
                let found =
                    parent.map_or("no parent".to_string(), |parent| format!("parent {parent}"));
                return Err(Error::invalid(format!("{inner} is not a child of {around}"))
                    .expected(format!("parent {around}"))
                    .got(found));
            }
        }
        if !self.0.insert(inner) {
            return Err(Error::invalid(format!("{inner} belongs to two ops"))
                .help("give each op its own block"));
        }
        Ok(())
    }
}

/// Returns an error if a program has more of an item than `limit`.
pub(crate) fn check_count(what: &str, count: usize, limit: usize) -> Result<()> {
    if count <= limit {
        return Ok(());
    }
    Err(Error::invalid(format!("too many {what}")).expected(format!("at most {limit}")).got(count))
}

/// Returns an error if a program's text or protobuf form is too large.
pub(crate) fn check_bytes(bytes: usize) -> Result<()> {
    if bytes <= PROGRAM_BYTES_MAX {
        return Ok(());
    }
    Err(Error::invalid("the program is too large")
        .expected(format!("at most {}", text::bytes(PROGRAM_BYTES_MAX as u64)))
        .got(text::bytes_over(bytes as u64, PROGRAM_BYTES_MAX as u64)))
}
