//! A server that speaks a small part of S3, and serves the same objects to plain web clients. It
//! can break connections, and replace an object while it is read.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// The one key to which the server answers.
pub const KEY_ID: &str = "key-of-the-test";

/// A running server with the bucket `clicks`. It ends when it is dropped.
pub struct ObjectServer {
    address: SocketAddr,
    bucket: Arc<Bucket>,
    thread: Option<JoinHandle<()>>,
}

/// How the server sends an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The first answer breaks off in the middle.
    TornOnce,
    /// Each answer breaks off after this number of bytes; 0 sends the header alone.
    Crumbs(usize),
    /// Like [`Fault::Crumbs`], with another version of the object at each request.
    Replaced(usize),
}

struct Bucket {
    objects: BTreeMap<String, Vec<u8>>,
    faults: BTreeMap<String, Fault>,
    requests: Mutex<Vec<String>>,
    sent_bytes: AtomicU64,
    closed: AtomicBool,
}

/// Keys of a page of a list: few, so that clients must request more pages.
const PAGE_KEYS: usize = 4;

impl ObjectServer {
    /// Serves objects by their keys.
    pub fn start<K: Into<String>>(objects: impl IntoIterator<Item = (K, Vec<u8>)>) -> ObjectServer {
        ObjectServer::with_faults(objects, [])
    }

    /// Like [`ObjectServer::start`], with faults of some objects.
    pub fn with_faults<K: Into<String>>(
        objects: impl IntoIterator<Item = (K, Vec<u8>)>,
        faults: impl IntoIterator<Item = (&'static str, Fault)>,
    ) -> ObjectServer {
        let bucket = Arc::new(Bucket {
            objects: objects.into_iter().map(|(key, bytes)| (key.into(), bytes)).collect(),
            faults: faults.into_iter().map(|(key, fault)| (key.to_string(), fault)).collect(),
            requests: Mutex::default(),
            sent_bytes: AtomicU64::new(0),
            closed: AtomicBool::new(false),
        });
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("the address of a listener");
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
        ObjectServer { address, bucket, thread: Some(thread) }
    }

    /// The variables of a client with a key, [`KEY_ID`] or a wrong one.
    pub fn settings(&self, key_id: &str) -> Vec<(String, String)> {
        let settings = [
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_ALLOW_HTTP", "true".to_string()),
            ("AWS_REGION", "nowhere-1".to_string()),
            ("AWS_ACCESS_KEY_ID", key_id.to_string()),
            ("AWS_SECRET_ACCESS_KEY", "secret".to_string()),
        ];
        settings.map(|(name, value)| (name.to_string(), value)).to_vec()
    }

    /// The web address of an object.
    pub fn url(&self, key: &str) -> String {
        format!("http://{}/clicks/{key}", self.address)
    }

    /// The requests for an object so far: method and path.
    pub fn requests(&self, key: &str) -> Vec<String> {
        let of_it = format!(" /clicks/{key}");
        self.bucket.requests().iter().filter(|it| it.ends_with(&of_it)).cloned().collect()
    }

    /// The number of requests for lists so far.
    pub fn lists(&self) -> usize {
        self.bucket.requests().iter().filter(|request| request.contains("list-type")).count()
    }

    /// The number of bytes that were sent.
    pub fn sent_bytes(&self) -> u64 {
        self.bucket.sent_bytes.load(Ordering::SeqCst)
    }
}

impl Drop for ObjectServer {
    fn drop(&mut self) {
        self.bucket.closed.store(true, Ordering::SeqCst);
        // Wakes the thread, which then sees that the server is closed.
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed.
            let _ = thread.join();
        }
    }
}

