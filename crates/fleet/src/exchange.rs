//! Exchange of records between the workers of a job, for a global shuffle.

use crate::Fleet;
use fleet_base::{Error, Result, text};
use fleet_comm::Group;
use fleet_data::{Exchange, InMemoryDataset, sum_over};

/// The workers of a job as partners in an exchange of records ([`Fleet::exchange`]). If a worker
/// dies, the others get an error that names it.
pub struct WorkerExchange {
    group: Option<Group>,
}

impl Fleet {
    /// Returns the exchange through which [`InMemoryDataset::global_shuffle`] moves records. All
    /// workers must use it at the same time.
    ///
    /// ```
    /// use fleet::Fleet;
    /// use fleet::data::{DatasetOptions, InMemoryDataset, Schema, Slot, TextFiles};
    /// # let path = std::env::temp_dir().join(format!("exchange-{}", std::process::id()));
    /// # std::fs::write(&path, "1 7\n1 8\n1 9\n").unwrap();
    /// let fleet = Fleet::collective()?;
    /// let schema = Schema::new([Slot::dense_ids("id", [1])])?;
    /// let options = DatasetOptions::new(TextFiles::multi_slot(&schema))?;
    /// let mut dataset = InMemoryDataset::new(options)?;
    /// dataset.set_filelist([path.clone()])?; // this worker's share of the files
    /// dataset.load_into_memory()?;
    /// dataset.global_shuffle(&mut fleet.exchange()?)?;
    /// assert_eq!(fleet.memory_data_size(&dataset)?, 3); // of all workers
    /// assert_eq!(fleet.shuffle_data_size(&dataset)?, 3);
    /// # std::fs::remove_file(&path).unwrap();
    /// # Ok::<(), fleet::Error>(())
    /// ```
    pub fn exchange(&self) -> Result<WorkerExchange> {
        Ok(WorkerExchange { group: self.workers()?.cloned() })
    }

    /// Returns the number of records in the memory of all workers together.
    pub fn memory_data_size(&self, dataset: &InMemoryDataset) -> Result<u64> {
        sum_over(&mut self.exchange()?, dataset.memory_data_size() as u64)
    }

    /// Returns the number of records of all workers after a global shuffle; 0 before.
    pub fn shuffle_data_size(&self, dataset: &InMemoryDataset) -> Result<u64> {
        sum_over(&mut self.exchange()?, dataset.shuffle_data_size() as u64)
    }
}

impl Exchange for WorkerExchange {
    fn rank(&self) -> usize {
        self.group.as_ref().map_or(0, Group::rank)
    }

    fn world_size(&self) -> usize {
        self.group.as_ref().map_or(1, Group::size)
    }

    fn all_to_all(&mut self, outgoing: Vec<Vec<u8>>) -> Result<Vec<Vec<u8>>> {
        if outgoing.len() != self.world_size() {
            return Err(Error::invalid("an exchange needs one message per worker")
                .expected(self.world_size())
                .got(outgoing.len()));
        }
        let Some(group) = &self.group else { return Ok(outgoing) };
        let sends: Vec<usize> = outgoing.iter().map(Vec::len).collect();
        let receives = lengths(group, &sends)?;
        let input = outgoing.concat();
        let mut output = vec![0u8; receives.iter().sum()];
        group.all_to_all_v("exchange of records", &input, &sends, &mut output, &receives)?;
        let mut rest = &output[..];
        let take = |length: &usize| {
            let (message, behind) = rest.split_at(*length);
            rest = behind;
            message.to_vec()
        };
        Ok(receives.iter().map(take).collect())
    }
}

/// Sends every worker the length of the message for it; returns the lengths of the incoming
/// messages.
fn lengths(group: &Group, sends: &[usize]) -> Result<Vec<usize>> {
    let sends: Vec<i64> = sends.iter().map(|length| *length as i64).collect();
    let mut receives = vec![0i64; sends.len()];
    group.all_to_all("exchange of lengths", &sends, &mut receives)?;
    let length = |(rank, length): (usize, &i64)| {
        let length = usize::try_from(*length).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
        length.ok_or_else(|| {
            Error::exhausted("exchange message too large")
                .expected(format!("at most {}", text::bytes(MESSAGE_BYTES_MAX as u64)))
                .got(receives[rank])
                .at(format!("message of worker {rank}"))
        })
    };
    receives.iter().enumerate().map(length).collect()
}

/// Maximum size of one message between two workers. A round of a shuffle has a few hundred
/// kilobytes, or a thousand large images.
const MESSAGE_BYTES_MAX: usize = 4 << 30;
