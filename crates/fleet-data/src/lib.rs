//! Data on its way to training. It knows neither programs nor servers: it fills buffers.
//!
//! Records have named slots ([`Schema`]) and lie in columns ([`Block`]). [`LineReader`] reads them
//! from text, [`MultiSlot`] being the format that data generators write.
//!
//! [`synth`] makes data sets from known models, so that what training reaches can be compared with
//! the best that anything could reach.

mod block;
mod lines;
mod multislot;
mod slot;
pub mod synth;

pub use block::{Block, Column, Values};
pub use lines::{LineError, LineFormat, LineReader, OnError, RecordReader, Skipped};
pub use multislot::{MultiSlot, MultiSlotWriter};
pub use slot::{Schema, Slot, SlotForm, SlotKind};
