//! Connections of the simulated network: segments, and an ordered stream on top of them.

use std::collections::{BTreeMap, VecDeque};

/// One direction of a connection.
#[derive(Default)]
pub(super) struct Link {
    /// Number of bytes that the receiver has not read yet, in flight or arrived.
    held: usize,
    sent: u64,
    received: u64,
    /// Segments that arrived before their predecessors.
    early: BTreeMap<u64, Vec<u8>>,
    ready: VecDeque<u8>,
    /// Why the receiver can expect no more data; `None` while the connection is open.
    pub(super) closed: Option<String>,
    /// Whether the connection delivers nothing anymore.
    pub(super) cut: bool,
}

impl Link {
    pub(super) fn room(&self, pipe_bytes: usize) -> usize {
        pipe_bytes.saturating_sub(self.held)
    }

    /// Accepts bytes from the sender; returns the number of their segment.
    pub(super) fn push(&mut self, bytes: usize) -> u64 {
        self.held += bytes;
        self.sent += 1;
        self.sent - 1
    }

    /// Handles the arrival of a segment, possibly a duplicate. True if there is more to read.
    pub(super) fn arrive(&mut self, number: u64, data: &[u8]) -> bool {
        if self.cut || self.closed.is_some() || number < self.received {
            return false;
        }
        self.early.entry(number).or_insert_with(|| data.to_vec());
        let before = self.ready.len();
        while let Some(data) = self.early.remove(&self.received) {
            self.ready.extend(data);
            self.received += 1;
        }
        self.ready.len() > before
    }

    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn take(&mut self, into: &mut [u8]) {
        let count = into.len();
        self.held -= count;
        for (place, byte) in into.iter_mut().zip(self.ready.drain(..count)) {
            *place = byte;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Link;

    #[test]
    fn a_stream_again() {
        let mut link = Link::default();
        for bytes in [2, 1, 1] {
            link.push(bytes);
        }
        assert!(!link.arrive(1, b"c"));
        assert!(!link.arrive(2, b"d"));
        assert!(link.arrive(0, b"ab"));
        assert!(!link.arrive(0, b"ab"));
        assert_eq!((link.ready(), link.room(10)), (4, 6));
        let mut into = [0; 4];
        link.take(&mut into);
        assert_eq!(&into, b"abcd");
        assert_eq!(link.room(10), 10);
    }
}
