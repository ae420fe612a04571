//! The text format: golden lines, errors with positions, all layouts through writer and parser, and
//! corrupted input.

use fleet_base::Result;
use fleet_base::rng::Sequence;
use fleet_data::{
    Block, LineReader, MultiSlot, MultiSlotWriter, OnError, Schema, Slot, SlotForm, SlotKind,
};
use std::sync::Arc;

pub fn parse(schema: &Arc<Schema>, text: &[u8]) -> Result<Block> {
    let mut block = Block::new(schema);
    let mut reader = LineReader::new(text, "part-0", MultiSlot::new(schema));
    while reader.read(1000, &mut block)? > 0 {}
    Ok(block)
}

fn words() -> Arc<Schema> {
    Schema::new([
        Slot::ragged_ids("words"),
        Slot::dense_floats("x", [2]),
        Slot::dense_ids("label", [1]),
    ])
    .unwrap()
}

#[test]
fn golden_lines() {
    let text = b"3 1926 08 17 2 0.25 -1e-3 1 1\n  1 5\t2 3 .5 1 18446744073709551615 \r\n\n \n\
        11 1 2 3 4 5 6 7 8 9 10 11 2 1 2 1 -3";
    let block = parse(&words(), text).unwrap();
    assert_eq!(block.len(), 3);
    assert_eq!(block.column(0).ids(0), Some(&[1926, 8, 17][..]));
    assert_eq!(block.column(1).floats(0), Some(&[0.25, -0.001][..]));
    assert_eq!(block.column(0).ids(1), Some(&[5][..]));
    assert_eq!(block.column(2).ids(1), Some(&[-1][..]));
    assert_eq!(block.column(0).ids(2), Some(&[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11][..]));
    assert_eq!(block.column(2).ids(2), Some(&[-3][..]));
    assert_eq!(block.column(0).range(2), 4..15);
    assert_eq!(parse(&words(), b"").unwrap().len(), 0);
}

#[test]
fn errors_name_place_and_text() {
    let check = |line: &str, expected: &str| {
        let text = format!("1 1 2 1 1 1 0\n{line}\n1 1 2 1 1 1 0\n");
        let error = parse(&words(), text.as_bytes()).unwrap_err().to_string();
        assert_eq!(error, expected, "for {line}");
    };
    check("x", "slot 'words' does not start with a count\n  at part-0:2:1, at 'x'");
    check(
        "1 9 2 0.5 oops 1 1",
        "value 2 of 2 of slot 'x' is not a finite 32-bit float\n  at part-0:2:11, at 'oops 1 1'",
    );
    check(
        "2 9 1.5 2 0 0 1 1",
        "value 2 of 2 of slot 'words' is not a 64-bit integer\n  at part-0:2:5, at '1.5 2 0 0 1 1'",
    );
    check(
        "1 9 3 1 2 3 1 1",
        "wrong count of dense slot 'x': expected 2, got 3\n  at part-0:2:5, at '3 1 2 3 1 1'",
    );
    check(
        "0 2 1 2 1 1",
        "slot 'words' has count 0: expected at least 1 value\n  at part-0:2:1, at '0 2 1 2 1 1'\n  \
         help: pad an empty slot, with 0 for example",
    );
    check("1 9 2 1", "line ends after 1 of 2 values of slot 'x'\n  at part-0:2:8");
    check("1 9 2 1 2", "line ends before slot 'label'\n  at part-0:2:10");
    check(
        "1 9 2 1 2 1",
        "line ends in slot 'label': expected 1 value, got 0 values\n  at part-0:2:11, at '1'",
    );
    check("1 9 2 1 2 1 0 7", "line has more values than its slots\n  at part-0:2:15, at '7'");
    check(
        "1 9 2 1 nan 1 1",
        "value 2 of 2 of slot 'x' is not a finite 32-bit float\n  at part-0:2:9, at 'nan 1 1'",
    );
    check(
        "1 36893488147419103232 2 1 1 1 1",
        "value 1 of 1 of slot 'words' is not a 64-bit integer\n  at part-0:2:3, at \
         '36893488147419103232 2 1 1 1 1'",
    );
    check(
        "4000000000 1 2",
        "line ends in slot 'words': expected 4000000000 values, got 2 values\n  at part-0:2:1, at \
         '4000000000 1 2'",
    );
    check(
        "13 a b",
        "line ends in slot 'words': expected 13 values, got 2 values\n  at part-0:2:1, at '13 a b'",
    );
    let long = "y".repeat(100);
    let shown = format!(
        "slot 'words' does not start with a count\n  at part-0:2:1, at '{}..'",
        &long[..40]
    );
    check(&long, &shown);
    // Bytes that are not UTF-8.
    let error = parse(&words(), b"1 \xff\xfe\x00 2").unwrap_err().to_string();
    assert!(error.contains("part-0:1:3"), "{error}");
}

