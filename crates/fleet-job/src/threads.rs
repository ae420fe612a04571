//! The number of threads of a command.

use clap::Args;
use fleet::ExecOptions;

/// The flag `--threads`.
#[derive(Args, Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "clap would show it as the description of a command")]
pub struct Threads {
    /// Number of threads, or 0 for the number of cores
    #[arg(
        id = "threads",
        long = "threads",
        value_name = "N",
        default_value_t = 0,
        value_parser = clap::value_parser!(u16).range(..=1024),
    )]
    pub count: u16,
}

impl Threads {
    /// Returns the options of executors with this number of threads.
    pub fn options(self) -> ExecOptions {
        ExecOptions::threads(usize::from(self.count))
    }

    /// Returns the number of threads that are started.
    pub fn started(self) -> usize {
        match self.count {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            count => usize::from(count),
        }
    }
}

impl From<u16> for Threads {
    fn from(count: u16) -> Threads {
        Threads { count }
    }
}
