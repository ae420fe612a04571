//! The MultiSlot text format: a line is a record. For every slot, in the schema's order, the line
//! holds a count and that many values, separated by blanks.
//!
//! ```text
//! 3 1926 8 17 1 1          words: 1926 8 17, label: 1
//! ```
//!
//! A count of zero is an error, as in the format's other readers; empty slots must be padded.
//! Several blanks, tabs, and a carriage return at the end are accepted; empty lines are ignored.

mod number;
mod parse;
mod write;

pub(crate) use number::{float, integer, load as load_word, whole_float, whole_integer};
pub use parse::MultiSlot;
pub use write::MultiSlotWriter;
