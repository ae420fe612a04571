//! Tests of the wire layer: one module a subject.

mod abort;
mod mesh;
mod sim;
mod store;
