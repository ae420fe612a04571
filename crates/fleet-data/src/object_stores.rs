//! Files in object stores, in the feature `object-store`: resolves names like `s3://bucket/part-0`,
//! and reads objects piece by piece. The crate `object_store` implements the protocols. It retries
//! failed requests, and continues within an object after a broken connection.
//!
//! One thread drives all requests. A reader blocks until its next piece arrives, so it works in any
//! thread. The number of bytes in flight for a reader is bounded.

use crate::files::{FILES_MAX, check_count, parsed};
use bytes::Bytes;
use fleet_base::sync::lock;
use fleet_base::{Error, Result};
use futures_util::TryStreamExt;
use glob::MatchOptions;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{
    ClientOptions, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, RetryConfig,
};
use std::collections::HashMap;
use std::future::Future;
use std::io::Read;
#[cfg(feature = "parquet")]
use std::ops::Range;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Object stores of one user: S3 (`s3://bucket/key`) and compatible stores, Google Cloud Storage
/// (`gs://`), Azure (`az://container/key`, `abfss://`), and plain web servers
/// (`https://host/path`).
///
/// Settings and credentials are pairs of the usual variables (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
/// `AWS_ENDPOINT_URL`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME`, ..), usually from
/// `std::env::vars()`; other variables are ignored.
///
/// ```no_run
/// use fleet_data::{DatasetOptions, ObjectStores, QueueDataset, Schema, Slot, TextFiles};
/// let stores = ObjectStores::new(std::env::vars())?;
/// let files = stores.glob("s3://clicks/day-*/part-*")?;
/// let schema = Schema::new([Slot::ragged_ids("words")])?;
/// let format = TextFiles::multi_slot(&schema).object_stores(&stores).pipe_command("zcat");
/// let options = DatasetOptions { batch_size: 32, ..DatasetOptions::new(format)? };
/// let mut dataset = QueueDataset::new(options)?;
/// dataset.set_filelist(files)?;
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone)]
pub struct ObjectStores(Arc<Shared>);

impl std::fmt::Debug for ObjectStores {
    /// Omits the settings, which contain secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ObjectStores")
    }
}

struct Shared {
    /// Started by the first request.
    runtime: Mutex<Option<Runtime>>,
    settings: Vec<(String, String)>,
    /// How long a failing request is retried.
    patience: Duration,
    /// Clients by bucket or host; they keep connections and credentials.
    clients: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

/// A parsed name: the scheme with bucket or host, and the key.
struct Name<'a> {
    root: &'a str,
    key: &'a str,
}

impl ObjectStores {
    /// Creates stores from pairs of setting names and values. If a server is busy or does not
    /// answer, requests are retried for a minute.
    pub fn new(settings: impl IntoIterator<Item = (String, String)>) -> Result<ObjectStores> {
        ObjectStores::with_patience(settings, RETRY_TIME_MAX)
    }

    /// Like [`ObjectStores::new`], with another time limit for retries.
    pub fn with_patience(
        settings: impl IntoIterator<Item = (String, String)>,
        patience: Duration,
    ) -> Result<ObjectStores> {
        let known = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let settings = settings.into_iter().filter(|(name, _)| known(name)).collect();
        let (runtime, clients) = (Mutex::default(), Mutex::default());
        Ok(ObjectStores(Arc::new(Shared { runtime, settings, patience, clients })))
    }

    /// Returns the objects that match a pattern, sorted by name, like [`glob`](crate::glob) for
    /// local files. Web servers must support WebDAV listings.
    pub fn glob(&self, pattern: &str) -> Result<Vec<PathBuf>> {
        let name = parse(pattern)?;
        let pieces: Vec<&str> = name.key.split('/').filter(|piece| !piece.is_empty()).collect();
        let is_plain = |piece: &&&str| !piece.contains(['*', '?', '[']);
        let plain = pieces.iter().take_while(is_plain).count().min(pieces.len().saturating_sub(1));
        let wanted = parsed(&pieces.join("/"))?;
        let client = self.client(&name)?;
        let prefix = Key::from_iter(pieces[..plain].iter().copied());
        let listed = self.wait(async move {
            let mut keys = Vec::new();
            let mut list = client.list(Some(&prefix));
            while keys.len() <= FILES_MAX
                && let Some(object) = list.try_next().await?
            {
                keys.push(object.location);
            }
            Ok::<_, object_store::Error>(keys)
        })?;
        let keys = listed.map_err(|error| {
            let error = failed("list objects", pattern, &error).at(pattern);
            match name.root.starts_with("http") {
                true => error.or_help(WEB_HELP),
                false => error,
            }
        })?;
        check_count(keys.len())?;
        let rules = MatchOptions { require_literal_separator: true, ..MatchOptions::new() };
        let found = keys.iter().filter(|key| wanted.matches_with(key.as_ref(), rules));
        let mut found: Vec<PathBuf> =
            found.map(|key| format!("{}/{key}", name.root).into()).collect();
        found.sort();
        match found.is_empty() {
            true => Err(Error::invalid("no object matches the pattern").got(pattern)),
            false => Ok(found),
        }
    }

