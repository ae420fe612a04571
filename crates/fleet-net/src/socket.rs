//! Sockets that wait for a deadline and a token, never for longer.

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

/// Waits until a descriptor is ready or `span` is over (`None`: for ever). True when one is ready.
pub(crate) fn poll(fds: &mut [PollFd<'_>], span: Option<Duration>) -> Result<bool> {
    let span = span.map(|span| Timespec {
        tv_sec: span.as_secs().min(i32::MAX as u64) as _,
        tv_nsec: span.subsec_nanos().into(),
    });
    match rustix::event::poll(fds, span.as_ref()) {
        Ok(count) => Ok(count > 0),
        // A signal handler ran; callers look at their deadlines again.
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(Error::exhausted(format!("cannot wait for sockets: {error}"))),
    }
}

/// Waits until `socket` is ready for `flags`, within limits.
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

/// A socket that no process started from now on inherits. The flag is set as the socket is made,
/// where the system can: another thread may be starting a process at this moment.
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

/// Connects, non-blocking and without Nagle's delay.
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
    // A port of this machine that nobody listens on may be given to the very socket that dials it.
    if stream.local_addr().ok() == Some(address) {
        return Err(cannot(&"connection refused"));
    }
    tune(&stream)?;
    Ok(stream)
}

/// How long unacknowledged data may stay so before the kernel gives the connection up: the bound
/// for a host that vanished without a word.
const SILENCE_KERNEL: Duration = Duration::from_secs(30);

/// Options of every connection: non-blocking, no delay, and an end when the other host vanishes.
pub(crate) fn tune(stream: &TcpStream) -> Result<()> {
    let cannot = |error: &dyn std::fmt::Display| {
        Error::unavailable(format!("cannot set the options of a connection: {error}"))
    };
    stream.set_nonblocking(true).map_err(|error| cannot(&error))?;
    stream.set_nodelay(true).map_err(|error| cannot(&error))?;
    let keepalive = || -> rustix::io::Result<()> {
        sockopt::set_socket_keepalive(stream, true)?;
        sockopt::set_tcp_keepidle(stream, SILENCE_KERNEL / 3)?;
        sockopt::set_tcp_keepintvl(stream, SILENCE_KERNEL / 6)?;
        sockopt::set_tcp_keepcnt(stream, 4)?;
        #[cfg(target_os = "linux")]
        sockopt::set_tcp_user_timeout(stream, SILENCE_KERNEL.as_millis() as u32)?;
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

/// Writes all of `parts`, in order, without joining them.
pub(crate) fn write_parts(stream: &Stream, parts: &[&[u8]], limits: &Limits) -> Result<()> {
    let mut cursor = Cursor::default();
    while !cursor.write(stream, parts)? {
        wait(stream, PollFlags::OUT, limits)?;
    }
    Ok(())
}

/// How far a list of slices has been written.
#[derive(Default)]
pub(crate) struct Cursor {
    part: usize,
    start: usize,
}

impl Cursor {
    /// Writes what the socket takes; true when all is written.
    pub(crate) fn write(&mut self, mut stream: &Stream, parts: &[&[u8]]) -> Result<bool> {
        /// What one system call takes (UIO_MAXIOV is 1024; short lists stay on the stack).
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

/// The error of a connection that broke.
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

/// The address `text` means (`host:port`), by name or number.
pub fn resolve(text: &str) -> Result<SocketAddr> {
    use std::net::ToSocketAddrs;
    let bad = |what: &dyn std::fmt::Display| {
        Error::invalid(format!("cannot make an address of '{text}': {what}"))
            .expected("HOST:PORT, as in node0:6170 or 10.0.0.1:6170")
    };
    let mut found: Vec<SocketAddr> = text.to_socket_addrs().map_err(|error| bad(&error))?.collect();
    // Most clusters route version 4; who wants the other one writes it as a number.
    found.sort_by_key(|address| match address.ip() {
        IpAddr::V4(_) => 0,
        IpAddr::V6(_) => 1,
    });
    found.first().copied().ok_or_else(|| bad(&"the name has no address"))
}

/// Lets a thread that polls be woken by others, any number of times.
pub(crate) struct Bell {
    reader: std::io::PipeReader,
    writer: std::io::PipeWriter,
}

impl Bell {
    pub(crate) fn new() -> Result<Bell> {
        let cannot = |error: &dyn std::fmt::Display| {
            Error::exhausted(format!("cannot make a pipe: {error}"))
                .help("raise the limit on open files (ulimit -n)")
        };
        let (reader, writer) = std::io::pipe().map_err(|error| cannot(&error))?;
        for end in [reader.as_fd(), writer.as_fd()] {
            rustix::io::ioctl_fionbio(end, true).map_err(|error| cannot(&error))?;
        }
        Ok(Bell { reader, writer })
    }

    pub(crate) fn ring(&self) {
        // A full pipe is as good: the reader has not woken yet.
        let _ = (&self.writer).write(&[1]);
    }

    pub(crate) fn hush(&self) {
        let mut bytes = [0; 64];
        while matches!((&self.reader).read(&mut bytes), Ok(count) if count == bytes.len()) {}
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Tries `attempt` until it works, fails for good (anything but `Unavailable`), or the limits end
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
                format!("the last of {tries} tries, {spent:.1} s")
            } else {
                return Err(error);
            };
            return Err(error.at(times));
        }
        limits.abort.sleep(jitter(pause))?;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

/// The first pause between two tries to connect.
const PAUSE_MIN: Duration = Duration::from_millis(10);
/// The longest one: a peer that comes is found within this.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Between a half and the whole of `span`, so that a thousand ranks do not knock at once.
fn jitter(span: Duration) -> Duration {
    let word = crate::token::random::<1>().map_or(128, |bytes| bytes[0]);
    span / 2 + span / 2 * u32::from(word) / 255
}

/// A token that nobody fires, for waits that a deadline bounds.
pub(crate) fn until(deadline: crate::Deadline) -> Limits {
    Limits::new(deadline, &Abort::new())
}
