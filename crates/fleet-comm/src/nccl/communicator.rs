//! Loads NCCL at run time and wraps its communicators, which work on device memory.
//!
//! No call blocks (`blocking = 0`). A wait ends with the communicator's own error, the deadline,
//! the fired token, or a peer that has closed its end of the group's mesh. Then the communicator is
//! aborted. Signatures and numbers are those of `nccl.h` since 2.14 (checked against 2.18 and
//! 2.31).

use super::cuda::{Cuda, DevicePointer, Handle, Stream};
use crate::load::{LibrarySpec, Pauses, functions, owned_text, timeout_in};
use fleet_base::{Error, ReduceOp, Result};
use fleet_net::{Limits, Mesh, Time};
use fleet_tensor::DType;
use std::ffi::{c_char, c_int, c_uint};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

functions! {
    /// Functions of NCCL. Communicators and streams are addresses.
    Functions:
    version = b"ncclGetVersion" (*mut c_int) -> c_int;
    unique_id = b"ncclGetUniqueId" (*mut UniqueId) -> c_int;
    init = b"ncclCommInitRankConfig" (*mut Handle, c_int, UniqueId, c_int, *const Config) -> c_int;
    state = b"ncclCommGetAsyncError" (Handle, *mut c_int) -> c_int;
    abort = b"ncclCommAbort" (Handle) -> c_int;
    error_string = b"ncclGetErrorString" (c_int) -> *const c_char;
    last_error = b"ncclGetLastError" (Handle) -> *const c_char;
    group_start = b"ncclGroupStart" () -> c_int;
    group_end = b"ncclGroupEnd" () -> c_int;
    all_reduce = b"ncclAllReduce" (u64, u64, usize, c_int, c_int, Handle, Handle) -> c_int;
    reduce = b"ncclReduce" (u64, u64, usize, c_int, c_int, c_int, Handle, Handle) -> c_int;
    broadcast = b"ncclBroadcast" (u64, u64, usize, c_int, c_int, Handle, Handle) -> c_int;
    reduce_scatter = b"ncclReduceScatter" (u64, u64, usize, c_int, c_int, Handle, Handle) -> c_int;
    all_gather = b"ncclAllGather" (u64, u64, usize, c_int, Handle, Handle) -> c_int;
    send = b"ncclSend" (u64, usize, c_int, c_int, Handle, Handle) -> c_int;
    receive = b"ncclRecv" (u64, usize, c_int, c_int, Handle, Handle) -> c_int;
}

// Values of ncclResult_t.
const SUCCESS: c_int = 0;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;
const IN_PROGRESS: c_int = 7;

/// 2.14.0 is the first version with non-blocking communicators.
const VERSION_MIN: c_int = 2_14_00;

pub(super) const UNIQUE_ID_BYTES: usize = 128;

/// Id by which the ranks of a communicator find each other.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct UniqueId(pub [u8; UNIQUE_ID_BYTES]);

/// `ncclConfig_t` of 2.14. Later versions read its size and use defaults for newer fields.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    /// Padding in 2.14. From 2.17 on a setting, which this value leaves undefined.
    undefined: c_int,
}

const CONFIG: Config = Config {
    size: size_of::<Config>(),
    magic: 0xcafe_beef,
    version: VERSION_MIN as c_uint,
    blocking: 0,
    undefined: c_int::MIN,
};
const _: () = assert!(size_of::<Config>() == 24);

const LIBRARY: LibrarySpec<'_> = LibrarySpec {
    name: "the NCCL library",
    version: "NCCL 2.14 or later",
    file_names: &["libnccl.so.2", "libnccl.so"],
    is_global: false,
    help: "install NCCL 2.14 or later, or set the path of its libnccl.so.2 (FLEET_NCCL_LIBRARY)",
};

/// Interval between checks for peers that have closed their end.
const PEER_CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// Grace period after a peer has closed its end. A rank that finishes first may leave while its
/// last data is still in flight. After this time the peer counts as closed.
const CLOSED_PEER_GRACE: Duration = Duration::from_secs(2);
/// Time that an error of NCCL or a closed end waits for the notice of a death. Heartbeats detect a
/// death after about 1 s.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(2);

/// NCCL and the device of this process.
pub(super) struct Nccl {
    f: Functions,
    pub cuda: Arc<Cuda>,
    /// Name and version, for messages.
    pub version: String,
}

