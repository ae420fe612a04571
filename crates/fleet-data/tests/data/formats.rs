//! Built-in line formats: golden lines, errors with positions, corrupted input.

use fleet_base::Result;
use fleet_base::rng::Sequence;
use fleet_data::{
    Block, Criteo, CriteoHash, Csv, CsvColumn, JsonLines, LibSvm, LineFormat, LineReader,
    MultiSlotWriter, OnError, Schema, Slot,
};

fn read<F: LineFormat>(format: F, text: &[u8]) -> Result<Block> {
    let mut block = Block::new(format.schema());
    LineReader::new(text, "f", format).read(1000, &mut block)?;
    Ok(block)
}

fn message<F: LineFormat>(format: F, text: &str) -> String {
    read(format, text.as_bytes()).unwrap_err().to_string()
}

/// A complete line of a click log.
fn click(integers: &str) -> String {
    format!("0\t{}\t{}", integers.replace(' ', "\t"), ["1a2b3c"; 26].join("\t"))
}

#[test]
fn criteo_is_scaled_as_documented() {
    let hex = || Criteo::with_hash(1_000_001, CriteoHash::HexModulo).unwrap();
    let block = read(hex(), click("2 0 0 0 957 45 2 36 45 1 1 0 0").as_bytes()).unwrap();
    let mut text = Vec::new();
    MultiSlotWriter::new(block.schema()).write(&block, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    // The recorded first sample, rounded to f32.
    let expected =
        "13 0.1 0.0049751243 0 0 0.014953125 0.09 0.02 0.72 0.09 0.1 0.1 0 0 1 715003 1 ";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.ends_with(" 1 715003 1 0\n"));

    let own = read(Criteo::new().unwrap(), click("2 1 1 0 1 1 1 1 1 1 1 1 1").as_bytes()).unwrap();
    let id = |slot: usize| own.column(slot).ids(0).unwrap()[0];
    assert!((1..=26).all(|slot| (0..1_000_001).contains(&id(slot))));
    // Equal words in different columns have different ids.
    assert_ne!(id(1), id(2));
    assert_eq!(own.column(0).floats(0).unwrap()[1], (4.0 / 603.0) as f32);
}

#[test]
fn criteo_errors_name_the_column() {
    let criteo = || Criteo::new().unwrap();
    let line = click("2 x 0 0 957 45 2 36 45 1 1 0 0");
    assert!(message(criteo(), &line).starts_with("column 2 is not an integer\n  at f:1:5, at 'x"));
    let label = format!("2{}", &click("2 0 0 0 957 45 2 36 45 1 1 0 0")[1..]);
    assert!(message(criteo(), &label).starts_with("column 0 is not a label"));
    let long = click("2 0 0 0 957 45 2 36 45 1 1 0 0 0");
    assert!(message(criteo(), &long).contains("column 40 is unexpected"));
    assert!(message(criteo(), "1\t2").contains("expected 40, got 2"));
    let hex = Criteo::with_hash(10, CriteoHash::HexModulo).unwrap();
    let words = click("2 0 0 0 957 45 2 36 45 1 1 0 0").replace("1a2b3c", "zz");
    assert!(message(hex, &words).contains("not a hexadecimal"));
}

fn people() -> Csv {
    Csv::new([
        ("a", CsvColumn::Float("x".into())),
        ("b", CsvColumn::Float("x".into())),
        ("c", CsvColumn::Skip),
        ("d", CsvColumn::Hash("word".into(), 100)),
        ("e", CsvColumn::Id("label".into())),
    ])
    .unwrap()
}

#[test]
fn tables_are_read() {
    let text = b"a,b,c,d,e\n1,2.5,\"x,\"\"y\"\"\",red,1\r\n\n,-3,z,\"red\",-7\n";
    let block = read(people().with_header(), text).unwrap();
    assert_eq!(block.column(0).floats(0), Some(&[1.0, 2.5][..]));
    assert_eq!(block.column(0).floats(1), Some(&[0.0, -3.0][..]));
    assert_eq!(block.column(1).ids(0), block.column(1).ids(1));
    assert_eq!(block.column(2).ids(1), Some(&[-7][..]));
    let semicolons = read(people().separator(b';'), b"1;2;;;3").unwrap();
    assert_eq!(semicolons.column(2).ids(0), Some(&[3][..]));

    // A byte order mark is accepted, but only at the start of the file.
    let marked = read(people().with_header(), b"\xef\xbb\xbfa,b,c,d,e\n1,2,3,4,5\n").unwrap();
    assert_eq!(marked.len(), 1);
    assert!(message(people(), "\u{feff}\u{feff}1,2,3,4,5").contains("column 'a'"));
    assert!(message(people(), "1,2,3,4,5\n\u{feff}1,2,3,4,5").contains("f:2:1"));

    let header = message(people().with_header(), "a,b,c,D,e\n");
    assert!(header.starts_with("column 4 has the wrong name: expected d, got D\n  at f:1:7"));
    assert!(message(people(), "1,2,3").contains("too few columns: expected 5, got 3"));
    assert!(message(people(), "1,2,3,4,5,6").contains("more than 5 columns\n  at f:1:11, at '6'"));
    assert!(
        message(people(), "1,2,3,4,5x").contains("column 'e' is not a 64-bit integer\n  at f:1:9")
    );
    assert!(message(people(), "1,?,3,4,5").contains("column 'b' is not a finite"));
    assert!(message(people(), "1,2,\"3,4,5").contains("quoted field has no closing quote"));
    assert!(message(people(), "1,2,\"3\"x,4,5").contains("after a closing quote"));
    let both = [("a", CsvColumn::Float("x".into())), ("b", CsvColumn::Id("x".into()))];
    assert!(Csv::new(both).is_err());
}

