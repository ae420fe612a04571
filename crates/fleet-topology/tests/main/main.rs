//! Tests of the role makers.

mod catalogue;
mod cloud;
mod endpoints;
mod roles;
