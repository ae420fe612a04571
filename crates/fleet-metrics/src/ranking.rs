//! Measures of rankings: NDCG, recall and reciprocal rank at a cutoff.
//!
//! Items with equal scores are in a random order: each measure is its mean over all orders.

use crate::{Group, Reduce, expect_count, expect_pairs};
use fleet_base::{Error, Result};
use std::collections::BTreeMap;

/// Mean measures of rankings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RankingMeans {
    /// Rankings that have a relevant item.
    pub rankings: f64,
    /// Normalized discounted cumulative gain of the first k items; the gain of grade g is
    /// `2^g - 1`.
    pub ndcg: f64,
    /// Share of the relevant items that are among the first k.
    pub recall: f64,
    /// 1 divided by the rank of the first relevant item.
    pub mrr: f64,
}

/// Items of groups, such as the results of queries, with scores and grades.
///
/// A grade of 0 is not relevant. Groups without a relevant item are ignored. All items are kept
/// (8 bytes each) until the measures are computed. With several workers, all items of a group must
/// be on one worker.
///
/// ```
/// use fleet_metrics::{Alone, Ranking};
/// let mut queries = Ranking::default();
/// queries.add(&[1, 1, 1], &[0.9, 0.5, 0.1], &[0.0, 2.0, 1.0])?;
/// queries.add(&[2, 2], &[0.3, 0.2], &[1.0, 0.0])?;
/// let means = queries.means(1);
/// assert_eq!((means.rankings, means.recall, means.mrr), (2.0, 0.5, 0.75));
/// assert_eq!(queries.all_reduced(1, &mut Alone)?, means);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ranking {
    groups: BTreeMap<u64, Vec<(f32, f32)>>,
    items: usize,
}

impl Ranking {
    /// Adds scores (any numbers) and grades (0 or more), with the group of each.
    pub fn add(&mut self, groups: &[u64], scores: &[f32], grades: &[f32]) -> Result<()> {
        expect_pairs(scores.len(), grades.len())?;
        expect_count("groups", scores.len(), groups.len())?;
        if self.items + scores.len() > ITEMS_MAX {
            return Err(Error::exhausted("too many items for measures of rankings")
                .expected(format!("at most {ITEMS_MAX}")));
        }
        for (index, (score, grade)) in scores.iter().zip(grades).enumerate() {
            if score.is_nan() {
                return Err(Error::invalid(format!("score {index} is not a number")));
            }
            if !(0.0..=GRADE_MAX).contains(grade) {
                return Err(Error::invalid(format!("grade {index} is out of range"))
                    .expected(format!("0 to {GRADE_MAX}"))
                    .got(grade));
            }
        }
        for ((group, score), grade) in groups.iter().zip(scores).zip(grades) {
            self.groups.entry(*group).or_default().push((*score, *grade));
        }
        self.items += scores.len();
        Ok(())
    }

    /// Returns the measures of the first `k` items of each group; zeros without a relevant item.
    pub fn means(&self, k: usize) -> RankingMeans {
        means(self.sums(k))
    }

    /// Returns the measures over all workers. Groups must not be divided between workers.
    pub fn all_reduced(&self, k: usize, group: &mut dyn Group) -> Result<RankingMeans> {
        let mut sums = self.sums(k);
        group.all_reduce(Reduce::Sum, &mut sums)?;
        Ok(means(sums))
    }

    /// Number of rankings, and sums of NDCG, recall and reciprocal rank.
    fn sums(&self, k: usize) -> [f64; 4] {
        let mut sums = [0.0; 4];
        for items in self.groups.values() {
            if let Some(one) = measures(items, k) {
                sums.iter_mut().zip([1.0].iter().chain(&one)).for_each(|(sum, it)| *sum += it);
            }
        }
        sums
    }
}

/// Measures of retrievals: where the relevant items of each query are among all items.
///
/// ```
/// use fleet_metrics::Retrieval;
/// let mut users = Retrieval::new(10);
/// users.add(&[1, 25], 2); // two relevant items, at the first and at the 25th place
/// users.add(&[2], 1);
/// let means = users.means();
/// assert_eq!((means.rankings, means.recall, means.mrr), (2.0, 0.75, 0.75));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Retrieval {
    k: usize,
    sums: [f64; 4],
}

impl Retrieval {
    /// Measures the first `k` places.
    pub fn new(k: usize) -> Retrieval {
        Retrieval { k, sums: [0.0; 4] }
    }

    /// Adds a query with this number of relevant items. `ranks` are the places, from 1, of those
    /// that are among the items. A query without relevant items is ignored.
    pub fn add(&mut self, ranks: &[usize], relevant: usize) {
        if relevant == 0 {
            return;
        }
        let found: f64 = ranks
            .iter()
            .filter(|rank| **rank <= self.k)
            .map(|rank| discount(rank.saturating_sub(1)))
            .sum();
        let best: f64 = (0..relevant.min(self.k)).map(discount).sum();
        let hits = ranks.iter().filter(|rank| **rank <= self.k).count() as f64;
        let first = ranks.iter().min().map_or(0.0, |rank| 1.0 / *rank as f64);
        let one = [1.0, found / best.max(f64::MIN_POSITIVE), hits / relevant as f64, first];
        self.sums.iter_mut().zip(one).for_each(|(sum, it)| *sum += it);
    }

