//! Exact curves of a two-class problem. Unlike [`Auc`](crate::Auc), which counts in buckets, they
//! need all scores in memory.

use crate::{expect_pairs, expect_weights, is_positive, ratio};
use fleet_base::{Error, Result};

/// Scores with their labels, the highest score first: areas, curves, and groups of equal size.
///
/// ```
/// use fleet_metrics::RankedScores;
/// let ranked = RankedScores::new(&[0.1, 0.4, 0.35, 0.8], &[0.0, 0.0, 1.0, 1.0])?;
/// assert_eq!(ranked.auc(), 0.75);
/// let best = &ranked.groups(2)[0];
/// assert_eq!((best.rows, best.positives), (2, 1.0));
/// assert!((best.mean_score() - 0.6).abs() < 1e-7);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RankedScores {
    /// Equal scores keep the order of the rows.
    rows: Vec<Row>,
    positives: f64,
    negatives: f64,
}

#[derive(Clone, Copy, Debug)]
struct Row {
    score: f32,
    weight: f32,
    is_positive: bool,
}

/// Rows with neighbouring scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreGroup {
    /// Number of rows.
    pub rows: usize,
    /// Sum of the weights of the rows: their number without weights.
    pub weight: f64,
    /// Sum of the weights of positive labels.
    pub positives: f64,
    /// Sum of the scores times weights.
    pub score_sum: f64,
    /// Lowest score.
    pub lowest: f32,
    /// Highest score.
    pub highest: f32,
}

impl ScoreGroup {
    /// Returns the share of positive labels.
    pub fn rate(&self) -> f64 {
        ratio(self.positives, self.weight)
    }

    /// Returns the mean score.
    pub fn mean_score(&self) -> f64 {
        ratio(self.score_sum, self.weight)
    }
}

impl RankedScores {
    /// Ranks scores. Labels are 0 or 1; scores must not be NaN.
    pub fn new(scores: &[f32], labels: &[f32]) -> Result<RankedScores> {
        RankedScores::ranked(scores, labels, None)
    }

    /// Ranks scores of rows that count as often as their weights say.
    pub fn weighted(scores: &[f32], labels: &[f32], weights: &[f32]) -> Result<RankedScores> {
        expect_weights(weights, scores.len())?;
        RankedScores::ranked(scores, labels, Some(weights))
    }

    fn ranked(scores: &[f32], labels: &[f32], weights: Option<&[f32]>) -> Result<RankedScores> {
        expect_pairs(scores.len(), labels.len())?;
        let mut rows = Vec::with_capacity(scores.len());
        for (index, (score, label)) in scores.iter().zip(labels).enumerate() {
            if score.is_nan() {
                return Err(Error::invalid(format!("score {index} is not a number")).got(score));
            }
            let weight = weights.map_or(1.0, |weights| weights[index]);
            rows.push(Row { score: *score, weight, is_positive: is_positive(*label, index)? });
        }
        rows.sort_by(|a, b| b.score.total_cmp(&a.score));
        let (positives, negatives) = sums(&rows);
        Ok(RankedScores { rows, positives, negatives })
    }

    /// Returns the number of rows.
    pub fn total(&self) -> usize {
        self.rows.len()
    }

    /// Returns the sum of the weights of positive labels: their number without weights.
    pub fn positives(&self) -> f64 {
        self.positives
    }

    /// Returns the sum of all weights: the number of rows without weights.
    pub fn weight(&self) -> f64 {
        self.positives + self.negatives
    }

    /// Calls a function after each group of equal scores, with the weights of positives and
    /// negatives down to it.
    fn at_thresholds(&self, mut call: impl FnMut(f64, f64)) {
        let (mut positives, mut negatives) = (0.0, 0.0);
        for ties in self.rows.chunk_by(|a, b| a.score == b.score) {
            let (more, fewer) = sums(ties);
            positives += more;
            negatives += fewer;
            call(positives, negatives);
        }
    }

