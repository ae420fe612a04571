//! Area under the ROC curve, from counts by score bucket. The counts are compact and additive. They
//! give the exact area for scores rounded down to their buckets.

use crate::{Accumulator, expect_pairs, expect_weights, is_positive, probability};
use fleet_base::{Error, Result};

/// Area over buckets, from the highest score to the lowest; 0.5 without positives or negatives.
pub(crate) fn area(positives: &[f64], negatives: &[f64]) -> f64 {
    let (mut positive, mut negative, mut area) = (0.0, 0.0, 0.0);
    for (p, n) in positives.iter().zip(negatives).rev() {
        area += n * (positive + (positive + p)) / 2.0;
        positive += p;
        negative += n;
    }
    if positive * negative == 0.0 { 0.5 } else { area / (positive * negative) }
}

/// Area under the ROC curve, and metrics from the same counts: log-loss, calibration, rates and
/// errors.
///
/// ```
/// use fleet_metrics::Auc;
/// let mut auc = Auc::new(4095)?;
/// auc.add(&[0.1, 0.4, 0.35, 0.8], &[0.0, 0.0, 1.0, 1.0])?;
/// assert_eq!(auc.value(), 0.75);
/// assert!((auc.calibration() - 1.65 / 2.0).abs() < 1e-6); // predicted clicks over clicks
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Auc {
    /// Positives by bucket, negatives by bucket, then the sums of predictions, squared errors,
    /// absolute errors and losses.
    counts: Vec<f64>,
    thresholds: usize,
}

const PREDICTED: usize = 0;
const SQUARED: usize = 1;
const ABSOLUTE: usize = 2;
const LOSS: usize = 3;
const EXTRAS: usize = 4;

impl Auc {
    /// Creates `thresholds + 1` buckets. A score p belongs to bucket floor(p * thresholds), as in
    /// the `auc` op.
    pub fn new(thresholds: usize) -> Result<Auc> {
        if thresholds == 0 || thresholds > THRESHOLDS_MAX {
            return Err(Error::invalid("number of thresholds is out of range")
                .expected(format!("1 to {THRESHOLDS_MAX}"))
                .got(thresholds));
        }
        Ok(Auc { counts: vec![0.0; 2 * (thresholds + 1) + EXTRAS], thresholds })
    }

    /// Adds predicted probabilities of the positive class, and labels 0 or 1.
    pub fn add(&mut self, predictions: &[f32], labels: &[f32]) -> Result<()> {
        self.add_all(predictions, labels, None)
    }

    /// Like [`Auc::add`], where each row counts as often as its weight says.
    ///
    /// ```
    /// # use fleet_metrics::Auc;
    /// let (mut weighted, mut repeated) = (Auc::new(100)?, Auc::new(100)?);
    /// weighted.add_weighted(&[0.2, 0.3, 0.7], &[1.0, 0.0, 1.0], &[1.0, 2.0, 0.0])?;
    /// repeated.add(&[0.2, 0.3, 0.3], &[1.0, 0.0, 0.0])?;
    /// assert_eq!(weighted, repeated);
    /// # Ok::<(), fleet_base::Error>(())
    /// ```
    pub fn add_weighted(
        &mut self,
        predictions: &[f32],
        labels: &[f32],
        weights: &[f32],
    ) -> Result<()> {
        expect_weights(weights, predictions.len())?;
        self.add_all(predictions, labels, Some(weights))
    }

    fn add_all(
        &mut self,
        predictions: &[f32],
        labels: &[f32],
        weights: Option<&[f32]>,
    ) -> Result<()> {
        expect_pairs(predictions.len(), labels.len())?;
        // All values are checked first, so that an error leaves the counts unchanged.
        for (index, (prediction, label)) in predictions.iter().zip(labels).enumerate() {
            probability(*prediction, index)?;
            is_positive(*label, index)?;
        }
        let buckets = self.thresholds + 1;
        for (index, (prediction, label)) in predictions.iter().zip(labels).enumerate() {
            let weight = weights.map_or(1.0, |weights| f64::from(weights[index]));
            let (p, positive) = (f64::from(*prediction), *label > 0.5);
            // Computed in f32, as in the `auc` op.
            let bucket = (*prediction * self.thresholds as f32) as usize;
            self.counts[bucket.min(self.thresholds) + if positive { 0 } else { buckets }] += weight;
            let error = p - f64::from(u8::from(positive));
            let chance = if positive { p } else { 1.0 - p };
            let extras = &mut self.counts[2 * buckets..];
            extras[PREDICTED] += weight * p;
            extras[SQUARED] += weight * (error * error);
            extras[ABSOLUTE] += weight * error.abs();
            extras[LOSS] -= weight * chance.max(PROBABILITY_MIN).ln();
        }
        Ok(())
    }

    /// Returns positives and negatives by bucket.
    pub fn stats(&self) -> (&[f64], &[f64]) {
        let buckets = self.thresholds + 1;
        (&self.counts[..buckets], &self.counts[buckets..2 * buckets])
    }

    /// Returns the area; 0.5 without positives or without negatives.
    pub fn value(&self) -> f64 {
        let (positives, negatives) = self.stats();
        area(positives, negatives)
    }

    /// Returns the number of positive labels.
    pub fn positives(&self) -> f64 {
        self.stats().0.iter().sum()
    }

    /// Returns the number of predictions.
    pub fn total(&self) -> f64 {
        self.positives() + self.stats().1.iter().sum::<f64>()
    }

    fn extra(&self, which: usize) -> f64 {
        self.counts[2 * (self.thresholds + 1) + which]
    }

    /// Returns predicted over true positives (PCOC). Above 1, the model overestimates. 0 without
    /// positives.
    pub fn calibration(&self) -> f64 {
        crate::ratio(self.extra(PREDICTED), self.positives())
    }

