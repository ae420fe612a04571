//! Counts for metrics: accuracy at k, and bucket histograms and areas for AUC.
//!
//! AUC uses the documented buckets. A probability `p` falls into bucket `floor(p * thresholds)`,
//! and positives and negatives are counted separately. The area is summed from the highest bucket
//! down: by trapezoids under the ROC curve, and by steps under the precision-recall curve. Counts
//! of steps and ranks are merged by addition.

use fleet_base::{Error, Result};

/// Returns the number of samples whose label is among their top-k `indices`, `[samples, k]`.
///
/// ```
/// use fleet_kernels::metrics::accuracy_count;
/// assert_eq!(accuracy_count(&[0, 1, 2, 1], 2, &[1, 0]), 1);
/// ```
pub fn accuracy_count(indices: &[i64], k: usize, labels: &[i64]) -> u64 {
    assert_eq!(indices.len(), k * labels.len(), "expected k indices per label");
    let rows = indices.chunks_exact(k.max(1)).zip(labels);
    rows.filter(|(row, label)| row.contains(label)).count() as u64
}

/// Predictions of a batch. The last of `width` columns is the probability of the positive class.
#[derive(Clone, Copy, Debug)]
pub struct Predictions<'a> {
    /// The predictions, row by row.
    pub scores: &'a [f32],
    /// Number of columns.
    pub width: usize,
    /// Positive above 0, negative at 0, ignored below 0.
    pub labels: &'a [i64],
}

/// Adds a batch to `thresholds + 1` buckets of positives and of negatives. Returns an error, and
/// counts nothing, if a probability is outside [0, 1].
pub fn auc_count(
    predictions: Predictions<'_>,
    positives: &mut [i64],
    negatives: &mut [i64],
) -> Result<()> {
    let Predictions { scores, width, labels } = predictions;
    assert_eq!(positives.len(), negatives.len(), "the classes differ in number of buckets");
    assert!(!positives.is_empty(), "no buckets");
    check_probabilities(predictions)?;
    let thresholds = (positives.len() - 1) as f64;
    for (sample, &label) in labels.iter().enumerate() {
        let bucket = (f64::from(scores[sample * width + width - 1]) * thresholds) as usize;
        if label > 0 {
            positives[bucket] = positives[bucket].wrapping_add(1);
        } else if label == 0 {
            negatives[bucket] = negatives[bucket].wrapping_add(1);
        }
    }
    Ok(())
}

/// Returns the length of the counters of [`auc_count_window`]: `steps` windows, their sum, and a
/// step counter. Returns `None` on overflow.
pub fn auc_window_len(thresholds: usize, steps: usize) -> Option<usize> {
    steps.checked_add(1)?.checked_mul(thresholds.checked_add(1)?)?.checked_add(1)
}

/// Adds a batch to sliding windows over the last `steps` batches. The oldest window is subtracted
/// from the sum, which is stored after the windows, and is reused for this batch.
pub fn auc_count_window(
    predictions: Predictions<'_>,
    thresholds: usize,
    steps: usize,
    positives: &mut [i64],
    negatives: &mut [i64],
) -> Result<()> {
    assert!(steps > 0, "sliding window needs at least one step");
    let buckets = thresholds + 1;
    for counts in [&*positives, &*negatives] {
        let len = Some(counts.len());
        assert_eq!(
            len,
            auc_window_len(thresholds, steps),
            "wrong number of counters for a sliding window"
        );
    }
    let counter = (steps + 1) * buckets;
    let window = positives[counter].rem_euclid(steps as i64) as usize * buckets;
    // Check first, so that an error leaves the counters unchanged.
    check_probabilities(predictions)?;
    let parts = [&mut *positives, &mut *negatives];
    for counts in parts {
        let (windows, sum) = counts.split_at_mut(steps * buckets);
        for (sum, old) in sum.iter_mut().zip(&mut windows[window..window + buckets]) {
            *sum = sum.wrapping_sub(std::mem::take(old));
        }
    }
    let range = window..window + buckets;
    auc_count(predictions, &mut positives[range.clone()], &mut negatives[range])?;
    for counts in [positives, negatives] {
        let (windows, sum) = counts.split_at_mut(steps * buckets);
        for (sum, new) in sum.iter_mut().zip(&windows[window..window + buckets]) {
            *sum = sum.wrapping_add(*new);
        }
        counts[counter] = counts[counter].wrapping_add(1);
    }
    Ok(())
}

