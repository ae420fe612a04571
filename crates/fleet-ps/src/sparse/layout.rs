//! Layout of a row. All numbers are 32 bits wide.

use crate::init::{self, RowSeed};
use crate::row_rule::{init_state, state_len};
use crate::{Accessor, SparseConfig};

/// Offsets in a row of floats.
pub(crate) struct Layout {
    /// Floats per row.
    pub stride: usize,
    pub kind: Kind,
}

pub(crate) enum Kind {
    /// weights, state.
    Plain,
    /// show, click, delta score, slot, weight, its state, embedding, its state.
    Ctr { embedx: usize },
}

pub(crate) const SHOW: usize = 0;
pub(crate) const CLICK: usize = 1;
pub(crate) const DELTA: usize = 2;
/// The slot number, as bits. The highest bit says whether the embedding was made.
pub(crate) const SLOT: usize = 3;
pub(crate) const EMBED: usize = 4;
const HAS_EMBEDX: u32 = 1 << 31;
/// The largest slot number.
pub(crate) const SLOT_MAX: u32 = HAS_EMBEDX - 1;

impl Layout {
    pub fn new(config: &SparseConfig) -> Layout {
        let rest = config.dim + state_len(&config.rule, config.dim);
        match &config.accessor {
            Accessor::Plain => Layout { stride: rest, kind: Kind::Plain },
            Accessor::Ctr(ctr) => {
                let embedx = EMBED + 1 + state_len(&ctr.embed_rule, 1);
                Layout { stride: embedx + rest, kind: Kind::Ctr { embedx } }
            }
        }
    }

    /// Writes a row as it is before its first push.
    pub fn init(&self, config: &SparseConfig, seed: RowSeed, row: &mut [f32]) {
        match (&self.kind, &config.accessor) {
            (Kind::Ctr { embedx }, Accessor::Ctr(ctr)) => {
                row[..EMBED].fill(0.0);
                // Column 0 is the weight; the embedding follows.
                init::fill(ctr.embed_initializer, seed, 0, &mut row[EMBED..EMBED + 1]);
                init_state(&ctr.embed_rule, 1, &mut row[EMBED + 1..*embedx]);
                row[*embedx..].fill(0.0);
            }
            _ => {
                let (weights, state) = row.split_at_mut(config.dim);
                init::fill(config.initializer, seed, 0, weights);
                init_state(&config.rule, config.dim, state);
            }
        }
    }
}

/// Writes the embedding part of a click row, `[weights | state]`, before its first push.
pub(crate) fn init_embedx(config: &SparseConfig, seed: RowSeed, part: &mut [f32]) {
    let (weights, state) = part.split_at_mut(config.dim);
    init::fill(config.initializer, seed, 1, weights);
    init_state(&config.rule, config.dim, state);
}

pub(crate) fn has_embedx(slot: f32) -> bool {
    slot.to_bits() & HAS_EMBEDX != 0
}

pub(crate) fn slot_number(slot: f32) -> u32 {
    slot.to_bits() & SLOT_MAX
}

pub(crate) fn slot_word(number: u32, has_embedx: bool) -> f32 {
    f32::from_bits(number & SLOT_MAX | if has_embedx { HAS_EMBEDX } else { 0 })
}
