//! Reductions of little data: one step. Everybody writes all it has and folds what all have
//! written, in the order of the ranks. One round of flags is the whole latency.

use super::engine::Run;
use crate::call::{Cursor, Pieces, ReduceOp, fold_bytes};
use fleet_base::Result;
use fleet_tensor::DType;

impl Run<'_> {
    /// Into every rank's data, or into that of `root` alone. The data fits in a slot.
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
            // One round, except for a group of one rank, which has nobody to overlap with.
            let bytes = (data.bytes - start).min(slot_bytes);
            let step = self.take(1);
            let slot = self.free_slot(step)?;
            // SAFETY: the slot is free and longer.
            unsafe { data.read(&mut fill, start, bytes, slot) };
            self.publish(step);
            self.all_slots(step)?;
            if root.is_none_or(|root| root == self.engine.rank) {
                let slots = &mut self.engine.pointers;
                let mut walked = 0;
                data.each(&mut drain, start, bytes, |piece, offset, len| {
                    for slot in slots.iter_mut() {
                        // SAFETY: inside the slot.
                        *slot = unsafe { slot.add(offset - walked) };
                    }
                    walked = offset;
                    // SAFETY: slots are published and not consumed yet; pieces are the caller's.
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
