//! Time, deadlines, and what bounds every wait.
//!
//! A deadline is a point on a clock. Real transports use the monotonic clock of the process
//! ([`Time::now`]); the simulator has a clock of its own, so code that must run in both asks its
//! mesh ([`crate::Mesh::now`], [`crate::Mesh::limits`]).
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

/// Nanoseconds on some monotonic clock; only differences mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(u64);

impl Time {
    /// The monotonic clock of this process.
    pub fn now() -> Time {
        static START: OnceLock<Instant> = OnceLock::new();
        Time(START.get_or_init(Instant::now).elapsed().as_nanos() as u64)
    }

    pub fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    pub fn nanos(self) -> u64 {
        self.0
    }

    /// How long ago `earlier` was; zero when it was not.
    pub fn since(self, earlier: Time) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// This time and `span` more, or the end of time.
    pub fn plus(self, span: Duration) -> Time {
        Time(self.0.saturating_add(u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// When to stop waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline(Time);

impl Deadline {
    pub fn after(now: Time, span: Duration) -> Deadline {
        Deadline(now.plus(span))
    }

    /// `span` from now, on the clock of the process.
    pub fn within(span: Duration) -> Deadline {
        Deadline::after(Time::now(), span)
    }

    pub fn at(time: Time) -> Deadline {
        Deadline(time)
    }

    /// For waits that only an [`Abort`] may end.
    pub fn never() -> Deadline {
        Deadline(Time(u64::MAX))
    }

    pub fn is_past(self, now: Time) -> bool {
        now >= self.0
    }

    /// What is left, `None` for [`Deadline::never`].
    pub fn remaining(self, now: Time) -> Option<Duration> {
        (self.0 != Time(u64::MAX)).then(|| self.0.since(now))
    }

    pub fn time(self) -> Option<Time> {
        (self.0 != Time(u64::MAX)).then_some(self.0)
    }

    pub fn earlier(self, other: Deadline) -> Deadline {
        self.min(other)
    }
}

/// What ends a wait: the deadline passes, or the token fires.
#[derive(Clone, Debug)]
pub struct Limits {
    pub deadline: Deadline,
    pub abort: Abort,
}

impl Limits {
    pub fn new(deadline: Deadline, abort: &Abort) -> Limits {
        Limits { deadline, abort: abort.clone() }
    }

    /// `span` from now on the clock of the process, with a token that nobody else holds.
    pub fn within(span: Duration) -> Limits {
        Limits { deadline: Deadline::within(span), abort: Abort::new() }
    }

    /// The same token, and a deadline not later than `span` from now.
    pub fn at_most(&self, span: Duration) -> Limits {
        Limits { deadline: self.deadline.min(Deadline::within(span)), abort: self.abort.clone() }
    }
}