/// Returns the area under the ROC curve of two histograms; 0.5 if either is empty.
///
/// ```
/// use fleet_kernels::metrics::auc_area;
/// assert_eq!(auc_area(&[0, 0, 0, 4], &[5, 0, 0, 0]), 1.0);
/// assert_eq!(auc_area(&[1, 2, 3, 4], &[4, 3, 2, 1]), 0.75);
/// ```
pub fn auc_area(positives: &[i64], negatives: &[i64]) -> f64 {
    let (mut positive, mut negative, mut area) = (0.0, 0.0, 0.0);
    for (&of_positive, &of_negative) in positives.iter().zip(negatives).rev() {
        let next = (positive + of_positive as f64, negative + of_negative as f64);
        area += (next.1 - negative) * (positive + next.0) / 2.0;
        (positive, negative) = next;
    }
    if positive * negative == 0.0 { 0.5 } else { area / (positive * negative) }
}

/// Returns the area under the precision-recall curve as the average precision: each bucket is a
/// step at the precision that includes the bucket. Linear interpolation would overestimate the
/// precision that thresholds achieve. With steps, the area for uninformative scores is the fraction
/// of positives, which is also the result if only one class occurs.
///
/// ```
/// use fleet_kernels::metrics::precision_recall_area;
/// assert_eq!(precision_recall_area(&[0, 0, 4], &[5, 0, 0]), 1.0);
/// assert_eq!(precision_recall_area(&[0, 1, 0], &[0, 3, 0]), 0.25);
/// ```
pub fn precision_recall_area(positives: &[i64], negatives: &[i64]) -> f64 {
    let (mut positive, mut negative, mut area) = (0.0, 0.0, 0.0);
    for (&of_positive, &of_negative) in positives.iter().zip(negatives).rev() {
        (positive, negative) = (positive + of_positive as f64, negative + of_negative as f64);
        if of_positive != 0 {
            area += of_positive as f64 * positive / (positive + negative);
        }
    }
    if positive == 0.0 { 0.0 } else { area / positive }
}

/// Returns the summed window of the counters of [`auc_count_window`].
pub fn auc_window_sum(counts: &[i64], thresholds: usize, steps: usize) -> &[i64] {
    &counts[steps * (thresholds + 1)..][..thresholds + 1]
}

