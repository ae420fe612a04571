//! Tests with files written by the parquet crate's writer.

use super::*;
use ::parquet::basic::Compression;
use ::parquet::data_type::{BoolType, ByteArrayType, DoubleType, FloatType, Int32Type, Int64Type};
use ::parquet::file::properties::WriterProperties;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;
use std::fs::File;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

const MESSAGE: &str = "message clicks {
    required double price;
    optional int64 age;
    optional group words (LIST) { repeated group list { optional int32 element (UINT_32); } }
    required boolean label;
    required binary city (UTF8);
    required group scores (LIST) { repeated group list { required float element; } }
}";

fn column<T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    values: &[T::T],
    levels: Option<&[i16]>,
    starts: Option<&[i16]>,
) {
    let mut writer = group.next_column().unwrap().unwrap();
    writer.typed::<T>().write_batch(values, levels, starts).unwrap();
    writer.close().unwrap();
}

/// Row groups of four rows; words are [1, 2], null, [null, 2^32 - 1], [].
fn written(codec: Compression, groups: usize) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("fleet-parquet-{}-{count}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let message = Arc::new(parse_message_type(MESSAGE).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(codec).build());
    let file = File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, message, properties).unwrap();
    for _ in 0..groups {
        let mut group = writer.next_row_group().unwrap();
        column::<DoubleType>(&mut group, &[0.5, 1.5, 2.5, 3.5], None, None);
        column::<Int64Type>(&mut group, &[30, 32], Some(&[1, 0, 1, 0]), None);
        let (levels, starts) = ([3, 3, 0, 2, 3, 1], [0, 1, 0, 0, 1, 0]);
        column::<Int32Type>(&mut group, &[1, 2, -1], Some(&levels), Some(&starts));
        column::<BoolType>(&mut group, &[true, false, true, false], None, None);
        let cities = ["Paris", "Rome", "Paris", "Bonn"].map(ByteArray::from);
        column::<ByteArrayType>(&mut group, &cities, None, None);
        let scores: Vec<f32> = (0..8).map(|it| it as f32).collect();
        column::<FloatType>(&mut group, &scores, Some(&[1; 8]), Some(&[0, 1, 0, 1, 0, 1, 0, 1]));
        group.close().unwrap();
    }
    writer.close().unwrap();
    path
}

fn schema() -> Arc<Schema> {
    let slots = [
        Slot::ragged_ids("words"),
        Slot::dense_floats("price", [1]),
        Slot::dense_ids("label", [1]),
        Slot::ragged_floats("age"),
        Slot::dense_ids("city", [1]),
        Slot::dense_floats("scores", [2]),
    ];
    Schema::new(slots).unwrap()
}

fn read(path: &Path, format: &ParquetFiles, at_once: usize) -> Result<Block> {
    let mut block = Block::new(&format.schema);
    let mut reader = format.open(path)?;
    while reader.read(at_once, &mut block)? > 0 {}
    Ok(block)
}

#[test]
fn columns_fill_slots() {
    let format = ParquetFiles::new(&schema()).hash_text(1000);
    let codecs = [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(Default::default()),
        Compression::LZ4_RAW,
    ];
    for codec in codecs {
        let path = written(codec, 3);
        for at_once in [1, 3, 100] {
            let block = read(&path, &format, at_once).unwrap();
            assert_eq!(block.len(), 12);
            for row in 0..12 {
                let words: [&[i64]; 4] = [&[1, 2], &[], &[u32::MAX as i64], &[]];
                assert_eq!(block.column(0).ids(row), Some(words[row % 4]));
                assert_eq!(block.column(1).floats(row), Some(&[row as f32 % 4.0 + 0.5][..]));
                assert_eq!(block.column(2).ids(row), Some(&[(row as i64 + 1) % 2][..]));
                let ages: [&[f32]; 4] = [&[30.0], &[], &[32.0], &[]];
                assert_eq!(block.column(3).floats(row), Some(ages[row % 4]));
                let city = hash_bucket(
                    b"city",
                    ["Paris", "Rome", "Paris", "Bonn"][row % 4].as_bytes(),
                    1000,
                );
                assert_eq!(block.column(4).ids(row), Some(&[city as i64][..]));
                let first = 2.0 * (row as f32 % 4.0);
                assert_eq!(block.column(5).floats(row), Some(&[first, first + 1.0][..]));
            }
        }
        std::fs::remove_file(path).unwrap();
    }
}

#[test]
fn what_does_not_fit_is_named() {
    let path = written(Compression::SNAPPY, 1);
    let refused = |slot: Slot| {
        let schema = Schema::new([slot]).unwrap();
        read(&path, &ParquetFiles::new(&schema), 9).unwrap_err().to_string()
    };
    assert!(refused(Slot::ragged_ids("word")).contains("did you mean 'words'?"));
    assert!(refused(Slot::dense_ids("price", [1])).contains("DOUBLE"));
    assert!(refused(Slot::dense_ids("city", [1])).contains("hash_text"));
    assert!(refused(Slot::dense_floats("city", [1])).contains("BYTE_ARRAY"));
    let lacking = refused(Slot::dense_ids("age", [1]));
    assert!(lacking.contains("expected 1, got 0") && lacking.contains(", row 2"), "{lacking}");
    let long = refused(Slot::dense_floats("scores", [3]));
    assert!(long.contains("'scores'") && long.contains("row 1"), "{long}");
    std::fs::remove_file(path).unwrap();
}

/// Any byte of a file may be wrong, and the file may end anywhere. The result must be an error or
/// other values, never a panic.
#[test]
fn torn_files_are_errors() {
    let path = written(Compression::UNCOMPRESSED, 1);
    let whole = std::fs::read(&path).unwrap();
    let format = ParquetFiles::new(&schema()).hash_text(10);
    for end in 0..whole.len() {
        std::fs::write(&path, &whole[..end]).unwrap();
        assert!(read(&path, &format, 9).is_err(), "{end}");
    }
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x15;
        std::fs::write(&path, &changed).unwrap();
        let _ = read(&path, &format, 9);
    }
    std::fs::remove_file(path).unwrap();
}
