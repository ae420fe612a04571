//! Classification metrics: precision and recall at a threshold, top-k accuracy, and the confusion
//! matrix.

use crate::{Accumulator, expect_pairs, is_positive, probability, ratio};
use fleet_base::{Error, Result};

/// Precision, recall and accuracy of a two-class problem at a threshold.
///
/// ```
/// use fleet_metrics::Classification;
/// let mut clicks = Classification::new(0.5)?;
/// clicks.add(&[0.9, 0.8, 0.3, 0.2], &[1.0, 0.0, 1.0, 0.0])?;
/// assert_eq!((clicks.precision(), clicks.recall(), clicks.f1()), (0.5, 0.5, 0.5));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Classification {
    threshold: f32,
    /// True positives, false positives, true negatives, false negatives.
    counts: [f64; 4],
}

impl Classification {
    /// Creates the metric. A prediction of at least `threshold` counts as positive.
    pub fn new(threshold: f32) -> Result<Classification> {
        if !(0.0..=1.0).contains(&threshold) {
            return Err(Error::invalid("threshold is not a probability")
                .expected("0 to 1")
                .got(threshold));
        }
        Ok(Classification { threshold, counts: [0.0; 4] })
    }

    /// Adds predicted probabilities, and labels 0 or 1.
    pub fn add(&mut self, predictions: &[f32], labels: &[f32]) -> Result<()> {
        expect_pairs(predictions.len(), labels.len())?;
        let mut counts = self.counts;
        for (index, (prediction, label)) in predictions.iter().zip(labels).enumerate() {
            let predicted = probability(*prediction, index)? >= f64::from(self.threshold);
            let is = is_positive(*label, index)?;
            counts[usize::from(!predicted) * 2 + usize::from(predicted != is)] += 1.0;
        }
        self.counts = counts;
        Ok(())
    }

    /// Returns the number of positives that were predicted as such.
    pub fn true_positives(&self) -> f64 {
        self.counts[0]
    }

    /// Returns the number of negatives that were predicted as positives.
    pub fn false_positives(&self) -> f64 {
        self.counts[1]
    }

    /// Returns the number of negatives that were predicted as such.
    pub fn true_negatives(&self) -> f64 {
        self.counts[2]
    }

    /// Returns the number of positives that were predicted as negatives.
    pub fn false_negatives(&self) -> f64 {
        self.counts[3]
    }

    /// Returns the share of correct predictions.
    pub fn accuracy(&self) -> f64 {
        ratio(self.counts[0] + self.counts[2], self.counts.iter().sum())
    }

    /// Returns the share of predicted positives that are positive; 0 without predicted positives.
    pub fn precision(&self) -> f64 {
        ratio(self.counts[0], self.counts[0] + self.counts[1])
    }

    /// Returns the share of positives that are predicted; 0 without positives.
    pub fn recall(&self) -> f64 {
        ratio(self.counts[0], self.counts[0] + self.counts[3])
    }

    /// Returns the harmonic mean of precision and recall.
    pub fn f1(&self) -> f64 {
        ratio(2.0 * self.counts[0], 2.0 * self.counts[0] + self.counts[1] + self.counts[3])
    }
}

crate::group::accumulator!(Classification);

/// Top-k accuracy: how often the true class is among the k highest scores.
///
/// ```
/// use fleet_metrics::TopK;
/// let mut best = TopK::new(2)?;
/// best.add(&[0.1, 0.3, 0.6, 0.5, 0.3, 0.2], 3, &[1, 2])?;
/// assert_eq!(best.value(), 0.5);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct TopK {
    k: usize,
    /// Number of hits, number of samples.
    counts: [f64; 2],
}

impl TopK {
    /// Creates a metric of the `k` highest scores.
    pub fn new(k: usize) -> Result<TopK> {
        if k == 0 {
            return Err(Error::invalid("k is out of range").expected("1 or more").got(k));
        }
        Ok(TopK { k, counts: [0.0; 2] })
    }

