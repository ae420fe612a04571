//! The MPI library of the machine, found at run time, behind functions whose arguments are plain
//! numbers.
//!
//! There is no one binary interface of MPI: handles are addresses in Open MPI and 32-bit numbers in
//! MPICH and what descends from it. Both travel as `usize` here, and a table says which number is
//! which type or operation. A library of neither family is refused by name.

use crate::load::{Wanted, functions};
use fleet_base::{Error, Result};
use fleet_net::{Limits, Time};
use libloading::os::unix::Library as Opened;
use std::ffi::{c_char, c_int, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// A communicator, a type, an operation, a group or a request.
pub(super) type Handle = usize;

/// The interface of MPI itself.
const SUCCESS: c_int = 0;
/// The longest text that a library of either family writes.
const TEXT_BYTES: usize = 8192;
/// Calls between threads at any time; the number is the same in both families.
const THREAD_MULTIPLE: c_int = 3;
/// How long a wait polls without rest before it begins to sleep.
const POLL: Duration = Duration::from_millis(1);
/// A nap between two looks after that: MPI makes progress in calls alone.
const NAP: Duration = Duration::from_micros(50);

functions! {
    /// Those of the standard. Handles that are 32 bits wide are the lower halves of what is passed.
    Functions of "an MPI library", "one of MPI 3.0 or later":
    initialized = b"MPI_Initialized" (*mut c_int) -> c_int;
    finalized = b"MPI_Finalized" (*mut c_int) -> c_int;
    init_thread = b"MPI_Init_thread" (*mut c_int, *mut *mut *mut c_char, c_int, *mut c_int) -> c_int;
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
        (*const c_void, c_int, Handle, *mut c_void, c_int, Handle, c_int, Handle, *mut Handle) -> c_int;
    gather = b"MPI_Igather"
        (*const c_void, c_int, Handle, *mut c_void, c_int, Handle, c_int, Handle, *mut Handle) -> c_int;
}

/// The numbers of one family of libraries.
#[derive(Clone, Copy)]
pub(super) struct Names {
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

impl Names {
    fn of_open_mpi(opened: &Opened) -> Result<Names> {
        let address = |symbol: &str| -> Result<Handle> {
            // SAFETY: only the address of the symbol is taken.
            let found = unsafe { opened.get::<*const c_void>(symbol.as_bytes()) };
            found.map(|found| *found as usize).map_err(|error| {
                Error::unsupported(format!("an Open MPI that lacks a name: {error}"))
            })
        };
        Ok(Names {
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

    /// The interface that MPICH, Intel MPI and MVAPICH have in common since 2013.
    fn of_mpich() -> Names {
        Names {
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

const WANTED: Wanted<'_> = Wanted {
    what: "MPI library",
    names: match cfg!(target_os = "macos") {
        true => &["libmpi.40.dylib", "libmpi.12.dylib", "libmpi.dylib"],
        false => &["libmpi.so.40", "libmpi.so.12", "libmpi.so"],
    },
    global: true,
    help: "install Open MPI or MPICH, or give the path of its libmpi",
};

/// MPI in this process.
pub(super) struct Library {
    pub f: Functions,
    pub names: Names,
    pub version: String,
    pub rank: usize,
    pub size: usize,
    /// Others had begun it, and end it.
    guest: bool,
    /// Somebody gave a request up: all leave at the next look.
    leave: AtomicBool,
    /// Read by who is inside MPI, written to see that nobody is.
    inside: RwLock<()>,
    over: Mutex<Option<Error>>,
}

/// A request under way; its memory is not touched until it is done.
pub(super) struct Request {
    handle: Handle,
    pub done: bool,
    /// Of the status, whose form is the library's.
    status: [u64; 8],
}

impl Library {
    /// Loads the library and begins MPI.
    pub fn start(path: Option<&Path>) -> Result<Library> {
        let opened = WANTED.load(path)?;
        let f = Functions::load(&opened)?;
        let version = text(|to, length| {
            // SAFETY: the room is longer than any family's text.
            unsafe { (f.library_version)(to, length) }
        });
        // SAFETY: only the address is asked for.
        let open_mpi = unsafe { opened.get::<*const c_void>(b"ompi_mpi_comm_world") }.is_ok();
        let mpich = ["MPICH", "Intel(R) MPI", "MVAPICH"].iter().any(|name| version.contains(name));
        let names = match (open_mpi, mpich) {
            (true, _) => Names::of_open_mpi(&opened)?,
            (false, true) => Names::of_mpich(),
            _ => {
                return Err(Error::unsupported("an MPI library of a family that is not known")
                    .expected("Open MPI, MPICH, Intel MPI or MVAPICH")
                    .got(version));
            }
        };
        // What MPI has started in this process cannot be unloaded.
        std::mem::forget(opened);
        let guest = begin(&f)?;
        let mut library = Library {
            f,
            names,
            version: version.lines().next().unwrap_or_default().trim().to_string(),
            rank: 0,
            size: 0,
            guest,
            leave: AtomicBool::new(false),
            inside: RwLock::new(()),
            over: Mutex::new(None),
        };
        let (mut rank, mut size) = (0, 0);
        // SAFETY: MPI has begun, and the handles are its own.
        unsafe {
            library.check((library.f.comm_set_errhandler)(names.world, names.errors_return))?;
            library.check((library.f.comm_rank)(names.world, &mut rank))?;
            library.check((library.f.comm_size)(names.world, &mut size))?;
        }
        (library.rank, library.size) = (rank as usize, size as usize);
        Ok(library)
    }

    /// For the time of a call: MPI goes on, and is not ended meanwhile.
    pub fn enter(&self) -> Result<RwLockReadGuard<'_, ()>> {
        let guard = self.inside.read().unwrap_or_else(PoisonError::into_inner);
        match &*self.over.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) => Err(error.clone()),
            None => Ok(guard),
        }
    }

    pub fn check(&self, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let words = text(|to, length| {
            // SAFETY: the room is longer than any family's text.
            unsafe { (self.f.error_string)(code, to, length) }
        });
        Err(Error::unavailable(format!("MPI failed: {}", words.trim())))
    }

    /// Starts a request: `call` is given where its handle goes.
    pub fn request(&self, call: impl FnOnce(*mut Handle) -> c_int) -> Result<Request> {
        let mut handle = 0;
        self.check(call(&mut handle))?;
        Ok(Request { handle, done: false, status: [0; 8] })
    }

    /// Whether a request is done by now.
    pub fn test(&self, request: &mut Request) -> Result<bool> {
        if request.done {
            return Ok(true);
        }
        let mut flag = 0;
        // SAFETY: the request is under way, and the status has room for that of any family.
        self.check(unsafe {
            (self.f.test)(&mut request.handle, &mut flag, request.status.as_mut_ptr().cast())
        })?;
        request.done = flag != 0;
        Ok(request.done)
    }

    /// Bytes that came with a request for bytes.
    pub fn bytes(&self, request: &Request) -> Result<usize> {
        let mut count = 0;
        // SAFETY: the status is that of a request that is done.
        self.check(unsafe {
            (self.f.count)(request.status.as_ptr().cast(), self.names.byte, &mut count)
        })?;
        Ok(count.max(0) as usize)
    }

    /// Waits for what `step` waits for (true: all done): it is called until then.
    pub fn wait(
        &self,
        limits: &Limits,
        late: impl Fn() -> Error,
        mut step: impl FnMut() -> Result<Progress>,
    ) -> Result<()> {
        let mut idle_since: Option<Time> = None;
        loop {
            match step()? {
                Progress::Done => return Ok(()),
                Progress::Moved => {
                    idle_since = None;
                    continue;
                }
                Progress::Nothing => {}
            }
            limits.abort.check()?;
            if self.leave.load(Ordering::Acquire) {
                return Err(Error::unavailable("another call of this process gave MPI up"));
            }
            let now = Time::now();
            if limits.deadline.is_past(now) {
                return Err(late());
            }
            match now.since(*idle_since.get_or_insert(now)) < POLL {
                true => std::thread::yield_now(),
                false => std::thread::sleep(NAP),
            }
        }
    }

    /// Waits until all of `requests` are done. On an error they are given up.
    pub fn finish(&self, requests: &mut [Request], limits: &Limits) -> Result<()> {
        let late = || Error::unavailable("the deadline passed while waiting for the others in MPI");
        self.wait(limits, late, || {
            let mut open = false;
            for request in requests.iter_mut() {
                open |= !self.test(request)?;
            }
            Ok(if open { Progress::Nothing } else { Progress::Done })
        })
    }

    /// Requests are left under way, whose memory goes back to the caller: nobody in this process
    /// may call MPI again, which is what moves it. `guard` is that of the caller.
    pub fn give_up(&self, guard: RwLockReadGuard<'_, ()>, error: &Error) {
        self.leave.store(true, Ordering::Release);
        drop(guard);
        let _nobody = self.inside.write().unwrap_or_else(PoisonError::into_inner);
        let over = error.clone().at("an earlier call, which ended MPI in this process");
        self.over.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(over);
    }

    /// The communicator of `members`, who all make it with the same `tag`. It waits for them
    /// without a bound, so they have said before that they come.
    pub fn communicator(&self, members: &[usize], tag: c_int) -> Result<Handle> {
        let _guard = self.enter()?;
        let ranks: Vec<c_int> = members.iter().map(|rank| *rank as c_int).collect();
        let (mut all, mut some, mut made) = (0, 0, 0);
        // SAFETY: handles of MPI's own, and ranks that are in the world.
        unsafe {
            self.check((self.f.comm_group)(self.names.world, &mut all))?;
            let (count, first) = (ranks.len() as c_int, ranks.as_ptr());
            self.check((self.f.group_incl)(all, count, first, &mut some))?;
            self.check((self.f.comm_create_group)(self.names.world, some, tag, &mut made))?;
            self.check((self.f.group_free)(&mut some))?;
            self.check((self.f.group_free)(&mut all))?;
            self.check((self.f.comm_set_errhandler)(made, self.names.errors_return))?;
        }
        Ok(made)
    }

    /// The end of MPI in this process, unless others had begun it or a call was given up.
    pub fn end(&self) {
        let _nobody = self.inside.write().unwrap_or_else(PoisonError::into_inner);
        let mut over = self.over.lock().unwrap_or_else(PoisonError::into_inner);
        if over.is_none() && !self.guest {
            // SAFETY: nobody is inside, and nothing is under way. A failure leaves nothing to do.
            let _ = unsafe { (self.f.finalize)() };
        }
        over.get_or_insert(Error::invalid("MPI was ended in this process"));
    }
}

/// What a look at requests gave.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    Moved,
    Nothing,
}

/// Begins MPI where nobody has; true where somebody had.
fn begin(f: &Functions) -> Result<bool> {
    let (mut begun, mut ended, mut threads) = (0, 0, 0);
    // SAFETY: these may be asked at any time.
    unsafe {
        (f.initialized)(&mut begun);
        (f.finalized)(&mut ended);
    }
    if ended != 0 {
        return Err(Error::invalid("MPI was ended in this process, and it begins once")
            .help("keep what the first start gave"));
    }
    // SAFETY: MPI has begun in one branch and has not in the other; it takes no arguments.
    let code = unsafe {
        match begun != 0 {
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
        return Err(Error::unavailable(format!(
            "MPI does not begin in this process: error {code}"
        ))
        .help("start the job with the mpirun that belongs to the library"));
    }
    if threads < THREAD_MULTIPLE {
        return Err(Error::unsupported("an MPI library without calls from several threads")
            .expected("MPI_THREAD_MULTIPLE")
            .got(format!("level {threads}")));
    }
    Ok(begun != 0)
}

/// A text that MPI writes.
fn text(call: impl FnOnce(*mut c_char, *mut c_int) -> c_int) -> String {
    let (mut bytes, mut length) = (vec![0u8; TEXT_BYTES], 0);
    if call(bytes.as_mut_ptr().cast(), &mut length) != SUCCESS {
        return String::new();
    }
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}
