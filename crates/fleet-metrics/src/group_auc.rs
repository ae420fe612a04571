//! Mean AUC of groups, such as users or queries. It measures the ranking within a group. The
//! overall AUC also depends on how groups differ from each other.

use crate::{expect_count, expect_pairs, is_positive};
use fleet_base::{Error, Result};
use std::collections::BTreeMap;

/// AUC by group, weighted by the number of samples. Groups with samples of one class only are
/// ignored.
///
/// The accumulator stores all samples (8 bytes each, plus the group's id), because a group's AUC
/// depends on all of its scores. With several workers, send all samples of a group to one worker
/// and reduce [`GroupAuc::weighted`]. A global shuffle by record id does this.
///
/// ```
/// use fleet_metrics::{Alone, GroupAuc};
/// let mut users = GroupAuc::default();
/// users.add(&[7, 7, 8, 8, 8], &[0.9, 0.1, 0.2, 0.6, 0.7], &[1.0, 0.0, 1.0, 0.0, 1.0])?;
/// assert_eq!(users.value(), (2.0 * 1.0 + 3.0 * 0.5) / 5.0);
/// assert_eq!(users.all_reduced(&mut Alone)?, users.value());
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupAuc {
    groups: BTreeMap<u64, Vec<(f32, bool)>>,
    samples: usize,
}

impl GroupAuc {
    /// Adds scores (any numbers) and labels 0 or 1, with the group of each.
    pub fn add(&mut self, groups: &[u64], scores: &[f32], labels: &[f32]) -> Result<()> {
        expect_pairs(scores.len(), labels.len())?;
        expect_count("groups", scores.len(), groups.len())?;
        if self.samples + scores.len() > SAMPLES_MAX {
            return Err(Error::exhausted("too many samples for an AUC by group")
                .expected(format!("at most {SAMPLES_MAX}")));
        }
        for (index, (score, label)) in scores.iter().zip(labels).enumerate() {
            is_positive(*label, index)?;
            if score.is_nan() {
                return Err(Error::invalid(format!("score {index} is not a number")));
            }
        }
        for ((group, score), label) in groups.iter().zip(scores).zip(labels) {
            self.groups.entry(*group).or_default().push((*score, *label > 0.5));
        }
        self.samples += scores.len();
        Ok(())
    }

    /// Adds the samples of another accumulator.
    pub fn merge(&mut self, other: &GroupAuc) -> Result<()> {
        if self.samples + other.samples > SAMPLES_MAX {
            return Err(Error::exhausted("too many samples for an AUC by group")
                .expected(format!("at most {SAMPLES_MAX}")));
        }
        for (group, samples) in &other.groups {
            self.groups.entry(*group).or_default().extend(samples);
        }
        self.samples += other.samples;
        Ok(())
    }

    /// Forgets all groups, as before an evaluation.
    pub fn reset(&mut self) {
        *self = GroupAuc::default();
    }

    /// Returns the sum of AUC times samples, and the sum of samples, over groups with both classes.
    pub fn weighted(&self) -> (f64, f64) {
        let mut sums = (0.0, 0.0);
        for samples in self.groups.values() {
            if let Some(area) = area(samples) {
                sums.0 += area * samples.len() as f64;
                sums.1 += samples.len() as f64;
            }
        }
        sums
    }

    /// Returns the weighted mean; 0.5 without a group that has both classes.
    pub fn value(&self) -> f64 {
        mean(self.weighted())
    }

    /// Returns the value over all workers. Groups must not be split between workers.
    pub fn all_reduced(&self, group: &mut dyn crate::Group) -> Result<f64> {
        let mut sums = [self.weighted().0, self.weighted().1];
        group.all_reduce(crate::Reduce::Sum, &mut sums)?;
        Ok(mean((sums[0], sums[1])))
    }
}

fn mean((sum, weight): (f64, f64)) -> f64 {
    if weight > 0.0 { sum / weight } else { 0.5 }
}

/// Exact AUC of some samples, with ties counted as half; `None` without both classes.
fn area(samples: &[(f32, bool)]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut positives, mut negatives, mut wins) = (0.0, 0.0, 0.0);
    for ties in sorted.chunk_by(|a, b| a.0 == b.0) {
        let positive = ties.iter().filter(|it| it.1).count() as f64;
        let negative = ties.len() as f64 - positive;
        wins += positive * (negatives + negative / 2.0);
        positives += positive;
        negatives += negative;
    }
    (positives * negatives > 0.0).then(|| wins / (positives * negatives))
}

/// Maximum number of samples: 8 GB, enough for an evaluation but not for a training set.
const SAMPLES_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_of_one_class_are_left_out() {
        let mut users = GroupAuc::default();
        assert_eq!(users.value(), 0.5);
        users.add(&[1, 1, 2, 2], &[0.5, 0.5, 0.1, 0.9], &[1.0, 0.0, 1.0, 1.0]).unwrap();
        assert_eq!(users.weighted(), (1.0, 2.0));
        let mut other = GroupAuc::default();
        other.add(&[2], &[0.0], &[0.0]).unwrap();
        users.merge(&other).unwrap();
        assert_eq!(users.value(), (0.5 * 2.0 + 3.0) / 5.0);
        assert!(users.add(&[1], &[f32::NAN], &[0.0]).is_err());
        assert!(users.add(&[1, 2], &[0.5], &[0.0]).is_err());
        users.reset();
        assert_eq!(users.weighted(), (0.0, 0.0));
    }
}