    /// Returns the exact area under the ROC curve; NaN if all labels are the same. Equal scores
    /// count half.
    pub fn auc(&self) -> f64 {
        let (mut positives_before, mut negatives_before, mut wins) = (0.0, 0.0, 0.0);
        self.at_thresholds(|positives, negatives| {
            let (more, fewer) = (positives - positives_before, negatives - negatives_before);
            wins += fewer * (positives_before + more / 2.0);
            (positives_before, negatives_before) = (positives, negatives);
        });
        let pairs = self.positives * self.negatives;
        if pairs == 0.0 { f64::NAN } else { wins / pairs }
    }

    /// Returns the mean of the precision over the positives; NaN without positives.
    pub fn average_precision(&self) -> f64 {
        let (mut before, mut sum) = (0.0, 0.0);
        self.at_thresholds(|positives, negatives| {
            sum += (positives - before) * ratio(positives, positives + negatives);
            before = positives;
        });
        if self.positives == 0.0 { f64::NAN } else { sum / self.positives }
    }

    /// Returns about `points` points of the ROC curve: the share of negatives and of positives
    /// above each threshold, from (0, 0) to (1, 1). Empty if all labels are the same.
    pub fn roc(&self, points: usize) -> Vec<[f64; 2]> {
        let (all, none) = (self.positives, self.negatives);
        if all * none == 0.0 {
            return Vec::new();
        }
        let mut curve = vec![[0.0, 0.0]];
        self.at_thresholds(|positives, negatives| curve.push([negatives / none, positives / all]));
        thinned(curve, points)
    }

    /// Returns about `points` points of the precision-recall curve: the share of all positives that
    /// are above each threshold, and the share of positives among the rows above it. Empty without
    /// positives.
    pub fn precision_recall(&self, points: usize) -> Vec<[f64; 2]> {
        if self.positives == 0.0 {
            return Vec::new();
        }
        let mut curve = Vec::new();
        self.at_thresholds(|positives, negatives| {
            if positives + negatives > 0.0 {
                curve.push([positives / self.positives, positives / (positives + negatives)]);
            }
        });
        thinned(curve, points)
    }

    /// Divides the rows into groups of equal size, the highest scores first. Fewer rows than groups
    /// make fewer groups.
    pub fn groups(&self, count: usize) -> Vec<ScoreGroup> {
        let count = count.min(self.rows.len());
        let at = |group: usize| group * self.rows.len() / count.max(1);
        (0..count).map(|group| group_of(&self.rows[at(group)..at(group + 1)])).collect()
    }
}

fn group_of(rows: &[Row]) -> ScoreGroup {
    let (positives, negatives) = sums(rows);
    ScoreGroup {
        rows: rows.len(),
        weight: positives + negatives,
        positives,
        score_sum: rows.iter().map(|row| f64::from(row.weight) * f64::from(row.score)).sum(),
        lowest: rows.last().map_or(0.0, |row| row.score),
        highest: rows.first().map_or(0.0, |row| row.score),
    }
}

/// Returns the weights of positive and of negative rows.
fn sums(rows: &[Row]) -> (f64, f64) {
    rows.iter().fold((0.0, 0.0), |(positives, negatives), row| match row.is_positive {
        true => (positives + f64::from(row.weight), negatives),
        false => (positives, negatives + f64::from(row.weight)),
    })
}

