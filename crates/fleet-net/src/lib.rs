//! The wire layer. The processes of a job find each other, authenticate, move bytes, and detect
//! failures of peers.
//!
//! * [`Mesh`]: ordered, reliable bytes between the members of a group, with one primitive,
//!   [`Mesh::transfer`]. A [`Fabric`] opens meshes: [`TcpFabric`] over sockets, [`memory`] between
//!   threads, [`sim`] in a simulated network under a replayable seed.
//! * [`Store`]: the key-value store of the rendezvous.
//! * [`Abort`] and [`Deadline`]: limits of every wait in this crate.
//!
//! It knows nothing of tensors, programs or environment variables. It gets everything it needs as
//! arguments.

#![deny(missing_docs)]
#![forbid(unsafe_code)]
// These macros panic if the disk that holds the log is full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod abort;
pub mod calls;
mod credential;
mod descriptors;
mod frame;
mod handshake;
pub mod host;
mod listener;
mod log;
mod membership;
pub mod memory;
pub mod mesh;
pub mod probe;
mod registry;
pub mod sim;
mod socket;
pub mod store;
mod stream;
mod tcp;
pub mod time;
mod tls;
mod token;
mod wire;

pub use abort::{Abort, Hook};
pub use credential::{CREDENTIAL_VALIDITY_MAX, Verifier};
pub use handshake::PROTOCOL_VERSION;
pub use listener::{HANDSHAKE_SPAN, PENDING_MAX};
pub use log::Log;
pub use membership::Membership;
pub use mesh::{Fabric, Member, Mesh, Transfer};
pub use registry::{FailureCause, FailureNotice, Vigilance};
pub use socket::{resolve, tcp_socket};
pub use store::{Change, Changes, MemoryStore, Store, StoreClient, StoreServer, Swap};
pub use tcp::{STREAMS_MAX, TcpFabric, TcpOptions};
pub use time::{Deadline, Limits, Time};
pub use token::{Token, random_number};
