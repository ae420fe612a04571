//! The role, the rank and the peers of a process in its job.
//!
//! A launcher (`fleetrun`, an operator, a cluster's own) describes the job to each process in
//! environment variables. This crate has the one list of their names ([`VARIABLES`]). It parses an
//! [`Env`], which is an ordinary value, into a [`Topology`] that needs no further checks. It opens
//! no socket, and only [`Env::process`] reads the real environment.
//!
//! ```
//! use fleet_topology::{Env, Topology};
//! let env = Env::from([
//!     ("PADDLE_TRAINER_ID", "1"),
//!     ("PADDLE_TRAINERS_NUM", "2"),
//!     ("PADDLE_TRAINER_ENDPOINTS", "10.0.0.1:6170,10.0.0.2:6170"),
//! ]);
//! let topology = Topology::collective(&env)?;
//! assert_eq!((topology.worker_index(), topology.worker_num()), (1, 2));
//! assert_eq!(topology.hosts().len(), 2);
//! # Ok::<(), fleet_base::Error>(())
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod cloud;
mod communicator;
mod endpoint;
mod env;
mod gloo;
pub mod names;
mod report;
mod secret;
mod topology;
mod user;
mod values;

pub use communicator::{COMMUNICATOR, Setting};
pub use endpoint::Endpoint;
pub use env::Env;
pub use gloo::{Gloo, GlooMembers, Rendezvous};
pub use names::{Reader, VARIABLES, Variable};
pub use report::ProcessReport;
pub use secret::Secret;
pub use topology::{HeterStage, Host, Job, Local, Mode, Role, Topology};
pub use user::UserDefinedRoleMaker;
