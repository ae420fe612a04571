//! The CUDA driver: one device of this process, its memory, pinned host memory, and streams.
//!
//! This uses the driver instead of the runtime library: its file name has no version, and it is
//! installed with the device. NCCL contains a runtime of its own, which uses the current context;
//! here that is the device's primary context. Signatures and numbers are those of `cuda.h` since
//! CUDA 11.0.

use crate::load::{LibrarySpec, functions, owned_text, written_text};
use fleet_base::{Error, ErrorKind, Result};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::Arc;

/// A context or a stream.
pub(super) type Handle = *mut c_void;

/// An address in device memory, which the host must not dereference.
#[derive(Clone, Copy, Debug)]
pub(super) struct DevicePointer(pub u64);

impl DevicePointer {
    pub fn offset(self, bytes: usize) -> DevicePointer {
        DevicePointer(self.0 + bytes as u64)
    }
}

functions! {
    /// Functions of the driver. A device is a number, and its memory a 64-bit address.
    Functions:
    init = b"cuInit" (c_uint) -> c_int;
    error_name = b"cuGetErrorName" (c_int, *mut *const c_char) -> c_int;
    error_string = b"cuGetErrorString" (c_int, *mut *const c_char) -> c_int;
    device_count = b"cuDeviceGetCount" (*mut c_int) -> c_int;
    device = b"cuDeviceGet" (*mut c_int, c_int) -> c_int;
    device_name = b"cuDeviceGetName" (*mut c_char, c_int, c_int) -> c_int;
    device_pci_address = b"cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int) -> c_int;
    context = b"cuDevicePrimaryCtxRetain" (*mut Handle, c_int) -> c_int;
    enter = b"cuCtxSetCurrent" (Handle) -> c_int;
    allocate = b"cuMemAlloc_v2" (*mut u64, usize) -> c_int;
    free = b"cuMemFree_v2" (u64) -> c_int;
    allocate_host = b"cuMemAllocHost_v2" (*mut *mut c_void, usize) -> c_int;
    free_host = b"cuMemFreeHost" (*mut c_void) -> c_int;
    to_device = b"cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle) -> c_int;
    to_host = b"cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle) -> c_int;
    stream_create = b"cuStreamCreate" (*mut Handle, c_uint) -> c_int;
    stream_destroy = b"cuStreamDestroy_v2" (Handle) -> c_int;
    stream_query = b"cuStreamQuery" (Handle) -> c_int;
}

const SUCCESS: c_int = 0;
const ERROR_OUT_OF_MEMORY: c_int = 2;
const ERROR_NO_DEVICE: c_int = 100;
const ERROR_NOT_READY: c_int = 600;
/// Flag for a stream that does not synchronise with the default stream.
const STREAM_NON_BLOCKING: c_uint = 1;
/// Longer than the name or PCI address of any device.
const TEXT_BYTES: usize = 256;

const LIBRARY: LibrarySpec<'_> = LibrarySpec {
    name: "the CUDA driver",
    version: "CUDA 11.0 or later",
    file_names: &["libcuda.so.1", "libcuda.so"],
    is_global: false,
    help: "install the GPU driver; start a container with access to the GPUs",
};

/// The driver with one device.
pub(super) struct Cuda {
    f: Functions,
    context: Handle,
    /// Number and name, for messages.
    pub device: String,
    /// PCI address, by which NCCL also identifies devices.
    pub pci_address: String,
}

// SAFETY: the driver may be called from all threads, and the context is only passed to it.
unsafe impl Send for Cuda {}
// SAFETY: as above.
unsafe impl Sync for Cuda {}

