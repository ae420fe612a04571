//! The wire layer: how the processes of one job find each other, prove who they are, move bytes,
//! and learn that one of them is gone.
//!
//! * [`Mesh`]: ordered, reliable bytes between the members of a group, with one primitive,
//!   [`Mesh::transfer`]. A [`Fabric`] opens meshes: [`memory`] between threads,
//!   [`sim`] in a simulated network under a replayable seed.
//! * [`Store`]: the key-value store of the rendezvous.
//! * [`Abort`] and [`Deadline`]: nothing here waits without both.
//!
//! It knows nothing of tensors, of programs or of environment variables: what it needs comes in as
//! arguments.

// They panic where the disk of a log is full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

pub mod abort;
pub mod calls;
mod credential;
mod descriptors;
mod frame;
mod gate;
mod handshake;
pub mod host;
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
#[cfg(feature = "tls")]
mod tls;
mod token;
mod wire;

pub use abort::{Abort, Hook};
pub use credential::{CREDENTIAL_SPAN_MAX, Verifier};
pub use gate::{HANDSHAKE_SPAN, PENDING_MAX};
pub use handshake::PROTOCOL_VERSION;
pub use log::Log;
pub use membership::Membership;
pub use mesh::{Fabric, Member, Mesh, Transfer};
pub use registry::{Cause, Notice, Vigilance};
pub use socket::{resolve, tcp_socket};
pub use store::{Change, Changes, MemoryStore, Store, StoreClient, StoreServer, Swap};
pub use tcp::{STREAMS_MAX, TcpFabric, TcpOptions};
pub use time::{Deadline, Limits, Time};
pub use token::{Token, random_number};
