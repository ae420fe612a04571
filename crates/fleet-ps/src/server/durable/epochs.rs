//! The processes that wrote a server's records, so that a worker's last acknowledgement can be
//! compared with the records that are left.
//!
//! Every start of a server is an epoch: a count of the starts, and random bits. An acknowledgement
//! states an epoch and the number below which its records are kept. If a later epoch begins below
//! that number, the records in between were lost.

use fleet_base::Result;

/// One start of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Epoch {
    pub id: u64,
    /// The sequence number of its first record.
    pub first: u64,
    /// An operator has accepted the loss of the earlier records from `first` on.
    pub accepts_loss: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Epochs(Vec<Epoch>);

/// Limit on the starts remembered: a worker's acknowledgement is rarely older than one.
const EPOCHS_MAX: usize = 1024;

/// Returns how often a server was started, up to and including this epoch.
fn ordinal(id: u64) -> u64 {
    id >> 32
}

impl Epochs {
    pub fn push(&mut self, epoch: Epoch) {
        self.0.retain(|known| known.id != epoch.id);
        self.0.push(epoch);
        let surplus = self.0.len().saturating_sub(EPOCHS_MAX);
        self.0.drain(..surplus);
    }

    /// Returns the id of a new epoch.
    pub fn next_id(&self) -> Result<u64> {
        let last = self.0.iter().map(|epoch| ordinal(epoch.id)).max().unwrap_or(0);
        Ok((last + 1) << 32 | fleet_net::random_number()? & u64::from(u32::MAX))
    }

    /// Returns how many records that an epoch acknowledged are lost, if the next record has the
    /// number `next`. Returns 0 if an operator has accepted the loss.
    pub fn lost(&self, epoch: u64, acknowledged: u64, next: u64) -> u64 {
        let later = |it: &&Epoch| it.id != epoch && ordinal(it.id) >= ordinal(epoch);
        if self.0.iter().filter(later).any(|it| it.accepts_loss) {
            return 0;
        }
        let left = self.0.iter().find(later).map_or(next, |it| it.first);
        acknowledged.saturating_sub(left)
    }

    pub fn list(&self) -> &[Epoch] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(ordinal: u64, random: u64, first: u64) -> Epoch {
        Epoch { id: ordinal << 32 | random, first, accepts_loss: false }
    }

    #[test]
    fn what_a_later_start_begins_before_is_lost() {
        let mut epochs = Epochs::default();
        epochs.push(epoch(1, 7, 0));
        epochs.push(epoch(2, 8, 100));
        let (first, second) = (1 << 32 | 7, 2 << 32 | 8);
        assert_eq!(epochs.lost(first, 100, 150), 0);
        assert_eq!(epochs.lost(first, 120, 150), 20, "also when others have pushed since");
        assert_eq!(epochs.lost(second, 150, 150), 0);
        assert_eq!(epochs.lost(second, 151, 150), 1);
        // An epoch of another copy of the folder, and one that wrote nothing.
        assert_eq!(epochs.lost(2 << 32 | 9, 130, 150), 30);
        assert_eq!(epochs.lost(3 << 32 | 1, 150, 150), 0);
        epochs.push(Epoch { accepts_loss: true, ..epoch(3, 5, 110) });
        assert_eq!(epochs.lost(second, 151, 115), 0);
        assert_eq!(epochs.lost(3 << 32 | 5, 116, 115), 1, "later records count again");
        assert_eq!(ordinal(epochs.next_id().unwrap()), 4);
    }
}