impl Cuda {
    /// Loads the driver and selects a device: `requested`, or by default the one with this rank's
    /// number `local` on its host.
    pub fn start(path: Option<&Path>, requested: Option<usize>, local: usize) -> Result<Cuda> {
        let (f, _) = Functions::load(&LIBRARY, path)?;
        let mut cuda = Cuda {
            f,
            context: std::ptr::null_mut(),
            device: String::new(),
            pci_address: String::new(),
        };
        let (mut count, mut device) = (0, 0);
        // SAFETY: arguments as in the header, for all calls of this function. The primary context
        // is never released, because NCCL's own runtime uses it until the process ends.
        unsafe {
            match (cuda.f.init)(0) {
                ERROR_NO_DEVICE => {}
                code => {
                    cuda.check("cuInit", code)?;
                    cuda.check("cuDeviceGetCount", (cuda.f.device_count)(&mut count))?;
                }
            }
            let index = choose(count.max(0) as usize, requested, local)?;
            cuda.check("cuDeviceGet", (cuda.f.device)(&mut device, index as c_int))?;
            let name = cuda.text(|to, bytes| (cuda.f.device_name)(to, bytes, device))?;
            cuda.device = format!("GPU {index} ({name})");
            cuda.pci_address =
                cuda.text(|to, bytes| (cuda.f.device_pci_address)(to, bytes, device))?;
            let mut context = std::ptr::null_mut();
            cuda.check("cuDevicePrimaryCtxRetain", (cuda.f.context)(&mut context, device))?;
            cuda.context = context;
        }
        cuda.enter()?;
        Ok(cuda)
    }

    /// Makes the device current for this thread. NCCL and the calls below use it.
    pub fn enter(&self) -> Result<()> {
        // SAFETY: the context is never released.
        self.check("cuCtxSetCurrent", unsafe { (self.f.enter)(self.context) })
    }

    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        let words = |query: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int| {
            let mut text = std::ptr::null();
            // SAFETY: the driver returns a static text or null.
            match unsafe { (query(code, &mut text) == SUCCESS).then(|| owned_text(text)) } {
                Some(text) if !text.is_empty() => text,
                _ => format!("error {code}"),
            }
        };
        let kind = match code {
            ERROR_OUT_OF_MEMORY => ErrorKind::Exhausted,
            _ => ErrorKind::Unavailable,
        };
        let (name, text) = (words(self.f.error_name), words(self.f.error_string));
        let error = Error::new(kind, format!("CUDA call {call} failed: {text} ({name})"));
        Err(if self.device.is_empty() { error } else { error.at(&self.device) })
    }

    fn text(&self, query: impl FnOnce(*mut c_char, c_int) -> c_int) -> Result<String> {
        written_text(TEXT_BYTES, |to| self.check("device query", query(to, TEXT_BYTES as c_int)))
    }
}

/// Selects one of `count` visible devices: `requested`, else the only one, else the one at `local`.
fn choose(count: usize, requested: Option<usize>, local: usize) -> Result<usize> {
    let index = requested.unwrap_or(if count == 1 { 0 } else { local });
    if index < count {
        return Ok(index);
    }
    let whose = match requested {
        Some(index) => format!("requested GPU {index} does not exist"),
        None => format!("no GPU for this rank, number {local} of its host"),
    };
    Err(Error::invalid(whose)
        .expected("one GPU per rank of a host")
        .got(format!("{count} visible to this process"))
        .help("start fewer ranks on the host, or let each see its GPU (CUDA_VISIBLE_DEVICES)"))
}

/// A queue of device work that runs in order.
pub(super) struct Stream {
    cuda: Arc<Cuda>,
    pub handle: Handle,
}

// SAFETY: as for the driver.
unsafe impl Send for Stream {}

impl Stream {
    pub fn new(cuda: &Arc<Cuda>) -> Result<Stream> {
        cuda.enter()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the handle.
        let code = unsafe { (cuda.f.stream_create)(&mut handle, STREAM_NON_BLOCKING) };
        cuda.check("cuStreamCreate", code)?;
        Ok(Stream { cuda: cuda.clone(), handle })
    }

    /// Whether all work is done.
    pub fn is_idle(&self) -> Result<bool> {
        // SAFETY: the stream exists.
        match unsafe { (self.cuda.f.stream_query)(self.handle) } {
            ERROR_NOT_READY => Ok(false),
            code => self.cuda.check("cuStreamQuery", code).map(|()| true),
        }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // A failure here has been reported before.
        let _ = self.cuda.enter();
        // SAFETY: no other code has the handle.
        unsafe { (self.cuda.f.stream_destroy)(self.handle) };
    }
}

