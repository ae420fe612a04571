//! Facts about an op in a job of several ranks: what it sends, and how its state passes to another
//! number of ranks.

use std::fmt;
use std::str::FromStr;

/// Communication that one rank sends.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traffic {
    /// Number of collective calls.
    pub calls: usize,
    /// Number of messages.
    pub messages: f64,
    /// Bytes in all messages.
    pub bytes: f64,
}

impl Traffic {
    /// Sums `bytes` over `ranks`, around a ring.
    pub fn all_reduce(bytes: f64, ranks: f64) -> Traffic {
        let others = ranks - 1.0;
        Traffic { calls: 1, messages: 2.0 * others, bytes: 2.0 * bytes * others / ranks }
    }

    /// Sends every other rank its share of `bytes`.
    pub fn shares(bytes: f64, ranks: f64) -> Traffic {
        let others = ranks - 1.0;
        Traffic { calls: 1, messages: others, bytes: bytes * others / ranks }
    }

    /// Sends all of `bytes` to every other rank.
    pub fn copies(bytes: f64, ranks: f64) -> Traffic {
        let others = ranks - 1.0;
        Traffic { calls: 1, messages: others, bytes: bytes * others }
    }

    /// Adds the communication of another op.
    pub fn add(&mut self, other: Traffic) {
        self.calls += other.calls;
        self.messages += other.messages;
        self.bytes += other.bytes;
    }
}

/// How m new ranks get their values from those of n previous ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Each rank gets the mean: parameters, momenta, statistics, and values that will be averaged.
    Mean,
    /// Each rank gets its share of the sum: counts and sums over ranks.
    Share,
    /// Each rank gets rank 0's value: counters and scales that control the rank itself, and values
    /// of which nothing else is known.
    First,
    /// One rank has the value, and with another division of the state another one gets it.
    Owner,
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Spread::Mean => "mean",
            Spread::Share => "share",
            Spread::First => "first",
            Spread::Owner => "owner",
        })
    }
}

impl FromStr for Spread {
    type Err = ();

    fn from_str(text: &str) -> Result<Spread, ()> {
        match text {
            "mean" => Ok(Spread::Mean),
            "share" => Ok(Spread::Share),
            "first" => Ok(Spread::First),
            "owner" => Ok(Spread::Owner),
            _ => Err(()),
        }
    }
}
