//! Collectives: all ranks of a [`Group`] call a function together, and each gets its part of the
//! result.
//!
//! Ranks on one host use shared memory, and ranks on several hosts a mesh of `fleet-net`. The group
//! chooses the transport and the algorithm. It guarantees:
//!
//! * The result does not depend on timing and is bitwise the same on every rank.
//! * No wait is unbounded: it ends with the data, a deadline, the fired token, or the notice of a
//!   peer's death. The error names the collective, the ranks that it waited for and those that had
//!   joined.
//! * Ranks in different calls get an error that names both sides, not a wrong sum.
//!
//! It knows nothing of programs or of environment variables.
//!
//! ```
//! use fleet_comm::{GroupOptions, ReduceOp, World};
//! // Two ranks as threads; real jobs have a rank a process.
//! let sums: Vec<f32> = std::thread::scope(|scope| {
//!     let ranks: Vec<_> = World::threads(2)
//!         .into_iter()
//!         .map(|world| {
//!             scope.spawn(move || -> fleet_base::Result<f32> {
//!                 let group = world.group("world", &[0, 1], &GroupOptions::default())?;
//!                 let mut gradient = [1.0 + group.rank() as f32; 1000];
//!                 group.all_reduce("fc.w@GRAD", &mut gradient, ReduceOp::Sum)?;
//!                 Ok(gradient[999])
//!             })
//!         })
//!         .collect();
//!     ranks.into_iter().map(|rank| rank.join().unwrap()).collect::<Result<_, _>>()
//! })?;
//! assert_eq!(sums, [3.0, 3.0]);
//! # Ok::<(), fleet_base::Error>(())
//! ```

#![deny(missing_docs)]
// These macros panic if the disk that holds the log is full.
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod backend;
mod buffers;
mod call;
mod group;
mod handle;
mod load;
mod mesh;
mod mpi;
#[cfg(target_os = "linux")]
mod nccl;
mod open;
mod options;
mod recorder;
mod rings;
mod shm;
mod watch;
mod world;

pub use buffers::{Buffers, Bytes, Fused, InPlace, Input};
pub use call::{Kind, LABEL_BYTES_MAX};
pub use fleet_base::ReduceOp;
pub use group::Group;
pub use handle::Handle;
pub use mesh::choose::Algorithm;
pub use mpi::{Mpi, MpiOptions};
#[cfg(target_os = "linux")]
pub use nccl::NcclOptions;
pub use options::{GroupOptions, Hierarchy};
pub use recorder::{RECORDS_MAX, Recorder};
pub use rings::{PARALLEL_RINGS_MAX, Rings};
pub use world::World;
