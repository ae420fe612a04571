//! What a strategy promises, held to recorded facts.

mod schema;
