//! Quantities with units on the command line: `2GiB`, `10GB/s`, `100Gflop/s`.

const PREFIXES: [(&str, f64); 9] = [
    ("Ki", 1024.0),
    ("Mi", 1024.0 * 1024.0),
    ("Gi", 1024.0 * 1024.0 * 1024.0),
    ("Ti", 1024.0 * 1024.0 * 1024.0 * 1024.0),
    ("k", 1e3),
    ("M", 1e6),
    ("G", 1e9),
    ("T", 1e12),
    ("", 1.0),
];

/// Parses a size in bytes, such as `2GiB`.
pub fn size(text: &str) -> Result<f64, String> {
    quantity(text, "B", "2GiB")
}

/// Parses a bandwidth in bytes per second, such as `10GB/s`.
pub fn bandwidth(text: &str) -> Result<f64, String> {
    quantity(text, "B/s", "10GB/s")
}

/// Parses a compute rate, such as `100Gflop/s`.
pub fn compute_rate(text: &str) -> Result<f64, String> {
    quantity(text, "flop/s", "100Gflop/s")
}

/// Parses a positive number with a unit and its decimal or binary prefix.
fn quantity(text: &str, unit: &str, example: &str) -> Result<f64, String> {
    let wrong = || format!("expected a number with a unit, such as {example}");
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, rest) = text.split_at(end);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let prefix = rest.trim_start().strip_suffix(unit).ok_or_else(wrong)?;
    let (_, factor) = PREFIXES.iter().find(|(name, _)| *name == prefix).ok_or_else(wrong)?;
    let value = number * factor;
    if value > 0.0 && value.is_finite() { Ok(value) } else { Err("expected a value > 0".into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_required() {
        assert_eq!(size("2GiB"), Ok(2.0 * 1024f64.powi(3)));
        assert_eq!(size("512 B"), Ok(512.0));
        assert_eq!(bandwidth("1.5GB/s"), Ok(1.5e9));
        assert_eq!(compute_rate("100Gflop/s"), Ok(1e11));
        for wrong in ["", "2", "GiB", "2GiB/s", "1..5MB", "-1GiB", "2 gib"] {
            let error = size(wrong).unwrap_err();
            assert!(error.contains("such as 2GiB"), "{wrong}: {error}");
        }
        assert_eq!(size("0MB"), Err("expected a value > 0".into()));
    }
}
