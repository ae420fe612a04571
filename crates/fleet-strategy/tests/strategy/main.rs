//! What a strategy promises, held to recorded facts.

mod forms;
mod overview;
mod schema;
mod set;
