//! The metric: the share of predictions within a tolerance of their targets.

use fleet::metrics::Accumulator;

/// Counts predictions. Counts of batches and workers add up.
pub struct Within {
    tolerance: f32,
    /// Predictions within the tolerance, and all of them.
    counts: [f64; 2],
}

impl Within {
    pub fn new(tolerance: f32) -> Within {
        Within { tolerance, counts: [0.0; 2] }
    }

    pub fn add(&mut self, predictions: &[f32], targets: &[f32]) {
        for (prediction, target) in predictions.iter().zip(targets) {
            self.counts[0] += f64::from((prediction - target).abs() <= self.tolerance);
            self.counts[1] += 1.0;
        }
    }

    pub fn value(&self) -> f64 {
        self.counts[0] / self.counts[1].max(1.0)
    }
}

impl Accumulator for Within {
    fn counts(&self) -> &[f64] {
        &self.counts
    }

    fn counts_mut(&mut self) -> &mut [f64] {
        &mut self.counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up() -> fleet::Result<()> {
        let (mut first, mut second) = (Within::new(0.5), Within::new(0.5));
        first.add(&[1.0, 2.0], &[1.25, 3.0]);
        second.add(&[0.0, 1.0], &[0.0, 1.0]);
        first.merge(&second)?;
        assert_eq!(first.value(), 0.75);
        Ok(())
    }
}
