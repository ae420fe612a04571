//! Effects of numbers that are not proportional to them: a wave over the levels of the number, and
//! an effect of its own for rows in which it is missing. A linear model of the numbers misses most
//! of it.

use fleet_base::rng::Sequence;

/// The effect of each level of a number; the lowest levels stand for a missing number.
#[derive(Clone, Debug)]
pub struct Curve {
    missing: usize,
    effects: Vec<f64>,
}

impl Curve {
    /// Draws a curve over levels of equal probability. Its mean is 0.
    pub fn draw(levels: usize, draws: &mut Sequence) -> Curve {
        let is_complete = draws.below(2) == 0;
        let share = SHARE_MISSING_MAX * draws.unit();
        let missing = if is_complete { 0 } else { (share * levels as f64) as usize };
        let (waves, phase) = (0.5 + WAVES_MORE * draws.unit(), draws.unit());
        let of_missing = draws.normal();
        let present = (levels - missing) as f64;
        let mut effects: Vec<f64> = (0..levels)
            .map(|level| match level.checked_sub(missing) {
                None => of_missing,
                Some(at) => {
                    (std::f64::consts::PI * (waves * at as f64 / present + 2.0 * phase)).cos()
                }
            })
            .collect();
        let mean = effects.iter().sum::<f64>() / levels as f64;
        effects.iter_mut().for_each(|effect| *effect -= mean);
        Curve { missing, effects }
    }

    /// Returns the mean square of the effect.
    pub fn variance(&self) -> f64 {
        self.effects.iter().map(|effect| effect * effect).sum::<f64>() / self.effects.len() as f64
    }

    /// Multiplies the effects.
    pub fn scale(&mut self, factor: f64) {
        self.effects.iter_mut().for_each(|effect| *effect *= factor);
    }

    /// Returns the effect of a level.
    #[inline]
    pub fn effect(&self, level: usize) -> f64 {
        self.effects[level]
    }

    /// Returns whether a level stands for a missing number.
    pub fn is_missing(&self, level: usize) -> bool {
        level < self.missing
    }
}

/// Limit of the share of rows without a number, as in Criteo's logs.
const SHARE_MISSING_MAX: f64 = 0.45;
/// A curve has 0.5 to 2.5 half waves.
const WAVES_MORE: f64 = 2.0;
