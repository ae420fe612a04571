//! A connection, plain or under TLS, with the interface of a socket.
//!
//! Reads and writes never block. TLS buffers data, so callers must follow two rules:
//!
//! * Received bytes may be buffered here where `poll` does not see them: read until the stream
//!   would block before waiting.
//! * A write that would block may have consumed a part of the data: the next write must start with
//!   the same bytes.

use std::io::{IoSlice, IoSliceMut, Read, Result, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

pub(crate) struct Stream {
    socket: TcpStream,
    tls: Option<Box<std::sync::Mutex<crate::tls::Session>>>,
}

/// Whether both ends are on one machine. A connection of a machine to itself has one address at
/// both ends, or the loopback address.
fn is_one_machine(own: IpAddr, peer: IpAddr) -> bool {
    own.to_canonical() == peer.to_canonical() || peer.to_canonical().is_loopback()
}

impl Stream {
    pub(crate) fn plain(socket: TcpStream) -> Stream {
        Stream { socket, tls: None }
    }

    pub(crate) fn under(socket: TcpStream, session: crate::tls::Session) -> Stream {
        Stream { socket, tls: Some(Box::new(std::sync::Mutex::new(session))) }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// A value that only the two ends of this connection share; empty without TLS.
    pub(crate) fn binding(&self) -> fleet_base::Result<Vec<u8>> {
        if let Some(session) = self.session() {
            return session.binding();
        }
        Ok(Vec::new())
    }

    /// Whether the ends are on different machines and the connection is not under TLS.
    pub(crate) fn is_between_machines(&self) -> bool {
        if self.tls.is_some() {
            return false;
        }
        match (self.socket.local_addr(), self.socket.peer_addr()) {
            (Ok(own), Ok(peer)) => !is_one_machine(own.ip(), peer.ip()),
            // The connection is broken; its next use reports that.
            _ => true,
        }
    }

    /// Advances the TLS handshake as far as the received bytes allow; true if it is complete.
    pub(crate) fn tls_handshake(&self) -> Result<bool> {
        if let Some(mut session) = self.session() {
            return session.handshake(&self.socket);
        }
        Ok(true)
    }

    fn session(&self) -> Option<std::sync::MutexGuard<'_, crate::tls::Session>> {
        // If a thread panicked in a session, TLS's own checks fail at its next use.
        Some(fleet_base::sync::lock(self.tls.as_ref()?))
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if let Some(mut session) = self.session() {
            return session.read(&self.socket, into);
        }
        (&self.socket).read(into)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize> {
        if let Some(mut session) = self.session() {
            return session.read_vectored(&self.socket, into);
        }
        (&self.socket).read_vectored(into)
    }
}

impl Write for &Stream {
    fn write(&mut self, from: &[u8]) -> Result<usize> {
        self.write_vectored(&[IoSlice::new(from)])
    }

    fn write_vectored(&mut self, from: &[IoSlice<'_>]) -> Result<usize> {
        if let Some(mut session) = self.session() {
            return session.write(&self.socket, from);
        }
        (&self.socket).write_vectored(from)
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::is_one_machine;

    #[test]
    fn a_machine_is_known_by_its_addresses() {
        let is_one =
            |own: &str, peer: &str| is_one_machine(own.parse().unwrap(), peer.parse().unwrap());
        for (own, peer) in [("127.0.0.1", "127.0.0.1"), ("127.0.0.1", "127.0.0.2"), ("::1", "::1")]
        {
            assert!(is_one(own, peer), "{own} {peer}");
        }
        assert!(is_one("10.0.0.1", "10.0.0.1"));
        assert!(is_one("::ffff:10.0.0.1", "10.0.0.1"));
        assert!(!is_one("10.0.0.1", "10.0.0.2"));
        assert!(!is_one("fe80::1", "fe80::2"));
    }
}
