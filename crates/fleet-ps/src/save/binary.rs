//! Rows as bytes: id (8), kind (1: 0 row, 1 pending id, 2 row with pushes since the last base or
//! delta), days (1), then the row's numbers (4 each, in the order of memory) or the count (4).
//! Little-endian.

use crate::Record;
use fleet_base::Result;
use std::io::{self, Write};

/// Length of a record before its numbers.
pub(crate) const HEAD_BYTES: usize = 10;
const ROW: u8 = 0;
const PENDING: u8 = 1;
const CHANGED_ROW: u8 = 2;

pub(crate) fn write(out: &mut impl Write, record: Record<'_>) -> io::Result<()> {
    match record {
        Record::Row { id, unseen_days, changed, values } => {
            out.write_all(&id.to_le_bytes())?;
            out.write_all(&[if changed { CHANGED_ROW } else { ROW }, unseen_days])?;
            values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
        }
        Record::Pending { id, count } => {
            out.write_all(&id.to_le_bytes())?;
            out.write_all(&[PENDING, 0])?;
            out.write_all(&count.to_le_bytes())
        }
    }
}

/// Reads the record with this head, whose numbers `fill` supplies; `values` has the length of a
/// row. Returns `None` if the kind is unknown.
pub(crate) fn read_record<E>(
    head: [u8; HEAD_BYTES],
    values: &mut [f32],
    mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
) -> Result<Option<Record<'_>>, E> {
    let [a, b, c, d, e, f, g, h, kind, unseen_days] = head;
    let id = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    match kind {
        ROW | CHANGED_ROW => {
            fill(bytemuck::cast_slice_mut(values))?;
            // Changes nothing on a little-endian machine.
            values
                .iter_mut()
                .for_each(|value| *value = f32::from_bits(u32::from_le(value.to_bits())));
            Ok(Some(Record::Row { id, unseen_days, changed: kind == CHANGED_ROW, values }))
        }
        PENDING => {
            let mut count = [0; 4];
            fill(&mut count)?;
            Ok(Some(Record::Pending { id, count: u32::from_le_bytes(count) }))
        }
        _ => Ok(None),
    }
}

/// Visits the records of a part; `None` if the bytes are malformed.
pub(super) fn read(
    mut bytes: &[u8],
    stride: usize,
    visit: &mut dyn FnMut(Record<'_>) -> Result<()>,
) -> Option<Result<()>> {
    let mut values = vec![0.0f32; stride];
    while let Some((head, rest)) = bytes.split_first_chunk() {
        bytes = rest;
        let fill = |out: &mut [u8]| -> Result<(), ()> {
            let (own, rest) = bytes.split_at_checked(out.len()).ok_or(())?;
            out.copy_from_slice(own);
            bytes = rest;
            Ok(())
        };
        let record = read_record(*head, &mut values, fill).ok()??;
        if let Err(error) = visit(record) {
            return Some(Err(error));
        }
    }
    bytes.is_empty().then_some(Ok(()))
}