    /// Adds scores `[n, classes]` and class numbers. Of equal scores, the lower class number ranks
    /// first.
    pub fn add(&mut self, scores: &[f32], classes: usize, labels: &[i64]) -> Result<()> {
        expect_scores(scores, classes, labels)?;
        for (row, label) in scores.chunks_exact(classes.max(1)).zip(labels) {
            let own = row[*label as usize];
            let ahead = row.iter().enumerate().filter(|(class, score)| {
                **score > own || (**score == own && (*class as i64) < *label)
            });
            self.counts[0] += f64::from(u8::from(ahead.count() < self.k));
            self.counts[1] += 1.0;
        }
        Ok(())
    }

    /// Returns the share of samples whose class is among the `k` highest scores.
    pub fn value(&self) -> f64 {
        ratio(self.counts[0], self.counts[1])
    }
}

crate::group::accumulator!(TopK);

fn expect_scores(scores: &[f32], classes: usize, labels: &[i64]) -> Result<()> {
    if classes == 0 || Some(scores.len()) != labels.len().checked_mul(classes) {
        return Err(Error::invalid("wrong number of scores")
            .expected(format!("{} labels times {classes} classes", labels.len()))
            .got(scores.len()));
    }
    if let Some(index) = scores.iter().position(|score| score.is_nan()) {
        return Err(Error::invalid(format!("score {index} is not a number")));
    }
    labels.iter().try_for_each(|label| expect_class(*label, classes))
}

fn expect_class(label: i64, classes: usize) -> Result<()> {
    if (0..classes as i64).contains(&label) {
        return Ok(());
    }
    Err(Error::invalid("label is not a class").expected(format!("0 to {}", classes - 1)).got(label))
}

/// Confusion matrix: how often each class was predicted for each true class.
///
/// ```
/// use fleet_metrics::Confusion;
/// let mut digits = Confusion::new(3)?;
/// digits.add(&[0, 1, 2, 2], &[0, 1, 1, 2])?;
/// assert_eq!(digits.count(1, 2), 1.0); // a 1 taken for a 2
/// assert_eq!(digits.accuracy(), 0.75);
/// assert_eq!(digits.recall(1), 0.5);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Confusion {
    classes: usize,
    /// Counts by `[label, prediction]`.
    counts: Vec<f64>,
}

impl Confusion {
    /// Creates a matrix of this many classes.
    pub fn new(classes: usize) -> Result<Confusion> {
        if classes == 0 || classes > CLASSES_MAX {
            return Err(Error::invalid("number of classes is out of range")
                .expected(format!("1 to {CLASSES_MAX}"))
                .got(classes));
        }
        Ok(Confusion { classes, counts: vec![0.0; classes * classes] })
    }

    /// Adds predicted and true classes.
    pub fn add(&mut self, predictions: &[i64], labels: &[i64]) -> Result<()> {
        expect_pairs(predictions.len(), labels.len())?;
        let mut all = predictions.iter().chain(labels);
        all.try_for_each(|class| expect_class(*class, self.classes))?;
        for (prediction, label) in predictions.iter().zip(labels) {
            self.counts[*label as usize * self.classes + *prediction as usize] += 1.0;
        }
        Ok(())
    }

    /// Like [`Confusion::add`], with the class of the highest score as the prediction.
    pub fn add_scores(&mut self, scores: &[f32], labels: &[i64]) -> Result<()> {
        expect_scores(scores, self.classes, labels)?;
        for (row, label) in scores.chunks_exact(self.classes).zip(labels) {
            let best =
                (1..self.classes).fold(0, |best, at| if row[at] > row[best] { at } else { best });
            self.counts[*label as usize * self.classes + best] += 1.0;
        }
        Ok(())
    }

    /// Returns how often `prediction` was predicted for `label`; 0 for numbers out of range.
    pub fn count(&self, label: usize, prediction: usize) -> f64 {
        let inside = label < self.classes && prediction < self.classes;
        if inside { self.counts[label * self.classes + prediction] } else { 0.0 }
    }

