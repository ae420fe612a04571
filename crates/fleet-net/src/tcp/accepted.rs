//! Connections accepted from peers, kept until their meshes take them.

use super::TcpOptions;
use crate::handshake::Hello;
use crate::listener::Acceptor;
use crate::stream::Stream;
use crate::wire::{Reader, Writer};
use crate::{Limits, Member, Time};
use fleet_base::sync::{lock, wait_for};
use fleet_base::{Error, Result};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Maximum number of connections that wait for their mesh to be opened: those of a thousand peers
/// with all streams.
const CONNECTIONS_MAX: usize = 1 << 14;
/// Size limit of the name of a mesh.
const NAME_BYTES_MAX: usize = 256;

pub(super) fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(Error::invalid("invalid length of a mesh name")
            .expected(format!("1 to {NAME_BYTES_MAX} bytes"))
            .got(name.len()));
    }
    Ok(())
}

/// The hello of a rank that connects for a mesh.
pub(super) struct MeshHello {
    pub(super) job: String,
    pub(super) mesh: String,
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) stream: usize,
    pub(super) streams: usize,
    pub(super) checksum: bool,
}

impl MeshHello {
    pub(super) fn encode(&self) -> Vec<u8> {
        Writer::new()
            .text(&self.job)
            .text(&self.mesh)
            .u64(self.from as u64)
            .u64(self.to as u64)
            .u32(self.stream as u32)
            .u32(self.streams as u32)
            .u8(u8::from(self.checksum))
            .0
    }

    fn decode(bytes: &[u8]) -> Result<MeshHello> {
        let mut reader = Reader::new(bytes);
        let hello = MeshHello {
            job: reader.text()?.to_string(),
            mesh: reader.text()?.to_string(),
            from: reader.u64()? as usize,
            to: reader.u64()? as usize,
            stream: reader.u32()? as usize,
            streams: reader.u32()? as usize,
            checksum: reader.u8()? != 0,
        };
        reader.end()?;
        Ok(hello)
    }
}

/// Name of the mesh, rank of the peer in the job, index of the stream.
pub(super) type Key = (String, usize, usize);

pub(super) struct AcceptedConnections {
    job: String,
    rank: usize,
    size: usize,
    streams: usize,
    checksum: bool,
    waiting: Mutex<HashMap<Key, Stream>>,
    changed: Arc<Condvar>,
}

impl AcceptedConnections {
    pub(super) fn new(options: &TcpOptions) -> AcceptedConnections {
        AcceptedConnections {
            job: options.job.clone(),
            rank: options.rank,
            size: options.size,
            streams: options.streams,
            checksum: options.checksum,
            waiting: Mutex::default(),
            changed: Arc::default(),
        }
    }

    /// Waits for the stream that `member` connects, and takes it.
    pub(super) fn take(&self, key: &Key, member: &Member, limits: &Limits) -> Result<Stream> {
        /// Bounds the delay if the token fires just before the wait starts.
        const WAIT_MAX: Duration = Duration::from_millis(50);
        let changed = self.changed.clone();
        let _hook = limits.abort.on_fire(move |_| changed.notify_all());
        let mut waiting = self.lock();
        loop {
            limits.abort.check()?;
            if let Some(stream) = waiting.remove(key) {
                return Ok(stream);
            }
            let left = limits.deadline.remaining(Time::now()).unwrap_or(WAIT_MAX);
            if left.is_zero() {
                return Err(Error::unavailable(format!(
                    "the deadline passed while waiting for {member} to connect to mesh '{}'",
                    key.0
                )));
            }
            waiting = wait_for(&self.changed, waiting, left.min(WAIT_MAX)).0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Stream>> {
        // The map is consistent between calls, even if a thread panicked.
        lock(&self.waiting)
    }

    fn check(&self, hello: &MeshHello) -> Result<()> {
        let mismatch = |what: &str, own: &dyn std::fmt::Debug, theirs: &dyn std::fmt::Debug| {
            Err(Error::invalid(format!("{what} differs between the two ends of a connection"))
                .expected(format!("{own:?}"))
                .got(format!("{theirs:?}"))
                .at(format!("rank {} of '{}'", self.rank, self.job)))
        };
        if hello.job != self.job {
            return mismatch("the job", &self.job, &hello.job);
        }
        if hello.to != self.rank {
            return mismatch("the destination rank", &self.rank, &hello.to);
        }
        if (hello.streams, hello.checksum) != (self.streams, self.checksum) {
            let (own, theirs) = ((self.streams, self.checksum), (hello.streams, hello.checksum));
            return mismatch("the option (streams, checksum)", &own, &theirs);
        }
        if hello.from >= self.size || hello.stream >= self.streams {
            return mismatch("the size", &(self.size, self.streams), &(hello.from, hello.stream));
        }
        check_name(&hello.mesh)
    }
}

impl Acceptor for AcceptedConnections {
    fn admit(&self, hello: &Hello, _peer: SocketAddr) -> Result<Vec<u8>> {
        self.check(&MeshHello::decode(&hello.body)?)?;
        if self.lock().len() >= CONNECTIONS_MAX {
            return Err(Error::unavailable(format!(
                "limit of {CONNECTIONS_MAX} connections without an open mesh reached"
            )));
        }
        Ok(Vec::new())
    }

    fn accept(self: Arc<Self>, stream: Stream, hello: Hello, _peer: SocketAddr) {
        // `admit` has already decoded the same bytes.
        if let Ok(hello) = MeshHello::decode(&hello.body) {
            // A duplicate means that the first connection broke before it was taken.
            self.lock().insert((hello.mesh, hello.from, hello.stream), stream);
            self.changed.notify_all();
        }
    }
}