    /// Starts to download an object; fails if it does not exist.
    pub(crate) fn open(&self, url: &str) -> Result<Box<dyn Read + Send>> {
        let (client, key) = self.locate(url)?;
        let (send, pieces) = channel();
        let permits = Arc::new(Semaphore::new(IN_FLIGHT_BYTES_MAX));
        let task = self.runtime()?.spawn(fetch(client, key, send, Arc::clone(&permits)));
        let mut object =
            Object { _stores: self.clone(), pieces, permits, task, piece: Bytes::new(), left: 0 };
        match object.next_piece() {
            Ok(()) => Ok(Box::new(object)),
            Err(error) => Err(failed(READ, url, &error).at(url)),
        }
    }

    /// Opens an object for reading parts of it.
    #[cfg(feature = "parquet")]
    pub(crate) fn parts(&self, url: &str) -> Result<ObjectParts> {
        let (client, key) = self.locate(url)?;
        let (asked, of) = (Arc::clone(&client), key.clone());
        let meta = self.wait(async move { asked.head(&of).await })?;
        let meta = meta.map_err(|error| failed(READ, url, &error).at(url))?;
        let (stores, url) = (self.clone(), url.to_string());
        Ok(ObjectParts { stores, client, key, url, size: meta.size, e_tag: meta.e_tag })
    }

    fn locate(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Key)> {
        let name = parse(url)?;
        let key = match name.root.starts_with("http") {
            true => Key::from_url_path(name.key),
            false => Key::parse(name.key),
        };
        let key = key.map_err(|error| failed(READ, url, &error.into()).at(url))?;
        Ok((self.client(&name)?, key))
    }

    fn client(&self, name: &Name<'_>) -> Result<Arc<dyn ObjectStore>> {
        let mut clients = lock(&self.0.clients);
        if let Some(client) = clients.get(name.root) {
            return Ok(Arc::clone(client));
        }
        let client = self.connect(name.root).map_err(|error| {
            Error::invalid(format!("cannot use the object store {}: {error}", name.root))
        })?;
        clients.insert(name.root.to_string(), Arc::clone(&client));
        Ok(client)
    }

    fn connect(&self, root: &str) -> Result<Arc<dyn ObjectStore>, object_store::Error> {
        // TLS needs one provider of ciphers per process; if another is already installed, that one
        // is used.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let retry = RetryConfig {
            max_retries: RETRIES_MAX,
            retry_timeout: self.0.patience,
            ..RetryConfig::default()
        };
        macro_rules! client {
            ($builder:expr) => {{
                let builder = $builder.with_url(root).with_retry(retry);
                let settings = self.0.settings.iter();
                let set = settings.fold(builder, |builder, (name, value)| {
                    match name.to_ascii_lowercase().parse() {
                        Ok(key) => builder.with_config(key, value),
                        Err(_) => builder,
                    }
                });
                Arc::new(set.build()?) as Arc<dyn ObjectStore>
            }};
        }
        // An explicit http:// URL permits plain HTTP.
        let plain = ClientOptions::new().with_allow_http(root.starts_with("http://"));
        Ok(match root.split("://").next() {
            Some("s3" | "s3a") => client!(AmazonS3Builder::new()),
            Some("gs") => client!(GoogleCloudStorageBuilder::new()),
            Some("http" | "https") => client!(HttpBuilder::new().with_client_options(plain)),
            _ => client!(MicrosoftAzureBuilder::new()),
        })
    }

    /// Returns the runtime, and starts its thread at the first call.
    fn runtime(&self) -> Result<Handle> {
        let mut runtime = lock(&self.0.runtime);
        if let Some(runtime) = &*runtime {
            return Ok(runtime.handle().clone());
        }
        let started = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fleet-objects")
            .enable_all()
            .build()
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        Ok(runtime.insert(started).handle().clone())
    }

    /// Runs work on the runtime and waits for its result, in any thread.
    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let (send, result) = channel();
        self.runtime()?.spawn(async move {
            // The receiver is gone only if the caller's thread is.
            let _ = send.send(work.await);
        });
        result.recv().map_err(|_| Error::internal("a request to an object store panicked"))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // Dropping a runtime waits for its threads, and panics inside another runtime. A background
        // shutdown does not wait.
        if let Some(runtime) = lock(&self.runtime).take() {
            runtime.shutdown_background();
        }
    }
}

