//! Socket operations that wait no longer than a deadline and a token allow.

use crate::stream::Stream;
use crate::{Abort, Limits, Time};
use fleet_base::{Error, ErrorCode, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
#[cfg(target_os = "linux")]
use rustix::net::SocketFlags;
use rustix::net::{AddressFamily, SocketType, sockopt};
use std::io::{ErrorKind as Io, IoSlice, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

/// Waits until a descriptor is ready or `span` has passed (`None`: no limit). True if one is ready.
pub(crate) fn poll(fds: &mut [PollFd<'_>], span: Option<Duration>) -> Result<bool> {
    let span = span.map(|span| Timespec {
        tv_sec: span.as_secs().min(i32::MAX as u64) as _,
        tv_nsec: span.subsec_nanos().into(),
    });
    match rustix::event::poll(fds, span.as_ref()) {
        Ok(count) => Ok(count > 0),
        // A signal handler ran; callers check their deadlines again.
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(Error::exhausted(format!("cannot poll sockets: {error}"))),
    }
}

/// Waits within `limits` until `socket` is ready for `flags`.
pub(crate) fn wait(socket: &impl AsFd, flags: PollFlags, limits: &Limits) -> Result<()> {
    loop {
        limits.abort.check()?;
        let left = limits.deadline.remaining(Time::now());
        if left.is_some_and(|left| left.is_zero()) {
            return Err(Error::unavailable("the deadline passed"));
        }
        let wake = limits.abort.wake_fd()?;
        let mut fds = [PollFd::new(socket, flags), PollFd::new(&wake, PollFlags::IN)];
        if poll(&mut fds, left)? && !fds[0].revents().is_empty() {
            return Ok(());
        }
    }
}

/// Creates a socket that child processes do not inherit. On Linux the flag is set at creation,
/// because another thread may start a process at this moment.
pub fn tcp_socket(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    #[cfg(target_os = "linux")]
    return rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
    #[cfg(not(target_os = "linux"))]
    {
        let socket = rustix::net::socket(family, SocketType::STREAM, None)?;
        rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)?;
        Ok(socket)
    }
}

/// Connects. The stream is non-blocking and has no Nagle delay.
pub(crate) fn connect(address: SocketAddr, limits: &Limits) -> Result<TcpStream> {
    let cannot = |error: &dyn std::fmt::Display| {
        Error::unavailable(format!("cannot connect to {address}: {error}"))
            .with_code(ErrorCode::NotConnected)
    };
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = tcp_socket(family)
        .and_then(|socket| rustix::io::ioctl_fionbio(&socket, true).map(|()| socket))
        .map_err(|error| cannot(&error))?;
    let stream = TcpStream::from(socket);
    match rustix::net::connect(&stream, &address) {
        Ok(()) => {}
        Err(rustix::io::Errno::INPROGRESS) => {
            wait(&stream, PollFlags::OUT, limits).map_err(|error| {
                match limits.abort.is_fired() {
                    true => error,
                    false => cannot(&"no answer before the deadline"),
                }
            })?;
            match sockopt::socket_error(&stream) {
                Ok(Ok(())) => {}
                Ok(Err(error)) | Err(error) => return Err(cannot(&error)),
            }
        }
        Err(error) => return Err(cannot(&error)),
    }
    // Connecting to an unused local port may assign that port to the connecting socket itself.
    if stream.local_addr().ok() == Some(address) {
        return Err(cannot(&"connection refused"));
    }
    tune(&stream)?;
    Ok(stream)
}

/// Longest time that data may stay unacknowledged before the kernel closes the connection. It
/// bounds the detection of a host that vanished without a reset.
const KERNEL_TIMEOUT: Duration = Duration::from_secs(30);

/// Sets the options of every connection: non-blocking, no delay, and keepalive.
pub(crate) fn tune(stream: &TcpStream) -> Result<()> {
    let cannot = |error: &dyn std::fmt::Display| {
        Error::unavailable(format!("cannot set the options of a connection: {error}"))
    };
    stream.set_nonblocking(true).map_err(|error| cannot(&error))?;
    stream.set_nodelay(true).map_err(|error| cannot(&error))?;
    let keepalive = || -> rustix::io::Result<()> {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, KERNEL_TIMEOUT / 3)?;
        sockopt::set_tcp_keepintvl(stream, KERNEL_TIMEOUT / 6)?;
        sockopt::set_tcp_keepcnt(stream, 4)?;
        #[cfg(target_os = "linux")]
        sockopt::set_tcp_user_timeout(stream, KERNEL_TIMEOUT.as_millis() as u32)?;
        Ok(())
    };
    keepalive().map_err(|error| cannot(&error))
}

/// Reads exactly `into.len()` bytes from a non-blocking socket.
pub(crate) fn read_exact(mut stream: &Stream, into: &mut [u8], limits: &Limits) -> Result<()> {
    let mut done = 0;
    while done < into.len() {
        match stream.read(&mut into[done..]) {
            Ok(0) => return Err(closed()),
            Ok(count) => done += count,
            Err(error) if error.kind() == Io::WouldBlock => wait(stream, PollFlags::IN, limits)?,
            Err(error) if error.kind() == Io::Interrupted => {}
            Err(error) => return Err(lost(&error)),
        }
    }
    Ok(())
}

/// Writes all of `parts` in order, without copying them together.
pub(crate) fn write_parts(stream: &Stream, parts: &[&[u8]], limits: &Limits) -> Result<()> {
    let mut cursor = Cursor::default();
    while !cursor.write(stream, parts)? {
        wait(stream, PollFlags::OUT, limits)?;
    }
    Ok(())
}

/// Position in a list of slices that is being written.
#[derive(Default)]
pub(crate) struct Cursor {
    part: usize,
    start: usize,
}

impl Cursor {
    /// Writes as much as the socket accepts; true if everything is written.
    pub(crate) fn write(&mut self, mut stream: &Stream, parts: &[&[u8]]) -> Result<bool> {
        /// Slices in one system call (UIO_MAXIOV is 1024; short lists stay on the stack).
        const PARTS_MAX: usize = 64;
        while self.part < parts.len() {
            if self.start == parts[self.part].len() {
                (self.part, self.start) = (self.part + 1, 0);
                continue;
            }
            let mut slices = [IoSlice::new(&[]); PARTS_MAX];
            let count = (parts.len() - self.part).min(PARTS_MAX);
            for (index, slice) in slices[..count].iter_mut().enumerate() {
                let skip = if index == 0 { self.start } else { 0 };
                *slice = IoSlice::new(&parts[self.part + index][skip..]);
            }
            match stream.write_vectored(&slices[..count]) {
                Ok(mut written) => {
                    while self.part < parts.len() && written >= parts[self.part].len() - self.start
                    {
                        written -= parts[self.part].len() - self.start;
                        (self.part, self.start) = (self.part + 1, 0);
                    }
                    self.start += written;
                }
                Err(error) if error.kind() == Io::WouldBlock => return Ok(false),
                Err(error) if error.kind() == Io::Interrupted => {}
                Err(error) => return Err(lost(&error)),
            }
        }
        Ok(true)
    }
}

/// The error of a broken connection.
pub(crate) fn lost(error: &std::io::Error) -> Error {
    match error.kind() {
        Io::ConnectionReset | Io::BrokenPipe | Io::UnexpectedEof => {
            Error::unavailable("the connection was reset")
        }
        Io::TimedOut => Error::unavailable("the connection timed out: the host does not answer"),
        _ => Error::unavailable(format!("the connection failed: {error}")),
    }
    .with_code(ErrorCode::ConnectionLost)
}

/// The error of a connection that the peer closed.
pub(crate) fn closed() -> Error {
    Error::unavailable("the connection was closed").with_code(ErrorCode::ConnectionClosed)
}

/// Resolves `text` (`host:port`), with a host name or an address.
pub fn resolve(text: &str) -> Result<SocketAddr> {
    use std::net::ToSocketAddrs;
    let bad = |what: &dyn std::fmt::Display| {
        Error::invalid(format!("cannot resolve '{text}': {what}"))
            .expected("HOST:PORT, as in node0:6170 or 10.0.0.1:6170")
    };
    let mut found: Vec<SocketAddr> = text.to_socket_addrs().map_err(|error| bad(&error))?.collect();
    // Prefer IPv4, which most clusters route. An IPv6 address can be given as a number.
    found.sort_by_key(|address| match address.ip() {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 1,
    });
    found.first().copied().ok_or_else(|| bad(&"the name has no address"))
}

/// Wakes a thread that polls. Any number of threads may call it, any number of times.
pub(crate) struct Waker {
    reader: std::io::PipeReader,
    writer: std::io::PipeWriter,
}

impl Waker {
    pub(crate) fn new() -> Result<Waker> {
        let cannot = |error: &dyn std::fmt::Display| {
            Error::exhausted(format!("cannot create a pipe: {error}"))
                .help("raise the limit on open files (ulimit -n)")
        };
        let (reader, writer) = std::io::pipe().map_err(|error| cannot(&error))?;
        for end in [reader.as_fd(), writer.as_fd()] {
            rustix::io::ioctl_fionbio(end, true).map_err(|error| cannot(&error))?;
        }
        Ok(Waker { reader, writer })
    }

    pub(crate) fn wake(&self) {
        // If the pipe is full, the reader has not woken yet, so nothing is lost.
        let _ = (&self.writer).write(&[1]);
    }

    pub(crate) fn clear(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.reader).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Calls `attempt` until it succeeds, an error other than `Unavailable` occurs, or the limits end
/// it.
pub(crate) fn retry<T>(
    limits: &Limits,
    mut attempt: impl FnMut(&Limits) -> Result<T>,
) -> Result<T> {
    let start = Time::now();
    let mut pause = PAUSE_MIN;
    let mut tries = 0;
    loop {
        let error = match attempt(limits) {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        tries += 1;
        limits.abort.check()?;
        let left = limits.deadline.remaining(Time::now());
        let over = left.is_some_and(|left| left <= pause);
        if error.kind() != fleet_base::ErrorKind::Unavailable || over {
            let spent = Time::now().since(start).as_secs_f64();
            let times = if tries > 1 {
                format!("attempt {tries}, after {spent:.1} s")
            } else {
                return Err(error);
            };
            return Err(error.at(times));
        }
        limits.abort.sleep(jitter(pause))?;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// Pause before the first retry.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// Longest pause between retries. It bounds the time to detect a peer that has started.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A random span from half of `span` to all of it, so that a thousand ranks do not connect at once.
fn jitter(span: Duration) -> Duration {
    let word = crate::token::random::<1>().map_or(128, |bytes| bytes[0]);
    span / 2 + span / 2 * u32::from(word) / 255
}

/// Limits with a deadline and a token that never fires.
pub(crate) fn with_deadline(deadline: crate::Deadline) -> Limits {
    Limits::new(deadline, &Abort::new())
}
