//! Ids by server, each once, and rows back to where their ids stood.

use crate::message::{Number, bytes_of, copy_f32s};
use crate::{Accessor, Merger, Push, SparseConfig};
use fleet_base::Result;
use std::borrow::Cow;

/// Reused from call to call.
#[derive(Default)]
pub(crate) struct Split {
    merger: Merger,
    /// The batch had ids that come twice.
    merged: bool,
    /// Each server's ids, in the order of the batch.
    ids: Vec<Vec<u64>>,
    /// Where they stand among the unique ids of the batch.
    positions: Vec<Vec<u32>>,
}

/// Numbers of a push, a row for every unique id.
pub(crate) struct Merged<'a> {
    pub grads: Cow<'a, [f32]>,
    pub shows: Option<Cow<'a, [f32]>>,
    pub clicks: Option<Cow<'a, [f32]>>,
    pub slots: Option<Cow<'a, [u32]>>,
}

impl Split {
    /// Looks at a batch: server = id mod servers.
    pub fn ids(&mut self, ids: &[u64], server_count: usize) {
        self.merged = self.merger.merge(ids);
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
        if !self.merged && self.ids.len() == 1 {
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

    /// Sums what belongs to equal ids; a slot is the last one's.
    pub fn merge<'a>(
        &self,
        push: Push<'a>,
        width: usize,
        config: &SparseConfig,
    ) -> Result<Merged<'a>> {
        if !self.merged {
            return Ok(Merged {
                grads: Cow::Borrowed(push.grads),
                shows: push.shows.map(Cow::Borrowed),
                clicks: push.clicks.map(Cow::Borrowed),
                slots: push.slots.map(Cow::Borrowed),
            });
        }
        let merger = &self.merger;
        // Each occurrence is a show, which only click tables and their rules look at.
        let counted = config.accessor != Accessor::Plain || config.rule.divides_by_shows();
        let ones = (push.shows.is_none() && counted).then(|| vec![1.0; push.ids.len()]);
        let shows = push.shows.or(ones.as_deref());
        Ok(Merged {
            grads: merger.sum_rows(push.grads, width)?.into(),
            shows: shows.map(|shows| merger.sum_rows(shows, 1)).transpose()?.map(Cow::Owned),
            clicks: push.clicks.map(|n| merger.sum_rows(n, 1)).transpose()?.map(Cow::Owned),
            slots: push.slots.map(|slots| {
                let mut last = vec![0; merger.ids().len()];
                let rows = merger.to_row().iter();
                rows.zip(slots).for_each(|(row, slot)| last[*row as usize] = *slot);
                Cow::Owned(last)
            }),
        })
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