type Piece = Result<Bytes, object_store::Error>;

/// Sends an object's pieces while permits are available; an empty piece marks the end.
///
/// The client resumes after a broken connection, but only for a limited time after its first
/// request. A reader that trains meanwhile may take an hour over one object. When the client gives
/// up, the rest of the object is requested anew, provided that bytes have arrived since the last
/// such request.
async fn fetch(
    client: Arc<dyn ObjectStore>,
    key: Key,
    send: Sender<Piece>,
    permits: Arc<Semaphore>,
) {
    let outcome = async {
        let whole = client.get(&key).await?;
        let size = whole.meta.size;
        let same = unchanged(&whole);
        let mut stream = whole.into_stream();
        let (mut received, mut received_before) = (0u64, 0u64);
        loop {
            let piece = match stream.try_next().await {
                Ok(Some(piece)) if piece.is_empty() => continue,
                Ok(Some(piece)) => piece,
                Ok(None) => break,
                Err(error) if received == received_before => return Err(error),
                Err(_) => {
                    received_before = received;
                    let range = Some(GetRange::Bounded(received..size));
                    let rest = client.get_opts(&key, GetOptions { range, ..same.clone() });
                    stream = rest.await?.into_stream();
                    continue;
                }
            };
            received += piece.len() as u64;
            let bytes = piece.len().min(IN_FLIGHT_BYTES_MAX) as u32;
            // The reader returns the permits with the piece; the semaphore is never closed.
            if let Ok(permit) = permits.acquire_many(bytes).await {
                permit.forget();
            }
            if send.send(Ok(piece)).is_err() {
                break;
            }
        }
        Ok(Bytes::new())
    };
    // A reader that was dropped needs no error.
    let _ = send.send(outcome.await);
}

/// Returns options that restrict a request to this version of the object: it fails if the object
/// was replaced.
fn unchanged(object: &GetResult) -> GetOptions {
    let if_match = object.meta.e_tag.clone();
    let if_unmodified_since = if_match.is_none().then_some(object.meta.last_modified);
    GetOptions { if_match, if_unmodified_since, ..GetOptions::default() }
}

/// An object of which parts are read.
#[cfg(feature = "parquet")]
pub(crate) struct ObjectParts {
    stores: ObjectStores,
    client: Arc<dyn ObjectStore>,
    key: Key,
    url: String,
    size: u64,
    e_tag: Option<String>,
}

