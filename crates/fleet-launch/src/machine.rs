//! Facts about this machine: its addresses, its GPUs. They are read once and passed as a value.

use fleet_base::{Error, Result};
use fleet_topology::{Env, names};
use std::net::{IpAddr, ToSocketAddrs};

/// Facts that the launcher needs about its machine.
#[derive(Clone, Debug, Default)]
pub struct Machine {
    /// Name of the machine.
    pub hostname: String,
    /// Addresses of its interfaces.
    pub addresses: Vec<IpAddr>,
    /// Number of GPUs.
    pub gpu_count: usize,
    /// Number of cores that this process may use.
    pub core_count: usize,
}

impl Machine {
    /// Reads the facts of this machine.
    pub fn here() -> Machine {
        let interfaces = fleet_net::host::interfaces().unwrap_or_default();
        Machine {
            hostname: fleet_net::host::name(),
            addresses: interfaces.into_iter().map(|(_, address)| address).collect(),
            gpu_count: gpu_count(),
            core_count: std::thread::available_parallelism().map_or(1, usize::from),
        }
    }

    /// Whether a host name or address belongs to this machine.
    pub fn is_here(&self, host: &str) -> bool {
        if host == "localhost" || host == self.hostname {
            return true;
        }
        match host.parse::<IpAddr>() {
            Ok(address) => self.addresses.contains(&address),
            Err(_) => (host, 0)
                .to_socket_addrs()
                .is_ok_and(|mut found| found.any(|found| self.addresses.contains(&found.ip()))),
        }
    }

    /// Returns the position of this machine in a list of hosts.
    pub fn position(&self, hosts: &[String], said: Option<&str>, env: &Env) -> Result<usize> {
        let list = hosts.join(",");
        if let Some(said) = said {
            return hosts.iter().position(|host| host == said).ok_or_else(|| {
                Error::invalid("--host is not in the list of hosts")
                    .expected(format!("one of {list}"))
                    .got(said)
            });
        }
        let pod = env.text(names::POD_IP);
        if let Some(at) = hosts.iter().position(|host| Some(host.as_str()) == pod) {
            return Ok(at);
        }
        if hosts.len() == 1 && hosts[0] == "127.0.0.1" {
            return Ok(0);
        }
        let here: Vec<usize> = (0..hosts.len()).filter(|at| self.is_here(&hosts[*at])).collect();
        match here.as_slice() {
            [one] => Ok(*one),
            [] => Err(Error::invalid("this machine is not in the list of hosts")
                .expected(format!("one of its addresses in {list}"))
                .got(self.shown())
                .help(
                    "give --host ADDRESS when this machine is known to the others by another one",
                )),
            _ => Err(Error::invalid("several of the listed hosts are this machine")
                .got(list)
                .help("say with --host which of them this launcher is for")),
        }
    }

    /// Returns the address that other machines can most likely reach.
    pub fn outward(&self) -> String {
        let mut v4 = self.addresses.iter().filter(|address| address.is_ipv4());
        match v4.find(|address| !address.is_loopback()) {
            Some(address) => address.to_string(),
            None => "127.0.0.1".to_string(),
        }
    }

    fn shown(&self) -> String {
        let mut all = vec![self.hostname.clone()];
        let v4 = self.addresses.iter().filter(|address| address.is_ipv4());
        all.extend(v4.map(IpAddr::to_string));
        all.join(", ")
    }
}

/// Counts NVIDIA's numbered device files. Other GPUs are not detected.
fn gpu_count() -> usize {
    let Ok(entries) = std::fs::read_dir("/dev") else { return 0 };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|name| {
            let number = name.strip_prefix("nvidia").unwrap_or_default();
            !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
        })
        .count()
}
