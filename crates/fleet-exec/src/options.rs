//! How to run.

use fleet_passes::BuildOptions;
use std::path::PathBuf;

/// Options of an [`Executor`](crate::Executor).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOptions {
    /// Threads of the compute lane; 0 means as many as the machine has cores.
    pub num_threads: usize,
    /// Runs of the plan per call of `run`, all with the same feeds (`num_iteration_per_run`).
    pub num_iteration_per_run: usize,
    /// A plan that was not used for so many runs is dropped, with what it had planned
    /// (`num_iteration_per_drop_scope`); 0 keeps every plan.
    pub num_iteration_per_drop_scope: usize,
    /// Which rewrites the executor may make before it plans.
    pub build: BuildOptions,
    /// Look at every output of every op and stop at the first NaN or infinity.
    pub check_nan_inf: bool,
    /// Measure the time of each op (see [`Executor::profile`](crate::Executor::profile) and
    /// [`Executor::trace`](crate::Executor::trace)).
    pub profile: bool,
    /// Where the file is that holds what leaves the arena (recompute with offload); none is the
    /// system's folder of temporary files.
    pub offload_folder: Option<PathBuf>,
    pub memory: Memory,
    pub device: Device,
}

/// Where temporaries and scratch live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// In one block of memory, packed by lifetime.
    #[default]
    Packed,
    /// Each in an allocation of its own. Slower and larger; AddressSanitizer and guard pages then
    /// see every access outside of a variable.
    Separate,
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    #[default]
    Cpu,
    /// Plans and counts costs, holds no memory, computes nothing.
    Null,
}

impl Default for ExecOptions {
    fn default() -> Self {
        ExecOptions {
            num_threads: 0,
            num_iteration_per_run: 1,
            num_iteration_per_drop_scope: 0,
            build: BuildOptions::default(),
            check_nan_inf: false,
            profile: false,
            offload_folder: None,
            memory: Memory::Packed,
            device: Device::Cpu,
        }
    }
}

impl ExecOptions {
    /// The default with a number of threads.
    pub fn threads(num_threads: usize) -> ExecOptions {
        ExecOptions { num_threads, ..ExecOptions::default() }
    }

    pub(crate) fn thread_count(&self) -> usize {
        match self.num_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            given => given,
        }
    }
}
