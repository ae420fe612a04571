//! Ports that the launcher reserves.

use fleet_launch::ports::{Ports, SystemPorts};
use std::collections::HashSet;
use std::net::TcpListener;

#[test]
fn a_held_port_is_nobody_elses_but_its_process_can_listen() {
    let mut ports = SystemPorts::new(None);
    let mut others = SystemPorts::new(None);
    let mine: HashSet<u16> = (0..200).map(|_| ports.next("127.0.0.1").unwrap()).collect();
    let theirs: HashSet<u16> = (0..200).map(|_| others.next("127.0.0.1").unwrap()).collect();
    assert_eq!((mine.len(), theirs.len()), (200, 200));
    assert!(mine.is_disjoint(&theirs));
    for port in mine {
        // A process of the job listens like this. The system never assigns a reserved port to a
        // process that binds port 0.
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        assert_eq!(listener.local_addr().unwrap().port(), port);
    }
}

#[test]
fn fixed_ports_count_up_and_are_looked_at() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = SystemPorts::new(Some(port)).next("127.0.0.1").unwrap_err().to_string();
    assert!(error.contains(&format!("port {port} of 127.0.0.1 is taken")), "{error}");
    let mut last = SystemPorts::new(Some(u16::MAX));
    // This port may be taken; there is no port above it in any case.
    let _ = last.next("127.0.0.1");
    assert!(last.next("127.0.0.1").unwrap_err().to_string().contains("no more ports"));
}
