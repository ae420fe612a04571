//! The MultiSlot text format: a line is a record, and for every slot, in the schema's order, holds
//! a count and that many values, separated by blanks.
//!
//! ```text
//! 3 1926 8 17 1 1          words: 1926 8 17, label: 1
//! ```
//!
//! A count of nought is an error, as it is in the format's other readers: pad instead. More than
//! one blank, tabs, and a carriage return at the end are taken; an empty line is none.

mod number;
mod parse;
mod write;

pub(crate) use number::{float, integer};
pub use parse::MultiSlot;
pub use write::MultiSlotWriter;
