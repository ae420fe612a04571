//! Options of the executor.

use fleet_passes::BuildOptions;
use std::path::PathBuf;

/// Options of an [`Executor`](crate::Executor).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecOptions {
    /// Number of threads of the compute lane; 0 means one per core.
    pub num_threads: usize,
    /// Number of runs of the plan per call of `run`, all with the same feeds.
    pub num_iteration_per_run: usize,
    /// Number of runs without use after which a plan is dropped; 0 keeps every plan.
    pub num_iteration_per_drop_scope: usize,
    /// Rewrites that the executor may make before it plans.
    pub build: BuildOptions,
    /// Whether to check every output of every op, and stop at the first NaN or infinity.
    pub check_nan_inf: bool,
    /// Whether to measure the time of each op (see [`Executor::profile`](crate::Executor::profile)
    /// and [`Executor::trace`](crate::Executor::trace)).
    pub profile: bool,
    /// Folder of the file that stores offloaded values (recompute with offload). `None` means the
    /// system's folder for temporary files.
    pub offload_folder: Option<PathBuf>,
    /// Placement of variables in memory.
    pub memory: Memory,
    /// Limit on the bytes of the variables of a run: those in the scope, temporaries, and fed
    /// tensors. A program that needs more is an error before its first step.
    pub memory_limit: Option<u64>,
    /// Device that runs the ops.
    pub device: Device,
}

/// Placement of temporaries and scratch memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Memory {
    /// One block of memory, packed by lifetime.
    #[default]
    Packed,
    /// One allocation per variable. This is slower and takes more memory, but lets AddressSanitizer
    /// and guard pages detect every access outside a variable.
    Separate,
}

/// The device for which a plan is made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Device {
    /// The cores of this machine.
    #[default]
    Cpu,
    /// Plans and counts costs, but holds no memory and computes nothing.
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
            memory_limit: None,
            device: Device::Cpu,
        }
    }
}

impl ExecOptions {
    /// Returns the default options with a number of threads.
    pub fn threads(num_threads: usize) -> ExecOptions {
        ExecOptions { num_threads, ..ExecOptions::default() }
    }

    /// Returns the rewrites that an executor with these options makes. It updates parameters on
    /// arrival only with one thread, where the ring's lane is as fast as the compute lane. NaN
    /// checks disable that too, because they must see gradients before the update.
    pub fn build_options(&self) -> BuildOptions {
        let build = self.build.clone();
        let is_useful = self.thread_count() == 1 && !self.check_nan_inf;
        let update_on_arrival =
            build.update_on_arrival && is_useful && !build.enable_sequential_execution;
        BuildOptions { update_on_arrival, ..build }
    }

    pub(crate) fn thread_count(&self) -> usize {
        match self.num_threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            given => given,
        }
    }
}
