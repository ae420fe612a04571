//! The machine's MPI library, loaded at run time, behind functions with integer arguments.
//!
//! MPI has no common binary interface: handles are addresses in Open MPI and 32-bit numbers in
//! MPICH and its descendants. Both are passed as `usize` here, and a table maps types and
//! operations to numbers. A library of neither family is rejected, with its name in the error.

use crate::load::{LibrarySpec, Loaded, Pauses, functions, timeout_in, written_text};
use fleet_base::sync::{lock, read, write};
use fleet_base::{Error, Result};
use fleet_net::Limits;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, RwLock, RwLockReadGuard};

/// A communicator, a type, an operation, a group or a request.
pub(super) type Handle = usize;

/// Return code of a successful call.
const SUCCESS: c_int = 0;
/// Size of a buffer for text that a library of either family writes.
const TEXT_BYTES: usize = 8192;
/// Level at which any thread may call MPI at any time; the same number in both families.
const THREAD_MULTIPLE: c_int = 3;
functions! {
    /// Functions of the standard. 32-bit handles are passed in the lower half of a `usize`.
    Functions:
    initialized = b"MPI_Initialized" (*mut c_int) -> c_int;
    finalized = b"MPI_Finalized" (*mut c_int) -> c_int;
    init_thread = b"MPI_Init_thread"
        (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
    query_thread = b"MPI_Query_thread" (*mut c_int) -> c_int;
    finalize = b"MPI_Finalize" () -> c_int;
    library_version = b"MPI_Get_library_version" (*mut c_char, *mut c_int) -> c_int;
    error_string = b"MPI_Error_string" (c_int, *mut c_char, *mut c_int) -> c_int;
    comm_rank = b"MPI_Comm_rank" (Handle, *mut c_int) -> c_int;
    comm_size = b"MPI_Comm_size" (Handle, *mut c_int) -> c_int;
    comm_group = b"MPI_Comm_group" (Handle, *mut Handle) -> c_int;
    comm_create_group = b"MPI_Comm_create_group" (Handle, Handle, c_int, *mut Handle) -> c_int;
    comm_set_errhandler = b"MPI_Comm_set_errhandler" (Handle, Handle) -> c_int;
    group_incl = b"MPI_Group_incl" (Handle, c_int, *const c_int, *mut Handle) -> c_int;
    group_free = b"MPI_Group_free" (*mut Handle) -> c_int;
    isend = b"MPI_Isend" (*const c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
    irecv = b"MPI_Irecv" (*mut c_void, c_int, Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
    test = b"MPI_Test" (*mut Handle, *mut c_int, *mut c_void) -> c_int;
    count = b"MPI_Get_count" (*const c_void, Handle, *mut c_int) -> c_int;
    all_reduce = b"MPI_Iallreduce"
        (*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle) -> c_int;
    reduce = b"MPI_Ireduce"
        (*const c_void, *mut c_void, c_int, Handle, Handle, c_int, Handle, *mut Handle) -> c_int;
    reduce_scatter = b"MPI_Ireduce_scatter_block"
        (*const c_void, *mut c_void, c_int, Handle, Handle, Handle, *mut Handle) -> c_int;
    all_gather = b"MPI_Iallgatherv"
        (*const c_void, c_int, Handle, *mut c_void, *const c_int, *const c_int, Handle, Handle,
         *mut Handle) -> c_int;
    broadcast = b"MPI_Ibcast" (*mut c_void, c_int, Handle, c_int, Handle, *mut Handle) -> c_int;
    all_to_all = b"MPI_Ialltoallv"
        (*const c_void, *const c_int, *const c_int, Handle, *mut c_void, *const c_int, *const c_int,
         Handle, Handle, *mut Handle) -> c_int;
    scatter = b"MPI_Iscatter"
        (*const c_void, c_int, Handle, *mut c_void, c_int, Handle, c_int, Handle, *mut Handle)
        -> c_int;
    gather = b"MPI_Igather"
        (*const c_void, c_int, Handle, *mut c_void, c_int, Handle, c_int, Handle, *mut Handle)
        -> c_int;
}

/// The handles of one family of libraries.
#[derive(Clone, Copy)]
pub(super) struct Handles {
    pub world: Handle,
    errors_return: Handle,
    pub byte: Handle,
    pub u8: Handle,
    pub i32: Handle,
    pub i64: Handle,
    pub f32: Handle,
    pub f64: Handle,
    pub sum: Handle,
    pub prod: Handle,
    pub min: Handle,
    pub max: Handle,
    /// `MPI_IN_PLACE`, an address.
    pub in_place: usize,
}

impl Handles {
    fn of_open_mpi(opened: &Loaded) -> Result<Handles> {
        let address = |symbol: &str| -> Result<Handle> {
            // SAFETY: only the address of the symbol is taken.
            let found = unsafe { opened.get::<*const c_void>(symbol.as_bytes()) };
            found
                .map(|found| *found as usize)
                .map_err(|error| Error::unsupported(format!("missing symbol in Open MPI: {error}")))
        };
        Ok(Handles {
            world: address("ompi_mpi_comm_world")?,
            errors_return: address("ompi_mpi_errors_return")?,
            byte: address("ompi_mpi_byte")?,
            u8: address("ompi_mpi_uint8_t")?,
            i32: address("ompi_mpi_int32_t")?,
            i64: address("ompi_mpi_int64_t")?,
            f32: address("ompi_mpi_float")?,
            f64: address("ompi_mpi_double")?,
            sum: address("ompi_mpi_op_sum")?,
            prod: address("ompi_mpi_op_prod")?,
            min: address("ompi_mpi_op_min")?,
            max: address("ompi_mpi_op_max")?,
            in_place: 1,
        })
    }

    /// The common interface of MPICH, Intel MPI and MVAPICH since 2013.
    fn of_mpich() -> Handles {
        Handles {
            world: 0x4400_0000,
            errors_return: 0x5400_0001,
            byte: 0x4c00_010d,
            u8: 0x4c00_0102,
            i32: 0x4c00_0405,
            i64: 0x4c00_0809,
            f32: 0x4c00_040a,
            f64: 0x4c00_080b,
            sum: 0x5800_0003,
            prod: 0x5800_0004,
            min: 0x5800_0002,
            max: 0x5800_0001,
            in_place: usize::MAX,
        }
    }
}

const LIBRARY: LibrarySpec<'_> = LibrarySpec {
    name: "the MPI library",
    version: "MPI 3.0 or later",
    file_names: match cfg!(target_os = "macos") {
        true => &["libmpi.40.dylib", "libmpi.12.dylib", "libmpi.dylib"],
        false => &["libmpi.so.40", "libmpi.so.12", "libmpi.so"],
    },
    is_global: true,
    help: "install Open MPI or MPICH, or set the path of its libmpi",
};

/// MPI in this process.
pub(super) struct Library {
    pub f: Functions,
    pub handles: Handles,
    pub version: String,
    pub rank: usize,
    pub size: usize,
    /// Whether other code initialised MPI and will finalise it.
    is_foreign_init: bool,
    /// Set when a call has abandoned its requests: all other calls return at their next poll.
    is_abandoned: AtomicBool,
    /// Read-locked by threads inside MPI; write-locked to wait until no thread is inside.
    in_call: RwLock<()>,
    ended: Mutex<Option<Error>>,
}

/// A request in flight. Its memory must not be accessed until it is done.
pub(super) struct Request {
    handle: Handle,
    pub done: bool,
    /// Buffer for the status, whose layout depends on the library.
    status: [u64; 8],
}

impl Library {
    /// Loads the library and initialises MPI.
    pub fn start(path: Option<&Path>) -> Result<Library> {
        let (f, opened) = Functions::load(&LIBRARY, path)?;
        let version = text(|to, length| {
            // SAFETY: the buffer is longer than the text of either family.
            unsafe { (f.library_version)(to, length) }
        });
        // SAFETY: only the address is taken.
        let open_mpi = unsafe { opened.get::<*const c_void>(b"ompi_mpi_comm_world") }.is_ok();
        let mpich = ["MPICH", "Intel(R) MPI", "MVAPICH"].iter().any(|name| version.contains(name));
        let names = match (open_mpi, mpich) {
            (true, _) => Handles::of_open_mpi(&opened)?,
            (false, true) => Handles::of_mpich(),
            _ => {
                return Err(Error::unsupported("unknown MPI implementation")
                    .expected("Open MPI, MPICH, Intel MPI or MVAPICH")
                    .got(version));
            }
        };
        let is_foreign_init = init(&f)?;
        let mut library = Library {
            f,
            handles: names,
            version: version.lines().next().unwrap_or_default().trim().to_string(),
            rank: 0,
            size: 0,
            is_foreign_init,
            is_abandoned: AtomicBool::new(false),
            in_call: RwLock::new(()),
            ended: Mutex::new(None),
        };
        let (mut rank, mut size) = (0, 0);
        // SAFETY: MPI is initialised, and the handles are its own.
        unsafe {
            library.check((library.f.comm_set_errhandler)(names.world, names.errors_return))?;
            library.check((library.f.comm_rank)(names.world, &mut rank))?;
            library.check((library.f.comm_size)(names.world, &mut size))?;
        }
        (library.rank, library.size) = (rank as usize, size as usize);
        Ok(library)
    }

    /// Must be held during a call into MPI, so that MPI is not finalised meanwhile.
    pub fn enter(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let guard = read(&self.in_call);
        match &*lock(&self.ended) {
            Some(error) => Err(error.clone()),
            None => Ok(guard),
        }
    }

    pub fn check(&self, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let words = text(|to, length| {
            // SAFETY: the buffer is longer than the text of either family.
            unsafe { (self.f.error_string)(code, to, length) }
        });
        Err(Error::unavailable(format!("MPI failed: {}", words.trim())))
    }

    /// Starts a request. `call` gets the address for its handle.
    pub fn request(&self, call: impl FnOnce(*mut Handle) -> c_int) -> Result<Request> {
        let mut handle = 0;
        self.check(call(&mut handle))?;
        Ok(Request { handle, done: false, status: [0; 8] })
    }

    /// Whether a request is done.
    pub fn test(&self, request: &mut Request) -> Result<bool> {
        if request.done {
            return Ok(true);
        }
        let mut flag = 0;
        // SAFETY: the request is in flight, and the buffer fits the status of either family.
        self.check(unsafe {
            (self.f.test)(&mut request.handle, &mut flag, request.status.as_mut_ptr().cast())
        })?;
        request.done = flag != 0;
        Ok(request.done)
    }

    /// Number of bytes received by a request for bytes.
    pub fn bytes(&self, request: &Request) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the status belongs to a request that is done.
        self.check(unsafe {
            (self.f.count)(request.status.as_ptr().cast(), self.handles.byte, &mut count)
        })?;
        Ok(count.max(0) as usize)
    }

    /// Calls `step` until it reports that all is done.
    pub fn wait(
        &self,
        limits: &Limits,
        timeout: impl Fn() -> Error,
        mut step: impl FnMut() -> Result<Progress>,
    ) -> Result<()> {
        let mut pauses = Pauses::default();
        loop {
            match step()? {
                Progress::Done => return Ok(()),
                Progress::Progressed => {
                    pauses.reset();
                    continue;
                }
                Progress::Nothing => {}
            }
            pauses.pause(limits, &timeout)?;
            if self.is_abandoned.load(Ordering::Acquire) {
                return Err(Error::unavailable(
                    "MPI was abandoned by another call of this process",
                ));
            }
        }
    }

    /// Waits until all of `requests` are done. After an error the caller must abandon them.
    pub fn finish(&self, requests: &mut [Request], limits: &Limits) -> Result<()> {
        self.wait(
            limits,
            || timeout_in("MPI"),
            || {
                let mut open = false;
                for request in requests.iter_mut() {
                    open |= !self.test(request)?;
                }
                Ok(if open { Progress::Nothing } else { Progress::Done })
            },
        )
    }

    /// Abandons requests in flight, whose memory goes back to the caller. MPI moves data only
    /// inside calls, so no thread of this process may call MPI again. `guard` is the caller's.
    pub fn abandon(&self, guard: RwLockReadGuard<'_, ()>, error: &Error) {
        self.is_abandoned.store(true, Ordering::Release);
        drop(guard);
        let _guard = write(&self.in_call);
        let ended = error.clone().at("an earlier call, which abandoned MPI in this process");
        lock(&self.ended).get_or_insert(ended);
    }

    /// Makes the communicator of `members`, which must all call this with the same `tag`. MPI waits
    /// for them without a limit, so they must have announced their call before.
    pub fn communicator(&self, members: &[usize], tag: c_int) -> Result<Handle> {
        let _guard = self.enter()?;
        let ranks: Vec<c_int> = members.iter().map(|rank| *rank as c_int).collect();
        let (mut all, mut subgroup, mut made) = (0, 0, 0);
        // SAFETY: MPI's own handles, and ranks of the world.
        unsafe {
            self.check((self.f.comm_group)(self.handles.world, &mut all))?;
            let (count, first) = (ranks.len() as c_int, ranks.as_ptr());
            self.check((self.f.group_incl)(all, count, first, &mut subgroup))?;
            self.check((self.f.comm_create_group)(self.handles.world, subgroup, tag, &mut made))?;
            self.check((self.f.group_free)(&mut subgroup))?;
            self.check((self.f.group_free)(&mut all))?;
            self.check((self.f.comm_set_errhandler)(made, self.handles.errors_return))?;
        }
        Ok(made)
    }

    /// Finalises MPI in this process, unless other code initialised it or a call was abandoned.
    pub fn finalize(&self) {
        let _guard = write(&self.in_call);
        let mut ended = lock(&self.ended);
        if ended.is_none() && !self.is_foreign_init {
            // SAFETY: no thread is inside MPI, and no request is in flight. Failures are ignored.
            let _ = unsafe { (self.f.finalize)() };
        }
        ended.get_or_insert(Error::invalid("MPI is finalized in this process"));
    }
}

/// The result of polling requests.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    Progressed,
    Nothing,
}

