//! Numbers: changed to a common scale, and encoded as vectors by the program.

use crate::job::{Embed, NumberPart, Transform};
use fleet_base::rng::Sequence;
use serde::{Deserialize, Serialize};

/// A fitted number. All of its parameters are f32, which text stores exactly.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Number {
    /// The column.
    pub column: String,
    /// Whether the logarithm is taken first.
    pub(super) is_log: bool,
    /// Subtracted, then divided by `deviation`.
    pub(super) mean: f32,
    pub(super) deviation: f32,
    /// Values at equal distances of rank, for the quantile transform; else empty.
    pub(super) quantiles: Vec<f32>,
    /// Whether a training row lacked the number. Then a second value tells the model so.
    pub may_be_missing: bool,
    /// How the program encodes the number.
    pub encoding: Encoding,
}

/// Encoding of a number as a vector.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Encoding {
    /// The number alone.
    None,
    /// Edges of intervals, ascending, over the changed numbers.
    Piecewise(Vec<f32>),
    /// Number of frequencies, and the deviation of their initial values.
    Periodic(usize, f32),
}

impl Encoding {
    /// Returns the place of the kind among the inputs of a model.
    pub fn order(&self) -> usize {
        match self {
            Encoding::None => 0,
            Encoding::Piecewise(_) => 1,
            Encoding::Periodic(..) => 2,
        }
    }
}

impl Number {
    /// Returns the number that the model gets, 0 if the value is missing.
    pub fn apply(&self, value: f32) -> f32 {
        if value.is_nan() {
            return 0.0;
        }
        let value = if self.is_log { log_of(value) } else { value };
        if !self.quantiles.is_empty() {
            return normal_score(rank_in(&self.quantiles, value));
        }
        // Infinite and huge values would make all results NaN.
        ((value - self.mean) / self.deviation).clamp(-LIMIT, LIMIT)
    }
}

/// Limit of changed numbers, in deviations.
pub(super) const LIMIT: f32 = 1e6;

fn log_of(value: f32) -> f32 {
    value.signum() * value.abs().ln_1p()
}

/// Returns the share of the quantiles below a value, between 0 and 1. Among equal quantiles it is
/// the middle.
fn rank_in(quantiles: &[f32], value: f32) -> f32 {
    let below = quantiles.partition_point(|it| *it < value);
    let not_above = quantiles.partition_point(|it| *it <= value);
    let last = (quantiles.len() - 1).max(1) as f32;
    if below < not_above {
        return (below + not_above - 1) as f32 / 2.0 / last;
    }
    if below == 0 || below == quantiles.len() {
        return if below == 0 { 0.0 } else { 1.0 };
    }
    let (left, right) = (quantiles[below - 1], quantiles[below]);
    ((below - 1) as f32 + (value - left) / (right - left)) / last
}

/// Returns the normal number with this share of the distribution below it, by Acklam's
/// approximation, whose error is below 1e-8. Shares are kept away from 0 and 1.
fn normal_score(share: f32) -> f32 {
    let [a, b, c, d] = normal_factors();
    let share = f64::from(share).clamp(NORMAL_LOW, 1.0 - NORMAL_LOW);
    let polynomial = |factors: &[f64], x: f64| factors.iter().fold(0.0, |sum, it| sum * x + it);
    let tail = |share: f64| {
        let q = (-2.0 * share.ln()).sqrt();
        polynomial(c, q) / (polynomial(d, q) * q + 1.0)
    };
    let score = if share < NORMAL_TAIL {
        tail(share)
    } else if share > 1.0 - NORMAL_TAIL {
        -tail(1.0 - share)
    } else {
        let q = share - 0.5;
        let r = q * q;
        polynomial(a, r) * q / (polynomial(b, r) * r + 1.0)
    };
    score as f32
}

/// Shares are at least this far from 0 and 1.
pub(super) const NORMAL_LOW: f64 = 1e-5;
/// Share below which the approximation is that of the tail.
pub(super) const NORMAL_TAIL: f64 = 0.02425;

/// Factors of Acklam's approximation, highest powers first: of the numerator and the denominator
/// of the center, and of the tails.
pub(super) fn normal_factors() -> [&'static [f64]; 4] {
    const A: [f64; 6] = [
        -39.69683028665376,
        220.9460984245205,
        -275.9285104469687,
        138.357751867269,
        -30.66479806614716,
        2.506628277459239,
    ];
    const B: [f64; 5] = [
        -54.47609879822406,
        161.5858368580409,
        -155.6989798598866,
        66.80131188771972,
        -13.28068155288572,
    ];
    const C: [f64; 6] = [
        -0.007784894002430293,
        -0.3223964580411365,
        -2.400758277161838,
        -2.549732539343734,
        4.374664141464968,
        2.938163982698783,
    ];
    const D: [f64; 4] =
        [0.007784695709041462, 0.3224671290700398, 2.445134137142996, 3.754408661907416];
    [&A, &B, &C, &D]
}

