//! Formats numbers and lists for messages.

use fleet_topology::Role;
use std::net::IpAddr;
use std::time::Duration;

/// Formats a number of processes: `2 workers`.
pub fn counted(role: Role, count: usize) -> String {
    let noun = match role {
        Role::HeterWorker => "heterogeneous worker".to_string(),
        role => role.to_string(),
    };
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// Formats the number of processes of each role, without roles that have none.
pub fn counted_roles<const N: usize>(
    roles: [Role; N],
    count: impl Fn(Role) -> usize,
) -> Vec<String> {
    let counts = roles.into_iter().map(|role| (role, count(role))).filter(|(_, count)| *count > 0);
    counts.map(|(role, count)| counted(role, count)).collect()
}

/// Formats a time: `0.5 s`, `30 s`.
pub fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds < 10.0 && seconds.fract() != 0.0 {
        true => format!("{seconds:.1} s"),
        false => format!("{seconds:.0} s"),
    }
}

/// Returns the first items of a list: `a, b and 7 more`.
pub fn some_of(all: &[&str]) -> String {
    let shown = all.iter().take(SHOWN_MAX).copied().collect::<Vec<&str>>().join(", ");
    match all.len().saturating_sub(SHOWN_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Returns the sort key of a host: addresses in numeric order, then names.
pub fn address_key(host: &str) -> (bool, Option<IpAddr>, String) {
    let address = host.parse().ok();
    (address.is_none(), address, host.to_string())
}

/// Number of items shown; they fit on a line.
const SHOWN_MAX: usize = 8;
