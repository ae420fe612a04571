//! Files in object stores, in the feature `object-store`: what a name like `s3://bucket/part-0` stands for,
//! and a reader that gets it piece by piece. The protocols are the crate `object_store`'s, which repeats
//! requests that fail, and goes on within an object where a connection broke.
//!
//! One thread drives all requests. A reader waits for its pieces, so that it works in any thread; what is
//! on its way for it is bounded.

use crate::files::{FILES_MAX, check_count, fits};
use bytes::Bytes;
use fleet_base::{Error, Result};
use futures_util::TryStreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path as Key;
use object_store::{ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig};
use std::collections::HashMap;
use std::future::Future;
use std::io::Read;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Object stores of one user: S3 (`s3://bucket/key`) and what speaks its protocol, Google Cloud Storage
/// (`gs://`), Azure (`az://container/key`, `abfss://`), and plain web servers (`https://host/path`).
///
/// Settings and credentials are pairs of the usual variables (`AWS_ACCESS_KEY_ID`, `AWS_REGION`,
/// `AWS_ENDPOINT_URL`, `GOOGLE_SERVICE_ACCOUNT`, `AZURE_STORAGE_ACCOUNT_NAME`, ..), mostly
/// `std::env::vars()`; others are left alone.
///
/// ```no_run
/// use fleet_data::{DatasetOptions, ObjectStores, QueueDataset, Schema, Slot, TextFiles};
/// let stores = ObjectStores::new(std::env::vars())?;
/// let files = stores.glob("s3://clicks/day-*/part-*")?;
/// let schema = Schema::new([Slot::ragged_ids("words")])?;
/// let format = TextFiles::multi_slot(&schema).object_stores(&stores).pipe_command("zcat");
/// let mut dataset = QueueDataset::new(DatasetOptions { batch_size: 32, ..DatasetOptions::new(format)? })?;
/// dataset.set_filelist(files)?;
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone)]
pub struct ObjectStores(Arc<Shared>);

impl std::fmt::Debug for ObjectStores {
    /// Settings are secrets.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ObjectStores")
    }
}

struct Shared {
    /// Some until it is dropped.
    runtime: Option<Runtime>,
    settings: Vec<(String, String)>,
    /// Clients by bucket or host, which keep connections and credentials.
    clients: Mutex<HashMap<String, Arc<dyn ObjectStore>>>,
}

/// A name taken apart: the bucket or host with its scheme, and what is in it.
struct Name<'a> {
    root: &'a str,
    key: &'a str,
}

impl ObjectStores {
    /// Takes settings from pairs of names and values.
    pub fn new(settings: impl IntoIterator<Item = (String, String)>) -> Result<ObjectStores> {
        // TLS wants one provider of ciphers in a process; one that is there already is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let known = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        let settings = settings.into_iter().filter(|(name, _)| known(name)).collect();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("fleet-objects")
            .enable_all()
            .build()
            .map_err(|error| Error::exhausted(format!("cannot start a thread: {error}")))?;
        let clients = Mutex::default();
        Ok(ObjectStores(Arc::new(Shared { runtime: Some(runtime), settings, clients })))
    }

    /// The objects that match a pattern, sorted by name: as [`glob`](crate::glob) of local files. Web
    /// servers must list their files as WebDAV does.
    pub fn glob(&self, pattern: &str) -> Result<Vec<PathBuf>> {
        let name = parse(pattern)?;
        let pieces: Vec<&str> = name.key.split('/').filter(|piece| !piece.is_empty()).collect();
        let is_plain = |piece: &&&str| !piece.contains(['*', '?', '[']);
        let plain = pieces.iter().take_while(is_plain).count().min(pieces.len().saturating_sub(1));
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
        let keys = listed.map_err(|error| failed("list", pattern, &error))?;
        check_count(keys.len())?;
        let hit = |key: &Key| {
            let parts: Vec<&str> = key.as_ref().split('/').collect();
            fits(&pieces, &parts)
        };
        let found = keys.iter().filter(|key| hit(key));
        let mut found: Vec<PathBuf> =
            found.map(|key| format!("{}/{key}", name.root).into()).collect();
        found.sort();
        match found.is_empty() {
            true => Err(Error::invalid("no object matches the pattern").got(pattern)),
            false => Ok(found),
        }
    }

    /// Starts to get an object; fails when it is not there.
    pub(crate) fn open(&self, url: &str) -> Result<Box<dyn Read + Send>> {
        let name = parse(url)?;
        let client = self.client(&name)?;
        let key = match name.root.starts_with("http") {
            true => Key::from_url_path(name.key),
            false => Key::parse(name.key),
        };
        let key = key.map_err(|error| failed("read", url, &error.into()))?;
        let (send, pieces) = channel();
        let room = Arc::new(Semaphore::new(ROOM_BYTES));
        let task = self.runtime()?.spawn(fetch(client, key, send, Arc::clone(&room)));
        let mut object =
            Object { _stores: self.clone(), pieces, room, task, piece: Bytes::new(), left: 0 };
        match object.next_piece() {
            Ok(()) => Ok(Box::new(object)),
            Err(error) => Err(failed("read", url, &error)),
        }
    }

