//! Gaussian classes with a known Bayes accuracy: the smallest classification problem with a known
//! best score.
//!
//! Class k has mean `distance * q_k` with orthonormal q_k (a seeded reflection of the axes) and
//! identity covariance; all classes are equally likely. The best classifier takes the nearest mean
//! and is right with probability ∫ φ(x - distance) Φ(x)^(classes - 1) dx. `distance` is computed
//! from the requested accuracy.

use fleet_base::Result;
use fleet_base::rng::{Philox, Sequence};

use crate::{expect_length, expect_within, part_seed};

/// Number of classes and dimensions, and the best possible accuracy.
#[derive(Clone, Debug, PartialEq)]
pub struct BlobsConfig {
    /// Seed of means and samples.
    pub seed: u64,
    /// Number of classes, 2 or more.
    pub class_count: usize,
    /// At least `class_count`.
    pub feature_count: usize,
    /// Share of samples that the best classifier gets right.
    pub bayes_accuracy: f64,
}

impl Default for BlobsConfig {
    fn default() -> Self {
        BlobsConfig { seed: 1, class_count: 10, feature_count: 32, bayes_accuracy: 0.95 }
    }
}

/// An endless stream of labelled points.
///
/// ```
/// use fleet_synth::{Blobs, BlobsConfig};
/// let blobs = Blobs::new(BlobsConfig::default())?;
/// let (mut features, mut labels) = (vec![0.0; 10_000 * 32], vec![0; 10_000]);
/// blobs.fill_batch(&mut features, &mut labels, 0)?;
/// let best = |row: &[f32]| blobs.best_class(row).unwrap();
/// let right = features.chunks(32).zip(&labels).filter(|(x, y)| best(x) == **y).count();
/// assert!((9_400..9_600).contains(&right));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Blobs {
    config: BlobsConfig,
    sample_seed: u64,
    /// `[class_count, feature_count]`
    means: Vec<f32>,
    bayes_accuracy: f64,
}

impl Blobs {
    /// Returns the data set. Fails if a setting is out of range.
    pub fn new(config: BlobsConfig) -> Result<Blobs> {
        let classes = config.class_count as f64;
        expect_within("class count", classes, 2.0..1e6)?;
        expect_within("feature count", config.feature_count as f64, classes..1e6)?;
        expect_within("Bayes accuracy", config.bayes_accuracy, 1.0 / classes..0.9999)?;
        let (mut low, mut high) = (0.0, DISTANCE_MAX);
        for _ in 0..BISECTIONS {
            let distance = 0.5 * (low + high);
            if accuracy(distance, config.class_count) < config.bayes_accuracy {
                low = distance;
            } else {
                high = distance;
            }
        }
        let bayes_accuracy = accuracy(high, config.class_count);
        let means = means(&config, high);
        let sample_seed = part_seed(config.seed, PART_SAMPLES);
        Ok(Blobs { config, sample_seed, means, bayes_accuracy })
    }

    /// Returns the settings.
    pub fn config(&self) -> &BlobsConfig {
        &self.config
    }

    /// Returns the accuracy that no classifier exceeds in expectation.
    pub fn bayes_accuracy(&self) -> f64 {
        self.bayes_accuracy
    }

    /// Fills features `[n, feature_count]` and labels `[n]`, starting at sample `first_sample`.
    pub fn fill_batch(
        &self,
        features: &mut [f32],
        labels: &mut [i64],
        first_sample: u64,
    ) -> Result<()> {
        let width = self.config.feature_count;
        expect_length("features", features.len(), labels.len() * width)?;
        let rows = features.chunks_exact_mut(width).zip(labels);
        for (index, (row, label)) in rows.enumerate() {
            let sample = first_sample.wrapping_add(index as u64);
            let mut draws = Sequence::new(self.sample_seed, sample);
            let class = draws.below(self.config.class_count as u64) as usize;
            *label = class as i64;
            for (value, mean) in row.iter_mut().zip(&self.means[class * width..]) {
                *value = mean + draws.normal() as f32;
            }
        }
        Ok(())
    }

    /// Returns the class of the nearest mean, which is the best guess.
    pub fn best_class(&self, features: &[f32]) -> Result<i64> {
        expect_length("features", features.len(), self.config.feature_count)?;
        // All means have the same length, so the nearest one has the largest inner product.
        let score = |mean: &[f32]| -> f32 { mean.iter().zip(features).map(|(m, x)| m * x).sum() };
        let mut best = (f32::NEG_INFINITY, 0);
        for (class, mean) in self.means.chunks(self.config.feature_count).enumerate() {
            let score = score(mean);
            if score > best.0 {
                best = (score, class as i64);
            }
        }
        Ok(best.1)
    }
}

