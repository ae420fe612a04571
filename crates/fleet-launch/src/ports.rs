//! Ports for a job's processes.
//!
//! A free port is bound by the launcher and stays bound, without listening, as long as the job
//! lives: the system gives it to nobody else, so that two launchers on one machine never collide,
//! while the process that it is for can listen on it, since both sockets say `SO_REUSEADDR` (as
//! Rust's and Go's listeners, Python's servers, gRPC and gloo all do). Fixed ports, which somebody
//! asked for, are looked at once, so that a taken one is an error with a name before anything
//! starts.

use fleet_base::{Error, Result};
use rustix::io::Errno;
use rustix::net::{self, AddressFamily};
use std::net::{IpAddr, Ipv4Addr, SocketAddrV4, ToSocketAddrs};
use std::os::fd::OwnedFd;

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
    let bind = || {
        let socket = fleet_net::tcp_socket(AddressFamily::INET)?;
        net::sockopt::set_socket_reuseaddr(&socket, true)?;
        match net::bind(&socket, &SocketAddrV4::new(local_address(host), port)) {
            // The name is of this machine, the address is not (translated addresses, containers).
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
        Errno::ADDRINUSE => Error::unavailable(format!("port {port} of {host} is taken"))
            .help("give another --start_port or FLAGS_START_PORT or address, or none: then ports are free ones"),
        Errno::ACCESS => Error::invalid(format!("port {port} of {host} needs rights of the administrator"))
            .help("ports from 1024 on are for everybody"),
        other => Error::unavailable(format!("no port on {host}: {other}")),
    }
}