impl Nccl {
    pub fn start(path: Option<&Path>, cuda: Cuda) -> Result<Nccl> {
        let (f, _) = Functions::load(&LIBRARY, path)?;
        let mut nccl = Nccl { f, cuda: Arc::new(cuda), version: String::new() };
        let mut code = 0;
        // SAFETY: the pointer is valid for the number.
        nccl.check(unsafe { (nccl.f.version)(&mut code) }, std::ptr::null_mut())?;
        let name = format!("NCCL {}.{}.{}", code / 10_000, code / 100 % 100, code % 100);
        if code < VERSION_MIN {
            return Err(Error::unsupported("NCCL version is too old: it cannot abort a call")
                .expected(LIBRARY.version)
                .got(format!("{name} (version code {code})"))
                .help(LIBRARY.help));
        }
        nccl.version = name;
        Ok(nccl)
    }

    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; UNIQUE_ID_BYTES]);
        // SAFETY: the pointer is valid for the id.
        self.check(unsafe { (self.f.unique_id)(&mut id) }, std::ptr::null_mut())?;
        Ok(id)
    }

    /// Converts a result code. A call in progress is not an error.
    fn check(&self, code: c_int, communicator: Handle) -> Result<()> {
        if matches!(code, SUCCESS | IN_PROGRESS) {
            return Ok(());
        }
        // SAFETY: both functions may be called at any time; NCCL's texts live until its next call.
        let (what, more) = unsafe {
            (owned_text((self.f.error_string)(code)), owned_text((self.f.last_error)(communicator)))
        };
        let text = match more.is_empty() {
            true => format!("NCCL failed: {what}"),
            false => format!("NCCL failed: {what}: {more}"),
        };
        let error = match code {
            INVALID_ARGUMENT | INVALID_USAGE => Error::invalid(text),
            _ => Error::unavailable(text),
        };
        Err(error.at(&self.cuda.device).help("set NCCL_DEBUG=INFO for details"))
    }
}

/// A communicator of a group's ranks, each with its device. All ranks make the same calls in the
/// same order, on streams of the device. Each call is followed by [`Communicator::wait_enqueued`].
pub(super) struct Communicator {
    nccl: Arc<Nccl>,
    /// `None` after the communicator was aborted.
    handle: Option<Handle>,
    mesh: Arc<dyn Mesh>,
}

// SAFETY: NCCL may be called from any thread, one at a time, which `&mut self` ensures.
unsafe impl Send for Communicator {}

impl Communicator {
    /// Joins the other ranks. The order of ranks is that of the mesh, which must be open.
    pub fn open(
        nccl: &Arc<Nccl>,
        id: UniqueId,
        mesh: Arc<dyn Mesh>,
        limits: &Limits,
    ) -> Result<Communicator> {
        nccl.cuda.enter()?;
        let (size, rank) = (mesh.size() as c_int, mesh.rank() as c_int);
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid, and the configuration has the layout of its version.
        let code = unsafe { (nccl.f.init)(&mut handle, size, id, rank, &CONFIG) };
        let handle = (!handle.is_null()).then_some(handle);
        let mut made = Communicator { nccl: nccl.clone(), handle, mesh };
        nccl.check(code, handle.unwrap_or(std::ptr::null_mut()))?;
        made.wait_enqueued(limits)?;
        Ok(made)
    }

    /// The handle; an error after the communicator was aborted.
    fn handle(&self) -> Result<Handle> {
        self.handle.ok_or_else(|| Error::unavailable("the NCCL communicator was aborted"))
    }

    /// Selects the device for later calls of this thread.
    pub fn enter(&self) -> Result<()> {
        self.nccl.cuda.enter()
    }

    fn call(&mut self, call: impl FnOnce(&Functions, Handle) -> c_int) -> Result<()> {
        let handle = self.handle()?;
        self.enter()?;
        self.nccl.check(call(&self.nccl.f, handle), handle)
    }

    // SAFETY of all functions below: pointers are parts of device buffers that live until their
    // stream is idle, and counts are those of the parts.

