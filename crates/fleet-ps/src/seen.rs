//! The state of a job's workers, as its servers know it.

use crate::message::Body;
use crate::server::{WORKER_TIMEOUT, WorkerSign};
use fleet_base::{Error, Result};

/// Presence and progress of one worker, as the servers of its job know them.
///
/// ```
/// use fleet_ps::{Arrival, JobTables, LocalServers, ServerTables, Barriers, RunControl};
/// let job = JobTables { server_count: 2, worker_count: 1, sync: false, tables: vec![] };
/// let worker = LocalServers::new(&ServerTables::all(&job)?, 0)?;
/// worker.count_step();
/// worker.arrive(Arrival::Received)?;
/// let seen = &worker.workers()?[0];
/// assert_eq!((seen.worker, seen.steps, seen.starts), (0, 1, 1));
/// assert!(!seen.is_lost() && !seen.has_finished);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerSeen {
    /// Rank of the worker, from 0.
    pub worker: usize,
    /// Steps that all its processes have made, as last reported. Workers report steps at barriers,
    /// with dense gradients, and in heartbeats every two seconds. A restarted server knows the
    /// reports in its log and later ones.
    pub steps: u64,
    /// Number of processes that have been this worker.
    pub starts: usize,
    /// Whether the worker has ended its training in order.
    pub has_finished: bool,
    /// Its steps whose gradients all servers have, over all runs of the job, as last reported. A
    /// save that is made without the worker contains these.
    pub complete: u64,
    sign: WorkerSign,
}

impl WorkerSeen {
    /// Returns whether the others continue without it.
    pub fn is_lost(&self) -> bool {
        !self.has_finished && self.sign.is_lost(WORKER_TIMEOUT)
    }

    /// Returns why it is lost: `is lost: it closed its last connection 6.2 s ago`.
    pub fn why(&self) -> String {
        self.sign.loss_text()
    }

    /// Combines the knowledge of two servers: the highest counts, and the sign with the shortest
    /// span.
    fn and(self, other: WorkerSeen) -> WorkerSeen {
        WorkerSeen {
            worker: self.worker,
            steps: self.steps.max(other.steps),
            starts: self.starts.max(other.starts),
            has_finished: self.has_finished || other.has_finished,
            complete: self.complete.max(other.complete),
            sign: if other.sign.span < self.sign.span { other.sign } else { self.sign },
        }
    }
}

/// Numbers per worker in an answer.
const NUMBERS: usize = 6;

/// Merges the answers of all servers about `count` workers.
pub(crate) fn merged(answers: &[Vec<u8>], count: usize) -> Result<Vec<WorkerSeen>> {
    let all = answers.iter().map(|answer| read(answer, count)).collect::<Result<Vec<_>>>()?;
    let merge = |all: Vec<WorkerSeen>, next: Vec<WorkerSeen>| {
        all.into_iter().zip(next).map(|(a, b)| a.and(b)).collect()
    };
    Ok(all.into_iter().reduce(merge).unwrap_or_default())
}

fn read(answer: &[u8], count: usize) -> Result<Vec<WorkerSeen>> {
    let mut body = Body(answer);
    let numbers = body.numbers::<u64>((count * NUMBERS) as u64)?;
    body.end()?;
    let small = |number: u64| {
        u32::try_from(number)
            .map_err(|_| Error::internal("malformed answer of a server").got(number))
    };
    let one = |(worker, fields): (usize, &[u64])| {
        Ok(WorkerSeen {
            worker,
            steps: fields[2],
            starts: small(fields[3])? as usize,
            has_finished: fields[4] != 0,
            complete: fields[5],
            sign: WorkerSign::from_numbers([small(fields[0])?, small(fields[1])?])?,
        })
    };
    numbers.chunks_exact(NUMBERS).enumerate().map(one).collect()
}
