//! Machines that meet in etcd: no machine has the store, so that the loss of any, also of the one
//! that leads, is survived.
//!
//! Keys are below `/paddle/JOB/`. All but one belong to the lease of the run, which every member
//! keeps alive: what a job leaves behind is gone soon after its last machine. The key `leader`
//! belongs to a lease that only the leader keeps alive; when it runs out, another member becomes
//! the leader, and goes on from the plan. A plan is written only while its writer leads.
//!
//! | key | written by | value |
//! | --- | --- | --- |
//! | `run` | the first machine | the number of the lease of the run |
//! | `leader` | the leader | its name |
//! | all of `leader.rs` | | |

mod gateway;
mod store;

pub use store::{EtcdStore, Lead};
