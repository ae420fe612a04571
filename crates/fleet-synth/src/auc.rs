//! The area under the ROC curve, computed exactly by ranks.

use fleet_base::{Error, Result};

/// Returns the probability that a random positive scores above a random negative; ties count half.
///
/// A label above 0.5 is positive. Without positives or without negatives the result is 0.5, as for
/// the bucketed AUC of the metrics. The cost is one sort.
///
/// ```
/// use fleet_synth::auc_exact;
/// assert_eq!(auc_exact(&[0.1f32, 0.4, 0.35, 0.8], &[0.0f32, 0.0, 1.0, 1.0])?, 0.75);
/// assert_eq!(auc_exact(&[0.5f32, 0.5], &[0u8, 1])?, 0.5);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn auc_exact<S, L>(scores: &[S], labels: &[L]) -> Result<f64>
where
    S: Copy + Into<f64>,
    L: Copy + Into<f64>,
{
    if scores.len() != labels.len() {
        return Err(Error::invalid("number of labels does not match the scores")
            .expected(scores.len())
            .got(labels.len()));
    }
    let weighed = scores.iter().zip(labels).map(|(&score, &label)| {
        let positive = f64::from(u8::from(label.into() > 0.5));
        (score.into(), positive, 1.0 - positive)
    });
    area(weighed.collect())
}

/// Returns the expected AUC when each sample is positive with its own probability and the scores
/// are these probabilities themselves. No score does better in expectation.
///
/// It is the limit of [`auc_exact`] of the probabilities, without the noise of drawn labels.
///
/// ```
/// use fleet_synth::auc_expected;
/// assert_eq!(auc_expected(&[0.0, 1.0])?, 1.0);
/// assert_eq!(auc_expected(&[0.3, 0.3, 0.3])?, 0.5);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn auc_expected(probabilities: &[f64]) -> Result<f64> {
    area(probabilities.iter().map(|&p| (p, p, 1.0 - p)).collect())
}

/// Returns the area for (score, weight as a positive, weight as a negative). A sample is never
/// compared with itself; this matters only for samples with both weights.
fn area(mut samples: Vec<(f64, f64, f64)>) -> Result<f64> {
    if let Some(index) = samples.iter().position(|(score, ..)| score.is_nan()) {
        return Err(Error::invalid(format!("score {index} is not a number")));
    }
    samples.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
    let (mut positives, mut negatives, mut own, mut wins) = (0.0, 0.0, 0.0, 0.0);
    for ties in samples.chunk_by(|a, b| a.0 == b.0) {
        let (mut positive, mut negative) = (0.0, 0.0);
        for (_, p, n) in ties {
            positive += p;
            negative += n;
            own += p * n;
        }
        wins += positive * (negatives + 0.5 * negative);
        positives += positive;
        negatives += negative;
    }
    let pairs = positives * negatives - own;
    Ok(if pairs > 0.0 { (wins - 0.5 * own) / pairs } else { 0.5 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_the_count_over_all_pairs() {
        let mut sequence = fleet_base::rng::Sequence::new(3, 0);
        // Few distinct scores, so that ties are common.
        let scores: Vec<f64> = (0..300).map(|_| sequence.below(20) as f64).collect();
        let labels: Vec<f64> = (0..300).map(|_| sequence.below(2) as f64).collect();
        let (mut wins, mut pairs) = (0.0, 0.0);
        for i in 0..300 {
            for j in 0..300 {
                if labels[i] > labels[j] {
                    pairs += 1.0;
                    wins += match scores[i].total_cmp(&scores[j]) {
                        std::cmp::Ordering::Greater => 1.0,
                        std::cmp::Ordering::Equal => 0.5,
                        std::cmp::Ordering::Less => 0.0,
                    };
                }
            }
        }
        assert!((auc_exact(&scores, &labels).unwrap() - wins / pairs).abs() < 1e-12);
    }

    #[test]
    fn edges_and_bad_input() {
        assert_eq!(auc_exact::<f32, f32>(&[], &[]).unwrap(), 0.5);
        assert_eq!(auc_exact(&[1.0f32, 2.0], &[1.0f32, 1.0]).unwrap(), 0.5);
        assert_eq!(auc_exact(&[-0.0f64, 0.0], &[0.0f64, 1.0]).unwrap(), 0.5);
        assert!(auc_exact(&[1.0f32], &[1.0f32, 0.0]).is_err());
        let error = auc_exact(&[1.0, f32::NAN], &[1.0f32, 0.0]).unwrap_err();
        assert_eq!(error.message(), "score 1 is not a number");
    }

    #[test]
    fn expectation_is_the_limit_of_drawn_labels() {
        let mut sequence = fleet_base::rng::Sequence::new(5, 0);
        let p: Vec<f64> = (0..100_000).map(|_| sequence.unit()).collect();
        let labels: Vec<f64> =
            p.iter().map(|p| f64::from(u8::from(sequence.unit() < *p))).collect();
        let difference = auc_expected(&p).unwrap() - auc_exact(&p, &labels).unwrap();
        assert!(difference.abs() < 0.005, "{difference}");
    }
}