#[cfg(feature = "parquet")]
impl ObjectParts {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Downloads non-empty ranges of its bytes; neighbouring ranges share one request.
    pub fn get(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Result<Vec<Bytes>> {
        let (client, key) = (Arc::clone(&self.client), self.key.clone());
        let ranges: Vec<Range<u64>> = ranges.into_iter().collect();
        let got = self.stores.wait(async move {
            let parts = client.get_ranges(&key, &ranges).await?;
            // Requested last, which proves that all parts downloaded so far belong to the same
            // object.
            Ok::<_, object_store::Error>((parts, client.head(&key).await?))
        })?;
        let (parts, meta) = got.map_err(|error| failed(READ, &self.url, &error))?;
        if meta.e_tag == self.e_tag && meta.size == self.size {
            return Ok(parts);
        }
        Err(Error::unavailable("object was replaced during the read"))
    }
}

/// Reader of an object that is being downloaded.
struct Object {
    /// Keeps the thread that downloads pieces.
    _stores: ObjectStores,
    pieces: Receiver<Piece>,
    /// Permits for bytes in flight.
    permits: Arc<Semaphore>,
    task: JoinHandle<()>,
    piece: Bytes,
    /// Unread bytes of the piece.
    left: usize,
}

impl Object {
    fn next_piece(&mut self) -> Result<(), object_store::Error> {
        let lost = || object_store::Error::Generic {
            store: "object store",
            source: "the download thread has ended".into(),
        };
        self.piece = self.pieces.recv().map_err(|_| lost())??;
        self.left = self.piece.len();
        Ok(())
    }
}

impl Read for Object {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        // An empty piece marks the end for good.
        if self.left == 0 && !self.piece.is_empty() {
            self.permits.add_permits(self.piece.len().min(IN_FLIGHT_BYTES_MAX));
            self.next_piece().map_err(std::io::Error::other)?;
        }
        let start = self.piece.len() - self.left;
        let count = self.left.min(buffer.len());
        buffer[..count].copy_from_slice(&self.piece[start..start + count]);
        self.left -= count;
        Ok(count)
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn parse(url: &str) -> Result<Name<'_>> {
    let wrong = || Error::invalid("invalid object name").expected("SCHEME://BUCKET/KEY").got(url);
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    if !SCHEMES.contains(&scheme) {
        let known = SCHEMES.join(", ");
        let error = Error::unsupported(format!("unsupported object store {scheme}://"));
        return Err(error.expected(known).help(DOWNLOAD_HELP).at(url));
    }
    let (bucket, key) = rest.split_once('/').ok_or_else(wrong)?;
    if bucket.is_empty() || key.is_empty() {
        return Err(wrong());
    }
    Ok(Name { root: &url[..scheme.len() + 3 + bucket.len()], key })
}

fn failed(what: &str, url: &str, error: &object_store::Error) -> Error {
    use object_store::Error as E;
    let message = format!("cannot {what}: {error}");
    match (error, status(error)) {
        (E::PermissionDenied { .. } | E::Unauthenticated { .. }, _) | (_, Some(401 | 403)) => {
            let help = match credentials(url) {
                "" => "use a public URL; passwords for web servers are not supported".to_string(),
                names => format!("check the credentials ({names}) and their permission to {what}"),
            };
            Error::invalid(format!("permission denied: {message}")).help(help)
        }
        (E::NotFound { .. } | E::InvalidPath { .. } | E::NotSupported { .. }, _) => {
            Error::invalid(message)
        }
        // Statuses 408 (timeout) and 429 (too many requests) are temporary; other 4xx would fail
        // again on retry.
        (_, Some(status @ 400..500)) if !matches!(status, 408 | 429) => Error::invalid(message),
        _ if METADATA_HOSTS.iter().any(|host| message.contains(host)) => {
            let names = credentials(url);
            Error::unavailable(message).help(format!(
                "set {names}; no credentials were found in the settings or on this machine"
            ))
        }
        _ => Error::unavailable(message),
    }
}

/// Returns the HTTP status. If a server refuses to list objects, the client reports the status only
/// in the error's text.
fn status(error: &object_store::Error) -> Option<u16> {
    let text = error.to_string();
    let (_, rest) = text.split_once("status code: ")?;
    rest.split(' ').next()?.parse().ok()
}

/// Returns the names of the variables that hold credentials.
fn credentials(url: &str) -> &'static str {
    match url.split("://").next() {
        Some("s3" | "s3a") => {
            "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN; for public objects \
             AWS_SKIP_SIGNATURE=true"
        }
        Some("gs") => {
            "GOOGLE_SERVICE_ACCOUNT, GOOGLE_APPLICATION_CREDENTIALS; for public objects \
             GOOGLE_SKIP_SIGNATURE=true"
        }
        Some("http" | "https") => "",
        _ => {
            "AZURE_STORAGE_ACCOUNT_NAME, AZURE_STORAGE_ACCOUNT_KEY; for public objects \
             AZURE_SKIP_SIGNATURE=true"
        }
    }
}

/// The schemes of names in object stores.
const SCHEMES: [&str; 10] =
    ["s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https"];
/// Prefixes of the settings' names.
const PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];
/// Hosts from which cloud machines request their own credentials.
const METADATA_HOSTS: [&str; 2] = ["169.254.169.254", "metadata.google.internal"];
const READ: &str = "read the object";
const WEB_HELP: &str =
    "give the name of each file: patterns need a web server that lists files by WebDAV";
const DOWNLOAD_HELP: &str = "use a download command for other stores, such as hadoop fs -cat";
/// With growing intervals, about twenty seconds of retries for servers that report that they are
/// busy.
const RETRIES_MAX: usize = 8;
/// Users should not wait longer to learn that a server does not answer.
const RETRY_TIME_MAX: Duration = Duration::from_secs(60);
/// Limit of the bytes in flight for one reader: a tenth of a second of a fast link.
const IN_FLIGHT_BYTES_MAX: usize = 8 << 20;
