//! Helpers for communication between workers: `fleet.util`.

use crate::Fleet;
use crate::terminal::Printer;
use fleet_base::Result;
use fleet_comm::ReduceOp;

/// Helpers for communication between workers, as `fleet.util`.
///
/// ```
/// use fleet::{Fleet, ReduceOp, Util};
/// let fleet = Fleet::collective()?;
/// let util: Util<'_> = fleet.util();
/// assert_eq!(util.all_reduce(&[1.0, 2.0], ReduceOp::Sum)?, [1.0, 2.0]); // of one worker
/// assert_eq!(util.all_gather(&[7.0])?, [[7.0]]);
/// util.barrier()?;
/// util.print_on_rank("all workers have joined", 0);
/// # Ok::<(), fleet::Error>(())
/// ```
pub struct Util<'f>(&'f Fleet);

impl Fleet {
    /// Returns the helpers for communication between the workers of this job.
    pub fn util(&self) -> Util<'_> {
        Util(self)
    }
}

impl Util<'_> {
    /// Reduces every worker's numbers element by element; every worker gets the result.
    pub fn all_reduce(&self, input: &[f64], op: ReduceOp) -> Result<Vec<f64>> {
        let mut out = input.to_vec();
        if let Some(workers) = self.0.workers()? {
            workers.all_reduce("util.all_reduce", &mut out, op)?;
        }
        Ok(out)
    }

    /// Returns every worker's numbers, in order of rank.
    pub fn all_gather(&self, input: &[f64]) -> Result<Vec<Vec<f64>>> {
        let Some(workers) = self.0.workers()? else { return Ok(vec![input.to_vec()]) };
        let mut all = vec![0.0; input.len() * self.0.worker_num()];
        workers.all_gather("util.all_gather", input, &mut all)?;
        Ok(all.chunks(input.len().max(1)).map(<[f64]>::to_vec).collect())
    }

    /// Waits until all workers have called it.
    pub fn barrier(&self) -> Result<()> {
        self.0.barrier_worker()
    }

    /// Returns this worker's share of the files. Shares are contiguous, and the first workers take
    /// one more if the count is not divisible.
    ///
    /// ```
    /// let fleet = fleet::Fleet::collective()?;
    /// // The only worker gets all files.
    /// assert_eq!(fleet.util().get_file_shard(&["part-0", "part-1"])?, ["part-0", "part-1"]);
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn get_file_shard<'a, T>(&self, files: &'a [T]) -> Result<&'a [T]> {
        fleet_data::file_shard(files, self.0.worker_index(), self.0.worker_num())
    }

    /// Prints on one rank only. A failure to write to the standard output is reported on standard
    /// error; it is not an error of the call.
    pub fn print_on_rank(&self, message: impl std::fmt::Display, rank: usize) {
        if self.0.worker_index() == rank {
            Printer::stdout().line(message);
        }
    }
}
