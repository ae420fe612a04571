//! A connection, in the clear or under TLS: what everything above the sockets reads and writes.
//!
//! Reads and writes never wait. Two rules keep TLS behind the face of a socket:
//!
//! * Bytes may have come and be kept here that no `poll` sees: who waits for a connection has read
//!   until there was nothing more.
//! * A write that was refused may have been taken in part: what is written next begins with the
//!   same bytes.

use std::io::{IoSlice, IoSliceMut, Read, Result, Write};
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

pub(crate) struct Stream {
    socket: TcpStream,
    #[cfg(feature = "tls")]
    tls: Option<Box<std::sync::Mutex<crate::tls::Session>>>,
}

/// A machine that connects to itself uses one address for both ends, or the loopback's.
fn is_one_machine(own: IpAddr, peer: IpAddr) -> bool {
    own.to_canonical() == peer.to_canonical() || peer.to_canonical().is_loopback()
}

impl Stream {
    pub(crate) fn plain(socket: TcpStream) -> Stream {
        Stream {
            socket,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }

    #[cfg(feature = "tls")]
    pub(crate) fn under(socket: TcpStream, session: crate::tls::Session) -> Stream {
        Stream { socket, tls: Some(Box::new(std::sync::Mutex::new(session))) }
    }

    pub(crate) fn socket(&self) -> &TcpStream {
        &self.socket
    }

    /// What both ends of this connection, and nobody between them, have in common; empty in the
    /// clear.
    pub(crate) fn binding(&self) -> fleet_base::Result<Vec<u8>> {
        #[cfg(feature = "tls")]
        if let Some(session) = self.session() {
            return session.binding();
        }
        Ok(Vec::new())
    }

    /// Whether a network that TLS does not guard lies between the two ends.
    pub(crate) fn is_between_machines(&self) -> bool {
        #[cfg(feature = "tls")]
        if self.tls.is_some() {
            return false;
        }
        match (self.socket.local_addr(), self.socket.peer_addr()) {
            (Ok(own), Ok(peer)) => !is_one_machine(own.ip(), peer.ip()),
            // The connection has broken, which its next use reports.
            _ => true,
        }
    }

    /// Goes on with the handshake of TLS as far as the bytes that have come allow; true when it is
    /// done.
    pub(crate) fn shake(&self) -> Result<bool> {
        #[cfg(feature = "tls")]
        if let Some(mut session) = self.session() {
            return session.shake(&self.socket);
        }
        Ok(true)
    }

    #[cfg(feature = "tls")]
    fn session(&self) -> Option<std::sync::MutexGuard<'_, crate::tls::Session>> {
        // A session in which a thread panicked ends at its next use, by TLS's own checks.
        Some(self.tls.as_ref()?.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl Read for &Stream {
    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        #[cfg(feature = "tls")]
        if let Some(mut session) = self.session() {
            return session.read(&self.socket, into);
        }
        (&self.socket).read(into)
    }

    fn read_vectored(&mut self, into: &mut [IoSliceMut<'_>]) -> Result<usize> {
        #[cfg(feature = "tls")]
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
        #[cfg(feature = "tls")]
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
