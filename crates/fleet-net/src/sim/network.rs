//! Connections of the simulated network: segments below, an ordered stream above.

use std::collections::{BTreeMap, VecDeque};

/// One direction of a connection.
#[derive(Default)]
pub(super) struct Link {
    /// Bytes that the receiver has not taken yet, on the way or arrived.
    held: usize,
    sent: u64,
    received: u64,
    /// Segments that came before their predecessors.
    early: BTreeMap<u64, Vec<u8>>,
    ready: VecDeque<u8>,
    /// The receiver's end knows that nothing more will come, and why.
    pub(super) closed: Option<String>,
    /// Nothing gets through any more.
    pub(super) cut: bool,
}

impl Link {
    pub(super) fn room(&self, pipe_bytes: usize) -> usize {
        pipe_bytes.saturating_sub(self.held)
    }

    /// Takes bytes from the sender; gives the segment's number.
    pub(super) fn push(&mut self, bytes: usize) -> u64 {
        self.held += bytes;
        self.sent += 1;
        self.sent - 1
    }

    /// A segment arrives, perhaps not for the first time; true when there is more to read.
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
