//! This machine as other machines of a job see it: its name, an id of its shared memory, and the
//! address that reaches it.

use crate::Member;
use fleet_base::{Error, Result, text};
use std::net::{IpAddr, SocketAddr, UdpSocket};

/// This process as a member of a job.
///
/// ```
/// let own = fleet_net::host::own_member(3);
/// assert_eq!(own.host_id, fleet_net::host::own_member(4).host_id);
/// assert!(own.to_string().starts_with("rank 3 (host "));
/// ```
pub fn own_member(rank: usize) -> Member {
    Member { rank, host: name(), host_id: id(), pid: std::process::id() }
}

/// The name of this machine.
pub fn name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// An id that is equal in two processes exactly if they can share memory by name: the same boot of
/// the same machine, and the same `/dev/shm` (containers have their own).
pub fn id() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let shm = rustix::fs::stat("/dev/shm").map_or(0, |stat| stat.st_dev);
    match boot.trim() {
        // Not Linux: fall back to the name.
        "" => name(),
        boot => format!("{boot}/{shm}"),
    }
}

/// Whether a process of this machine is stopped by a signal or a debugger; false if unknown.
///
/// ```
/// let own = fleet_net::host::own_member(0);
/// assert!(!fleet_net::host::is_stopped(&own));
/// ```
pub fn is_stopped(member: &Member) -> bool {
    if member.host_id != id() {
        return false;
    }
    let text = std::fs::read_to_string(format!("/proc/{}/stat", member.pid)).unwrap_or_default();
    // The process name may contain any character, so look after the last parenthesis.
    let state = text.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    matches!(state, Some('T' | 't'))
}

/// The address of this machine on its route to `address`, which peers on that route can use.
///
/// ```
/// let to = "127.0.0.1:80".parse().unwrap();
/// assert_eq!(fleet_net::host::local_address_towards(to)?.to_string(), "127.0.0.1");
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn local_address_towards(address: SocketAddr) -> Result<IpAddr> {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting a datagram socket sends nothing; it only selects the route.
    UdpSocket::bind((any, 0))
        .and_then(|socket| {
            socket.connect(address)?;
            socket.local_addr()
        })
        .map(|own| own.ip())
        .map_err(|error| {
            Error::unavailable(format!("this machine has no route to {address}: {error}"))
                .help("name the interface to use, or check the network")
        })
}

/// The address of an interface (`eth0`), or an address of this machine itself (`10.0.0.7`).
pub fn address_of(interface: &str) -> Result<IpAddr> {
    let all = interfaces()?;
    let found = match interface.parse::<IpAddr>() {
        Ok(ip) => all.iter().find(|(_, own)| *own == ip),
        Err(_) => {
            // Prefer IPv4, which most clusters route.
            let mut named: Vec<_> = all.iter().filter(|(name, _)| name == interface).collect();
            named.sort_by_key(|(_, ip)| ip.is_ipv6());
            named.first().copied()
        }
    };
    found.map(|(_, ip)| *ip).ok_or_else(|| {
        let known: Vec<String> = all.iter().map(|(name, ip)| format!("{name} ({ip})")).collect();
        let near = text::did_you_mean(interface, all.iter().map(|(name, _)| name.as_str()));
        Error::invalid(format!("this machine has no interface '{interface}'{near}"))
            .expected(known.join(", "))
    })
}

/// All interfaces of this machine with their addresses.
pub fn interfaces() -> Result<Vec<(String, IpAddr)>> {
    let all = if_addrs::get_if_addrs().map_err(|error| {
        Error::unavailable(format!("cannot list the interfaces of this machine: {error}"))
    })?;
    Ok(all.into_iter().map(|interface| (interface.name.clone(), interface.ip())).collect())
}

/// Free bytes and size of `/dev/shm`; `None` if it does not exist.
pub fn shared_memory() -> Option<(u64, u64)> {
    let stat = rustix::fs::statvfs("/dev/shm").ok()?;
    Some((stat.f_bavail * stat.f_frsize, stat.f_blocks * stat.f_frsize))
}
