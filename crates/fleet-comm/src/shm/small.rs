//! Reductions of small data in one step. Every rank writes all its data, and folds the data of all
//! ranks in rank order. The latency is one round of flags.

use super::engine::Run;
use crate::call::{Cursor, Fold, Pieces, fold_bytes};
use fleet_base::{ReduceOp, Result};
use fleet_tensor::DType;

impl Run<'_> {
    /// Reduces into every rank's data, or only into that of `root`. The data fits in a slot.
    pub(super) fn small_reduce(
        &mut self,
        data: Pieces<'_>,
        dtype: DType,
        op: ReduceOp,
        root: Option<usize>,
    ) -> Result<()> {
        let slot_bytes = self.engine.segment.layout.slot_bytes;
        let fold = op.fold(self.engine.size);
        let (mut fill, mut drain) = (Cursor::default(), Cursor::default());
        let mut start = 0;
        loop {
            // The loop runs once, except in a group of one rank, whose data may exceed a slot.
            let bytes = (data.bytes - start).min(slot_bytes);
            let step = self.take(1);
            let slot = self.free_slot(step)?;
            // SAFETY: the slot is free and at least this long.
            unsafe { data.read(&mut fill, start, bytes, slot) };
            self.publish(step);
            self.all_slots(step)?;
            if root.is_none_or(|root| root == self.engine.rank) {
                let slots = &mut self.engine.pointers;
                let mut walked = 0;
                data.visit(&mut drain, start, bytes, |piece, offset, len| {
                    for slot in slots.iter_mut() {
                        // SAFETY: inside the slot.
                        *slot = unsafe { slot.add(offset - walked) };
                    }
                    walked = offset;
                    // SAFETY: the slots are published and not consumed; pieces are the caller's.
                    unsafe { fold_bytes(dtype, fold, slots, piece, None, len) };
                });
            }
            self.consume(step);
            start += bytes;
            if start >= data.bytes {
                return Ok(());
            }
        }
    }

    pub(super) fn barrier(&mut self) -> Result<()> {
        let step = self.take(1);
        self.free_slot(step)?;
        self.publish(step);
        self.all_slots(step)?;
        self.consume(step);
        Ok(())
    }
}