/// Returns the first axes, reflected at a random hyperplane, times `distance`.
fn means(config: &BlobsConfig, distance: f64) -> Vec<f32> {
    let width = config.feature_count;
    let draws = Philox::new(part_seed(config.seed, PART_MEANS), 0);
    let normal: Vec<f64> = (0..width as u64).map(|at| f64::from(draws.normal(at))).collect();
    let square: f64 = normal.iter().map(|n| n * n).sum();
    let mut means = Vec::with_capacity(config.class_count * width);
    for class in 0..config.class_count {
        let factor = 2.0 * normal[class] / square;
        means.extend(normal.iter().enumerate().map(|(feature, n)| {
            let axis = f64::from(u8::from(feature == class));
            (distance * (axis - factor * n)) as f32
        }));
    }
    means
}

/// Returns the accuracy of the nearest mean by the trapezoid rule, which is practically exact for
/// Gaussians.
fn accuracy(distance: f64, classes: usize) -> f64 {
    let density = |x: f64| (-0.5 * x * x).exp() / std::f64::consts::TAU.sqrt();
    let steps = ((2.0 * TAIL + distance) / STEP) as usize;
    let (mut below, mut sum) = (0.0, 0.0);
    let mut previous = 0.0;
    for step in 0..=steps {
        let x = -TAIL + step as f64 * STEP;
        let here = density(x);
        below += 0.5 * STEP * (previous + here);
        previous = here;
        sum += STEP * density(x - distance) * below.min(1.0).powf(classes as f64 - 1.0);
    }
    sum
}

const PART_SAMPLES: u64 = 0x400;
const PART_MEANS: u64 = 0x401;
/// Beyond this many standard deviations, the mass of a normal variable is negligible.
const TAIL: f64 = 9.0;
const STEP: f64 = 1.0 / 256.0;
const DISTANCE_MAX: f64 = 20.0;
const BISECTIONS: usize = 40;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accuracy_matches_closed_forms() {
        // Two classes: Φ(distance / √2); √2 * 1.959964 gives 97.5 %.
        assert!((accuracy(std::f64::consts::SQRT_2 * 1.959_963_985, 2) - 0.975).abs() < 1e-5);
        assert!((accuracy(0.0, 10) - 0.1).abs() < 1e-5);
    }

    #[test]
    fn nearest_mean_reaches_the_bayes_accuracy() {
        for (class_count, feature_count, requested) in [(2, 2, 0.8), (10, 32, 0.95), (50, 64, 0.7)]
        {
            let config =
                BlobsConfig { seed: 9, class_count, feature_count, bayes_accuracy: requested };
            let blobs = Blobs::new(config).unwrap();
            assert!((blobs.bayes_accuracy() - requested).abs() < 1e-6);
            let count = 20_000;
            let (mut x, mut y) = (vec![0.0; count * feature_count], vec![0; count]);
            blobs.fill_batch(&mut x, &mut y, 0).unwrap();
            let rows = x.chunks(feature_count).zip(&y);
            let right = rows.filter(|(x, y)| blobs.best_class(x).unwrap() == **y).count();
            let reached = right as f64 / count as f64;
            assert!((reached - requested).abs() < 0.01, "{reached} for {requested}");
        }
    }

    #[test]
    fn samples_are_made_independently() {
        let blobs = Blobs::new(BlobsConfig::default()).unwrap();
        let (mut many, mut labels) = (vec![0.0; 20 * 32], [0; 20]);
        blobs.fill_batch(&mut many, &mut labels, 5).unwrap();
        let (mut one, mut label) = ([0.0; 32], [0]);
        blobs.fill_batch(&mut one, &mut label, 17).unwrap();
        assert_eq!((&one[..], label[0]), (&many[12 * 32..13 * 32], labels[12]));
    }

    #[test]
    fn impossible_settings_are_refused() {
        for config in [
            BlobsConfig { class_count: 1, ..BlobsConfig::default() },
            BlobsConfig { feature_count: 9, ..BlobsConfig::default() },
            BlobsConfig { bayes_accuracy: 1.0, ..BlobsConfig::default() },
            BlobsConfig { bayes_accuracy: f64::NAN, ..BlobsConfig::default() },
        ] {
            assert!(Blobs::new(config).is_err());
        }
    }
}
