//! Half-async: a worker's step ends when its own gradients are applied and it has the resulting
//! parameters. It does not wait for other workers.

use super::{Core, Mode};
use fleet_base::Result;

pub(super) struct HalfAsync;

impl Mode for HalfAsync {
    fn sent(&self, core: &Core) -> Result<()> {
        core.count_step()?;
        core.outbox.drain()
    }

    fn dense(&self, core: &Core, table: u32, parts: &mut [&mut [f32]]) -> Result<u64> {
        core.pull_dense(table, parts)?;
        Ok(0)
    }

    fn received(&self, _: &Core) -> Result<()> {
        Ok(())
    }

    fn looks_ahead(&self) -> bool {
        false
    }
}