    fn client(&self, name: &Name<'_>) -> Result<Arc<dyn ObjectStore>> {
        let mut clients = self.0.clients.lock().unwrap_or_else(PoisonError::into_inner);
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
        let retry = RetryConfig {
            max_retries: RETRIES_MAX,
            retry_timeout: RETRY_TIME_MAX,
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
        // Who names a server by http:// means it.
        let plain = ClientOptions::new().with_allow_http(root.starts_with("http://"));
        Ok(match root.split("://").next() {
            Some("s3" | "s3a") => client!(AmazonS3Builder::new()),
            Some("gs") => client!(GoogleCloudStorageBuilder::new()),
            Some("http" | "https") => client!(HttpBuilder::new().with_client_options(plain)),
            _ => client!(MicrosoftAzureBuilder::new()),
        })
    }

    fn runtime(&self) -> Result<&Runtime> {
        self.0.runtime.as_ref().ok_or_else(|| Error::internal("object stores are closed"))
    }

    /// Waits for work of the runtime's, in any thread.
    fn wait<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Result<T> {
        let (send, result) = channel();
        self.runtime()?.spawn(async move {
            // Nobody waits any more only when the caller's thread is gone.
            let _ = send.send(work.await);
        });
        result.recv().map_err(|_| Error::internal("a request to an object store panicked"))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A runtime that waits for its threads must not be dropped by one of another runtime.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

type Piece = Result<Bytes, object_store::Error>;

/// Sends an object's pieces, as long as there is room; an empty one is the end.
async fn fetch(client: Arc<dyn ObjectStore>, key: Key, send: Sender<Piece>, room: Arc<Semaphore>) {
    let outcome = async {
        let mut stream = client.get(&key).await?.into_stream();
        while let Some(piece) = stream.try_next().await? {
            if piece.is_empty() {
                continue;
            }
            let bytes = piece.len().min(ROOM_BYTES) as u32;
            // The reader gives the room back with the piece; it closes nothing.
            if let Ok(permit) = room.acquire_many(bytes).await {
                permit.forget();
            }
            if send.send(Ok(piece)).is_err() {
                break;
            }
        }
        Ok(Bytes::new())
    };
    // A reader that was dropped wants no error either.
    let _ = send.send(outcome.await);
}

/// An object under way.
struct Object {
    /// Keeps the thread that gets pieces.
    _stores: ObjectStores,
    pieces: Receiver<Piece>,
    /// Bytes that may be on their way.
    room: Arc<Semaphore>,
    task: JoinHandle<()>,
    piece: Bytes,
    /// Bytes of the piece that are not read.
    left: usize,
}

impl Object {
    fn next_piece(&mut self) -> Result<(), object_store::Error> {
        let lost = || object_store::Error::Generic {
            store: "object store",
            source: "the thread that gets objects has ended".into(),
        };
        self.piece = self.pieces.recv().map_err(|_| lost())??;
        self.left = self.piece.len();
        Ok(())
    }
}

impl Read for Object {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        // An empty piece is the end, and stays.
        if self.left == 0 && !self.piece.is_empty() {
            self.room.add_permits(self.piece.len().min(ROOM_BYTES));
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
    let wrong = || {
        Error::invalid("name of an object has another form")
            .expected("SCHEME://BUCKET/KEY")
            .got(url)
    };
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    if !SCHEMES.contains(&scheme) {
        let known = SCHEMES.join(", ");
        let error = Error::unsupported(format!("no object store is called {scheme}://"));
        return Err(error.expected(known).help(ELSEWHERE).at(url));
    }
    let (bucket, key) = rest.split_once('/').ok_or_else(wrong)?;
    if bucket.is_empty() || key.is_empty() {
        return Err(wrong());
    }
    Ok(Name { root: &url[..scheme.len() + 3 + bucket.len()], key })
}

fn failed(what: &str, url: &str, error: &object_store::Error) -> Error {
    use object_store::Error as E;
    let message = format!("cannot {what} the object: {error}");
    let error = match error {
        E::NotFound { .. }
        | E::InvalidPath { .. }
        | E::NotSupported { .. }
        | E::PermissionDenied { .. }
        | E::Unauthenticated { .. } => Error::invalid(message),
        _ => Error::unavailable(message),
    };
    error.at(url)
}

/// The schemes of names that are in object stores.
const SCHEMES: [&str; 10] =
    ["s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https"];
/// What settings start with.
const PREFIXES: [&str; 3] = ["AWS_", "GOOGLE_", "AZURE_"];
const ELSEWHERE: &str =
    "what another program can get comes through a download command: hadoop fs -cat";
/// Some twenty seconds of waits that grow, for servers that say that they are busy.
const RETRIES_MAX: usize = 8;
/// Nobody should wait longer to be told that a server does not answer.
const RETRY_TIME_MAX: Duration = Duration::from_secs(60);
/// What may wait for one reader: a tenth of a second of a fast link.
const ROOM_BYTES: usize = 8 << 20;