/// Collects the moments and a sample of a number.
pub struct NumberFit {
    part: NumberPart,
    count: u64,
    missing: u64,
    mean: f64,
    /// Sum of squared differences from the mean.
    squares: f64,
    sample: Vec<f32>,
    random: Sequence,
    /// The value that is put into the full sample next, counted from 1, and the weight that tells
    /// how many are skipped then.
    next: u64,
    weight: f64,
}

/// Values in the sample of a number, from which quantiles are taken.
const SAMPLE_MAX: usize = 100_000;
/// Quantiles that are kept of a number.
const QUANTILES: usize = 1001;
/// Stream of the random numbers of samples.
const STREAM: u64 = 0x6e75_6d62;

impl NumberFit {
    pub fn new(part: NumberPart, seed: u64, index: usize) -> NumberFit {
        let random = Sequence::new(seed, STREAM + index as u64);
        let (count, missing, mean, squares) = (0, 0, 0.0, 0.0);
        let (sample, next, weight) = (Vec::new(), 0, 1.0);
        NumberFit { part, count, missing, mean, squares, sample, random, next, weight }
    }

    pub fn add(&mut self, value: f32) {
        if !value.is_finite() {
            self.missing += u64::from(value.is_nan());
            return;
        }
        let value = if self.part.transform == Transform::Log { log_of(value) } else { value };
        self.count += 1;
        let difference = f64::from(value) - self.mean;
        self.mean += difference / self.count as f64;
        self.squares += difference * (f64::from(value) - self.mean);
        if self.sample.len() < SAMPLE_MAX {
            self.sample.push(value);
            if self.sample.len() == SAMPLE_MAX {
                self.skip();
            }
        } else if self.count == self.next {
            let at = self.random.below(SAMPLE_MAX as u64) as usize;
            self.sample[at] = value;
            self.skip();
        }
    }

    /// Draws the next value of the sample, so that each value is in it with the same probability:
    /// Li's algorithm L, which needs no random number for the values between.
    fn skip(&mut self) {
        let mut log = || (1.0 - self.random.unit()).ln();
        self.weight *= (log() / SAMPLE_MAX as f64).exp();
        let skipped = (log() / (1.0 - self.weight).ln()).floor();
        // The conversion of a huge number gives the largest integer.
        self.next = self.count.saturating_add(skipped as u64).saturating_add(1);
    }

    /// Returns the number of values.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns whether all values are the same.
    pub fn is_constant(&self) -> bool {
        self.sample.iter().all(|value| *value == self.sample[0])
    }

    pub fn finish(mut self, column: &str) -> Number {
        self.sample.sort_by(f32::total_cmp);
        let deviation = (self.squares / self.count.max(1) as f64).sqrt();
        let is_scaled = matches!(self.part.transform, Transform::Standard | Transform::Log);
        let (mean, deviation) = match is_scaled {
            true if deviation > 0.0 => (self.mean as f32, deviation as f32),
            true => (self.mean as f32, 1.0),
            false => (0.0, 1.0),
        };
        let quantiles = match self.part.transform {
            Transform::Quantile => quantiles_of(&self.sample, QUANTILES),
            _ => Vec::new(),
        };
        let mut number = Number {
            column: column.to_string(),
            is_log: self.part.transform == Transform::Log,
            mean,
            deviation: if deviation > 0.0 { deviation } else { 1.0 },
            quantiles,
            may_be_missing: self.missing > 0,
            encoding: Encoding::None,
        };
        number.encoding = match self.part.embed {
            Embed::None => Encoding::None,
            Embed::Periodic { frequencies, sigma } => Encoding::Periodic(frequencies, sigma as f32),
            Embed::Piecewise(bins) => {
                // The sample has its logarithms already.
                let plain = Number { is_log: false, ..number.clone() };
                let changed: Vec<f32> = self.sample.iter().map(|it| plain.apply(*it)).collect();
                let edges = edges_of(&changed, bins);
                match edges.len() {
                    0 | 1 => Encoding::None,
                    _ => Encoding::Piecewise(edges),
                }
            }
        };
        number
    }
}

/// Returns the edges of at most `bins` intervals with about equally many of the sorted values. A
/// value that is in more rows than an interval has gets edges of its own, so that the intervals of
/// the others are as narrow as without it.
fn edges_of(sorted: &[f32], bins: usize) -> Vec<f32> {
    let mut edges: Vec<f32> = sorted.first().copied().into_iter().collect();
    let mut left = sorted.len();
    let mut count = 0;
    for ties in sorted.chunk_by(|a, b| a == b) {
        let bins_left = (bins + 1).saturating_sub(edges.len()).max(1);
        let is_last = ties.len() == left;
        // A heavy value begins an interval, too: what is below it ends there.
        if count > 0 && ties.len() * bins_left >= left && edges.len() < bins {
            edges.push(ties[0]);
            count = 0;
        }
        count += ties.len();
        left -= ties.len();
        if edges.last() != Some(&ties[0]) && (is_last || count * bins_left >= left + count) {
            edges.push(ties[0]);
            count = 0;
        }
    }
    edges
}