#[test]
fn bad_lines_are_skipped_and_counted() {
    let text = b"1 1 2 1 1 1 0\nbroken\n1 2 2 1 1 1 0\n1 3 2 1 oops 1 0\n1 4 2 1 1 1 1\n";
    let reader = || LineReader::new(&text[..], "part-0", MultiSlot::new(&words()));
    let mut block = Block::new(&words());
    let mut two = reader().on_error(OnError::Skip { lines_max: 2 });
    assert_eq!(two.read(100, &mut block).unwrap(), 3);
    assert_eq!(block.column(0).values(), &fleet_data::Values::Ids(vec![1, 2, 4]));
    assert_eq!(two.skipped().lines, 2);
    let first = two.skipped().first.clone().unwrap().to_string();
    assert!(first.contains("part-0:2:1"), "{first}");

    let mut one = reader().on_error(OnError::Skip { lines_max: 1 });
    let error = one.read(100, &mut Block::new(&words())).unwrap_err().to_string();
    assert!(error.contains("part-0:4:9") && error.contains("1 bad lines"), "{error}");
}

#[test]
fn record_ids_are_read() {
    let schema = Schema::with_record_ids([Slot::dense_ids("a", [1])]).unwrap();
    let block = parse(&schema, b"1 user-7 1 5\n1 user-8 1 6\n").unwrap();
    assert_eq!(block.record_id(1), Some(&b"user-8"[..]));
    assert_eq!(block.column(0).ids(1), Some(&[6][..]));
    assert!(parse(&schema, b"2 a b 1 5\n").unwrap_err().to_string().contains("record id"));
    assert!(parse(&schema, b"1 \n").is_err());
}

/// Random slots of any kind and form, and records that match them.
pub fn random_records(draws: &mut Sequence, rows: u64) -> Block {
    let slots = (0..1 + draws.below(6)).map(|index| {
        let kind = if draws.below(2) == 0 { SlotKind::Ids } else { SlotKind::Floats };
        let form = match draws.below(3) {
            0 => SlotForm::Ragged,
            1 => SlotForm::Dense(vec![1 + draws.below(12) as usize]),
            _ => SlotForm::Dense(vec![1 + draws.below(3) as usize, 1 + draws.below(3) as usize]),
        };
        Slot::new(format!("s{index}"), kind, form)
    });
    let slots: Vec<Slot> = slots.collect();
    let with_ids = draws.below(3) == 0;
    let schema =
        if with_ids { Schema::with_record_ids(slots) } else { Schema::new(slots) }.unwrap();
    let mut block = Block::new(&schema);
    for row in 0..rows {
        for (index, slot) in schema.slots().iter().enumerate() {
            let longest = if draws.below(20) == 0 { 300 } else { 4 };
            let ragged = 1 + draws.below(longest) as usize;
            for _ in 0..slot.width().unwrap_or(ragged) {
                let shift = draws.below(64) as u32;
                let word = draws.next_u64() >> shift;
                match slot.kind {
                    SlotKind::Ids => block.push_ids(index, &[word as i64]).unwrap(),
                    SlotKind::Floats => {
                        let float = f32::from_bits(word as u32);
                        let float = if float.is_finite() { float } else { 0.5 };
                        block.push_floats(index, &[float]).unwrap();
                    }
                }
            }
        }
        block.push_record_id(if with_ids { format!("r{row}") } else { String::new() }.as_bytes());
        block.end_record().unwrap();
    }
    block
}

