//! Ports for a job's processes.
//!
//! A free port is bound by the launcher and stays bound, without listening, as long as the job lives:
//! the system gives it to nobody else, so that two launchers on one machine never collide, while
//! the process that it is for can listen on it, since both sockets say `SO_REUSEADDR` (as Rust's and
//! Go's listeners, Python's servers, gRPC and gloo all do). Fixed ports, which somebody asked for, are
//! looked at once, so that a taken one is an error with a name before anything starts.

use fleet_base::{Error, Result};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, getsockname, setsockopt, socket,
    sockopt,
};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsRawFd, OwnedFd};

/// Where the ports of a cluster come from.
pub trait Ports {
    /// A port for a process on this machine.
    fn next(&mut self, host: &str) -> Result<u16>;

    /// An address that was given with its port.
    fn given(&mut self, host: &str, port: u16) -> Result<()>;

    /// The first of fixed ports, if they are.
    fn start(&self) -> Option<u16>;
}

/// Ports of the operating system.
#[derive(Default)]
pub struct SystemPorts {
    start: Option<u16>,
    used: u16,
    held: Vec<OwnedFd>,
}

impl SystemPorts {
    /// Counting up from `start`, or free ones.
    pub fn new(start: Option<u16>) -> Self {
        SystemPorts { start, ..SystemPorts::default() }
    }
}

impl Ports for SystemPorts {
    fn next(&mut self, host: &str) -> Result<u16> {
        let Some(start) = self.start else {
            let (held, port) = bound(host, 0)?;
            self.held.push(held);
            return Ok(port);
        };
        let port = start.checked_add(self.used).ok_or_else(|| {
            Error::exhausted("there are no more ports above the first one").got(start)
        })?;
        self.used += 1;
        self.given(host, port)?;
        Ok(port)
    }

    fn given(&mut self, host: &str, port: u16) -> Result<()> {
        bound(host, port).map(drop)
    }

    fn start(&self) -> Option<u16> {
        self.start
    }
}

/// A socket that has a port (0: any) and does not listen.
fn bound(host: &str, port: u16) -> Result<(OwnedFd, u16)> {
    let address = local_address(host, port);
    let family = if address.is_ipv6() { AddressFamily::Inet6 } else { AddressFamily::Inet };
    let failed = |errno: Errno| refused(errno, host, port);
    #[cfg(target_os = "linux")]
    let flags = SockFlag::SOCK_CLOEXEC;
    #[cfg(not(target_os = "linux"))]
    let flags = SockFlag::empty();
    let socket = socket(family, SockType::Stream, flags, None).map_err(failed)?;
    setsockopt(&socket, sockopt::ReuseAddr, &true).map_err(failed)?;
    match bind(socket.as_raw_fd(), &SockaddrStorage::from(address)) {
        // The name is of this machine, the address is not (translated addresses, containers).
        Err(Errno::EADDRNOTAVAIL) if !address.ip().is_unspecified() => {
            let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
            bind(socket.as_raw_fd(), &SockaddrStorage::from(any)).map_err(failed)?;
        }
        done => done.map_err(failed)?,
    }
    let name: SockaddrStorage = getsockname(socket.as_raw_fd()).map_err(failed)?;
    let port = match (name.as_sockaddr_in(), name.as_sockaddr_in6()) {
        (Some(v4), _) => v4.port(),
        (_, Some(v6)) => v6.port(),
        _ => return Err(Error::internal("a bound socket has no port")),
    };
    Ok((socket, port))
}

fn local_address(host: &str, port: u16) -> SocketAddr {
    let unspecified = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), port);
    match (host, port).to_socket_addrs() {
        Ok(mut found) => found.find(SocketAddr::is_ipv4).unwrap_or(unspecified),
        Err(_) => unspecified,
    }
}

fn refused(errno: Errno, host: &str, port: u16) -> Error {
    match errno {
        Errno::EADDRINUSE => Error::unavailable(format!("port {port} of {host} is taken"))
            .help("give another --start_port or FLAGS_START_PORT or address, or none: then ports are free ones"),
        Errno::EACCES => Error::invalid(format!("port {port} of {host} needs rights of the administrator"))
            .help("ports from 1024 on are for everybody"),
        other => Error::unavailable(format!("no port on {host}: {other}")),
    }
}
