//! Exchange of records between workers. A network implements the trait elsewhere. The
//! implementation here connects threads of one process, for tests and single-machine jobs.

use fleet_base::{Error, Result};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Passes messages between workers, all of which take part in every call.
pub trait Exchange: Send {
    /// Returns the rank of this worker, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of workers.
    fn world_size(&self) -> usize;

    /// Sends `outgoing[r]` to worker r, and returns the messages from all workers in rank order. A
    /// dead worker is an error on all others, never an endless wait.
    fn all_to_all(&mut self, outgoing: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>>;
}

/// Sums a number over all workers, for example the sizes of their data sets.
///
/// ```
/// use fleet_data::{InProcessExchange, sum_over};
/// let mut alone = InProcessExchange::group(1).remove(0);
/// assert_eq!(sum_over(&mut alone, 42)?, 42);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn sum_over(exchange: &mut dyn Exchange, value: u64) -> Result<u64> {
    let mine = value.to_le_bytes().to_vec();
    let all = exchange.all_to_all(vec![mine; exchange.world_size()])?;
    let mut sum = 0u64;
    for (rank, bytes) in all.iter().enumerate() {
        let bytes: [u8; 8] = bytes.as_slice().try_into().map_err(|_| {
            Error::invalid(format!("worker {rank} sent an invalid number")).got(bytes.len())
        })?;
        sum = sum
            .checked_add(u64::from_le_bytes(bytes))
            .ok_or_else(|| Error::invalid("a sum over workers is out of range"))?;
    }
    Ok(sum)
}

/// Workers that are threads of one process.
pub struct InProcessExchange {
    rank: usize,
    /// Channels to and from each worker.
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

impl InProcessExchange {
    /// Creates the endpoints of a group of workers, by rank.
    pub fn group(world_size: usize) -> Vec<InProcessExchange> {
        let mut ends: Vec<InProcessExchange> = (0..world_size)
            .map(|rank| InProcessExchange { rank, to: Vec::new(), from: Vec::new() })
            .collect();
        for from in 0..world_size {
            for to in 0..world_size {
                let (sender, receiver) = channel();
                ends[from].to.push(sender);
                ends[to].from.push(receiver);
            }
        }
        ends
    }
}

impl Exchange for InProcessExchange {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.to.len()
    }

    fn all_to_all(&mut self, outgoing: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        if outgoing.len() != self.to.len() {
            return Err(Error::invalid("wrong number of messages in an exchange")
                .expected(self.to.len())
                .got(outgoing.len()));
        }
        let gone = |rank: usize| {
            Error::unavailable(format!("worker {rank} is lost"))
                .at(format!("exchange of records, worker {}", self.rank))
        };
        for (rank, message) in outgoing.into_iter().enumerate() {
            self.to[rank].send(message).map_err(|_| gone(rank))?;
        }
        let messages = self.from.iter().enumerate();
        messages.map(|(rank, from)| from.recv().map_err(|_| gone(rank))).collect()
    }
}
