//! Helpers for communication between the processes of a job: `fleet.util`.

use crate::terminal::Printer;
use crate::{CommWorld, Fleet, hadoop};
use fleet_base::Result;
use fleet_base::fs::{FileSystem, LocalFs};
use fleet_comm::ReduceOp;
use fleet_topology::Rendezvous;

/// Helpers for communication between the processes of a job, as `fleet.util`.
///
/// ```
/// use fleet::{CommWorld, Fleet, ReduceOp, Util};
/// let fleet = Fleet::collective()?;
/// let util: Util<'_> = fleet.util();
/// assert_eq!(util.all_reduce(&[1.0, 2.0], ReduceOp::Sum)?, [1.0, 2.0]); // of one worker
/// assert_eq!(util.all_gather(&[7.0])?, [[7.0]]);
/// util.barrier()?;
/// assert_eq!(util.all_gather_in(&[7.0], CommWorld::All)?, [[7.0]]); // there are no servers
/// util.print_on_rank("all workers have joined", 0);
/// # Ok::<(), fleet::Error>(())
/// ```
///
/// Servers take part in a group ([`CommWorld::Server`], [`CommWorld::All`]) if `PADDLE_WITH_GLOO`
/// is 2 (`fleetrun --with_gloo 2`), and before they serve: `Server::run` returns at the end of the
/// job. All members must make the same calls in the same order.
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
        self.all_reduce_in(input, op, CommWorld::Worker)
    }

    /// As [`Util::all_reduce`], in another group.
    pub fn all_reduce_in(
        &self,
        input: &[f64],
        op: ReduceOp,
        members: CommWorld,
    ) -> Result<Vec<f64>> {
        let mut out = input.to_vec();
        if let Some(group) = self.0.group(members)? {
            group.all_reduce("util.all_reduce", &mut out, op)?;
        }
        Ok(out)
    }

    /// Returns every worker's numbers, in order of rank.
    pub fn all_gather(&self, input: &[f64]) -> Result<Vec<Vec<f64>>> {
        self.all_gather_in(input, CommWorld::Worker)
    }

    /// As [`Util::all_gather`], in another group.
    pub fn all_gather_in(&self, input: &[f64], members: CommWorld) -> Result<Vec<Vec<f64>>> {
        let Some(group) = self.0.group(members)? else { return Ok(vec![input.to_vec()]) };
        let mut all = vec![0.0; input.len() * group.size()];
        group.all_gather("util.all_gather", input, &mut all)?;
        Ok(all.chunks(input.len().max(1)).map(<[f64]>::to_vec).collect())
    }

    /// Waits until all workers have called it.
    pub fn barrier(&self) -> Result<()> {
        self.0.barrier_worker()
    }

    /// As [`Util::barrier`], in another group.
    pub fn barrier_in(&self, members: CommWorld) -> Result<()> {
        self.0.group(members)?.map_or(Ok(()), |group| group.barrier("util.barrier"))
    }

    /// Returns the file system of the job: HDFS, by a `hadoop` program, if the rendezvous is there
    /// (`PADDLE_GLOO_FS_NAME`, `PADDLE_GLOO_FS_UGI`), else that of this machine.
    ///
    /// ```
    /// let fleet = fleet::Fleet::collective()?;
    /// assert!(fleet.util().get_fs().exists("/")?);
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn get_fs(&self) -> Box<dyn FileSystem> {
        match &self.0.topology().gloo().rendezvous {
            Some(Rendezvous::Hdfs { name, ugi, .. }) => Box::new(hadoop::of_rendezvous(name, ugi)),
            _ => Box::new(LocalFs),
        }
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
