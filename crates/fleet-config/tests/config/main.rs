//! Tests of strategies, compared with recorded facts.

mod docs;
mod forms;
mod overview;
mod properties;
mod schema;
mod set;