    pub fn all_reduce(
        &mut self,
        data: DevicePointer,
        count: usize,
        (dtype, op): (DType, ReduceOp),
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, op) = (type_number(dtype)?, op_number(op));
        // SAFETY: as stated above these functions.
        self.call(|f, comm| unsafe {
            (f.all_reduce)(data.0, data.0, count, dtype, op, comm, stream.handle)
        })
    }

    /// Reduces to `root`. The other ranks' data is unspecified afterwards.
    pub fn reduce(
        &mut self,
        data: DevicePointer,
        count: usize,
        (dtype, op): (DType, ReduceOp),
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, op, root) = (type_number(dtype)?, op_number(op), root as c_int);
        // SAFETY: as stated above these functions.
        self.call(|f, comm| unsafe {
            (f.reduce)(data.0, data.0, count, dtype, op, root, comm, stream.handle)
        })
    }

    pub fn broadcast(
        &mut self,
        data: DevicePointer,
        bytes: usize,
        root: usize,
        stream: &Stream,
    ) -> Result<()> {
        let (dtype, root) = (type_number(DType::U8)?, root as c_int);
        // SAFETY: as stated above these functions.
        self.call(|f, comm| unsafe {
            (f.broadcast)(data.0, data.0, bytes, dtype, root, comm, stream.handle)
        })
    }

    /// Reduces one block of `count` elements per rank; the result is in this rank's block.
    pub fn reduce_scatter(
        &mut self,
        data: DevicePointer,
        count: usize,
        (dtype, op): (DType, ReduceOp),
        stream: &Stream,
    ) -> Result<()> {
        let own = data.offset(self.mesh.rank() * count * dtype.size());
        let (dtype, op) = (type_number(dtype)?, op_number(op));
        // SAFETY: as stated above these functions.
        self.call(|f, comm| unsafe {
            (f.reduce_scatter)(data.0, own.0, count, dtype, op, comm, stream.handle)
        })
    }

    /// Gathers one block of `bytes` from each rank; this rank's block must be in its place.
    pub fn all_gather(&mut self, data: DevicePointer, bytes: usize, stream: &Stream) -> Result<()> {
        let own = data.offset(self.mesh.rank() * bytes);
        let dtype = type_number(DType::U8)?;
        // SAFETY: as stated above these functions.
        self.call(|f, comm| unsafe {
            (f.all_gather)(own.0, data.0, bytes, dtype, comm, stream.handle)
        })
    }

    /// Runs messages concurrently. Each is (peer, position, bytes).
    pub fn exchange(
        &mut self,
        sends: &[(usize, DevicePointer, usize)],
        receives: &[(usize, DevicePointer, usize)],
        stream: &Stream,
    ) -> Result<()> {
        let dtype = type_number(DType::U8)?;
        // SAFETY: as stated above these functions.
        self.call(|f, comm| unsafe {
            let mut first = (f.group_start)();
            let mut note = |code| {
                if matches!(first, SUCCESS | IN_PROGRESS) {
                    first = code;
                }
            };
            for (peer, at, bytes) in sends {
                note((f.send)(at.0, *bytes, dtype, *peer as c_int, comm, stream.handle));
            }
            for (peer, at, bytes) in receives {
                note((f.receive)(at.0, *bytes, dtype, *peer as c_int, comm, stream.handle));
            }
            // An NCCL group that was started must be ended, even after an error.
            note((f.group_end)());
            first
        })
    }

    /// Waits until the last call has been queued on its stream. Before that, nothing else may be
    /// queued on the stream and no other call may be made.
    pub fn wait_enqueued(&mut self, limits: &Limits) -> Result<()> {
        self.wait(limits, |state| Ok(state == SUCCESS))
    }

    /// Waits until the stream is idle.
    pub fn finish(&mut self, stream: &Stream, limits: &Limits) -> Result<()> {
        self.wait(limits, |_| stream.is_idle())
    }

    /// Waits until `ready` returns true for the communicator's state, or the wait cannot succeed.
    fn wait(&mut self, limits: &Limits, ready: impl Fn(c_int) -> Result<bool>) -> Result<()> {
        let handle = self.handle()?;
        let mut pauses = Pauses::default();
        let (mut checked, mut closed_peer): (Time, Option<(usize, Time)>) = (Time::now(), None);
        loop {
            let mut state = SUCCESS;
            // SAFETY: the communicator exists, and the pointer is valid for its state.
            let code = unsafe { (self.nccl.f.state)(handle, &mut state) };
            let checked_state =
                self.nccl.check(code, handle).and_then(|()| self.nccl.check(state, handle));
            if let Err(error) = checked_state {
                // The notice of a death is a better reason than its effect on NCCL.
                return Err(limits.abort.sleep(NOTICE_TIMEOUT).err().unwrap_or(error));
            }
            if ready(state)? {
                return Ok(());
            }
            let now = Time::now();
            if now.since(checked) >= PEER_CHECK_INTERVAL {
                checked = now;
                closed_peer = self
                    .mesh
                    .closed_peer()
                    .map(|rank| (rank, closed_peer.map_or(now, |(_, since)| since)));
            }
            if let Some((rank, since)) = closed_peer
                && now.since(since) >= CLOSED_PEER_GRACE
            {
                let closed = Error::unavailable(format!(
                    "{} has left the group: it has closed its connection",
                    self.mesh.member(rank)
                ));
                return Err(limits.abort.sleep(NOTICE_TIMEOUT).err().unwrap_or(closed));
            }
            pauses.pause(limits, || timeout_in("NCCL"))?;
        }
    }

    /// Aborts the communicator and all running calls. No other way to end one works without peers.
    pub fn abort(&mut self) {
        let Some(handle) = self.handle.take() else { return };
        // A failure here needs no handling.
        let _ = self.enter();
        // SAFETY: no other code has the handle.
        unsafe { (self.nccl.f.abort)(handle) };
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Values of `ncclDataType_t`.
fn type_number(dtype: DType) -> Result<c_int> {
    Ok(match dtype {
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
        other => return Err(Error::internal(format!("type {other} is not supported by NCCL"))),
    })
}

/// Values of `ncclRedOp_t`. Averages are sums here, divided afterwards: NCCL's own average
/// multiplies before it adds, which gives other bits.
fn op_number(op: ReduceOp) -> c_int {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => 0,
        ReduceOp::Prod => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
    }
}
