//! Choice of the all-reduce algorithm over a mesh, by size, number of ranks and type.
//!
//! Messages and bytes that the busiest rank sends, for S bytes over n ranks:
//!
//! | algorithm | consecutive messages | bytes |
//! | --- | --- | --- |
//! | recursive doubling | log2 n | S log2 n |
//! | tree | 2 log2 n | S log2 n |
//! | halving and doubling | 2 log2 n | 2S (n-1)/n |
//! | direct | 2, to n-1 peers at once | 2S (n-1)/n |
//! | ring | 2 (n-1) | 2S (n-1)/n |
//!
//! If n is not a power of two, recursive doubling and halving-doubling send S once more at the
//! start and at the end.

use fleet_tensor::DType;

/// Algorithm of an all-reduce over a mesh. All but `Auto` are for experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Algorithm {
    /// By size, number of ranks and type.
    #[default]
    Auto,
    /// Ranks exchange all values with partners at distances 1, 2, 4 and so on.
    RecursiveDoubling,
    /// Ranks exchange halves of their part with such partners, and then gather the sums.
    HalvingDoubling,
    /// Pieces travel around a ring, twice.
    Ring,
    /// Values travel up a tree to one rank, and their sum travels down.
    Tree,
    /// Every rank sends each peer its slice, folds its own, and sends the result to all.
    Direct,
}

impl Algorithm {
    /// All algorithms.
    pub const ALL: [Algorithm; 6] = [
        Algorithm::Auto,
        Algorithm::RecursiveDoubling,
        Algorithm::HalvingDoubling,
        Algorithm::Ring,
        Algorithm::Tree,
        Algorithm::Direct,
    ];

    pub(crate) fn chosen(self, bytes: usize, ranks: usize, dtype: DType) -> Algorithm {
        if self != Algorithm::Auto {
            return self;
        }
        if bytes <= DOUBLING_BYTES_MAX {
            return Algorithm::RecursiveDoubling;
        }
        // Only this algorithm sends half floats without converting them.
        if matches!(dtype, DType::F16 | DType::BF16) || ranks <= DIRECT_RANKS_MAX {
            return Algorithm::Direct;
        }
        match bytes <= HALVING_BYTES_MAX || ranks.is_power_of_two() {
            true => Algorithm::HalvingDoubling,
            false => Algorithm::Ring,
        }
    }
}

/// Up to this size only the number of messages matters. Over TCP on the loopback the other
/// algorithms overtake it between 16 and 64 KB (`examples/mesh_thresholds.rs`).
const DOUBLING_BYTES_MAX: usize = 16 << 10;
/// Beyond this number a rank would receive from too many peers at once and need too many streams.
const DIRECT_RANKS_MAX: usize = 8;
/// If the number of ranks is not a power of two, halving-doubling sends all data twice more. From
/// this size on that costs more than the messages of a ring.
const HALVING_BYTES_MAX: usize = 256 << 10;
