//! Random names.

use fleet_base::{Error, Result};

/// Returns `2 * bytes` unpredictable hexadecimal digits.
pub(crate) fn hex(bytes: usize) -> Result<String> {
    let mut random = vec![0; bytes];
    getrandom::fill(&mut random).map_err(|error| {
        Error::unavailable(format!("cannot get random numbers from the system: {error}"))
    })?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}
