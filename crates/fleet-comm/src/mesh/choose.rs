//! Which all-reduce over a mesh, by size, ranks and type.
//!
//! Messages and bytes that the busiest rank sends, for S bytes over n ranks:
//!
//! | algorithm | messages in a row | bytes |
//! | --- | --- | --- |
//! | recursive doubling | log2 n | S log2 n |
//! | tree | 2 log2 n | S log2 n |
//! | halving and doubling | 2 log2 n | 2S (n-1)/n |
//! | direct | 2, to n-1 peers at once | 2S (n-1)/n |
//! | ring | 2 (n-1) | 2S (n-1)/n |
//!
//! Where n is not a power of two, the first and the third send S once more on the way in and out.

use fleet_tensor::DType;

/// How an all-reduce over a mesh goes. Everything but `Auto` is for experiments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Algorithm {
    #[default]
    Auto,
    RecursiveDoubling,
    HalvingDoubling,
    Ring,
    Tree,
    /// Everybody sends each its slice, folds in the order of ranks, and sends the result to all.
    Direct,
}

impl Algorithm {
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
        // Half floats travel as they are only here.
        if matches!(dtype, DType::F16 | DType::BF16) || ranks <= DIRECT_RANKS_MAX {
            return Algorithm::Direct;
        }
        match bytes <= HALVING_BYTES_MAX || ranks.is_power_of_two() {
            true => Algorithm::HalvingDoubling,
            false => Algorithm::Ring,
        }
    }
}

/// Up to here the number of messages is all that counts: over TCP on the loopback the others
/// overtake it between 16 and 64 KB (`examples/mesh_thresholds.rs`).
const DOUBLING_BYTES_MAX: usize = 16 << 10;
/// Beyond this one rank would hear from too many at once, and keep too many streams going.
const DIRECT_RANKS_MAX: usize = 8;
/// With a number of ranks that is no power of two, halving sends everything twice more; from here
/// on that costs more than the ring's messages.
const HALVING_BYTES_MAX: usize = 256 << 10;
