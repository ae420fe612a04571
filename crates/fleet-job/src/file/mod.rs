//! The text of a job file: TOML to a tree with places, the tree against the schema, and access to
//! its values.

mod read;
mod tree;
mod view;

pub use read::{Text, read, read_text};
pub use tree::{Data, Node};
pub use view::{View, texts};
