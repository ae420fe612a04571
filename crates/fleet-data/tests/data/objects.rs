//! Files in object stores, on a test server that implements a small part of S3.
#![cfg(feature = "object-store")]

use super::datasets::{ids_of, schema};
use fleet_base::{Error, ErrorKind};
use fleet_data::{Block, DatasetOptions, InMemoryDataset, ObjectStores, RecordFormat, TextFiles};
use fleet_testhost::s3::{Fault, KEY_ID, ObjectServer};
use std::time::Duration;

/// More bytes than may be in flight to one reader.
const LARGE_IDS: i64 = 2_000_000;
/// Bytes of the objects `crumbs` and `replaced` sent per connection.
const CRUMB_BYTES: usize = 30_000;

fn lines(ids: std::ops::Range<i64>) -> Vec<u8> {
    ids.flat_map(|id| format!("1 {id}\n").into_bytes()).collect()
}

fn start() -> ObjectServer {
    let mut objects = Vec::new();
    for day in 0..3 {
        for part in 0..3 {
            let start = 100 * day + 10 * part;
            objects.push((format!("day-{day}/part-{part}"), lines(start..start + 10)));
        }
        objects.push((format!("day-{day}/_SUCCESS"), Vec::new()));
    }
    objects.push(("large".to_string(), lines(0..LARGE_IDS)));
    for name in ["torn", "crumbs", "replaced", "nothing"] {
        objects.push((name.to_string(), lines(0..50_000)));
    }
    let faults = [
        ("torn", Fault::TornOnce),
        ("crumbs", Fault::Crumbs(CRUMB_BYTES)),
        ("replaced", Fault::Replaced(CRUMB_BYTES)),
        ("nothing", Fault::Crumbs(0)),
    ];
    ObjectServer::with_faults(objects, faults)
}

pub fn stores_of(server: &ObjectServer, key_id: &str) -> ObjectStores {
    let mut settings = server.settings(key_id);
    settings.push(("REGION".to_string(), "not a setting".to_string()));
    ObjectStores::with_patience(settings, Duration::from_millis(400)).unwrap()
}

fn read(files: &TextFiles, name: &str) -> Result<Vec<i64>, String> {
    let mut block = Block::new(&schema());
    let mut reader = files.open(name.as_ref()).map_err(|error| error.to_string())?;
    while reader.read(usize::MAX, &mut block).map_err(|error| error.to_string())? > 0 {}
    Ok(ids_of(&block))
}

#[test]
fn patterns_name_objects_and_datasets_read_them() {
    let server = start();
    let stores = stores_of(&server, KEY_ID);
    let files = stores.glob("s3://clicks/day-[01]/part-*").unwrap();
    let names: Vec<_> = files.iter().map(|file| file.to_str().unwrap()).collect();
    let expected = ["0/part-0", "0/part-1", "0/part-2", "1/part-0", "1/part-1", "1/part-2"];
    assert_eq!(names, expected.map(|name| format!("s3://clicks/day-{name}")));
    let check = |pattern: &str, count: usize| {
        assert_eq!(stores.glob(pattern).unwrap().len(), count, "{pattern}");
    };
    check("s3://clicks/**/part-0", 3);
    check("s3://clicks/day-2/*", 4);
    check("s3://clicks/day-2/part-1", 1);
    let error = stores.glob("s3://clicks/day-7/*").unwrap_err();
    assert!(error.to_string().starts_with("no object matches"), "{error}");

    let format = TextFiles::multi_slot(&schema()).object_stores(&stores);
    let options = DatasetOptions { threads: 2, ..DatasetOptions::new(format).unwrap() };
    let mut dataset = InMemoryDataset::new(options).unwrap();
    dataset.set_filelist(&files).unwrap();
    dataset.load_into_memory().unwrap();
    assert_eq!(dataset.memory_data_size(), 60);
}

#[test]
fn objects_come_whole_through_broken_connections_and_programs() {
    let server = start();
    let stores = stores_of(&server, KEY_ID);
    let files = || TextFiles::multi_slot(&schema()).object_stores(&stores);
    assert!(read(&files(), "s3://clicks/torn").unwrap().into_iter().eq(0..50_000));
    assert_eq!(server.requests("torn").len(), 2);
    assert!(read(&files(), "s3://clicks/large").unwrap().into_iter().eq(0..LARGE_IDS));
    assert!(read(&files(), "s3://clicks/day-0/_SUCCESS").unwrap().is_empty());
    let odd = files().pipe_command("grep -v '[02468]$'");
    assert_eq!(read(&odd, "s3://clicks/day-2/part-1").unwrap(), [211, 213, 215, 217, 219]);
    // A program that stops reading early, and one that fails.
    assert_eq!(read(&files().pipe_command("head -n 2"), "s3://clicks/large").unwrap(), [0, 1]);
    let error = read(&files().pipe_command("exit 3"), "s3://clicks/large").unwrap_err();
    assert!(error.contains("exit status: 3") && error.contains("s3://clicks/large"), "{error}");
    // An object that is not read to its end blocks nothing.
    let mut reader = files().open("s3://clicks/large".as_ref()).unwrap();
    assert_eq!(reader.read(3, &mut Block::new(&schema())).unwrap(), 3);
    drop(reader);
    let plain = server.url("day-0/part-1");
    assert!(read(&files(), &plain).unwrap().into_iter().eq(10..20));
}

#[test]
fn what_cannot_be_read_is_named() {
    let server = start();
    let stores = stores_of(&server, KEY_ID);
    let open = |stores: &ObjectStores, name: &str| {
        let files = TextFiles::multi_slot(&schema()).object_stores(stores);
        files.open(name.as_ref()).map(drop).unwrap_err()
    };
    for name in ["s3://clicks/none", "s3://clicks", "s3:///x", "hdfs://node/part-0"] {
        let error = open(&stores, name);
        assert_ne!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
    assert!(open(&stores, "hdfs://node/part-0").to_string().contains("hadoop fs -cat"));
    let refused = |error: Error, url: &str, right: &str| {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        let error = error.to_string();
        let expected = ["permission denied", url, "403 Forbidden", "AWS_ACCESS_KEY_ID", right];
        expected.iter().for_each(|words| assert!(error.contains(words), "no {words} in {error}"));
    };
    let another = stores_of(&server, "another");
    refused(open(&another, "s3://clicks/large"), "s3://clicks/large", "read the object");
    refused(another.glob("s3://clicks/*").unwrap_err(), "s3://clicks/*", "list objects");
    assert_eq!(server.requests("large").len(), 1, "a refused request is not retried");
    assert_eq!(server.lists(), 1);
}

/// More broken connections than the client retries by itself, as when training takes an hour over
/// an object.
#[test]
fn connections_may_break_as_often_as_something_comes() {
    let server = start();
    let stores = stores_of(&server, KEY_ID);
    let files = TextFiles::multi_slot(&schema()).object_stores(&stores);
    assert!(read(&files, "s3://clicks/crumbs").unwrap().into_iter().eq(0..50_000));
    let crumbs = lines(0..50_000).len().div_ceil(CRUMB_BYTES);
    assert!(crumbs > 8 && server.requests("crumbs").len() >= crumbs, "{crumbs}");
    let error = read(&files, "s3://clicks/replaced").unwrap_err();
    assert!(error.contains("s3://clicks/replaced"), "no mix of two objects: {error}");
    let error = read(&files, "s3://clicks/nothing").unwrap_err();
    assert!(error.contains("s3://clicks/nothing"), "{error}");
}