    /// Returns the mean cross-entropy in nats.
    pub fn log_loss(&self) -> f64 {
        crate::ratio(self.extra(LOSS), self.total())
    }

    /// Returns the share of positives.
    pub fn actual_rate(&self) -> f64 {
        crate::ratio(self.positives(), self.total())
    }

    /// Returns the mean prediction.
    pub fn predicted_rate(&self) -> f64 {
        crate::ratio(self.extra(PREDICTED), self.total())
    }

    /// Returns the mean absolute error of the predictions.
    pub fn mae(&self) -> f64 {
        crate::ratio(self.extra(ABSOLUTE), self.total())
    }

    /// Returns the root of the mean squared error of the predictions.
    pub fn rmse(&self) -> f64 {
        crate::ratio(self.extra(SQUARED), self.total()).sqrt()
    }

    /// Adds counts from a program's state (`stat_pos`, `stat_neg`).
    pub fn add_stats(&mut self, positives: &[f64], negatives: &[f64]) -> Result<()> {
        let buckets = self.thresholds + 1;
        if positives.len() != buckets || negatives.len() != buckets {
            return Err(Error::invalid("wrong number of buckets").expected(buckets).got(format!(
                "{} and {}",
                positives.len(),
                negatives.len()
            )));
        }
        let given = positives.iter().chain(negatives);
        self.counts_mut().iter_mut().zip(given).for_each(|(to, from)| *to += from);
        Ok(())
    }
}

crate::group::accumulator!(Auc);

/// Maximum number of thresholds. A million buckets already distinguish scores more finely than f32.
const THRESHOLDS_MAX: usize = 1 << 20;
/// Lower bound of a probability in the loss, so that one certain but wrong prediction does not make
/// it infinite.
const PROBABILITY_MIN: f64 = 1e-15;

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;

    #[test]
    fn equals_the_count_over_pairs_of_buckets() {
        let mut draws = Sequence::new(1, 0);
        let scores: Vec<f32> = (0..400).map(|_| draws.below(8) as f32 / 7.0).collect();
        let labels: Vec<f32> = (0..400).map(|_| draws.below(2) as f32).collect();
        let mut auc = Auc::new(7).unwrap();
        auc.add(&scores, &labels).unwrap();
        let bucket = |score: f32| (score * 7.0) as usize;
        let (mut wins, mut pairs) = (0.0, 0.0);
        for (a, positive) in scores.iter().zip(&labels) {
            for (b, other) in scores.iter().zip(&labels) {
                if positive > other {
                    pairs += 1.0;
                    wins += match bucket(*a).cmp(&bucket(*b)) {
                        std::cmp::Ordering::Greater => 1.0,
                        std::cmp::Ordering::Equal => 0.5,
                        std::cmp::Ordering::Less => 0.0,
                    };
                }
            }
        }
        assert!((auc.value() - wins / pairs).abs() < 1e-12);
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let mut draws = Sequence::new(2, 0);
        let scores: Vec<f32> = (0..1000).map(|_| draws.unit() as f32).collect();
        let labels: Vec<f32> = (0..1000).map(|_| draws.below(2) as f32).collect();
        let counted = |ranges: &[std::ops::Range<usize>]| {
            let mut all = Auc::new(4095).unwrap();
            for range in ranges {
                let mut part = Auc::new(4095).unwrap();
                part.add(&scores[range.clone()], &labels[range.clone()]).unwrap();
                all.merge(&part).unwrap();
            }
            all
        };
        let (whole, parts) = (counted(&[0..500, 500..1000]), counted(&[0..10, 10..900, 900..1000]));
        assert_eq!(whole.value(), parts.value());
        assert!((whole.log_loss() - parts.log_loss()).abs() < 1e-12);
        let mut stats = Auc::new(4095).unwrap();
        stats.add_stats(whole.stats().0, whole.stats().1).unwrap();
        assert_eq!(stats.value(), whole.value());
        assert!(stats.merge(&Auc::new(7).unwrap()).is_err());
        assert!(stats.add_stats(&[1.0], &[1.0]).is_err());
    }

    #[test]
    fn losses_and_rates() {
        let mut auc = Auc::new(100).unwrap();
        assert_eq!((auc.value(), auc.log_loss(), auc.calibration()), (0.5, 0.0, 0.0));
        auc.add(&[0.25, 0.5, 1.0], &[0.0, 1.0, 1.0]).unwrap();
        let expected = -(0.75f64.ln() + 0.5f64.ln()) / 3.0;
        assert!((auc.log_loss() - expected).abs() < 1e-12);
        assert!((auc.calibration() - 1.75 / 2.0).abs() < 1e-12);
        assert!((auc.mae() - 0.25).abs() < 1e-12);
        assert!((auc.rmse() - (0.3125f64 / 3.0).sqrt()).abs() < 1e-12);
        assert!((auc.actual_rate() - 2.0 / 3.0).abs() < 1e-12);
        auc.add(&[0.0], &[1.0]).unwrap();
        assert!(auc.log_loss().is_finite());
    }

    #[test]
    fn wrong_input_changes_nothing() {
        let mut auc = Auc::new(100).unwrap();
        let before = auc.clone();
        for (scores, labels) in [
            (vec![0.5, f32::NAN], vec![1.0, 0.0]),
            (vec![0.5, 1.5], vec![1.0, 0.0]),
            (vec![0.5, 0.5], vec![1.0, 3.0]),
            (vec![0.5], vec![]),
        ] {
            assert!(auc.add(&scores, &labels).is_err());
            assert_eq!(auc, before);
        }
        assert!(Auc::new(0).is_err());
    }
}
