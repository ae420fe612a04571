//! Ids by server, each once, and rows back to where their ids stood.

use crate::Merger;
use crate::message::{Number, bytes_of, copy_f32s};
use std::borrow::Cow;

/// Reused from call to call.
#[derive(Default)]
pub(crate) struct Split {
    merger: Merger,
    /// Each server's ids, in the order of the batch.
    ids: Vec<Vec<u64>>,
    /// Where they stand among the unique ids of the batch.
    positions: Vec<Vec<u32>>,
}

impl Split {
    /// Looks at a batch: server = id mod servers.
    pub fn ids(&mut self, ids: &[u64], server_count: usize) {
        self.merger.merge(ids);
        self.ids.iter_mut().for_each(Vec::clear);
        self.positions.iter_mut().for_each(Vec::clear);
        self.ids.resize_with(server_count, Vec::new);
        self.positions.resize_with(server_count, Vec::new);
        if server_count == 1 {
            self.ids[0].extend(self.merger.ids());
            return;
        }
        for (position, id) in (0..).zip(self.merger.ids()) {
            let server = (id % server_count as u64) as usize;
            self.ids[server].push(*id);
            self.positions[server].push(position);
        }
    }

    /// Servers that have any of the ids, and which.
    pub fn parts(&self) -> impl Iterator<Item = (usize, &[u64])> {
        self.ids.iter().map(Vec::as_slice).enumerate().filter(|(_, ids)| !ids.is_empty())
    }

    /// Writes the rows that the servers of [`Split::parts`] answered to every place of their ids.
    pub fn spread(&self, answers: &[Vec<u8>], width: usize, rows: &mut [f32]) {
        if !self.merger.has_equal_ids() && self.ids.len() == 1 {
            answers.iter().for_each(|answer| copy_f32s(answer, rows));
            return;
        }
        // Where each unique id's row is: which answer, and where in it.
        let mut unique: Vec<&[u8]> = vec![&[]; self.merger.ids().len()];
        for ((server, _), answer) in self.parts().zip(answers) {
            for (at, row) in answer.chunks_exact(width * 4).enumerate() {
                unique[self.position(server, at)] = row;
            }
        }
        for (out, row) in rows.chunks_exact_mut(width).zip(self.merger.to_row()) {
            copy_f32s(unique[*row as usize], out);
        }
    }

    pub fn merger(&self) -> &Merger {
        &self.merger
    }

    /// What the `part`-th server of [`Split::parts`] gets of rows by unique id.
    pub fn part_of<'a, T: Number>(
        &self,
        part: usize,
        rows: &'a [T],
        width: usize,
    ) -> Cow<'a, [u8]> {
        let Some((server, ids)) = self.parts().nth(part) else { return Cow::Borrowed(&[]) };
        if self.ids.len() == 1 {
            return bytes_of(rows);
        }
        let mut bytes = Vec::with_capacity(ids.len() * width * size_of::<T>());
        for position in &self.positions[server] {
            bytes.extend(bytes_of(&rows[*position as usize * width..][..width]).iter());
        }
        Cow::Owned(bytes)
    }

    fn position(&self, server: usize, at: usize) -> usize {
        match self.ids.len() {
            1 => at,
            _ => self.positions[server][at] as usize,
        }
    }
}
