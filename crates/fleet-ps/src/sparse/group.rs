//! Groups the ids of a batch by shard, so that each lock is taken once.

use super::index::hash;

/// The ids of a batch by shard. Its memory is reused from call to call.
#[derive(Default)]
pub(crate) struct Groups {
    ids: Vec<u64>,
    positions: Vec<u32>,
    /// Ids `starts[s]..starts[s + 1]` belong to shard s.
    starts: Vec<u32>,
    shards: Vec<u16>,
}

/// Returns the shard of an id, from the highest bits of its hash.
#[inline]
pub(crate) fn shard_of(id: u64, shard_count: usize) -> usize {
    (((hash(id) >> 32) * shard_count as u64) >> 32) as usize
}

impl Groups {
    /// Groups a batch, by a stable counting sort.
    pub fn sort(&mut self, ids: &[u64], shard_count: usize) {
        self.starts.clear();
        self.starts.resize(shard_count + 1, 0);
        self.shards.clear();
        self.shards.extend(ids.iter().map(|id| shard_of(*id, shard_count) as u16));
        for shard in &self.shards {
            self.starts[*shard as usize] += 1;
        }
        let mut sum = 0;
        for start in &mut self.starts {
            sum += std::mem::replace(start, sum);
        }
        self.ids.resize(ids.len(), 0);
        self.positions.resize(ids.len(), 0);
        for (position, (id, shard)) in ids.iter().zip(&self.shards).enumerate() {
            let start = &mut self.starts[*shard as usize];
            self.ids[*start as usize] = *id;
            self.positions[*start as usize] = position as u32;
            *start += 1;
        }
        // Each start has advanced to the start of the next shard.
        self.starts.rotate_right(1);
        self.starts[0] = 0;
    }

    /// Returns the ids of a shard and their positions in the batch.
    pub fn of(&self, shard: usize) -> (&[u64], &[u32]) {
        let range = self.starts[shard] as usize..self.starts[shard + 1] as usize;
        (&self.ids[range.clone()], &self.positions[range])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_is_in_its_group_once_in_order() {
        let mut groups = Groups::default();
        for (count, shards) in [(0usize, 3usize), (1, 1), (1000, 7), (50, 4096)] {
            let ids: Vec<u64> = (0..count as u64).map(|i| i * i * 31).collect();
            groups.sort(&ids, shards);
            let mut seen = 0;
            for shard in 0..shards {
                let (members, positions) = groups.of(shard);
                assert!(positions.windows(2).all(|pair| pair[0] < pair[1]));
                for (id, position) in members.iter().zip(positions) {
                    assert_eq!((ids[*position as usize], shard_of(*id, shards)), (*id, shard));
                    seen += 1;
                }
            }
            assert_eq!(seen, count);
        }
    }
}