fn check_probabilities(predictions: Predictions<'_>) -> Result<()> {
    let Predictions { scores, width, labels } = predictions;
    assert!(
        width > 0 && scores.len() == width * labels.len(),
        "expected one row of scores per label"
    );
    let probability = |sample: usize| scores[sample * width + width - 1];
    if let Some(sample) = (0..labels.len()).find(|&i| !(0.0..=1.0).contains(&probability(i))) {
        return Err(Error::invalid(format!("prediction of sample {sample} is not a probability"))
            .expected("a number in 0 to 1")
            .got(probability(sample)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_base::rng::Sequence;

    #[test]
    fn areas_of_the_documented_table() {
        let check = |positives: &[i64], negatives: &[i64], expected: f64| {
            assert_eq!(auc_area(positives, negatives), expected);
        };
        check(&[0, 0, 0, 4], &[5, 0, 0, 0], 1.0);
        check(&[4, 0, 0, 0], &[0, 0, 0, 5], 0.0);
        check(&[1, 2, 3, 4], &[4, 3, 2, 1], 0.75);
        check(&[0, 3, 0, 0], &[0, 2, 0, 0], 0.5);
        check(&[0, 0, 0, 0], &[1, 2, 0, 0], 0.5);
        check(&[1, 2, 0, 0], &[0, 0, 0, 0], 0.5);
        check(&[0, 1, 0, 2, 3, 1, 5, 9], &[7, 5, 4, 2, 3, 0, 1, 1], 0.896_480_331_262_939_9);
    }

    #[test]
    fn the_area_is_the_share_of_ordered_pairs() {
        let mut random = Sequence::new(1, 1);
        let scores: Vec<f32> = (0..500).map(|_| random.below(64) as f32 / 64.0).collect();
        let labels: Vec<i64> =
            scores.iter().map(|&p| i64::from(random.unit() < f64::from(p))).collect();
        let (mut positives, mut negatives) = (vec![0; 65], vec![0; 65]);
        let predictions = Predictions { scores: &scores, width: 1, labels: &labels };
        auc_count(predictions, &mut positives, &mut negatives).unwrap();
        let (mut ordered, mut pairs) = (0.0, 0.0);
        for (a, _) in scores.iter().zip(&labels).filter(|pair| *pair.1 > 0) {
            for (b, _) in scores.iter().zip(&labels).filter(|pair| *pair.1 == 0) {
                pairs += 1.0;
                ordered += if a > b {
                    1.0
                } else if a == b {
                    0.5
                } else {
                    0.0
                };
            }
        }
        assert!((auc_area(&positives, &negatives) - ordered / pairs).abs() < 1e-12);
    }

    #[test]
    fn the_area_of_precision_is_the_mean_over_positives() {
        let mut random = Sequence::new(2, 1);
        let ranks: Vec<usize> = (0..300).map(|_| random.below(40) as usize).collect();
        let labels: Vec<bool> = ranks.iter().map(|&rank| random.below(50) < rank as u64).collect();
        let (mut counts, mut precisions) = ([vec![0; 40], vec![0; 40]], Vec::new());
        for (&rank, &label) in ranks.iter().zip(&labels) {
            counts[usize::from(!label)][rank] += 1;
            if label {
                let above = ranks.iter().zip(&labels).filter(|(other, _)| **other >= rank);
                let right = above.clone().filter(|(_, label)| **label).count();
                precisions.push(right as f64 / above.count() as f64);
            }
        }
        let mean = precisions.iter().sum::<f64>() / precisions.len() as f64;
        assert!((precision_recall_area(&counts[0], &counts[1]) - mean).abs() < 1e-12);
        assert_eq!(precision_recall_area(&[0, 0], &[3, 4]), 0.0);
        assert_eq!(precision_recall_area(&[3, 0], &[0, 0]), 1.0);
        // The precisions are 1 of 1, then 2 of 3, then 3 of 5.
        let area = precision_recall_area(&[0, 1, 1, 1], &[2, 1, 1, 0]);
        assert!((area - (1.0 + 2.0 / 3.0 + 3.0 / 5.0) / 3.0).abs() < 1e-15);
    }

    #[test]
    fn buckets_take_the_last_column_and_refuse_what_is_no_probability() {
        let (mut positives, mut negatives) = (vec![0; 8], vec![0; 8]);
        let predictions = Predictions {
            scores: &[0.9, 0.1, 0.5, 0.5, 0.0, 1.0, 0.3, 0.7],
            width: 2,
            labels: &[0, 1, 1, -1],
        };
        auc_count(predictions, &mut positives, &mut negatives).unwrap();
        assert_eq!(positives, [0, 0, 0, 1, 0, 0, 0, 1]);
        assert_eq!(negatives, [1, 0, 0, 0, 0, 0, 0, 0]);
        for wrong in [1.5, -0.1, f32::NAN] {
            let predictions = Predictions { scores: &[0.5, wrong], width: 1, labels: &[1, 0] };
            let error = auc_count(predictions, &mut positives, &mut negatives).unwrap_err();
            assert!(error.to_string().contains("sample 1"), "{error}");
        }
        assert_eq!(positives.iter().sum::<i64>(), 2);
    }

    #[test]
    fn a_window_forgets_what_is_older_than_its_steps() {
        let (thresholds, steps) = (7, 2);
        assert_eq!(auc_window_len(thresholds, steps), Some(25));
        let (mut positives, mut negatives) = (vec![0; 25], vec![0; 25]);
        let batches = [[0.1, 0.8], [0.3, 0.9], [0.5, 0.2], [0.7, 0.6]];
        for (step, batch) in batches.iter().enumerate() {
            let predictions = Predictions { scores: batch, width: 1, labels: &[1, 0] };
            auc_count_window(predictions, thresholds, steps, &mut positives, &mut negatives)
                .unwrap();
            let (mut pos, mut neg) = (vec![0; 8], vec![0; 8]);
            for batch in &batches[(step + 1).saturating_sub(steps)..=step] {
                let predictions = Predictions { scores: batch, width: 1, labels: &[1, 0] };
                auc_count(predictions, &mut pos, &mut neg).unwrap();
            }
            assert_eq!(auc_window_sum(&positives, thresholds, steps), pos);
            assert_eq!(auc_window_sum(&negatives, thresholds, steps), neg);
            assert_eq!(positives[24], step as i64 + 1);
        }
    }
}
