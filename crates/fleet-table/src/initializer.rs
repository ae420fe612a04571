//! Distributions of new weights.

/// Distribution of new weights.
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
