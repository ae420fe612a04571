//! Columns out of Parquet files: the same records as from other formats, for all types and codecs.
#![cfg(feature = "parquet")]

use super::columns::{EncodeBits, Files, expected, float, hashes, ids, load, table_columns};
use fleet_base::Result;
use fleet_data::{BadRows, Block, ColumnFiles, ColumnSpec, DataFormat};
use parquet::basic::{BrotliLevel, Compression, GzipLevel, ZstdLevel};
use parquet::data_type::{
    BoolType, ByteArray, ByteArrayType, DataType, DoubleType, FixedLenByteArray,
    FixedLenByteArrayType, FloatType, Int32Type, Int64Type, Int96, Int96Type,
};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use std::sync::Arc;

type Group<'a> = SerializedRowGroupWriter<'a, Vec<u8>>;

/// Appends a column: values, definition levels and repetition levels, if it has them.
fn column<T: DataType>(group: &mut Group<'_>, values: &[T::T], levels: &[i16], starts: &[i16]) {
    let mut writer = group.next_column().unwrap().unwrap();
    let given = |levels: &[i16]| (!levels.is_empty()).then(|| levels.to_vec());
    let (levels, starts) = (given(levels), given(starts));
    writer.typed::<T>().write_batch(values, levels.as_deref(), starts.as_deref()).unwrap();
    writer.close().unwrap();
}

fn written(message: &str, codec: Compression, fill: impl Fn(&mut Group<'_>)) -> Vec<u8> {
    let message = Arc::new(parse_message_type(message).unwrap());
    let properties = Arc::new(WriterProperties::builder().set_compression(codec).build());
    let mut writer = SerializedFileWriter::new(Vec::new(), message, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    fill(&mut group);
    group.close().unwrap();
    writer.into_inner().unwrap()
}

fn texts(texts: &[&str]) -> Vec<ByteArray> {
    texts.iter().map(|text| ByteArray::from(*text)).collect()
}

/// Returns the table of the other formats.
fn table(codec: Compression) -> Vec<u8> {
    let message = "message table {
        required int64 day (TIMESTAMP(MILLIS, true));
        optional binary unused (UTF8);
        optional binary city (UTF8);
        optional group tags (LIST) { repeated group list { optional binary element (UTF8); } }
        optional group scores (LIST) { repeated group list { required double element; } }
        optional double price;
    }";
    written(message, codec, |group| {
        let days = [86_400_000, 999, 1_709_251_200_000];
        column::<Int64Type>(group, &days, &[], &[]);
        column::<ByteArrayType>(group, &[], &[0, 0, 0], &[]);
        column::<ByteArrayType>(group, &texts(&["Paris", "7"]), &[1, 1, 0], &[]);
        let tags = texts(&["a", "b", "Tromsø \"x\""]);
        column::<ByteArrayType>(group, &tags, &[3, 3, 1, 3, 2], &[0, 1, 0, 0, 1]);
        column::<DoubleType>(group, &[0.5, -2.0, 3.0], &[2, 2, 0, 2], &[0, 1, 0, 0]);
        column::<DoubleType>(group, &[1.5, 1e-7], &[1, 0, 1], &[]);
    })
}

#[test]
fn parquet_gives_the_same_records_with_every_codec() {
    let files = Files::new();
    let format = ColumnFiles::new(DataFormat::Parquet, table_columns()).unwrap();
    for codec in [
        Compression::UNCOMPRESSED,
        Compression::SNAPPY,
        Compression::GZIP(GzipLevel::default()),
        Compression::ZSTD(ZstdLevel::default()),
        Compression::BROTLI(BrotliLevel::default()),
        Compression::LZ4_RAW,
    ] {
        let path = files.write("table.parquet", &table(codec));
        let (block, _) = load(&format, &path).unwrap();
        assert_eq!(block.encode_bits(), expected(), "{codec}");
    }
}

fn read(bytes: &[u8], columns: &[ColumnSpec]) -> Result<Block> {
    let files = Files::new();
    let format = ColumnFiles::new(DataFormat::Parquet, columns.to_vec())?;
    load(&format, &files.write("f.parquet", bytes)).map(|(block, _)| block)
}

const TYPES: &str = "message types {
    required int32 date (DATE);
    required int64 micros (TIMESTAMP(MICROS, false));
    required int96 old;
    required int32 decimal32 (DECIMAL(9, 2));
    required int64 decimal64 (DECIMAL(18, 4));
    required binary decimal (DECIMAL(20, 1));
    required fixed_len_byte_array(16) wide (DECIMAL(38, 3));
    required boolean flag;
    required int32 small (INTEGER(8, true));
    required int64 large (INTEGER(64, false));
    required int32 unsigned (INTEGER(32, false));
    required float ratio;
    required group user { optional int64 age; required group home { required binary city (UTF8); } }
    required fixed_len_byte_array(4) raw;
}";

