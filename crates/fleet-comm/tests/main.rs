//! Collectives: against a naive reference, and when something goes wrong.

mod common;
mod diagnosis;
mod reference;
