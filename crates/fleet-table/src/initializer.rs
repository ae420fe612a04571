//! Distributions of new weights.

/// Distribution of new weights.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Initializer {
    /// The same value for each weight.
    Constant(f32),
    /// Random numbers with equal probability in a range.
    Uniform {
        /// Start of the range.
        low: f32,
        /// End of the range.
        high: f32,
    },
    /// Random numbers of a normal distribution.
    Gaussian {
        /// Mean of the distribution.
        mean: f32,
        /// Standard deviation of the distribution.
        std: f32,
    },
    /// Gaussian; a draw beyond two standard deviations is repeated.
    TruncatedGaussian {
        /// Mean of the distribution before the cut.
        mean: f32,
        /// Standard deviation of the distribution before the cut.
        std: f32,
    },
}
