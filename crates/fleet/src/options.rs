//! A strategy's settings for running one program.

use fleet_exec::ExecOptions;
use fleet_strategy::{DistributedStrategy, build_options};

/// Returns `base` with the values that `build_strategy` and `execution_strategy` of the strategy
/// assign.
///
/// ```
/// use fleet::{ExecOptions, exec_options, strategy::{DistributedStrategy, ExecutionStrategy}};
/// let threads = ExecutionStrategy::default().with_num_threads(2);
/// let strategy = DistributedStrategy::new().with_execution_strategy(threads);
/// assert_eq!(exec_options(&strategy, ExecOptions::default()), ExecOptions::threads(2));
/// ```
pub fn exec_options(strategy: &DistributedStrategy, base: ExecOptions) -> ExecOptions {
    let execution = strategy.execution_strategy();
    // The strategy's check rejects negative numbers.
    let count = |value: Option<i32>, base: usize| {
        value.and_then(|value| usize::try_from(value).ok()).unwrap_or(base)
    };
    ExecOptions {
        num_threads: count(execution.num_threads, base.num_threads),
        num_iteration_per_run: count(execution.num_iteration_per_run, base.num_iteration_per_run),
        num_iteration_per_drop_scope: count(
            execution.num_iteration_per_drop_scope,
            base.num_iteration_per_drop_scope,
        ),
        build: build_options(strategy.build_strategy(), base.build.clone()),
        ..base
    }
}