/// Returns values at equal distances of rank in a sorted sample.
fn quantiles_of(sorted: &[f32], count: usize) -> Vec<f32> {
    let Some(last) = sorted.len().checked_sub(1) else { return vec![0.0] };
    let at = |index: usize| {
        let place = index as f64 / (count - 1) as f64 * last as f64;
        let (low, part) = (place.floor() as usize, place.fract() as f32);
        let high = sorted[(low + 1).min(last)];
        sorted[low] + (high - sorted[low]) * part
    };
    (0..count).map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(transform: Transform, embed: Embed, values: &[f32]) -> Number {
        let mut fit = NumberFit::new(NumberPart { transform, embed }, 1, 0);
        values.iter().for_each(|value| fit.add(*value));
        fit.finish("x")
    }

    #[test]
    fn numbers_get_a_common_scale() {
        let values = [1.0, 2.0, f32::NAN, 3.0, 4.0];
        let number = fit(Transform::Standard, Embed::None, &values);
        let changed: Vec<f32> = values.iter().map(|value| number.apply(*value)).collect();
        assert!(number.may_be_missing && changed[2] == 0.0);
        assert!((changed.iter().sum::<f32>()).abs() < 1e-6);
        assert!((changed.iter().map(|it| it * it).sum::<f32>() - 4.0).abs() < 1e-5);
        let log = fit(Transform::Log, Embed::None, &[0.0, 99.0]);
        assert!((log.apply(0.0) + 1.0).abs() < 1e-6 && (log.apply(99.0) - 1.0).abs() < 1e-6);
        assert!((log.apply(9.0)).abs() < 1e-6);
        let plain = fit(Transform::None, Embed::None, &values);
        assert_eq!(plain.apply(3.5), 3.5);
        let constant = fit(Transform::Standard, Embed::None, &[7.0, 7.0]);
        assert_eq!(constant.apply(7.0), 0.0);
        assert!(constant.apply(f32::INFINITY).is_finite());
    }

    #[test]
    fn quantiles_are_normal_scores() {
        let values: Vec<f32> = (0..1001).map(|it| (it as f32).exp2().min(1e30)).collect();
        let number = fit(Transform::Quantile, Embed::None, &values);
        assert!(number.apply(values[50]).abs() > 1.6);
        assert!((number.apply(-5.0) + 4.2649).abs() < 1e-3);
        let linear: Vec<f32> = (0..1001).map(|it| it as f32).collect();
        let number = fit(Transform::Quantile, Embed::None, &linear);
        for (value, score) in [(500.0, 0.0), (975.0, 1.959964), (25.0, -1.959964), (841.3447, 1.0)]
        {
            assert!((number.apply(value) - score).abs() < 1e-3, "{value}");
        }
        // Many equal values have the middle of their ranks.
        let number = fit(Transform::Quantile, Embed::None, &[&[0.0; 90][..], &[1.0; 10]].concat());
        assert!((number.apply(0.0) + 0.1257).abs() < 0.02, "{}", number.apply(0.0));
    }

    #[test]
    fn every_value_is_in_the_sample_with_the_same_probability() {
        let rows = 4 * SAMPLE_MAX;
        let part = NumberPart { transform: Transform::None, embed: Embed::None };
        let mut fit = NumberFit::new(part, 1, 0);
        (0..rows).for_each(|value| fit.add(value as f32));
        let mut counts = [0usize; 8];
        fit.sample.iter().for_each(|value| counts[*value as usize * 8 / rows] += 1);
        let expected = SAMPLE_MAX / 8;
        assert_eq!(fit.sample.len(), SAMPLE_MAX);
        assert!(counts.iter().all(|count| count.abs_diff(expected) < expected / 20), "{counts:?}");
    }

    #[test]
    fn edges_ascend() {
        let values: Vec<f32> = (0..1000).map(|it| (it % 10) as f32).collect();
        let number = fit(Transform::Standard, Embed::Piecewise(16), &values);
        let Encoding::Piecewise(edges) = &number.encoding else { panic!("no edges") };
        assert!(edges.windows(2).all(|pair| pair[0] < pair[1]) && edges.len() > 5, "{edges:?}");
        // A value in most of the rows does not take the intervals of the others.
        let values = [vec![0.0; 900], (1..=100).map(|it| it as f32).collect()].concat();
        let number = fit(Transform::None, Embed::Piecewise(10), &values);
        let Encoding::Piecewise(edges) = &number.encoding else { panic!("no edges") };
        assert!(edges.len() == 11 && edges[0] == 0.0 && edges[10] == 100.0, "{edges:?}");
        assert!(edges.windows(2).all(|pair| pair[1] - pair[0] < 13.0), "{edges:?}");
        let number = fit(Transform::Standard, Embed::Piecewise(16), &[1.0; 10]);
        assert_eq!(number.encoding, Encoding::None);
    }
}
