//! Rows as bytes: id (8), kind (1: 0 row, 1 pending id, 2 row with pushes since the last base or
//! delta), days (1), then the row's numbers (4 each, in the order of memory) or the count (4).
//! Little-endian.

use crate::Record;
use fleet_base::Result;
use std::io::{self, Write};

pub(crate) fn write(out: &mut impl Write, record: Record<'_>) -> io::Result<()> {
    match record {
        Record::Row { id, unseen_days, changed, values } => {
            out.write_all(&id.to_le_bytes())?;
            out.write_all(&[if changed { 2 } else { 0 }, unseen_days])?;
            values.iter().try_for_each(|value| out.write_all(&value.to_le_bytes()))
        }
        Record::Pending { id, count } => {
            out.write_all(&id.to_le_bytes())?;
            out.write_all(&[1, 0])?;
            out.write_all(&count.to_le_bytes())
        }
    }
}

/// Visits the records of a part; `None` if the bytes are malformed.
pub(super) fn read(
    mut bytes: &[u8],
    stride: usize,
    visit: &mut dyn FnMut(Record<'_>) -> Result<()>,
) -> Option<Result<()>> {
    let mut values = vec![0.0f32; stride];
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(10)?;
        let id = u64::from_le_bytes(head[..8].try_into().ok()?);
        let (record, rest) = match head[8] {
            kind @ (0 | 2) => {
                let (row, rest) = rest.split_at_checked(stride * 4)?;
                for (value, bytes) in values.iter_mut().zip(row.chunks_exact(4)) {
                    *value = f32::from_le_bytes(bytes.try_into().ok()?);
                }
                let (unseen_days, changed) = (head[9], kind == 2);
                (Record::Row { id, unseen_days, changed, values: &values }, rest)
            }
            1 => {
                let (count, rest) = rest.split_at_checked(4)?;
                let count = u32::from_le_bytes(count.try_into().ok()?);
                (Record::Pending { id, count }, rest)
            }
            _ => return None,
        };
        if let Err(error) = visit(record) {
            return Some(Err(error));
        }
        bytes = rest;
    }
    Some(Ok(()))
}
