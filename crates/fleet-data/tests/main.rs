//! What the crate promises, across its modules.

mod data;
