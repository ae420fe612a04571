//! Shuffles that move records between workers, or that permute the values of single slots among
//! records.
//!
//! A global shuffle runs in rounds. In each round a worker takes its next `ROUND_ROWS` records and
//! sorts them by destination worker; then all workers exchange them. The rounds end when no worker
//! has records left. Every message has a checksum. At the end each worker learns how many records
//! were sent to it, and compares that with the number it received. The new records replace the old
//! ones only if all workers agree that no record was lost.

use super::exchange::Exchange;
use crate::block::Block;
use crate::slot::Schema;
use fleet_base::rng::{Philox, Sequence};
use fleet_base::{Error, Result};
use std::sync::Arc;

/// Redistributes the records of all workers, and returns those of this worker.
pub fn redistribute(
    schema: &Arc<Schema>,
    blocks: &[Block],
    seed: u64,
    shuffle: u64,
    exchange: &mut dyn Exchange,
) -> Result<Vec<Block>> {
    let (rank, world) = (exchange.rank(), exchange.world_size());
    let rng = Philox::new(seed, REDISTRIBUTE_STREAM + (shuffle << 20) + rank as u64);
    let mut records = blocks.iter().flat_map(|it| (0..it.len()).map(move |row| (it, row)));
    let (mut sent, mut received) = (vec![0u64; world], vec![0u64; world]);
    let mut received_blocks = Received { schema, blocks: Vec::new() };
    let (mut position, mut round) = (0u64, 0u32);
    loop {
        let mut parts: Vec<Block> = (0..world).map(|_| Block::new(schema)).collect();
        let mut done = true;
        for (block, row) in records.by_ref().take(ROUND_ROWS) {
            let to = match block.record_id(row) {
                Some(id) => (stable_hash(id) % world as u64) as usize,
                None => ((u128::from(rng.word64(position)) * world as u128) >> 64) as usize,
            };
            parts[to].append(block, row..row + 1)?;
            sent[to] += 1;
            position += 1;
            done = false;
        }
        let outgoing = parts.iter().map(|part| message(part, round, done)).collect();
        let mut all_done = true;
        for (from, bytes) in exchange.all_to_all(outgoing)?.iter().enumerate() {
            let (part, its_done) = open(schema, bytes, round)
                .map_err(|error| error.at(format!("records from worker {from}, round {round}")))?;
            received[from] += part.len() as u64;
            received_blocks.take(&part)?;
            all_done &= its_done;
        }
        if all_done {
            break;
        }
        round += 1;
    }
    check_counts(exchange, &sent, &received)?;
    received_blocks.blocks.iter_mut().for_each(Block::shrink);
    Ok(received_blocks.blocks)
}

/// Sends every worker the number of records that were sent to it. Fails on all workers if any of
/// them received another number.
fn check_counts(exchange: &mut dyn Exchange, sent: &[u64], received: &[u64]) -> Result<()> {
    let counts = exchange.all_to_all(sent.iter().map(|it| it.to_le_bytes().to_vec()).collect())?;
    let lost =
        counts.iter().zip(received).position(|(count, received)| *count != received.to_le_bytes());
    let verdict = vec![u8::from(lost.is_none())];
    let verdicts = exchange.all_to_all(vec![verdict; exchange.world_size()])?;
    if let Some(from) = lost {
        return Err(Error::internal(format!("records from worker {from} were lost"))
            .expected(format!("{:?} (little endian)", counts[from]))
            .got(received[from]));
    }
    match verdicts.iter().position(|verdict| verdict != &[1]) {
        Some(rank) => Err(Error::unavailable(format!("worker {rank} lost records in a shuffle"))),
        None => Ok(()),
    }
}

/// Received records, in blocks of the usual size.
struct Received<'a> {
    schema: &'a Arc<Schema>,
    blocks: Vec<Block>,
}

