//! The trace of the last steps of a training on ranks (`--trace`).

use fleet::{Executor, Fleet, Shares, Trace};
use fleet_base::Result;
use fleet_base::file::{make_folder, write_file};
use std::path::{Path, PathBuf};

/// Time shares of the last steps.
#[derive(Default)]
pub struct Tracing {
    /// Folder of the traces; `None` makes none.
    folder: Option<PathBuf>,
    /// Steps of the training.
    steps: u64,
    /// Sum over the traced steps.
    shares: Shares,
    traced: u64,
    last: Trace,
}

/// Number of traced steps. The first steps plan and warm up; the last ones are representative.
const STEPS_TRACED: u64 = 20;

impl Tracing {
    /// Traces the last of this many steps into a folder, if one is given. Creates the folder, so
    /// that one that cannot be written is an error before the training.
    pub fn new(folder: Option<&Path>, steps: u64) -> Result<Tracing> {
        folder.map_or(Ok(()), make_folder)?;
        Ok(Tracing { folder: folder.map(Path::to_path_buf), steps, ..Tracing::default() })
    }

    /// Takes the trace of a step.
    pub fn after_step(&mut self, step: u64, executor: &Executor) {
        if self.folder.is_some() && step + STEPS_TRACED > self.steps {
            self.last = executor.trace();
            self.shares.add(&self.last.shares());
            self.traced += 1;
        }
    }

    /// Writes the trace of the last step. Returns a line with the mean duration and exposed
    /// communication of the last ones, if there is a folder.
    pub fn finish(&self, fleet: &Fleet) -> Result<Option<String>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let rank = fleet.worker_index();
        let path = folder.join(format!("rank-{rank}.json"));
        write_file(&path, self.last.to_chrome_json(rank).as_bytes())?;
        let all = &self.shares;
        let mean = |us: f64| us / self.traced.max(1) as f64;
        let step = Shares {
            total_us: mean(all.total_us),
            compute_us: mean(all.compute_us),
            other_us: mean(all.other_us),
            exposed_us: mean(all.exposed_us),
        };
        let (count, path) = (self.traced, path.display());
        Ok(Some(format!("rank {rank}, mean of the last {count} steps: {step} ({path})")))
    }
}
