//! Treatment of gradients that are NaN or infinite.

use fleet_base::{Error, Result};
use fleet_kernels::kernel;
use fleet_table::NonFinite;
use std::borrow::Cow;

/// Returns the gradients to apply and the number of values that were not finite. `name`
/// describes the value at an index, for the error.
pub(crate) fn screen<'a>(
    policy: NonFinite,
    grads: &'a [f32],
    name: impl Fn(usize) -> String,
) -> Result<(Cow<'a, [f32]>, u64)> {
    let clip = match policy {
        NonFinite::Clip(limit) => Some(limit),
        _ => None,
    };
    let clean = all_finite(grads);
    if clean && clip.is_none() {
        return Ok((Cow::Borrowed(grads), 0));
    }
    let count = grads.iter().filter(|value| !value.is_finite()).count() as u64;
    if let Some(limit) = clip {
        let clipped = |value: &f32| if value.is_nan() { 0.0 } else { value.clamp(-limit, limit) };
        return Ok((grads.iter().map(clipped).collect(), count));
    }
    let first = grads.iter().position(|value| !value.is_finite());
    match (policy, first) {
        (NonFinite::Refuse, Some(at)) => Err(Error::numeric("push has non-finite values")
            .expected("finite gradients")
            .got(format!("{} for {} ({count} such values)", grads[at], name(at)))
            .help(
                "set a_sync_configs.non_finite to clip or count to continue; the push was \
                 rejected",
            )),
        _ => Ok((Cow::Borrowed(grads), count)),
    }
}

kernel! {
    /// x - x is 0 for finite x and NaN otherwise.
    fn sum_of_differences<S>(s: S, x: &[f32]) -> f32 {
        let mut sums = [s.zero(); 4];
        let mut at = 0;
        // SAFETY: every load stays inside the slice.
        unsafe {
            while at + 4 * S::LANES <= x.len() {
                for (k, sum) in sums.iter_mut().enumerate() {
                    let value = s.load(x.as_ptr().add(at + k * S::LANES));
                    *sum = s.add(*sum, s.sub(value, value));
                }
                at += 4 * S::LANES;
            }
            while at < x.len() {
                let n = S::LANES.min(x.len() - at);
                let value = s.load_part(x.as_ptr().add(at), n);
                sums[0] = s.add(sums[0], s.sub(value, value));
                at += n;
            }
        }
        s.sum(s.add(s.add(sums[0], sums[1]), s.add(sums[2], sums[3])))
    }
}

fn all_finite(x: &[f32]) -> bool {
    sum_of_differences(x) == 0.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_bad_value_is_found_wherever_it_is() {
        for len in [1usize, 5, 16, 64, 200] {
            let mut values = vec![1e38f32; len];
            assert!(all_finite(&values));
            for at in 0..len {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    values[at] = bad;
                    assert!(!all_finite(&values), "{bad} at {at} of {len}");
                }
                values[at] = -1e38;
            }
        }
        assert!(all_finite(&[]));
    }

    #[test]
    fn policies() {
        let grads = [1.0, f32::NAN, f32::INFINITY, -5.0];
        let name = |at: usize| format!("value {at}");
        let error = screen(NonFinite::Refuse, &grads, name).unwrap_err();
        assert_eq!(error.kind(), fleet_base::ErrorKind::Numeric);
        assert!(error.to_string().contains("NaN for value 1 (2 such values)"), "{error}");
        let (same, count) = screen(NonFinite::Count, &grads, name).unwrap();
        assert!(same[1].is_nan() && count == 2);
        let (clipped, count) = screen(NonFinite::Clip(3.0), &grads, name).unwrap();
        assert_eq!((&clipped[..], count), (&[1.0, 0.0, 3.0, -3.0][..], 2));
    }
}
