//! The text of a job file: TOML to a tree with places, the tree against the schema, and access to
//! its values.

mod read;
mod tree;
mod view;
mod write;

pub use read::{Text, problems_of_value, read, read_text};
pub use tree::{Data, Entry, Node};
pub use view::{View, placed_texts, texts};
pub use write::{inline, set, to_toml};