impl Bucket {
    fn requests(&self) -> MutexGuard<'_, Vec<String>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut from = BufReader::new(stream.try_clone().expect("a second handle"));
        while let Some(head) = head(&mut from) {
            let mut words = head[0].split(' ');
            let (method, target) = (words.next().unwrap_or(""), words.next().unwrap_or(""));
            self.requests().push(format!("{method} {target}"));
            let header = |name: &str| {
                let of = |line: &String| {
                    let (known, value) = line.split_once(": ")?;
                    known.eq_ignore_ascii_case(name).then(|| value.to_string())
                };
                head.iter().find_map(of)
            };
            let credentials = format!("AWS4-HMAC-SHA256 Credential={KEY_ID}/");
            let signed = header("authorization").map(|given| given.starts_with(&credentials));
            let answer = match (method, target.split_once('?')) {
                _ if signed == Some(false) => refused("403 Forbidden"),
                ("GET", Some(("/clicks", query))) => self.list(query),
                ("GET" | "HEAD", None) => self.object(target, header("range"), header("if-match")),
                _ => refused("405 Method Not Allowed"),
            };
            let end = self.end_of(method, target, &answer);
            self.sent_bytes.fetch_add(end as u64, Ordering::SeqCst);
            let is_torn = method != "HEAD" && end < answer.len();
            if stream.write_all(&answer[..end]).is_err() || is_torn {
                let _ = stream.shutdown(Shutdown::Both);
                return;
            }
        }
    }

    fn fault(&self, target: &str) -> Option<Fault> {
        self.faults.get(target.strip_prefix("/clicks/")?).copied()
    }

    /// Returns how many bytes of an answer are sent.
    fn end_of(&self, method: &str, target: &str, answer: &[u8]) -> usize {
        let head = answer.windows(4).position(|it| it == b"\r\n\r\n").map_or(0, |at| at + 4);
        match self.fault(target) {
            _ if method == "HEAD" => head,
            Some(Fault::Crumbs(bytes) | Fault::Replaced(bytes)) => answer.len().min(head + bytes),
            Some(Fault::TornOnce) => {
                let request = format!("GET {target}");
                let count = self.requests().iter().filter(|it| **it == request).count();
                if count == 1 { answer.len() / 2 } else { answer.len() }
            }
            None => answer.len(),
        }
    }

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
        for key in keys.by_ref().take(PAGE_KEYS) {
            let size = self.objects[key].len();
            page += &format!(
                "<Contents><Key>{key}</Key><LastModified>2024-02-29T12:00:00.000Z</LastModified>\
                 <ETag>\"1\"</ETag><Size>{size}</Size></Contents>"
            );
            last.clone_from(key);
        }
        if keys.peek().is_some() {
            page += &format!("<NextContinuationToken>{last}</NextContinuationToken>");
        }
        answer("200 OK", "", (page + "</ListBucketResult>").as_bytes())
    }

    fn object(&self, target: &str, range: Option<String>, tag: Option<String>) -> Vec<u8> {
        let found = target.strip_prefix("/clicks/").and_then(|key| self.objects.get(key));
        let Some(bytes) = found else { return refused("404 Not Found") };
        let version = match self.fault(target) {
            Some(Fault::Replaced(_)) => self.requests().len(),
            _ => 1,
        };
        let version = format!("\"{version}\"");
        if tag.is_some_and(|tag| tag != version) {
            return refused("412 Precondition Failed");
        }
        let version = format!("ETag: {version}\r\n");
        let Some(range) = range else { return answer("200 OK", &version, bytes) };
        let Some((start, end)) = span(&range, bytes.len()) else {
            return refused("416 Range Not Satisfiable");
        };
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
            "" if lines.is_empty() => return None,
            "" => return Some(lines),
            line => lines.push(line.to_string()),
        }
    }
}

/// Returns the bytes that a header `range` asks for.
fn span(range: &str, len: usize) -> Option<(usize, usize)> {
    let (start, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let start: usize = start.parse().ok()?;
    let end = last.parse().map_or(len, |last: usize| last.saturating_add(1)).min(len);
    (start < end).then_some((start, end))
}

fn refused(status: &str) -> Vec<u8> {
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
