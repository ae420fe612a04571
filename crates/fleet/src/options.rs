//! A strategy's settings for running one program.

use crate::Fleet;
use fleet_base::output::note;
use fleet_exec::ExecOptions;
use fleet_passes::BuildOptions;
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

/// Returns the options of a worker. Only the first worker writes the graph of its program, because
/// the others have the same one.
pub(crate) fn options_of_worker(mut options: ExecOptions, worker: usize) -> ExecOptions {
    if worker != 0 {
        options.build.debug_graphviz_path = None;
    }
    options
}

impl Fleet {
    /// Prints the options in force if the strategy assigns anything; on the first worker only.
    pub(crate) fn print_in_force(&self, strategy: &DistributedStrategy, options: &ExecOptions) {
        if self.is_first_worker() && !strategy.is_empty() {
            note(format_args!("in force: {}", in_force(options)));
        }
    }
}

/// Describes what an executor with these options does. The overview of a strategy shows the
/// documented defaults of fields that are not assigned; these are the values in force.
///
/// ```
/// use fleet::{ExecOptions, exec_options, in_force, strategy::DistributedStrategy};
/// let mut strategy = DistributedStrategy::new();
/// strategy.set("build_strategy.fuse_bn_act_ops", false)?;
/// let text = in_force(&exec_options(&strategy, ExecOptions::threads(2)));
/// let expected = "2 threads, plans are kept, in-place outputs on, gradients added in place on, \
///                 all fusions but fuse_bn_act_ops";
/// assert_eq!(text, expected);
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn in_force(options: &ExecOptions) -> String {
    let BuildOptions { enable_inplace, enable_addto, enable_sequential_execution, .. } =
        options.build;
    let build = &options.build;
    let fusions = [
        ("fuse_elewise_add_act_ops", build.fuse_elewise_add_act_ops),
        ("fuse_bn_act_ops", build.fuse_bn_act_ops),
        ("fuse_bn_add_act_ops", build.fuse_bn_add_act_ops),
        ("fuse_relu_depthwise_conv", build.fuse_relu_depthwise_conv),
        ("fuse_all_optimizer_ops", build.fuse_all_optimizer_ops),
        ("enable_auto_fusion", build.enable_auto_fusion),
    ];
    let off: Vec<&str> = fusions.iter().filter(|(_, on)| !on).map(|(name, _)| *name).collect();
    let fusions = match off.len() {
        0 => "all fusions".to_string(),
        len if len == fusions.len() => "no fusion".to_string(),
        _ => format!("all fusions but {}", off.join(", ")),
    };
    let threads = match options.num_threads {
        0 => "one thread per core".to_string(),
        1 => "1 thread".to_string(),
        count => format!("{count} threads"),
    };
    let plans = match options.num_iteration_per_drop_scope {
        0 => "plans are kept".to_string(),
        count => format!("plans are dropped after {count} runs without use"),
    };
    let on = |on: bool| if on { "on" } else { "off" };
    let mut text = format!(
        "{threads}, {plans}, in-place outputs {}, gradients added in place {}, {fusions}",
        on(enable_inplace),
        on(enable_addto)
    );
    if options.num_iteration_per_run > 1 {
        text += &format!(", {} steps per run", options.num_iteration_per_run);
    }
    if enable_sequential_execution {
        text += ", ops in program order";
    }
    if !build.update_on_arrival {
        text += ", updates after the backward pass";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use fleet_strategy::BuildStrategy;

    #[test]
    fn only_the_first_worker_writes_a_graph() {
        let build = BuildStrategy::default().with_debug_graphviz_path("program.dot");
        let strategy = DistributedStrategy::new().with_build_strategy(build);
        let path = |worker| {
            let options = exec_options(&strategy, ExecOptions::threads(1));
            options_of_worker(options, worker).build.debug_graphviz_path
        };
        assert_eq!((path(0), path(1)), (Some("program.dot".into()), None));
    }

    #[test]
    fn updates_that_wait_are_reported() {
        let text = |deps: bool| {
            let build = BuildStrategy::default().with_enable_backward_optimizer_op_deps(deps);
            let strategy = DistributedStrategy::new().with_build_strategy(build);
            in_force(&exec_options(&strategy, ExecOptions::threads(1)))
        };
        assert!(text(true).ends_with(", updates after the backward pass"), "{}", text(true));
        assert!(text(false).ends_with("all fusions"), "{}", text(false));
    }
}
