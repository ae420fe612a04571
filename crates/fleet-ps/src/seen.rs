//! What the servers of a job know of its workers.

use crate::message::Body;
use crate::server::{SILENT_AFTER, Sign};
use fleet_base::{Error, Result};

/// What the servers of a job know of one of its workers: who took part, and how far they came.
///
/// ```
/// use fleet_ps::{Arrival, JobTables, LocalServers, ServerTables, Servers};
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
    pub worker: usize,
    /// Steps that it has made, in all its starts, as far as it has said: workers say so at
    /// barriers, with dense gradients, and every two seconds. A server that is started again knows
    /// of those that its log has, or that say it again.
    pub steps: u64,
    /// How many processes have been this worker.
    pub starts: usize,
    pub has_finished: bool,
    /// Its steps whose gradients all servers have, counted over all runs of the job, as far as it
    /// has said: a save that is made without it has these.
    pub complete: u64,
    sign: Sign,
}

impl WorkerSeen {
    /// Whether the others go on without it.
    pub fn is_lost(&self) -> bool {
        !self.has_finished && self.sign.is_lost(SILENT_AFTER)
    }

    /// Why it is lost: `is gone: it closed its last connection 6.2 s before`.
    pub fn why(&self) -> String {
        self.sign.text()
    }

    /// Of what several servers know of a worker the most, and the most hopeful.
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

/// Numbers of one worker in an answer.
const NUMBERS: usize = 6;

/// What all servers have answered, of `count` workers.
pub(crate) fn merged(answers: &[Vec<u8>], count: usize) -> Result<Vec<WorkerSeen>> {
    let all = answers.iter().map(|answer| read(answer, count)).collect::<Result<Vec<_>>>()?;
    let merge = |all: Vec<WorkerSeen>, next: Vec<WorkerSeen>| {
        all.into_iter().zip(next).map(|(a, b)| a.and(b)).collect()
    };
    Ok(all.into_iter().reduce(merge).unwrap_or_default())
}

fn read(answer: &[u8], count: usize) -> Result<Vec<WorkerSeen>> {
    let mut body = Body(answer);
    let numbers = body.u64s((count * NUMBERS) as u64)?;
    body.end()?;
    let small = |number: u64| {
        u32::try_from(number)
            .map_err(|_| Error::internal("a server's answer is not understood").got(number))
    };
    let one = |(worker, told): (usize, &[u64])| {
        Ok(WorkerSeen {
            worker,
            steps: told[2],
            starts: small(told[3])? as usize,
            has_finished: told[4] != 0,
            complete: told[5],
            sign: Sign::from_numbers([small(told[0])?, small(told[1])?])?,
        })
    };
    numbers.chunks_exact(NUMBERS).enumerate().map(one).collect()
}