impl Received<'_> {
    fn take(&mut self, part: &Block) -> Result<()> {
        let mut start = 0;
        while start < part.len() {
            if self.blocks.last().is_none_or(|last| last.len() >= BLOCK_ROWS) {
                self.blocks.push(Block::new(self.schema));
            }
            let Some(last) = self.blocks.last_mut() else { break };
            let end = part.len().min(start + BLOCK_ROWS - last.len());
            last.append(part, start..end)?;
            start = end;
        }
        Ok(())
    }
}

/// Encodes a message: checksum, round, flag that the sender has no more records, records.
fn message(part: &Block, round: u32, done: bool) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend_from_slice(&round.to_le_bytes());
    bytes.push(u8::from(done));
    part.encode(&mut bytes);
    let sum = crc32fast::hash(&bytes[4..]);
    bytes[..4].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn open(schema: &Arc<Schema>, bytes: &[u8], round: u32) -> Result<(Block, bool)> {
    let damaged = || Error::invalid("shuffle message is damaged").got(bytes.len());
    let (sum, rest) = bytes.split_first_chunk::<4>().ok_or_else(damaged)?;
    if u32::from_le_bytes(*sum) != crc32fast::hash(rest) {
        return Err(damaged());
    }
    let (number, rest) = rest.split_first_chunk::<4>().ok_or_else(damaged)?;
    if u32::from_le_bytes(*number) != round {
        return Err(Error::invalid("workers are in different rounds of a shuffle")
            .expected(round)
            .got(u32::from_le_bytes(*number)));
    }
    let (done, records) = rest.split_first().ok_or_else(damaged)?;
    Ok((Block::decode(schema, records)?, *done == 1))
}

/// Hashes by FNV-1a, then multiplies to spread the hash to the upper bits. The result is the same
/// on every machine.
pub(crate) fn stable_hash(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for byte in bytes {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    hash ^= hash >> 32;
    hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (hash >> 29)
}

/// Changes the order of groups: adjacent values with the same key stay together.
///
/// ```
/// # use fleet_base::rng::Sequence;
/// let order = fleet_data::shuffle_groups(vec![1, 1, 2, 3, 3], |it| *it, &mut Sequence::new(7, 1));
/// assert_eq!(order.chunk_by(|a, b| a == b).count(), 3);
/// ```
pub fn shuffle_groups<T: Clone>(
    values: Vec<T>,
    key: impl Fn(&T) -> i64,
    random: &mut Sequence,
) -> Vec<T> {
    let mut groups: Vec<&[T]> = values.chunk_by(|a, b| key(a) == key(b)).collect();
    random.shuffle(&mut groups);
    groups.concat()
}

/// Returns blocks in which the values of some slots are permuted among all records.
pub fn slots(blocks: &[Block], slots: &[usize], seed: u64, stream: u64) -> Result<Vec<Block>> {
    let mut changed: Vec<Block> = blocks.to_vec();
    let all: Vec<(usize, usize)> = blocks
        .iter()
        .enumerate()
        .flat_map(|(index, block)| (0..block.len()).map(move |row| (index, row)))
        .collect();
    for &slot in slots {
        let mut order = all.clone();
        Sequence::new(seed, stream + ((slot as u64) << 20)).shuffle(&mut order);
        let mut sources = order.into_iter();
        for block in &mut changed {
            let mut column = block.columns[slot].empty_like();
            for (from, row) in sources.by_ref().take(block.len()) {
                column.append_row(&blocks[from].columns[slot], row)?;
            }
            block.columns[slot] = column;
        }
    }
    Ok(changed)
}

/// Records that a worker sends in one round. This bounds the memory of a round; a message of a
/// click log is about 200 KB.
const ROUND_ROWS: usize = 1024;
const REDISTRIBUTE_STREAM: u64 = 0x3 << 44;

/// Records of a block: enough that a block's own overhead does not matter, few enough that the
/// block stays in the cache while it is filled.
pub(super) const BLOCK_ROWS: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_stable() {
        assert_eq!(stable_hash(b""), stable_hash(b""));
        let counts = (0..4000u32).fold([0; 4], |mut counts, id| {
            counts[(stable_hash(&id.to_le_bytes()) % 4) as usize] += 1;
            counts
        });
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }
}
