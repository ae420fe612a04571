//! Files in object stores, on a test server that implements a small part of S3.
#![cfg(feature = "object-store")]

use super::datasets::{ids_of, schema};
use fleet_base::{Error, ErrorKind};
use fleet_data::{Block, DatasetOptions, InMemoryDataset, ObjectStores, RecordFormat, TextFiles};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

pub const KEY_ID: &str = "key-of-the-test";
/// More bytes than may be in flight to one reader.
const LARGE_IDS: i64 = 2_000_000;

/// Bytes of the object `crumbs` (and `replaced`) sent per connection.
const CRUMB_BYTES: usize = 30_000;

/// A bucket `clicks`.
pub struct Bucket {
    objects: BTreeMap<String, Vec<u8>>,
    /// Whether the first response for the object `torn` breaks off in the middle.
    tears: AtomicBool,
    requests: Mutex<Vec<String>>,
    sent_bytes: AtomicU64,
    closed: AtomicBool,
}

pub struct Server {
    address: SocketAddr,
    bucket: Arc<Bucket>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start() -> Server {
        let lines = |ids: std::ops::Range<i64>| -> Vec<u8> {
            ids.flat_map(|id| format!("1 {id}\n").into_bytes()).collect()
        };
        let mut objects = BTreeMap::new();
        for day in 0..3 {
            for part in 0..3 {
                let start = 100 * day + 10 * part;
                objects.insert(format!("day-{day}/part-{part}"), lines(start..start + 10));
            }
            objects.insert(format!("day-{day}/_SUCCESS"), Vec::new());
        }
        objects.insert("torn".to_string(), lines(0..50_000));
        objects.insert("large".to_string(), lines(0..LARGE_IDS));
        for name in ["crumbs", "replaced", "nothing"] {
            objects.insert(name.to_string(), lines(0..50_000));
        }
        #[cfg(feature = "parquet")]
        objects.extend(super::tables::objects());
        let bucket = Arc::new(Bucket {
            objects,
            tears: AtomicBool::new(true),
            requests: Mutex::default(),
            sent_bytes: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let served = Arc::clone(&bucket);
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if served.closed.load(Ordering::SeqCst) {
                    break;
                }
                let bucket = Arc::clone(&served);
                // The thread ends when the client closes its connection.
                std::thread::spawn(move || bucket.serve(stream));
            }
        });
        Server { address, bucket, thread: Some(thread) }
    }

    pub fn stores(&self, key_id: &str) -> ObjectStores {
        let settings = [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_string()),
            ("AWS_REGION", "nowhere-1".to_string()),
            ("AWS_ACCESS_KEY_ID", key_id.to_string()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_string()),
            ("REGION", "not a setting".to_string()),
        ];
        let settings = settings.map(|(name, value)| (name.to_string(), value));
        ObjectStores::with_patience(settings, Duration::from_millis(400)).unwrap()
    }

    #[cfg(feature = "parquet")]
    pub fn sent_bytes(&self) -> u64 {
        self.bucket.sent_bytes.load(Ordering::SeqCst)
    }

    /// Returns the requests for an object so far.
    pub fn requests(&self, key: &str) -> Vec<String> {
        let requests = self.bucket.requests.lock().unwrap();
        let of_it = requests.iter().filter(|it| it.ends_with(&format!(" /clicks/{key}")));
        of_it.cloned().collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.bucket.closed.store(true, Ordering::SeqCst);
        // Wakes the thread, which then sees that the server is closed.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Bucket {
    fn serve(&self, mut stream: TcpStream) {
        let mut from = BufReader::new(stream.try_clone().unwrap());
        while let Some(head) = head(&mut from) {
            let mut words = head[0].split(' ');
            let (method, target) = (words.next().unwrap(), words.next().unwrap().to_string());
            self.requests.lock().unwrap().push(format!("{method} {target}"));
            let header = |name: &str| {
                let prefix = format!("{name}: ");
                let found = head.iter().find(|line| line.to_lowercase().starts_with(&prefix));
                found.map(|line| line[prefix.len()..].to_string())
            };
            let credentials = format!("AWS4-HMAC-SHA256 Credential={KEY_ID}/");
            let signed = header("authorization").map(|given| given.starts_with(&credentials));
            let answer = match target.split_once("?") {
                _ if signed == Some(false) => status("403 Forbidden"),
                Some(("/clicks", query)) => self.list(query),
                _ => self.object(&target, header("range"), header("if-match")),
            };
            let body = answer.windows(4).position(|it| it == b"\r\n\r\n").unwrap() + 4;
            let end = match target.as_str() {
                _ if method == "HEAD" => body,
                "/clicks/torn" if self.tears.swap(false, Ordering::SeqCst) => answer.len() / 2,
                "/clicks/crumbs" | "/clicks/replaced" => answer.len().min(body + CRUMB_BYTES),
                "/clicks/nothing" => body,
                _ => answer.len(),
            };
            self.sent_bytes.fetch_add(end as u64, Ordering::SeqCst);
            let torn = method != "HEAD" && end < answer.len();
            if stream.write_all(&answer[..end]).is_err() || torn {
                let _ = stream.shutdown(std::net::Shutdown::Both);
                return;
            }
        }
    }

    /// Returns pages of four names, so that clients must request more pages.
    fn list(&self, query: &str) -> Vec<u8> {
        let value = |name: &str| {
            let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
            pairs.find(|(known, _)| *known == name).map(|(_, value)| value.replace("%2F", "/"))
        };
        let prefix = value("prefix").unwrap_or_default();
        let behind = value("continuation-token").unwrap_or_default();
        let fits = |key: &&String| key.starts_with(&prefix) && **key > behind;
        let mut keys = self.objects.keys().filter(fits).peekable();
        let mut page = String::from("<?xml version=\"1.0\"?><ListBucketResult>");
        let mut last = String::new();
        for key in keys.by_ref().take(4) {
            let size = self.objects[key].len();
            page += &format!(
                "<Contents><Key>{key}</Key><LastModified>2024-02-29T12:00:00.000Z</LastModified>\
                 <ETag>\"1\"</ETag><Size>{size}</Size></Contents>"
            );
            last = key.clone();
        }
        if keys.peek().is_some() {
            page += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
        }
        page += "</ListBucketResult>";
        answer("200 OK", "", page.as_bytes())
    }

    fn object(&self, target: &str, range: Option<String>, tag: Option<String>) -> Vec<u8> {
        let found = target.strip_prefix("/clicks/").and_then(|key| self.objects.get(key));
        let Some(bytes) = found else { return status("404 Not Found") };
        // The object `replaced` has another version at each request.
        let version = match target.ends_with("/replaced") {
            true => self.requests.lock().unwrap().len(),
            false => 1,
        };
        let version = format!("\"{version}\"");
        if tag.is_some_and(|tag| tag != version) {
            return status("412 Precondition Failed");
        }
        let version = format!("ETag: {version}\r\n");
        let Some(range) = range else { return answer("200 OK", &version, bytes) };
        let (start, end) = range.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
        let start: usize = start.parse().unwrap();
        let end = end.parse().map_or(bytes.len(), |last: usize| last + 1);
        let place =
            format!("{version}Content-Range: bytes {start}-{}/{}\r\n", end - 1, bytes.len());
        answer("206 Partial Content", &place, &bytes[start..end])
    }
}

