//! Machines that meet in etcd: no machine hosts the store, so the job survives the loss of any
//! machine, including the leader.
//!
//! Keys are below `/paddle/JOB/`. All but `leader` belong to the lease of the run, which every
//! member keeps alive: the keys of a job expire soon after its last machine is gone. The key
//! `leader` belongs to a lease that only the leader keeps alive. When it expires, another member
//! becomes the leader and continues from the plan. A plan is written only while its writer holds
//! the key `leader`.
//!
//! | key | written by | value |
//! | --- | --- | --- |
//! | `run` | the first machine | the id of the lease of the run |
//! | `leader` | the leader | its id |
//! | keys of `protocol.rs` | | |

mod access;
mod gateway;
mod messages;
mod store;
#[cfg(test)]
mod tests;
mod tls;

pub use access::EtcdAccess;
pub(crate) use access::open_to_all;
pub use store::{EtcdStore, Lead};
