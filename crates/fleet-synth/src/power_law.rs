//! A bounded power law over ranks, with sampling and probabilities in closed form: no table, any
//! size.

/// A distribution over ranks: rank r of `count` has the mass of x^-exponent between r + 1 and r +
/// 2, normalised.
///
/// ```
/// use fleet_synth::PowerLaw;
/// let law = PowerLaw::new(1000, 1.1);
/// assert_eq!(law.rank(0.0), 0);
/// assert_eq!(law.rank(0.999_999_999), 999);
/// let mass: f64 = (0..1000).map(|rank| law.mass(rank)).sum();
/// assert!((mass - 1.0).abs() < 1e-9);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct PowerLaw {
    count: u64,
    /// 1 - exponent; zero selects the logarithmic case.
    power: f64,
    /// (count + 1)^power - 1, or ln(count + 1).
    span: f64,
}

impl PowerLaw {
    /// Creates a law; a `count` of 0 is taken as 1, and exponent 0 is the uniform law.
    pub fn new(count: u64, exponent: f64) -> Self {
        let count = count.max(1);
        let power = if (1.0 - exponent).abs() < LOGARITHMIC { 0.0 } else { 1.0 - exponent };
        PowerLaw { count, power, span: integral(power, count as f64 + 1.0) }
    }

    /// Returns the number of ranks.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the rank at quantile `unit` in [0, 1).
    #[inline]
    pub fn rank(&self, unit: f64) -> u64 {
        let x = if self.power == 0.0 {
            (unit * self.span).exp()
        } else {
            (1.0 + unit * self.span).powf(1.0 / self.power)
        };
        // Rounding may carry the last quantiles past the end.
        ((x - 1.0) as u64).min(self.count - 1)
    }

    /// Returns the probability of `rank`.
    pub fn mass(&self, rank: u64) -> f64 {
        if rank >= self.count {
            return 0.0;
        }
        let x = rank as f64 + 1.0;
        (integral(self.power, x + 1.0) - integral(self.power, x)) / self.span
    }
}

/// Returns the integral of x^(power - 1) from 1 to `x`, times `power` unless that is 0.
fn integral(power: f64, x: f64) -> f64 {
    if power == 0.0 { x.ln() } else { x.powf(power) - 1.0 }
}

/// Exponents this close to 1 take the logarithmic form; the power form would lose all digits.
const LOGARITHMIC: f64 = 1e-9;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_appear_as_often_as_their_mass_says() {
        for exponent in [0.0, 0.7, 1.0, 1.1, 2.5] {
            let law = PowerLaw::new(50, exponent);
            let mut counts = [0u32; 50];
            let draws = 200_000;
            for draw in 0..draws {
                counts[law.rank((draw as f64 + 0.5) / draws as f64) as usize] += 1;
            }
            for (rank, count) in counts.iter().enumerate() {
                let expected = law.mass(rank as u64) * draws as f64;
                assert!((f64::from(*count) - expected).abs() <= 1.01, "{exponent} rank {rank}");
            }
        }
    }

    #[test]
    fn one_rank_takes_all() {
        let law = PowerLaw::new(0, 1.1);
        assert_eq!((law.count(), law.rank(0.5), law.mass(0), law.mass(1)), (1, 0, 1.0, 0.0));
    }
}