    /// Returns the measures; zeros without a query.
    pub fn means(&self) -> RankingMeans {
        means(self.sums)
    }
}

fn means([rankings, ndcg, recall, mrr]: [f64; 4]) -> RankingMeans {
    let count = rankings.max(1.0);
    RankingMeans { rankings, ndcg: ndcg / count, recall: recall / count, mrr: mrr / count }
}

/// Returns NDCG, recall and reciprocal rank of a ranking; `None` without a relevant item.
fn measures(items: &[(f32, f32)], k: usize) -> Option<[f64; 3]> {
    let mut sorted = items.to_vec();
    sorted.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let mut grades: Vec<f32> = items.iter().map(|(_, grade)| *grade).collect();
    grades.sort_unstable_by(|a, b| b.total_cmp(a));
    let best: f64 =
        grades.iter().take(k).enumerate().map(|(at, it)| gain(*it) * discount(at)).sum();
    let relevant = grades.iter().filter(|grade| **grade > 0.0).count() as f64;
    if relevant == 0.0 {
        return None;
    }
    let (mut found, mut hits, mut reciprocal) = (0.0, 0.0, 0.0);
    // Probability that no item before this one is relevant.
    let mut none_before = 1.0;
    let mut start = 0;
    for ties in sorted.chunk_by(|a, b| a.0 == b.0) {
        let count = ties.len() as f64;
        let mean_gain = ties.iter().map(|(_, grade)| gain(*grade)).sum::<f64>() / count;
        let ties_relevant = ties.iter().filter(|(_, grade)| *grade > 0.0).count() as f64;
        for (index, at) in (start..start + ties.len()).enumerate() {
            if at < k {
                found += mean_gain * discount(at);
                hits += ties_relevant / count;
            }
            // The first relevant item of equal ones is here, if none was before.
            let here = (ties_relevant / (count - index as f64)).min(1.0);
            reciprocal += none_before * here / (at + 1) as f64;
            none_before *= 1.0 - here;
        }
        start += ties.len();
    }
    Some([if best > 0.0 { found / best } else { 0.0 }, hits / relevant, reciprocal])
}

fn gain(grade: f32) -> f64 {
    f64::from(grade).exp2() - 1.0
}

/// Discount of the item at a place, from 0.
fn discount(at: usize) -> f64 {
    1.0 / ((at + 2) as f64).log2()
}

/// Largest grade: its gain, `2^grade`, stays far from the limits of a float.
const GRADE_MAX: f32 = 64.0;
/// Maximum number of items: 8 GB.
const ITEMS_MAX: usize = 1 << 30;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_are_exact() {
        // Grades 3, 2, 0, 1 in the order of the scores.
        let items = [(4.0, 3.0), (3.0, 2.0), (2.0, 0.0), (1.0, 1.0)];
        let [ndcg, recall, mrr] = measures(&items, 4).unwrap();
        let got = 7.0 + 3.0 / 3f64.log2() + 1.0 / 5f64.log2();
        let best = 7.0 + 3.0 / 3f64.log2() + 1.0 / 2.0;
        assert!((ndcg - got / best).abs() < 1e-12);
        assert_eq!((recall, mrr), (1.0, 1.0));
        let [ndcg, recall, mrr] = measures(&items[2..], 1).unwrap();
        assert_eq!((ndcg, recall, mrr), (0.0, 0.0, 0.5));
        assert_eq!(measures(&[(1.0, 0.0)], 1), None);
    }

    /// Equal scores: the mean over all orders.
    #[test]
    fn ties_are_in_a_random_order() {
        let [ndcg, recall, mrr] = measures(&[(0.0, 1.0), (0.0, 0.0), (0.0, 0.0)], 1).unwrap();
        let third = 1.0 / 3.0;
        assert!((ndcg - third).abs() < 1e-12 && (recall - third).abs() < 1e-12);
        assert!((mrr - (1.0 + 0.5 + third) / 3.0).abs() < 1e-12);
        // One of two relevant items of three is always among the first two.
        let [_, recall, mrr] = measures(&[(0.0, 1.0), (0.0, 1.0), (0.0, 0.0)], 2).unwrap();
        assert!((recall - 2.0 / 3.0).abs() < 1e-12);
        assert!((mrr - (2.0 / 3.0 + 0.5 / 3.0)).abs() < 1e-12);
    }

    #[test]
    fn wrong_items_are_refused() {
        let mut ranking = Ranking::default();
        assert!(ranking.add(&[1], &[f32::NAN], &[0.0]).is_err());
        assert!(ranking.add(&[1], &[0.0], &[-1.0]).is_err());
        assert!(ranking.add(&[1], &[0.0], &[f32::NAN]).is_err());
        assert!(ranking.add(&[1, 2], &[0.0], &[0.0]).is_err());
        assert_eq!(ranking, Ranking::default());
    }
}
