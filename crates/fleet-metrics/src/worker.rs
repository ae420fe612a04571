//! The documented functions, which reduce the counts of a worker over all workers.

use crate::auc::area;
use crate::group::{Group, Reduce};
use fleet_base::{Error, Result};

/// Returns the elementwise sum over workers.
///
/// ```
/// use fleet_metrics::{Alone, sum};
/// assert_eq!(sum(&[1.0, 2.0], &mut Alone)?, [1.0, 2.0]);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn sum(input: &[f64], group: &mut dyn Group) -> Result<Vec<f64>> {
    reduced(input, Reduce::Sum, group)
}

/// Returns the elementwise maximum over workers.
pub fn max(input: &[f64], group: &mut dyn Group) -> Result<Vec<f64>> {
    reduced(input, Reduce::Max, group)
}

/// Returns the elementwise minimum over workers.
pub fn min(input: &[f64], group: &mut dyn Group) -> Result<Vec<f64>> {
    reduced(input, Reduce::Min, group)
}

fn reduced(input: &[f64], reduce: Reduce, group: &mut dyn Group) -> Result<Vec<f64>> {
    let mut values = input.to_vec();
    group.all_reduce(reduce, &mut values)?;
    Ok(values)
}

/// Returns the share of correct predictions.
///
/// ```
/// use fleet_metrics::{Alone, acc};
/// assert_eq!(acc(7.0, 10.0, &mut Alone)?, 0.7);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn acc(correct: f64, total: f64, group: &mut dyn Group) -> Result<f64> {
    quotient("accuracy", correct, total, group)
}

/// Returns the mean absolute error, from the sum of absolute errors and the number of samples.
pub fn mae(abserr: f64, total_ins_num: f64, group: &mut dyn Group) -> Result<f64> {
    quotient("mean absolute error", abserr, total_ins_num, group)
}

/// Returns the mean squared error, from the sum of squared errors and the number of samples.
pub fn mse(sqrerr: f64, ins_num: f64, group: &mut dyn Group) -> Result<f64> {
    quotient("mean squared error", sqrerr, ins_num, group)
}

/// Returns the square root of [`mse`].
pub fn rmse(sqrerr: f64, total_ins_num: f64, group: &mut dyn Group) -> Result<f64> {
    Ok(mse(sqrerr, total_ins_num, group)?.sqrt())
}

fn quotient(what: &str, numerator: f64, denominator: f64, group: &mut dyn Group) -> Result<f64> {
    let mut values = [numerator, denominator];
    group.all_reduce(Reduce::Sum, &mut values)?;
    if values[1] > 0.0 {
        return Ok(values[0] / values[1]);
    }
    Err(Error::invalid(format!("{what} without samples"))
        .expected("a count above 0")
        .got(values[1]))
}

/// Returns the area under the ROC curve, from positives and negatives by score bucket.
///
/// ```
/// use fleet_metrics::{Alone, auc};
/// let area = auc(&[1.0, 2.0, 3.0, 4.0], &[4.0, 3.0, 2.0, 1.0], &mut Alone)?;
/// assert_eq!(area, 0.75);
/// # Ok::<(), fleet_base::Error>(())
/// ```
pub fn auc(stat_pos: &[f64], stat_neg: &[f64], group: &mut dyn Group) -> Result<f64> {
    if stat_pos.len() != stat_neg.len() {
        return Err(Error::invalid("positives and negatives have different numbers of buckets")
            .expected(stat_pos.len())
            .got(stat_neg.len()));
    }
    let mut both = [stat_pos, stat_neg].concat();
    group.all_reduce(Reduce::Sum, &mut both)?;
    let (positives, negatives) = both.split_at(stat_pos.len());
    Ok(area(positives, negatives))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Alone;

    /// Returns a group of `count` workers that all pass the same values.
    fn workers(count: f64) -> impl FnMut(Reduce, &mut [f64]) -> Result<()> {
        move |reduce, values| {
            if reduce == Reduce::Sum {
                values.iter_mut().for_each(|value| *value *= count);
            }
            Ok(())
        }
    }

    #[test]
    fn recorded_values_on_any_number_of_workers() {
        for count in [1.0, 2.0, 3.0, 8.0] {
            let mut group = workers(count);
            let near = |value: f64, expected: f64| {
                assert!((value - expected).abs() < 1e-9, "got {value}, expected {expected}");
            };
            near(acc(7.0, 10.0, &mut group).unwrap(), 0.7);
            near(mae(3.5, 7.0, &mut group).unwrap(), 0.5);
            near(mse(18.0, 8.0, &mut group).unwrap(), 2.25);
            near(rmse(18.0, 8.0, &mut group).unwrap(), 1.5);
            assert_eq!(max(&[3.0, -1.0], &mut group).unwrap(), [3.0, -1.0]);
            assert_eq!(min(&[3.0, -1.0], &mut group).unwrap(), [3.0, -1.0]);
            assert_eq!(sum(&[3.0, -1.0], &mut group).unwrap(), [3.0 * count, -count]);
        }
    }

    #[test]
    fn recorded_areas() {
        let check = |positives: &[f64], negatives: &[f64], expected: f64| {
            for count in [1.0, 2.0, 5.0] {
                let area = auc(positives, negatives, &mut workers(count)).unwrap();
                assert!((area - expected).abs() < 1e-9, "got {area}, expected {expected}");
            }
        };
        check(&[0.0, 0.0, 0.0, 4.0], &[5.0, 0.0, 0.0, 0.0], 1.0);
        check(&[4.0, 0.0, 0.0, 0.0], &[0.0, 0.0, 0.0, 5.0], 0.0);
        check(&[1.0, 2.0, 3.0, 4.0], &[4.0, 3.0, 2.0, 1.0], 0.75);
        check(&[2.0, 2.0], &[2.0, 2.0], 0.5);
        check(&[0.0, 0.0], &[2.0, 2.0], 0.5);
        check(&[2.0, 2.0], &[0.0, 0.0], 0.5);
        check(&[], &[], 0.5);
        check(
            &[0.0, 1.0, 0.0, 2.0, 3.0, 1.0, 5.0, 9.0],
            &[7.0, 5.0, 4.0, 2.0, 3.0, 0.0, 1.0, 1.0],
            0.8964803312629399,
        );
    }

    #[test]
    fn nothing_counted_is_an_error() {
        assert!(acc(0.0, 0.0, &mut Alone).unwrap_err().to_string().contains("without samples"));
        assert!(auc(&[1.0], &[], &mut Alone).is_err());
        let mut broken = |_: Reduce, _: &mut [f64]| Err(Error::unavailable("worker 1 is lost"));
        assert_eq!(mse(1.0, 1.0, &mut broken).unwrap_err().message(), "worker 1 is lost");
    }
}
