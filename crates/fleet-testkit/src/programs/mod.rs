//! Random programs (feature `programs`): the generator, the allocator with guard pages, and the
//! child processes that run batches.

pub mod generate;
#[allow(unsafe_code)]
pub mod guard;
pub mod harness;
