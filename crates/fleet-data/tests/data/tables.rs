//! Parquet files in object stores.
#![cfg(all(feature = "object-store", feature = "parquet"))]

use super::objects::stores_of;
use fleet_base::{ErrorKind, Result};
use fleet_data::{
    Block, DatasetOptions, InMemoryDataset, ParquetFiles, RecordFormat, Schema, Slot,
};
use fleet_testhost::s3::{KEY_ID, ObjectServer};
use parquet::data_type::{ByteArrayType, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use std::sync::Arc;

const MESSAGE: &str = "message rows { required int64 id; required binary text; }";
const GROUPS: usize = 4;
const GROUP_ROWS: usize = 1000;
/// Bytes of a value in the column without a slot, which takes most of a file.
const TEXT_BYTES: usize = 2000;

/// The objects `table-0` and `table-1`, whose rows are numbered, and two invalid files.
fn objects() -> Vec<(String, Vec<u8>)> {
    let table = |name: &str, first: usize| {
        let mut bytes = Vec::new();
        let message = Arc::new(parse_message_type(MESSAGE).unwrap());
        // All texts differ, so that they are not compressed away.
        let plain = WriterProperties::builder().set_dictionary_enabled(false).build();
        let mut writer = SerializedFileWriter::new(&mut bytes, message, Arc::new(plain)).unwrap();
        for group in 0..GROUPS {
            let first = first + group * GROUP_ROWS;
            let ids: Vec<i64> = (first..first + GROUP_ROWS).map(|id| id as i64).collect();
            let text = ids.iter().map(|id| format!("{id:0>TEXT_BYTES$}").as_str().into());
            let text: Vec<_> = text.collect();
            let mut group = writer.next_row_group().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<Int64Type>().write_batch(&ids, None, None).unwrap();
            column.close().unwrap();
            let mut column = group.next_column().unwrap().unwrap();
            column.typed::<ByteArrayType>().write_batch(&text, None, None).unwrap();
            column.close().unwrap();
            group.close().unwrap();
        }
        writer.close().unwrap();
        (name.to_string(), bytes)
    };
    let (first, second) = (table("table-0", 0), table("table-1", GROUPS * GROUP_ROWS));
    let half = first.1[..first.1.len() / 2].to_vec();
    vec![first, second, ("half".to_string(), half), ("empty".to_string(), Vec::new())]
}

#[test]
fn of_tables_in_object_stores_what_slots_ask_for_is_read() {
    let server = ObjectServer::start(objects());
    let stores = stores_of(&server, KEY_ID);
    let schema = Schema::new([Slot::dense_ids("id", [1])]).unwrap();
    let format = ParquetFiles::new(&schema).object_stores(&stores);
    let options = DatasetOptions { threads: 2, ..DatasetOptions::new(format.clone()).unwrap() };
    let mut dataset = InMemoryDataset::new(options).unwrap();
    dataset.set_filelist(stores.glob("s3://clicks/table-*").unwrap()).unwrap();
    dataset.load_into_memory().unwrap();
    assert_eq!(dataset.memory_data_size(), 2 * GROUPS * GROUP_ROWS);

    let read = |name: &str| -> Result<Vec<i64>> {
        let mut block = Block::new(&schema);
        let mut reader = format.open(name.as_ref())?;
        while reader.read(usize::MAX, &mut block)? > 0 {}
        Ok(super::datasets::ids_of(&block))
    };
    let before = (server.requests("table-1").len(), server.sent_bytes());
    let first = (GROUPS * GROUP_ROWS) as i64;
    assert!(read("s3://clicks/table-1").unwrap().into_iter().eq(first..2 * first));
    // Three requests for size and footer, then two for each row group: its data, and a check that
    // the object is unchanged.
    let requests = server.requests("table-1").len() - before.0;
    assert_eq!(requests, 3 + 2 * GROUPS);
    let sent = server.sent_bytes() - before.1;
    assert!(sent < (GROUP_ROWS * TEXT_BYTES) as u64, "{sent} bytes of a file of eight megabytes");

    for name in ["half", "empty", "none", "day-0/part-0"] {
        let url = format!("s3://clicks/{name}");
        let error = read(&url).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(&url), "{error}");
    }
    let error = ParquetFiles::new(&schema).open("s3://clicks/table-0".as_ref()).map(drop);
    assert!(error.unwrap_err().to_string().contains("object_stores"));
    let error = ParquetFiles::new(&schema).open("/tmp".as_ref()).map(drop);
    assert!(error.unwrap_err().to_string().contains("expected a file of records"));
}
