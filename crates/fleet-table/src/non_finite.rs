//! Treatment of gradients that are NaN or infinite.

/// Treatment of a push that contains NaN or infinity. Such values are counted in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum NonFinite {
    /// Rejects the whole push with an error that names the id; nothing is applied.
    #[default]
    Refuse,
    /// Applies the values as they are.
    Count,
    /// Replaces NaN with 0 and clamps every value to the range from minus this limit to this limit.
    Clip(f32),
}
