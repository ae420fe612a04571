//! Splits ids by server, and copies rows back to the positions of their ids.

use crate::UniqueIds;
use crate::message::copy_f32s;
use std::borrow::Cow;

/// The ids of a batch by server. Its memory is reused from call to call.
#[derive(Default)]
pub(crate) struct Split {
    /// Each server's ids, in the order of the batch.
    ids: Vec<Vec<u64>>,
    /// The positions of these ids in the batch; empty for a single server, which has them all.
    positions: Vec<Vec<u32>>,
}

impl Split {
    /// Splits a batch: an id is on server `id mod server_count`.
    pub fn set(&mut self, ids: UniqueIds<'_>, server_count: usize) {
        self.ids.iter_mut().for_each(Vec::clear);
        self.positions.iter_mut().for_each(Vec::clear);
        self.ids.resize_with(server_count, Vec::new);
        self.positions.resize_with(server_count, Vec::new);
        if server_count == 1 {
            self.ids[0].extend_from_slice(&ids);
            return;
        }
        for (position, id) in (0..).zip(ids.as_slice()) {
            let server = (id % server_count as u64) as usize;
            self.ids[server].push(*id);
            self.positions[server].push(position);
        }
    }

    /// Returns the servers that have any of the ids, with their ids.
    pub fn parts(&self) -> impl Iterator<Item = (usize, UniqueIds<'_>)> {
        let parts = self.ids.iter().enumerate().filter(|(_, ids)| !ids.is_empty());
        parts.map(|(server, ids)| (server, UniqueIds::assume(ids)))
    }

    /// Copies the rows that the servers of [`Split::parts`] answered to their ids' positions in the
    /// batch. With `to_row`, the batch has an id wherever that has the id's index.
    pub fn spread(
        &self,
        to_row: Option<&[u32]>,
        answers: &[Vec<u8>],
        width: usize,
        rows: &mut [f32],
    ) {
        if to_row.is_none() && self.ids.len() == 1 {
            answers.iter().for_each(|answer| copy_f32s(answer, rows));
            return;
        }
        // The row of each unique id, in the answers.
        let mut unique: Vec<&[u8]> = vec![&[]; self.ids.iter().map(Vec::len).sum()];
        for ((server, _), answer) in self.parts().zip(answers) {
            for (at, row) in answer.chunks_exact(width * 4).enumerate() {
                unique[self.position(server, at)] = row;
            }
        }
        let outs = rows.chunks_exact_mut(width);
        match to_row {
            None => outs.zip(&unique).for_each(|(out, row)| copy_f32s(row, out)),
            Some(all) => {
                outs.zip(all).for_each(|(out, row)| copy_f32s(unique[*row as usize], out));
            }
        }
    }

    /// Returns the part of `rows`, one for each id of the batch, for the `part`-th server of
    /// [`Split::parts`].
    pub fn part_of<'a, T: Copy>(&self, part: usize, rows: &'a [T], width: usize) -> Cow<'a, [T]> {
        let Some((server, ids)) = self.parts().nth(part) else { return Cow::Borrowed(&[]) };
        if self.ids.len() == 1 {
            return Cow::Borrowed(rows);
        }
        let mut part = Vec::with_capacity(ids.len() * width);
        for position in &self.positions[server] {
            part.extend_from_slice(&rows[*position as usize * width..][..width]);
        }
        Cow::Owned(part)
    }

    fn position(&self, server: usize, at: usize) -> usize {
        match self.ids.len() {
            1 => at,
            _ => self.positions[server][at] as usize,
        }
    }
}
