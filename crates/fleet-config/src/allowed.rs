//! Allowed values of fields, as the schema states them.

pub(crate) use Allowed::{OneOf, Range};
use std::ops::Bound;
pub(crate) use std::ops::Bound::{Excluded, Included, Unbounded};

/// A rule for the values of a field. Fields without a rule may have any finite value.
#[derive(Debug)]
pub struct Rule {
    pub(crate) allowed: Allowed,
    pub(crate) why: &'static str,
    /// The value to use instead.
    pub(crate) help: &'static str,
}

#[derive(Debug)]
pub(crate) enum Allowed {
    Range(Bound<f64>, Bound<f64>),
    OneOf(&'static [&'static str]),
}

pub(crate) const AT_LEAST_0: Allowed = Range(Included(0.0), Unbounded);
pub(crate) const AT_LEAST_1: Allowed = Range(Included(1.0), Unbounded);
pub(crate) const ABOVE_0: Allowed = Range(Excluded(0.0), Unbounded);
/// A nonzero share.
pub(crate) const SHARE: Allowed = Range(Excluded(0.0), Included(1.0));
pub(crate) const UNDER_1: Allowed = Range(Included(0.0), Excluded(1.0));

pub(crate) const COUNT: &str = "it is a count of at least one";
pub(crate) const NOT_NEGATIVE: &str = "it cannot be negative";