/// Initialises MPI unless it is already initialised; true if it was.
fn init(f: &Functions) -> Result<bool> {
    let (mut initialized, mut finalized, mut threads) = (0, 0, 0);
    // SAFETY: these functions may be called at any time.
    unsafe {
        (f.initialized)(&mut initialized);
        (f.finalized)(&mut finalized);
    }
    if finalized != 0 {
        return Err(Error::invalid(
            "MPI is already finalized in this process and cannot be initialized again",
        )
        .help("keep the value of the first Mpi::start"));
    }
    // SAFETY: MPI is initialised in the first branch only; the second passes no arguments.
    let code = unsafe {
        match initialized != 0 {
            true => (f.query_thread)(&mut threads),
            false => (f.init_thread)(
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                THREAD_MULTIPLE,
                &mut threads,
            ),
        }
    };
    if code != SUCCESS {
        return Err(Error::unavailable(format!("cannot initialize MPI: error {code}"))
            .help("start the job with the mpirun that belongs to the library"));
    }
    if threads < THREAD_MULTIPLE {
        return Err(Error::unsupported("MPI library does not support calls from several threads")
            .expected("MPI_THREAD_MULTIPLE")
            .got(format!("level {threads}")));
    }
    Ok(initialized != 0)
}

/// Reads a text that MPI writes; empty if that fails.
fn text(call: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let mut length = 0;
    let text = written_text(TEXT_BYTES, |to| match call(to, &mut length) {
        SUCCESS => Ok(()),
        code => Err(code),
    });
    text.unwrap_or_default()
}