/// Pinned host memory that the device can access, and device memory of the same size.
///
/// The device can access no other host memory. If it writes late, after an error, it writes here
/// and never to borrowed memory.
pub(super) struct StagingBuffer {
    cuda: Arc<Cuda>,
    host: *mut c_void,
    pub device: DevicePointer,
    pub bytes: usize,
}

// SAFETY: as for the driver; only this buffer uses the memory.
unsafe impl Send for StagingBuffer {}

impl StagingBuffer {
    pub fn new(cuda: &Arc<Cuda>, bytes: usize) -> Result<StagingBuffer> {
        cuda.enter()?;
        let mut buffer = StagingBuffer {
            cuda: cuda.clone(),
            host: std::ptr::null_mut(),
            device: DevicePointer(0),
            bytes,
        };
        // SAFETY: the pointers are valid for the addresses. An address that was not allocated stays
        // zero, and `drop` skips it.
        unsafe {
            let code = (cuda.f.allocate_host)(&mut buffer.host, bytes);
            cuda.check("cuMemAllocHost", code)?;
            cuda.check("cuMemAlloc", (cuda.f.allocate)(&mut buffer.device.0, bytes))?;
            // Parts that were never written are copied, too.
            buffer.host.write_bytes(0, bytes);
        }
        Ok(buffer)
    }

    /// The host memory. The stream that uses it must be idle.
    pub fn host(&mut self) -> &mut [u8] {
        // SAFETY: of this length, initialised, and owned by the buffer.
        unsafe { std::slice::from_raw_parts_mut(self.host.cast(), self.bytes) }
    }

    /// Queues a copy of a part from the host to the device.
    pub fn copy_to_device(&self, part: std::ops::Range<usize>, stream: &Stream) -> Result<()> {
        let (at, bytes) = self.part(&part);
        // SAFETY: the part is inside both buffers, which live until the stream is idle.
        self.cuda.check("cuMemcpyHtoDAsync", unsafe {
            (self.cuda.f.to_device)(self.device.offset(part.start).0, at, bytes, stream.handle)
        })
    }

    /// Queues a copy of a part from the device to the host.
    pub fn copy_to_host(&self, part: std::ops::Range<usize>, stream: &Stream) -> Result<()> {
        let (at, bytes) = self.part(&part);
        // SAFETY: as above.
        self.cuda.check("cuMemcpyDtoHAsync", unsafe {
            (self.cuda.f.to_host)(at, self.device.offset(part.start).0, bytes, stream.handle)
        })
    }

    fn part(&self, part: &std::ops::Range<usize>) -> (*mut c_void, usize) {
        assert!(part.start <= part.end && part.end <= self.bytes, "{part:?} of {}", self.bytes);
        (self.host.wrapping_byte_add(part.start), part.len())
    }
}

impl Drop for StagingBuffer {
    fn drop(&mut self) {
        // A failure here has been reported before.
        let _ = self.cuda.enter();
        // SAFETY: allocated by these functions, and no stream uses it.
        unsafe {
            if self.device.0 != 0 {
                (self.cuda.f.free)(self.device.0);
            }
            if !self.host.is_null() {
                (self.cuda.f.free_host)(self.host);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::choose;

    #[test]
    fn a_rank_has_its_device() {
        let chosen = |count, requested, local| choose(count, requested, local).ok();
        assert_eq!(chosen(4, None, 2), Some(2));
        assert_eq!(chosen(1, None, 2), Some(0));
        assert_eq!(chosen(4, Some(3), 0), Some(3));
        assert_eq!(chosen(2, None, 2), None);
        assert_eq!(chosen(0, None, 0), None);
        let text = choose(2, Some(2), 0).unwrap_err().to_string();
        assert!(
            text.contains("requested GPU 2 does not exist") && text.contains("2 visible"),
            "{text}"
        );
    }
}