    /// Returns the share of correct predictions.
    pub fn accuracy(&self) -> f64 {
        let right: f64 = (0..self.classes).map(|class| self.count(class, class)).sum();
        ratio(right, self.counts().iter().sum())
    }

    /// Returns the share of predictions of a class that are true.
    pub fn precision(&self, class: usize) -> f64 {
        ratio(
            self.count(class, class),
            (0..self.classes).map(|label| self.count(label, class)).sum(),
        )
    }

    /// Returns the share of samples of a class that are predicted as such.
    pub fn recall(&self, class: usize) -> f64 {
        ratio(self.count(class, class), (0..self.classes).map(|it| self.count(class, it)).sum())
    }

    /// Returns the mean of the F1 scores of all classes.
    pub fn macro_f1(&self) -> f64 {
        let f1 = |class: usize| {
            let (precision, recall) = (self.precision(class), self.recall(class));
            ratio(2.0 * precision * recall, precision + recall)
        };
        (0..self.classes).map(f1).sum::<f64>() / self.classes as f64
    }
}

crate::group::accumulator!(Confusion);

/// Maximum number of classes; the matrix then takes 128 MB.
const CLASSES_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thresholds_decide() {
        let mut it = Classification::new(0.5).unwrap();
        assert_eq!((it.precision(), it.recall(), it.f1(), it.accuracy()), (0.0, 0.0, 0.0, 0.0));
        it.add(&[0.5, 0.6, 0.7, 0.1, 0.2], &[1.0, 1.0, 0.0, 0.0, 1.0]).unwrap();
        let counts =
            [it.true_positives(), it.false_positives(), it.true_negatives(), it.false_negatives()];
        assert_eq!(counts, [2.0, 1.0, 1.0, 1.0]);
        assert!((it.precision() - 2.0 / 3.0).abs() < 1e-12 && it.accuracy() == 0.6);
        assert!(it.add(&[0.5, 2.0], &[1.0, 1.0]).is_err());
        assert_eq!(it.true_positives(), 2.0);
        assert!(Classification::new(f32::NAN).is_err());
    }

    #[test]
    fn ties_go_to_the_lower_class() {
        let mut first = TopK::new(1).unwrap();
        first.add(&[0.5, 0.5, 0.5, 0.5], 2, &[0, 1]).unwrap();
        assert_eq!(first.value(), 0.5);
        let mut matrix = Confusion::new(2).unwrap();
        matrix.add_scores(&[0.5, 0.5, 0.5, 0.5], &[0, 1]).unwrap();
        assert_eq!((matrix.count(0, 0), matrix.count(1, 0)), (1.0, 1.0));
        for (scores, classes, labels) in [
            (vec![0.5; 3], 2, vec![0, 1]),
            (vec![0.5; 4], 2, vec![0, 2]),
            (vec![f32::NAN; 2], 2, vec![0]),
            (vec![], 0, vec![]),
        ] {
            assert!(first.add(&scores, classes, &labels).is_err());
        }
        assert!(TopK::new(0).is_err());
    }

    #[test]
    fn matrices_merge() {
        let mut first = Confusion::new(3).unwrap();
        first.add(&[0, 1], &[0, 2]).unwrap();
        let mut second = Confusion::new(3).unwrap();
        second.add(&[2, 2], &[2, 2]).unwrap();
        first.merge(&second).unwrap();
        assert_eq!((first.accuracy(), first.recall(2), first.precision(1)), (0.75, 2.0 / 3.0, 0.0));
        assert!((first.macro_f1() - (1.0 + 0.8) / 3.0).abs() < 1e-12);
        assert_eq!(first.count(3, 0), 0.0);
        assert!(first.merge(&Confusion::new(2).unwrap()).is_err());
        assert!(first.add(&[3], &[0]).is_err() && first.add(&[0], &[-1]).is_err());
    }
}
