//! What the machines of a job can do: numbers by which [`auto`](crate::auto) chooses.

use crate::meta::Ranks;

/// Speeds of a rank. The default is assumed: a few CPU cores, ten-gigabit Ethernet.
#[derive(Clone, Debug, PartialEq)]
pub struct Rates {
    /// Arithmetic, as a large matrix product gets it.
    pub flops_per_second: f64,
    /// Memory, as a copy gets it: read and written together.
    pub memory_bytes_per_second: f64,
    /// What a rank sends in an all-reduce; by default according to where the ranks are.
    pub network_bytes_per_second: Option<f64>,
    /// Samples that a rank works on in a step, where the program leaves that open;
    /// [`BATCH_ASSUMED`] if nobody says.
    pub batch: Option<usize>,
    pub origin: Origin,
}

/// Samples of a rank in a step where neither the program nor the user says: usual for images and
/// text.
pub const BATCH_ASSUMED: usize = 32;

/// Where the numbers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Assumed,
    Given,
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
    /// Bytes a second between these ranks.
    pub fn network(&self, ranks: &Ranks) -> f64 {
        const INSIDE_A_MACHINE: f64 = 5e9;
        const TEN_GIGABIT_ETHERNET: f64 = 1.1e9;
        let assumed = if ranks.nodes() > 1 { TEN_GIGABIT_ETHERNET } else { INSIDE_A_MACHINE };
        self.network_bytes_per_second.unwrap_or(assumed)
    }
}

/// The ranks of a job, and what their machines can do.
#[derive(Clone, Debug, PartialEq)]
pub struct Cluster {
    pub ranks: Ranks,
    pub rates: Rates,
}

impl From<Ranks> for Cluster {
    fn from(ranks: Ranks) -> Cluster {
        Cluster { ranks, rates: Rates::default() }
    }
}