#[test]
fn every_layout_survives_writing_and_parsing() {
    for seed in 0..300 {
        let mut draws = Sequence::new(seed, 0);
        let block = random_records(&mut draws, 1 + seed % 40);
        let mut text = Vec::new();
        MultiSlotWriter::new(block.schema()).write(&block, &mut text).unwrap();
        let read = parse(block.schema(), &text).unwrap();
        assert_eq!(read, block, "seed {seed}");
    }
}

#[test]
fn a_reader_stops_where_it_is_told_and_goes_on() {
    let mut draws = Sequence::new(9, 9);
    let block = random_records(&mut draws, 100);
    let mut text = Vec::new();
    MultiSlotWriter::new(block.schema()).write(&block, &mut text).unwrap();
    // A source that returns a few bytes at a time.
    struct Trickle<'a>(&'a [u8]);
    impl std::io::Read for Trickle<'_> {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            let count = self.0.len().min(buffer.len()).min(7);
            buffer[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }
    let mut reader = LineReader::new(Trickle(&text), "part-0", MultiSlot::new(block.schema()));
    let mut joined = Block::new(block.schema());
    let mut piece = Block::new(block.schema());
    while reader.read(7, &mut piece).unwrap() > 0 {
        joined.append(&piece, 0..piece.len()).unwrap();
        piece.clear();
    }
    assert_eq!(joined, block);
}

#[test]
fn what_cannot_be_read_cannot_be_written() {
    let schema = Schema::new([Slot::ragged_floats("x")]).unwrap();
    let write = |block: &Block| MultiSlotWriter::new(&schema).write(block, &mut Vec::new());
    let mut block = Block::new(&schema);
    block.end_record().unwrap();
    assert!(write(&block).unwrap_err().to_string().starts_with("slot 'x' is empty"));
    block.clear();
    block.push_floats(0, &[f32::NAN]).unwrap();
    block.end_record().unwrap();
    assert!(write(&block).is_err());
}

#[test]
fn changed_bytes_never_panic_and_never_make_half_records() {
    let mut draws = Sequence::new(11, 0);
    for seed in 0..40 {
        let block = random_records(&mut Sequence::new(seed, 1), 10);
        let mut text = Vec::new();
        MultiSlotWriter::new(block.schema()).write(&block, &mut text).unwrap();
        for _ in 0..100 {
            let mut changed = text.clone();
            for _ in 0..1 + draws.below(3) {
                let at = draws.below(changed.len() as u64) as usize;
                match draws.below(3) {
                    0 => changed[at] = draws.next_u64() as u8,
                    1 => drop(changed.remove(at)),
                    _ => changed.insert(at, b" 0-.e\n1"[draws.below(7) as usize]),
                }
                if changed.is_empty() {
                    changed.push(b' ');
                }
            }
            let mut read = Block::new(block.schema());
            let mut reader = LineReader::new(&changed[..], "f", MultiSlot::new(block.schema()))
                .on_error(OnError::Skip { lines_max: 1000 });
            let rows = reader.read(1000, &mut read).unwrap();
            assert_eq!(rows, read.len());
            for row in 0..rows {
                for (index, slot) in block.schema().slots().iter().enumerate() {
                    let count = read.column(index).range(row).len();
                    assert!(slot.width().is_none_or(|width| width == count) && count > 0);
                }
            }
        }
    }
}