/// Keeps points that are evenly spaced, with the first and the last one.
fn thinned(curve: Vec<[f64; 2]>, points: usize) -> Vec<[f64; 2]> {
    let points = points.max(2);
    if curve.len() <= points {
        return curve;
    }
    (0..points).map(|point| curve[point * (curve.len() - 1) / (points - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranked(scores: &[f32], labels: &[f32]) -> RankedScores {
        RankedScores::new(scores, labels).unwrap()
    }

    #[test]
    fn areas_are_exact() {
        assert_eq!(ranked(&[0.1, 0.4, 0.35, 0.8], &[0.0, 0.0, 1.0, 1.0]).auc(), 0.75);
        assert_eq!(ranked(&[0.5, 0.5], &[0.0, 1.0]).auc(), 0.5);
        assert!(ranked(&[0.5], &[1.0]).auc().is_nan());
        let one = ranked(&[0.1, 0.4, 0.35, 0.8], &[0.0, 0.0, 1.0, 1.0]);
        assert!((one.average_precision() - (1.0 + 2.0 / 3.0) / 2.0).abs() < 1e-12);
        assert!(ranked(&[0.5], &[0.0]).average_precision().is_nan());
        assert!(RankedScores::new(&[f32::NAN], &[1.0]).is_err());
        assert!(RankedScores::new(&[0.5], &[]).is_err());
    }

    /// A row with weight 2 is like two rows, and one with weight 0 like none.
    #[test]
    fn weights_repeat_rows() {
        let (scores, labels) = ([0.95, 0.9, 0.8, 0.8, 0.3, 0.2], [0.0, 1.0, 0.0, 1.0, 1.0, 0.0]);
        let weights = [0.0, 2.0, 1.0, 3.0, 1.0, 2.0];
        let weighted = RankedScores::weighted(&scores, &labels, &weights).unwrap();
        let repeat = |values: &[f32]| -> Vec<f32> {
            let rows = values.iter().zip(weights);
            rows.flat_map(|(value, weight)| vec![*value; weight as usize]).collect()
        };
        let repeated = ranked(&repeat(&scores), &repeat(&labels));
        assert_eq!(weighted.auc(), repeated.auc());
        assert_eq!(weighted.average_precision(), repeated.average_precision());
        assert_eq!((weighted.total(), weighted.weight()), (6, 9.0));
        assert_eq!(weighted.precision_recall(100), repeated.precision_recall(100));
        assert_eq!(weighted.roc(100)[1..], repeated.roc(100)[..]);
        let group = weighted.groups(2)[0];
        assert_eq!((group.rows, group.weight, group.positives), (3, 3.0, 2.0));
        assert!((group.mean_score() - (2.0 * 0.9 + 0.8) / 3.0).abs() < 1e-6);
        for wrong in [f32::NAN, -1.0, f32::INFINITY] {
            assert!(RankedScores::weighted(&[0.5], &[1.0], &[wrong]).is_err());
        }
    }

    #[test]
    fn curves_have_their_ends() {
        let one = ranked(&[0.9, 0.8, 0.8, 0.1], &[1.0, 0.0, 1.0, 0.0]);
        assert_eq!(one.roc(100), [[0.0, 0.0], [0.0, 0.5], [0.5, 1.0], [1.0, 1.0]]);
        assert_eq!(one.precision_recall(100), [[0.5, 1.0], [1.0, 2.0 / 3.0], [1.0, 0.5]]);
        let scores: Vec<f32> = (0..1000).map(|row| row as f32).collect();
        let labels: Vec<f32> = (0..1000).map(|row| (row % 2) as f32).collect();
        let curve = ranked(&scores, &labels).roc(50);
        assert_eq!((curve.len(), curve[0], curve[49]), (50, [0.0; 2], [1.0; 2]));
        assert!(ranked(&[0.5], &[1.0]).roc(10).is_empty());
    }

    #[test]
    fn groups_have_all_rows() {
        let scores: Vec<f32> = (0..23).map(|row| row as f32 / 23.0).collect();
        let labels: Vec<f32> = (0..23).map(|row| f32::from(u8::from(row > 15))).collect();
        let groups = ranked(&scores, &labels).groups(10);
        assert_eq!(groups.len(), 10);
        assert_eq!(groups.iter().map(|group| group.rows).sum::<usize>(), 23);
        assert_eq!(groups.iter().map(|group| group.positives).sum::<f64>(), 7.0);
        assert_eq!((groups[0].rate(), groups[9].rate()), (1.0, 0.0));
        assert!(groups.windows(2).all(|pair| pair[0].lowest >= pair[1].highest));
        assert_eq!(ranked(&[0.5], &[1.0]).groups(10).len(), 1);
        assert!(ranked(&[], &[]).groups(10).is_empty());
    }
}
