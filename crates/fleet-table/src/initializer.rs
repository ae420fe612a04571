//! Distributions of new weights.

use fleet_base::{Error, Result};

/// Distribution of new weights.
///
/// ```
/// use fleet_table::Initializer;
/// let init = Initializer::parse("uniform_random&7&-0.1&0.1")?;
/// assert_eq!(init, (Initializer::Uniform { low: -0.1, high: 0.1 }, 7));
/// assert_eq!(Initializer::parse("fill_constant&0.5")?.0, Initializer::Constant(0.5));
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    Constant(f32),
    Uniform {
        low: f32,
        high: f32,
    },
    Gaussian {
        mean: f32,
        std: f32,
    },
    /// Gaussian; a draw beyond two standard deviations is repeated.
    TruncatedGaussian {
        mean: f32,
        std: f32,
    },
}

impl Initializer {
    /// Parses the form of table descriptors: `uniform_random&seed&min&max`,
    /// `gaussian_random&seed&mean&std`, `truncated_gaussian_random&seed&mean&std` or
    /// `fill_constant&value`. The second value returned is the seed.
    pub fn parse(text: &str) -> Result<(Initializer, u64)> {
        let wrong = || {
            Error::invalid(format!("malformed initializer '{text}'")).expected(
                "uniform_random&seed&min&max, gaussian_random&seed&mean&std, \
                 truncated_gaussian_random&seed&mean&std or fill_constant&value",
            )
        };
        let parts: Vec<&str> = text.split('&').collect();
        let number = |at: usize| -> Result<f32> {
            let value: f32 = parts.get(at).and_then(|p| p.parse().ok()).ok_or_else(wrong)?;
            if value.is_finite() { Ok(value) } else { Err(wrong()) }
        };
        let seed = || parts.get(1).and_then(|p| p.parse::<u64>().ok()).ok_or_else(wrong);
        let found = match (parts[0], parts.len()) {
            ("fill_constant", 2) => (Initializer::Constant(number(1)?), 0),
            ("uniform_random", 4) => {
                (Initializer::Uniform { low: number(2)?, high: number(3)? }, seed()?)
            }
            ("gaussian_random", 4) => {
                (Initializer::Gaussian { mean: number(2)?, std: number(3)? }, seed()?)
            }
            ("truncated_gaussian_random", 4) => {
                (Initializer::TruncatedGaussian { mean: number(2)?, std: number(3)? }, seed()?)
            }
            _ => return Err(wrong()),
        };
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_descriptors_are_refused() {
        for text in [
            "",
            "uniform",
            "uniform_random&1&2",
            "fill_constant&x",
            "fill_constant&nan",
            "gaussian_random&-1&0&1",
            "fill_constant&1&2",
        ] {
            let error = Initializer::parse(text).unwrap_err().to_string();
            assert!(error.contains("malformed"), "{error}");
        }
    }
}
