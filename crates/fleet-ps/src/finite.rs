//! Treatment of gradients that are NaN or infinite.

use fleet_base::{Error, Result};
use fleet_kernels::rows::all_finite;
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

/// Checks a factor on a learning rate.
pub(crate) fn check_rate_scale(scale: f32) -> Result<()> {
    match scale.is_finite() && scale >= 0.0 {
        true => Ok(()),
        false => Err(Error::invalid("invalid learning rate scale")
            .expected("a finite number >= 0")
            .got(scale)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
