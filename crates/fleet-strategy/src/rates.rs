//! Speeds of a job's machines, and the layout that was planned for them, used by
//! [`auto`](crate::auto).

use crate::ranks::Ranks;
use fleet_config::DistributedStrategy;

/// Speeds of a rank. The defaults assume a few CPU cores and ten-gigabit Ethernet.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Arithmetic speed of a large matrix product.
    pub flops_per_second: f64,
    /// Memory bandwidth of a copy, reads and writes together.
    pub memory_bytes_per_second: f64,
    /// Bytes per second that a rank sends in an all-reduce. The default depends on whether the
    /// ranks span several machines.
    pub network_bytes_per_second: Option<f64>,
    /// Samples per rank and step, if the program does not fix the number; [`BATCH_ASSUMED`] if it
    /// is not given.
    pub batch: Option<usize>,
    /// Where the speeds come from.
    pub origin: Origin,
}

/// Samples per rank and step if neither the program nor the user gives a number; typical for images
/// and text.
pub const BATCH_ASSUMED: usize = 32;

/// Origin of the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Typical numbers, not those of these machines.
    Assumed,
    /// Numbers from the user.
    Given,
    /// Numbers measured on these machines.
    Measured,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates {
            flops_per_second: 100e9,
            memory_bytes_per_second: 10e9,
            network_bytes_per_second: None,
            batch: None,
            origin: Origin::Assumed,
        }
    }
}

impl Rates {
    /// Returns the bandwidth between these ranks, in bytes per second.
    pub fn network(&self, ranks: &Ranks) -> f64 {
        const INSIDE_A_MACHINE: f64 = 5e9;
        const TEN_GIGABIT_ETHERNET: f64 = 1.1e9;
        let assumed = if ranks.nodes() > 1 { TEN_GIGABIT_ETHERNET } else { INSIDE_A_MACHINE };
        self.network_bytes_per_second.unwrap_or(assumed)
    }
}

/// The layout that a search over predicted steps has chosen for a job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChosenLayout {
    /// The strategy of the layout; empty for data parallelism.
    pub strategy: DistributedStrategy,
    /// The reasons, a line each.
    pub reasons: Vec<String>,
}

/// The ranks of a job, and what is known of their machines.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    /// The position of this process among the ranks.
    pub ranks: Ranks,
    /// The speeds of the machines.
    pub rates: Rates,
    /// The layout for `auto`. Without one, it chooses data parallelism.
    pub layout: Option<ChosenLayout>,
}

impl From<Ranks> for Cluster {
    fn from(ranks: Ranks) -> Cluster {
        Cluster { ranks, rates: Rates::default(), layout: None }
    }
}
