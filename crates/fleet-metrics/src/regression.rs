//! Error metrics of numeric predictions.

use crate::{expect_pairs, ratio};
use fleet_base::{Error, Result};

/// Mean absolute and squared errors, bias, and the share of variance explained.
///
/// ```
/// use fleet_metrics::Regression;
/// let mut errors = Regression::default();
/// errors.add(&[1.0, 2.0, 4.0], &[1.0, 3.0, 2.0])?;
/// assert_eq!(errors.mae(), 1.0);
/// assert!((errors.rmse() - (5.0f64 / 3.0).sqrt()).abs() < 1e-12);
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Regression {
    /// Number of samples, then the sums of errors, absolute errors, squared errors, labels, squared
    /// labels.
    counts: [f64; 6],
}

impl Regression {
    /// Adds predictions with their labels.
    pub fn add(&mut self, predictions: &[f32], labels: &[f32]) -> Result<()> {
        expect_pairs(predictions.len(), labels.len())?;
        let finite = |values: &[f32]| values.iter().position(|value| !value.is_finite());
        if let Some(index) = finite(predictions).or(finite(labels)) {
            return Err(Error::invalid(format!("prediction or label {index} is not finite"))
                .got(format!("prediction {}, label {}", predictions[index], labels[index])));
        }
        for (prediction, label) in predictions.iter().zip(labels) {
            let (label, error) = (f64::from(*label), f64::from(*prediction) - f64::from(*label));
            let terms = [1.0, error, error.abs(), error * error, label, label * label];
            self.counts.iter_mut().zip(terms).for_each(|(sum, term)| *sum += term);
        }
        Ok(())
    }

    /// Returns the number of predictions.
    pub fn total(&self) -> f64 {
        self.counts[0]
    }

    /// Returns the mean error, which is positive if predictions are too high.
    pub fn bias(&self) -> f64 {
        ratio(self.counts[1], self.counts[0])
    }

    /// Returns the mean absolute error.
    pub fn mae(&self) -> f64 {
        ratio(self.counts[2], self.counts[0])
    }

    /// Returns the mean squared error.
    pub fn mse(&self) -> f64 {
        ratio(self.counts[3], self.counts[0])
    }

    /// Returns the root of the mean squared error.
    pub fn rmse(&self) -> f64 {
        self.mse().sqrt()
    }

    /// Returns 1 minus the squared errors divided by the labels' variance; 0 if labels do not vary.
    pub fn r2(&self) -> f64 {
        let [count, _, _, squared, labels, label_squares] = self.counts;
        let variance = label_squares - ratio(labels * labels, count);
        if variance > 0.0 { 1.0 - squared / variance } else { 0.0 }
    }
}

crate::group::accumulator!(Regression);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accumulator;

    #[test]
    fn sums_are_exact_and_merge() {
        let mut first = Regression::default();
        first.add(&[2.0, 4.0], &[1.0, 6.0]).unwrap();
        let mut second = Regression::default();
        second.add(&[3.0], &[3.0]).unwrap();
        first.merge(&second).unwrap();
        assert_eq!((first.total(), first.mae(), first.mse()), (3.0, 1.0, 5.0 / 3.0));
        assert!((first.bias() + 1.0 / 3.0).abs() < 1e-12);
        assert!((first.r2() - (1.0 - 5.0 / (38.0 / 3.0))).abs() < 1e-12);
        first.reset();
        assert_eq!((first.total(), first.mae(), first.r2()), (0.0, 0.0, 0.0));
        assert!(first.add(&[f32::NAN], &[1.0]).is_err() && first.add(&[1.0], &[]).is_err());
    }
}
