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
}
