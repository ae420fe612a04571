//! Reading of records: bytes of text a second on one thread, from memory.

use crate::measure::{Options, print_rates};
use fleet::Result;
use fleet::data::synth::{Ctr, CtrConfig};
use fleet::data::{Block, LineReader, MultiSlot, Schema, Slot};
use std::time::Instant;

/// Parses 100,000 lines of a click log (235 bytes each) into columns, again and again.
pub fn multislot_parse(options: &Options) -> Result<()> {
    let clicks = Ctr::new(CtrConfig::criteo_like())?;
    let mut text = Vec::new();
    clicks.write_lines(0..LINES, &mut text)?;
    let ids = (1..=clicks.slot_count()).map(|slot| Slot::ragged_ids(format!("C{slot}")));
    let dense = Slot::dense_floats("dense_input", [clicks.dense_count()]);
    let label = Slot::dense_ids("label", [1]);
    let schema = Schema::new(std::iter::once(dense).chain(ids).chain([label]))?;
    let mut block = Block::new(&schema);
    let (steps, warmup) = options.counts(40, 5);
    let mut rates = Vec::with_capacity(steps);
    for step in 0..warmup + steps {
        block.clear();
        let begin = Instant::now();
        let mut reader = LineReader::new(&text[..], "memory", MultiSlot::new(&schema));
        let rows = reader.read(usize::MAX, &mut block)?;
        let seconds = begin.elapsed().as_secs_f64();
        assert_eq!(rows as u64, LINES);
        if step >= warmup {
            rates.push(text.len() as f64 / seconds / 1e6);
        }
    }
    print_rates(options, "MB/s", rates);
    Ok(())
}

const LINES: u64 = 100_000;
