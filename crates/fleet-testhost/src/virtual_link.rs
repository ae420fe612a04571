//! A virtual link between two network namespaces, the nearest a test comes to two machines.

use std::process::Command;

/// Two namespaces with a link. Dropping it removes them.
pub struct VirtualLink {
    /// Names of the two namespaces.
    pub names: [String; 2],
}

/// Addresses of the two ends, which are both named `cable`.
pub const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

impl VirtualLink {
    /// Makes namespaces whose names begin with `what`. An error tells why they cannot be made here.
    pub fn create(what: &str) -> Result<VirtualLink, String> {
        let names = [0, 1].map(|end| format!("{what}-{}-{end}", std::process::id()));
        let link = VirtualLink { names };
        let [a, b] = &link.names;
        ip(&["netns", "add", a])?;
        ip(&["netns", "add", b])?;
        ip(&[
            "-n", a, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", b,
        ])?;
        for (name, address) in link.names.iter().zip(ADDRESSES) {
            ip(&["-n", name, "addr", "add", &format!("{address}/24"), "dev", "cable"])?;
            ip(&["-n", name, "link", "set", "cable", "up"])?;
            ip(&["-n", name, "link", "set", "lo", "up"])?;
        }
        Ok(link)
    }

    /// Takes one end of the link down, so that no packet passes.
    pub fn take_down(&self) {
        ip(&["-n", &self.names[1], "link", "set", "cable", "down"])
            .expect("the link belongs to this test");
    }
}

impl Drop for VirtualLink {
    fn drop(&mut self) {
        for name in &self.names {
            // It may not exist.
            let _ = ip(&["netns", "del", name]);
        }
    }
}

fn ip(args: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(args).output();
    let output = output.map_err(|error| format!("cannot run the program ip: {error}"))?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr))),
    }
}
