//! What the role makers promise.

mod catalogue;
mod cloud;
mod endpoints;