fn types() -> Vec<u8> {
    written(TYPES, Compression::SNAPPY, |group| {
        column::<Int32Type>(group, &[19783], &[], &[]);
        column::<Int64Type>(group, &[1_709_296_205_250_000], &[], &[]);
        let mut old = Int96::new();
        old.set_data(1_000_000_000, 0, 2_440_589);
        column::<Int96Type>(group, &[old], &[], &[]);
        column::<Int32Type>(group, &[-1250], &[], &[]);
        column::<Int64Type>(group, &[12_345], &[], &[]);
        column::<ByteArrayType>(group, &[ByteArray::from(vec![0xff, 0x38])], &[], &[]);
        let wide = FixedLenByteArray::from(12_345i128.to_be_bytes().to_vec());
        column::<FixedLenByteArrayType>(group, &[wide], &[], &[]);
        column::<BoolType>(group, &[true], &[], &[]);
        column::<Int32Type>(group, &[-7], &[], &[]);
        column::<Int64Type>(group, &[-1], &[], &[]);
        column::<Int32Type>(group, &[-1], &[], &[]);
        column::<FloatType>(group, &[0.1], &[], &[]);
        column::<Int64Type>(group, &[30], &[1], &[]);
        column::<ByteArrayType>(group, &texts(&["Rome"]), &[], &[]);
        let raw = FixedLenByteArray::from(vec![1, 2, 3, 4]);
        column::<FixedLenByteArrayType>(group, &[raw], &[], &[]);
    })
}

/// Every type becomes the number, time or text that a table in text would have.
#[test]
fn types_have_the_values_of_their_texts() {
    let bytes = types();
    for (name, number, word) in [
        ("decimal32", -12.5, "-12.50"),
        ("decimal64", 1.2345, "1.2345"),
        ("decimal", -20.0, "-20.0"),
        ("wide", 12.345, "12.345"),
        ("flag", 1.0, "true"),
        ("small", -7.0, "-7"),
        ("large", 18446744073709551615.0, "18446744073709551615"),
        ("unsigned", 4294967295.0, "4294967295"),
        ("ratio", 0.1, "0.1"),
        ("user.age", 30.0, "30"),
    ] {
        let block = read(&bytes, &[ColumnSpec::number(name)]).unwrap();
        assert_eq!(float(&block, 0, 0), number, "{name}");
        let block = read(&bytes, &[ColumnSpec::category(name)]).unwrap();
        assert_eq!(ids(&block, 0, 0), hashes(&[word]), "{name}");
    }
    for (name, seconds, word) in [
        ("date", 1_709_251_200, "2024-03-01"),
        ("micros", 1_709_296_205, "2024-03-01 12:30:05.250000"),
        ("old", 86_401, "1970-01-02 00:00:01"),
    ] {
        let block = read(&bytes, &[ColumnSpec::time(name)]).unwrap();
        assert_eq!(ids(&block, 0, 0), [seconds], "{name}");
        let block = read(&bytes, &[ColumnSpec::category(name)]).unwrap();
        assert_eq!(ids(&block, 0, 0), hashes(&[word]), "{name}");
        let error = read(&bytes, &[ColumnSpec::number(name)]).unwrap_err().to_string();
        assert!(error.contains("values are dates or times") && error.contains(name), "{error}");
    }
    let city = read(&bytes, &[ColumnSpec::category("user.home.city")]).unwrap();
    assert_eq!(ids(&city, 0, 0), hashes(&["Rome"]));
}

#[test]
fn wrong_files_and_columns_are_errors() {
    let bytes = types();
    let message = |bytes: &[u8], column| read(bytes, &[column]).unwrap_err().to_string();
    let structure = message(&bytes, ColumnSpec::category("user"));
    assert!(
        structure.contains("is a structure") && structure.contains("'user.age'"),
        "{structure}"
    );
    let raw = message(&bytes, ColumnSpec::category("raw"));
    assert!(raw.contains("bytes of a fixed length") && raw.contains("column 'raw'"), "{raw}");
    let absent = message(&bytes, ColumnSpec::number("user.ag"));
    assert!(absent.contains("did you mean 'user.age'"), "{absent}");
    let table = table(Compression::SNAPPY);
    let list = message(&table, ColumnSpec::category("tags"));
    assert!(list.contains("lists of values") && list.contains("`categories`"), "{list}");
    let number = message(&table, ColumnSpec::number("city"));
    assert!(number.contains("not a finite") && number.contains("f.parquet, row 1"), "{number}");
    assert!(message(b"", ColumnSpec::number("x")).contains("f.parquet"));
    assert!(message(b"x,y\n1,2\n", ColumnSpec::number("x")).contains("cannot read the Parquet"));

    let files = Files::new();
    let columns = [ColumnSpec::number("city")];
    let format = ColumnFiles::new(DataFormat::Parquet, columns).unwrap();
    let format = format.bad_rows(BadRows::at_most(1));
    let (block, skipped) = load(&format, &files.write("f.parquet", &table)).unwrap();
    assert_eq!((block.len(), skipped.lines, float(&block, 0, 0)), (2, 1, 7.0));
    let piped = format.pipe_command("zcat");
    assert!(load(&piped, &files.write("f.parquet", &table)).is_err());
}

/// Any byte of a file may be wrong: the result is an error or other values, never a panic.
#[test]
fn changed_bytes_do_not_panic() {
    let whole = table(Compression::SNAPPY);
    let files = Files::new();
    let format = ColumnFiles::new(DataFormat::Parquet, table_columns()).unwrap();
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x5a;
        let _ = load(&format, &files.write("f", &changed));
    }
}
