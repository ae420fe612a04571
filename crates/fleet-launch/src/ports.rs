//! Ports for a job's processes.
//!
//! The launcher binds a free port and keeps it bound, without listening, for the lifetime of the
//! job. The system then gives the port to no other process, so that two launchers on one machine
//! never collide. The process for which it is reserved can still listen on it, since both sockets
//! set `SO_REUSEADDR`. Rust's and Go's listeners, Python's servers, gRPC and gloo all set it. Fixed
//! ports, which the user requested, are checked once, so that a taken port is a clear error before
//! any process starts.

use fleet_base::{Error, Result};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, ToSocketAddrs};
use std::os::fd::OwnedFd;

/// Source of the ports of a cluster.
pub trait Ports {
    /// Returns a port for a process on this machine.
    fn next(&mut self, host: &str) -> Result<u16>;

    /// Checks that an explicitly given port is free.
    fn given(&mut self, host: &str, port: u16) -> Result<()>;

    /// Returns the first port if ports are fixed.
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
    /// Takes ports counting up from `start`, or free ones if it is `None`.
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

/// Binds a socket to a port (0: any free one) without listening.
fn bound(host: &str, port: u16) -> Result<(OwnedFd, u16)> {
    let bind = || {
        let socket = fleet_net::tcp_socket(AddressFamily::INET)?;
        net::sockopt::set_socket_reuseaddr(&socket, true)?;
        match net::bind(&socket, &SocketAddrV4::new(local_address(host), port)) {
            // The name is this machine's, but the address is not (address translation, containers).
            Err(Errno::ADDRNOTAVAIL) => {
                net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, port))?;
            }
            done => done?,
        }
        let name = SocketAddrV4::try_from(net::getsockname(&socket)?)?;
        Ok((socket, name.port()))
    };
    bind().map_err(|errno| refused(errno, host, port))
}

fn local_address(host: &str) -> Ipv4Addr {
    let mut found = (host, 0).to_socket_addrs().into_iter().flatten();
    let found = found.find_map(|address| match address.ip() {
        IpAddr::V4(address) => Some(address),
        IpAddr::V6(_) => None,
    });
    found.unwrap_or(Ipv4Addr::UNSPECIFIED)
}

fn refused(errno: Errno, host: &str, port: u16) -> Error {
    match errno {
        Errno::ADDRINUSE => Error::unavailable(format!("port {port} of {host} is taken")).help(
            "set another --start_port (or FLAGS_START_PORT) or address; without one, free \
                 ports are used",
        ),
        Errno::ACCESS => {
            Error::invalid(format!("port {port} of {host} needs administrator rights"))
                .help("any user may use ports from 1024 on")
        }
        other => Error::unavailable(format!("no port on {host}: {other}")),
    }
}
