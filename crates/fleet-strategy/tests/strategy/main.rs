//! What a strategy promises, held to recorded facts.

mod check;
mod docs;
mod forms;
mod overview;
mod properties;
mod schema;
mod set;
