//! Runs the executor's passes over a program.

use crate::manager::{Observer, PassManager};
use crate::options::BuildOptions;
use crate::table::PASSES;
use fleet_base::Result;
use fleet_ir::{Program, VarId};
use fleet_ops::Registry;

/// Returns the program that the executor plans: `program` rewritten for speed by [`PASSES`],
/// without ops that neither `keep` nor the scope needs.
pub fn optimize(
    program: &Program,
    registry: &Registry,
    keep: &[VarId],
    options: &BuildOptions,
) -> Result<Program> {
    PassManager::new(registry).run_all(PASSES, program, keep, options)
}

/// Like [`optimize`]; `observer` sees the program before and after each pass.
pub fn optimize_observed(
    program: &Program,
    registry: &Registry,
    keep: &[VarId],
    options: &BuildOptions,
    observer: &mut dyn Observer,
) -> Result<Program> {
    PassManager::observed(registry, observer).run_all(PASSES, program, keep, options)
}
