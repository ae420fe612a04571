//! Time, deadlines, and the limits of every wait.
//!
//! A deadline is a point on a clock. Real transports use the monotonic clock of the process
//! ([`Time::now`]). The simulator has its own clock, so code that runs on both uses the clock of
//! its mesh ([`crate::Mesh::now`], [`crate::Mesh::limits`]).
//!
//! ```
//! use fleet_net::{Deadline, Time};
//! use std::time::Duration;
//! let deadline = Deadline::after(Time::now(), Duration::from_secs(60));
//! assert!(deadline.remaining(Time::now()).unwrap() <= Duration::from_secs(60));
//! assert!(!deadline.is_past(Time::now()));
//! assert_eq!(Deadline::never().remaining(Time::now()), None);
//! ```

use crate::Abort;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Nanoseconds on a monotonic clock. Only differences are meaningful.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The monotonic clock of this process.
    pub fn now() -> Time {
        static START: OnceLock<Instant> = OnceLock::new();
        Time(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
    }

    /// A time this many nanoseconds after the clock's start.
    pub fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// Nanoseconds since the clock's start.
    pub fn nanos(self) -> u64 {
        self.0
    }

    /// The time since `earlier`; zero if `earlier` is later.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This time plus `span`, saturating.
    pub fn plus(self, span: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// The point in time at which a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Time);

impl Deadline {
    /// A deadline `span` after `now`.
    pub fn after(now: Time, span: Duration) -> Deadline {
        Deadline(now.plus(span))
    }

    /// A deadline `span` from now, on the clock of the process.
    pub fn within(span: Duration) -> Deadline {
        Deadline::after(Time::now(), span)
    }

    /// A deadline at a time.
    pub fn at(time: Time) -> Deadline {
        Deadline(time)
    }

    /// No deadline, for waits that only an [`Abort`] may end.
    pub fn never() -> Deadline {
        Deadline(Time(u64::MAX))
    }

    /// Whether the deadline has passed at `now`.
    pub fn is_past(self, now: Time) -> bool {
        now >= self.0
    }

    /// The remaining time; `None` for [`Deadline::never`].
    pub fn remaining(self, now: Time) -> Option<Duration> {
        (self.0 != Time(u64::MAX)).then(|| self.0.since(now))
    }

    /// The time of the deadline; `None` for [`Deadline::never`].
    pub fn time(self) -> Option<Time> {
        (self.0 != Time(u64::MAX)).then_some(self.0)
    }

    /// The earlier of two deadlines.
    pub fn earlier(self, other: Deadline) -> Deadline {
        self.min(other)
    }
}

/// The limits of a wait: it ends when the deadline passes or the token fires.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The time at which the wait ends.
    pub deadline: Deadline,
    /// The token that ends the wait earlier.
    pub abort: Abort,
}

impl Limits {
    /// Returns limits of a deadline and a token.
    pub fn new(deadline: Deadline, abort: &Abort) -> Limits {
        Limits { deadline, abort: abort.clone() }
    }

    /// A deadline `span` from now on the clock of the process, with a token of its own.
    pub fn within(span: Duration) -> Limits {
        Limits { deadline: Deadline::within(span), abort: Abort::new() }
    }

    /// The same token with a deadline at most `span` from now.
    pub fn at_most(&self, span: Duration) -> Limits {
        Limits { deadline: self.deadline.min(Deadline::within(span)), abort: self.abort.clone() }
    }
}
