//! The values that a worker pushes by id, and the step that they belong to.

use std::num::NonZeroU64;
use std::ops::Deref;

/// A step of a worker, counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step(NonZeroU64);

impl Step {
    /// Returns the step of this number; `None` for 0, which is no step.
    pub fn new(number: u64) -> Option<Step> {
        NonZeroU64::new(number).map(Step)
    }

    /// Returns the number, which is 1 or more.
    pub fn number(self) -> u64 {
        self.0.get()
    }
}

/// Ids of which none repeats: those of a [`Merger`](crate::Merger), or of a request, whose sender
/// has merged them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UniqueIds<'a>(&'a [u64]);

impl<'a> UniqueIds<'a> {
    /// Wraps ids of which the caller knows that none repeats. The gradients of an id that does
    /// repeat are applied one after another, instead of their sum.
    pub(crate) fn assume(ids: &'a [u64]) -> UniqueIds<'a> {
        UniqueIds(ids)
    }

    /// Returns the ids.
    pub fn as_slice(self) -> &'a [u64] {
        self.0
    }
}

impl Deref for UniqueIds<'_> {
    type Target = [u64];

    fn deref(&self) -> &[u64] {
        self.0
    }
}

/// The ids of a push.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ids<'a> {
    /// Ids that may repeat, and that are merged before they are sent or applied.
    Any(&'a [u64]),
    /// Ids that need no merging.
    Unique(UniqueIds<'a>),
}

impl<'a> Ids<'a> {
    /// Returns the ids, in their order.
    pub fn as_slice(self) -> &'a [u64] {
        match self {
            Ids::Any(ids) => ids,
            Ids::Unique(ids) => ids.as_slice(),
        }
    }
}

impl<'a> From<&'a [u64]> for Ids<'a> {
    fn from(ids: &'a [u64]) -> Ids<'a> {
        Ids::Any(ids)
    }
}

impl<'a, const N: usize> From<&'a [u64; N]> for Ids<'a> {
    fn from(ids: &'a [u64; N]) -> Ids<'a> {
        Ids::Any(ids)
    }
}

impl<'a> From<&'a Vec<u64>> for Ids<'a> {
    fn from(ids: &'a Vec<u64>) -> Ids<'a> {
        Ids::Any(ids)
    }
}

impl<'a> From<UniqueIds<'a>> for Ids<'a> {
    fn from(ids: UniqueIds<'a>) -> Ids<'a> {
        Ids::Unique(ids)
    }
}

/// Gradients by id. An id that repeats is updated once, by the sum.
#[derive(Clone, Copy, Debug)]
pub struct Push<'a> {
    /// The ids.
    pub ids: Ids<'a>,
    /// `push_width` numbers per id.
    pub grads: &'a [f32],
    /// How often each id was shown; 1 each if not given.
    pub shows: Option<&'a [f32]>,
    /// How often each id was clicked; 0 each if not given.
    pub clicks: Option<&'a [f32]>,
    /// The slot (the field of the data) of each id, which click rows remember.
    pub slots: Option<&'a [u32]>,
}

impl<'a> Push<'a> {
    /// Returns a push without shows, clicks and slots.
    pub fn new(ids: impl Into<Ids<'a>>, grads: &'a [f32]) -> Push<'a> {
        Push { ids: ids.into(), grads, shows: None, clicks: None, slots: None }
    }
}