/// Reads the header lines of a request.
fn head(from: &mut impl BufRead) -> Option<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if from.read_line(&mut line).ok()? == 0 {
            return None;
        }
        match line.trim_end() {
            "" => return Some(lines),
            line => lines.push(line.to_string()),
        }
    }
}

fn status(status: &str) -> Vec<u8> {
    answer(status, "", b"<Error><Code>Refused</Code></Error>")
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let mut answer = format!(
        "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\
         Last-Modified: Thu, 29 Feb 2024 12:00:00 GMT\r\n{headers}\r\n",
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(body);
    answer
}

fn read(files: &TextFiles, name: &str) -> Result<Vec<i64>, String> {
    let mut block = Block::new(&schema());
    let mut reader = files.open(name.as_ref()).map_err(|error| error.to_string())?;
    while reader.read(usize::MAX, &mut block).map_err(|error| error.to_string())? > 0 {}
    Ok(ids_of(&block))
}

#[test]
fn patterns_name_objects_and_datasets_read_them() {
    let server = Server::start();
    let stores = server.stores(KEY_ID);
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
    let server = Server::start();
    let stores = server.stores(KEY_ID);
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
    let plain = format!("http://{}/clicks/day-0/part-1", server.address);
    assert!(read(&files(), &plain).unwrap().into_iter().eq(10..20));
}

#[test]
fn what_cannot_be_read_is_named() {
    let server = Server::start();
    let stores = server.stores(KEY_ID);
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
    let another = server.stores("another");
    refused(open(&another, "s3://clicks/large"), "s3://clicks/large", "read the object");
    refused(another.glob("s3://clicks/*").unwrap_err(), "s3://clicks/*", "list objects");
    assert_eq!(server.requests("large").len(), 1, "a refused request is not retried");
    let lists = server.bucket.requests.lock().unwrap();
    assert_eq!(lists.iter().filter(|request| request.contains("list-type")).count(), 1);
}

/// More broken connections than the client retries by itself, as when training takes an hour over
/// an object.
#[test]
fn connections_may_break_as_often_as_something_comes() {
    let server = Server::start();
    let stores = server.stores(KEY_ID);
    let files = TextFiles::multi_slot(&schema()).object_stores(&stores);
    assert!(read(&files, "s3://clicks/crumbs").unwrap().into_iter().eq(0..50_000));
    let crumbs = server.bucket.objects["crumbs"].len().div_ceil(CRUMB_BYTES);
    assert!(crumbs > 8 && server.requests("crumbs").len() >= crumbs, "{crumbs}");
    let error = read(&files, "s3://clicks/replaced").unwrap_err();
    assert!(error.contains("s3://clicks/replaced"), "no mix of two objects: {error}");
    let error = read(&files, "s3://clicks/nothing").unwrap_err();
    assert!(error.contains("s3://clicks/nothing"), "{error}");
}
