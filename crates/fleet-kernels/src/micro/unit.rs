//! The hardware units that compute blocks of bf16 products: [`amx`], and the dot products of
//! AVX-512 ([`dot`]).

use super::bf16::Block;
use super::{amx, dot};
use std::sync::OnceLock;

/// The hardware units that compute blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Tiles,
    Dot,
}

impl Unit {
    /// Returns the best unit, if there is any. Detected once.
    pub fn best() -> Option<Unit> {
        static BEST: OnceLock<Option<Unit>> = OnceLock::new();
        *BEST.get_or_init(|| Unit::available().next())
    }

    /// Iterates over the units that this process may use, best first.
    pub fn available() -> impl Iterator<Item = Unit> {
        let tiles = amx::is_available().then_some(Unit::Tiles);
        let dot = dot::is_available().then_some(Unit::Dot);
        tiles.into_iter().chain(dot)
    }
}

/// A unit, configured on this thread until this is dropped.
pub(crate) enum ConfiguredUnit {
    Tiles(amx::Tiles),
    Dot,
}

impl ConfiguredUnit {
    /// # Safety
    /// The unit is one of [`Unit::available`].
    pub unsafe fn new(unit: Unit) -> ConfiguredUnit {
        match unit {
            // SAFETY: promised by the caller.
            Unit::Tiles => ConfiguredUnit::Tiles(unsafe { amx::Tiles::new() }),
            Unit::Dot => ConfiguredUnit::Dot,
        }
    }

    /// Sums one 32 x 32 block.
    ///
    /// # Safety
    /// All addresses in `block` are valid as described at its fields.
    pub unsafe fn run(&self, block: &Block) {
        match self {
            // SAFETY: promised by the caller; `self` proves that the unit is available.
            ConfiguredUnit::Tiles(tiles) => unsafe { tiles.run(block) },
            // SAFETY: as above.
            ConfiguredUnit::Dot => unsafe { dot::run(block) },
        }
    }
}