#[test]
fn libsvm_is_read() {
    let block =
        read(LibSvm::new(true).unwrap(), b"1 qid:7 1:0.5 3:-2\n0 qid:8\n# nothing\n").unwrap();
    assert_eq!(block.len(), 2);
    assert_eq!(block.column(3).ids(1), Some(&[8][..]));
    assert_eq!(block.column(2).floats(0), Some(&[0.5, -2.0][..]));
    let plain = || LibSvm::new(false).unwrap();
    assert!(
        message(plain(), "1 3:1 2:1")
            .starts_with("indices are not ascending\n  at f:1:7, at '2:1'")
    );
    assert!(message(plain(), "1 3").contains("expected index:value\n  at f:1:3"));
    assert!(message(plain(), "x 3:1").contains("does not start with a label"));
    assert!(message(plain(), "1 qid:3 1:1").contains("expected index:value"));
    assert!(message(LibSvm::new(true).unwrap(), "1 3:1").contains("no qid"));
}

#[test]
fn json_lines_are_read() {
    let schema = Schema::new([Slot::ragged_ids("a"), Slot::dense_floats("b", [1])]).unwrap();
    let json = || JsonLines::new(&schema);
    let text = b"{\"b\": 1e-3, \"a\": [18446744073709551615, true]}\n \n{\"b\": 2, \"a\": null}\n";
    let block = read(json(), text).unwrap();
    assert_eq!(block.column(0).ids(0), Some(&[-1, 1][..]));
    assert_eq!(block.column(0).ids(1), Some(&[][..]));
    assert_eq!(block.column(1).floats(1), Some(&[2.0][..]));
    assert!(message(json(), "{\"a\": 1, \"B\": 2}").contains("no key 'b'"));
    assert!(
        message(json(), "{\"a\": 1.5, \"b\": 2}").contains("expected 64-bit integers, got 1.5")
    );
    assert!(message(json(), "{\"a\": \"x\", \"b\": 2}").contains("hash_text"));
    assert!(message(json(), "{\"b\": [1, 2]}").contains("slot 'b' has a wrong number"));
    assert!(message(json(), "{\"b\": 1e60}").contains("32-bit floats"));
    assert!(message(json(), "{\"b\": null}").contains("slot 'b' has a wrong number"));
    let torn = message(json(), "{\"b\": 1");
    assert!(
        torn.starts_with("line is not valid JSON: EOF while parsing an object\n  at f:1:7"),
        "{torn}"
    );
    assert!(message(json(), "[1]").contains("not a JSON object"));
}

#[test]
fn changed_bytes_never_panic() {
    let schema = Schema::new([Slot::ragged_ids("a"), Slot::dense_floats("b", [1])]).unwrap();
    type Make<'a> = &'a dyn Fn() -> Box<dyn LineFormat>;
    let formats: [(Make<'_>, String); 4] = [
        (&|| Box::new(Criteo::new().unwrap()), click("2 0 0 0 957 45 2 36 45 1 1 0 0")),
        (&|| Box::new(people()), "1,2.5,\"x,\"\"y\"\"\",red,1\r\n".into()),
        (&|| Box::new(LibSvm::new(true).unwrap()), "1 qid:7 1:0.5 3:-2 # x\n".into()),
        (&|| Box::new(JsonLines::new(&schema)), "{\"b\": 1e-3, \"a\": [1, true]}\n".into()),
    ];
    let mut draws = Sequence::new(5, 0);
    for (make, text) in &formats {
        for _ in 0..1500 {
            let mut changed = text.clone().into_bytes();
            for _ in 0..1 + draws.below(3) {
                let at = draws.below(changed.len() as u64) as usize;
                match draws.below(3) {
                    0 => changed[at] = draws.next_u64() as u8,
                    1 if changed.len() > 1 => drop(changed.remove(at)),
                    _ => changed.insert(at, b" \t,\":0-.\n"[draws.below(9) as usize]),
                }
            }
            let format = make();
            let mut block = Block::new(format.schema());
            let mut reader = LineReader::new(&changed[..], "f", format)
                .on_error(OnError::Skip { lines_max: 100 });
            let rows = reader.read(100, &mut block).unwrap();
            assert_eq!(rows, block.len());
        }
    }
}
