//! Communication settings of a worker, from the strategy and the environment.

use fleet_base::{Error, Result};
use fleet_ps::CommunicatorOptions;
use fleet_strategy::DistributedStrategy;
use fleet_topology::{Env, Setting};

/// Returns the value in `a_sync_configs`, else that of the environment, else the documented default
/// ([`fleet_topology::COMMUNICATOR`]).
///
/// ```
/// use fleet::servers::communicator_options;
/// use fleet::{DistributedStrategy, strategy::AsyncConfig, topology::Env};
/// let env = Env::from([
///     ("CPU_NUM", "4"),
///     ("FLAGS_communicator_send_wait_times", "7"),
///     ("FLAGS_rpc_send_thread_num", "12"),
/// ]);
/// let config = AsyncConfig::default().with_send_queue_size(32);
/// let strategy = DistributedStrategy::new().with_a_sync_configs(config);
/// let options = communicator_options(&strategy, &env)?;
/// assert_eq!((options.merge_count_max, options.queue_len_max), (4, 32));
/// assert_eq!(options.wait_count_max, 7);
/// assert_eq!(options.thread_count, 12);
/// # Ok::<(), fleet::Error>(())
/// ```
pub fn communicator_options(
    strategy: &DistributedStrategy,
    env: &Env,
) -> Result<CommunicatorOptions> {
    let config = strategy.a_sync_configs();
    let count = |given: Option<i32>, setting: Setting| -> Result<usize> {
        let Some(given) = given else { return setting.value(env) };
        usize::try_from(given)
            .map_err(|_| Error::invalid("negative number in a_sync_configs").got(given))
    };
    let receives_apart = match config.independent_recv_thread {
        Some(given) => given,
        None => Setting::INDEPENDENT_RECV_THREAD.is_on(env)?,
    };
    Ok(CommunicatorOptions {
        merge_count_max: count(config.max_merge_var_num, Setting::MAX_MERGE_VAR_NUM)?,
        queue_len_max: count(config.send_queue_size, Setting::SEND_QUEUE_SIZE)?,
        wait_count_max: count(config.send_wait_times, Setting::SEND_WAIT_TIMES)?,
        thread_count: count(config.thread_pool_size, Setting::THREAD_POOL_SIZE)?,
        receives_apart,
        sends_before_receive: count(
            config.min_send_grad_num_before_recv,
            Setting::MIN_SEND_GRAD_NUM_BEFORE_RECV,
        )?,
        averages: !Setting::IS_SGD_OPTIMIZER.is_on(env)?,
        receive_thread_count: Setting::RPC_GET_THREAD_NUM.value(env)?,
        look_ahead_thread_count: Setting::RPC_PREFETCH_THREAD_NUM.value(env)?,
    })
}

/// Returns the interval in steps between a worker's reports of its steps to the servers
/// (`lr_decay_steps`). A learning-rate schedule follows the steps of all workers.
///
/// ```
/// use fleet::servers::steps_between_reports;
/// use fleet::DistributedStrategy;
/// assert_eq!(steps_between_reports(&DistributedStrategy::new()), 10);
/// ```
pub fn steps_between_reports(strategy: &DistributedStrategy) -> u32 {
    strategy.a_sync_configs().lr_decay_steps().max(1).unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::AsyncConfig;
    use fleet_topology::{COMMUNICATOR, names};

    fn options(config: AsyncConfig, variables: &[(&str, &str)]) -> Result<CommunicatorOptions> {
        let strategy = DistributedStrategy::new().with_a_sync_configs(config);
        communicator_options(&strategy, &variables.iter().copied().collect())
    }

    /// Checks that each variable sets its option, and that the strategy's value takes precedence.
    #[test]
    fn every_variable_sets_its_knob_where_the_strategy_does_not() {
        let usual = options(AsyncConfig::default(), &[]).unwrap();
        let assigned = AsyncConfig::default()
            .with_max_merge_var_num(3)
            .with_send_queue_size(3)
            .with_send_wait_times(3)
            .with_thread_pool_size(3)
            .with_independent_recv_thread(false)
            .with_min_send_grad_num_before_recv(3);
        let kept = options(assigned.clone(), &[]).unwrap();
        for (name, value, want) in [
            (
                "FLAGS_communicator_max_merge_var_num",
                "7",
                CommunicatorOptions { merge_count_max: 7, ..usual },
            ),
            (
                "FLAGS_communicator_send_queue_size",
                "7",
                CommunicatorOptions { queue_len_max: 7, ..usual },
            ),
            (
                "FLAGS_communicator_send_wait_times",
                "0",
                CommunicatorOptions { wait_count_max: 0, ..usual },
            ),
            (
                "FLAGS_communicator_thread_pool_size",
                "7",
                CommunicatorOptions { thread_count: 7, ..usual },
            ),
            ("FLAGS_rpc_send_thread_num", "7", CommunicatorOptions { thread_count: 7, ..usual }),
            (
                "FLAGS_communicator_independent_recv_thread",
                "0",
                CommunicatorOptions { receives_apart: false, ..usual },
            ),
            (
                "FLAGS_communicator_min_send_grad_num_before_recv",
                "7",
                CommunicatorOptions { sends_before_receive: 7, ..usual },
            ),
            (
                "CPU_NUM",
                "7",
                CommunicatorOptions {
                    merge_count_max: 7,
                    queue_len_max: 7,
                    sends_before_receive: 7,
                    ..usual
                },
            ),
        ] {
            assert_eq!(options(AsyncConfig::default(), &[(name, value)]).unwrap(), want, "{name}");
            assert_eq!(options(assigned.clone(), &[(name, value)]).unwrap(), kept, "{name}");
            let error = options(AsyncConfig::default(), &[(name, "many")]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("many"), "{error}");
        }
        // The strategy has no field for these options.
        for (flag, value, want) in [
            (
                "FLAGS_communicator_is_sgd_optimizer",
                "0",
                CommunicatorOptions { averages: true, ..kept },
            ),
            (
                "FLAGS_rpc_get_thread_num",
                "7",
                CommunicatorOptions { receive_thread_count: 7, ..kept },
            ),
            (
                "FLAGS_rpc_prefetch_thread_num",
                "7",
                CommunicatorOptions { look_ahead_thread_count: 7, ..kept },
            ),
        ] {
            assert_eq!(options(assigned.clone(), &[(flag, value)]).unwrap(), want, "{flag}");
            let error = options(assigned.clone(), &[(flag, "many")]).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains("many"), "{error}");
        }
        // The flag takes precedence over the number of cores.
        let both = [("CPU_NUM", "4"), ("FLAGS_communicator_send_queue_size", "9")];
        assert_eq!(options(AsyncConfig::default(), &both).unwrap().queue_len_max, 9);
    }

    /// The documents' defaults hold where neither the strategy nor the environment says otherwise.
    #[test]
    fn the_documented_defaults_are_in_force() {
        let documented = CommunicatorOptions {
            merge_count_max: 1,
            queue_len_max: 1,
            wait_count_max: 5,
            thread_count: 5,
            receives_apart: true,
            sends_before_receive: 1,
            averages: false,
            receive_thread_count: 1,
            look_ahead_thread_count: 1,
        };
        assert_eq!(options(AsyncConfig::default(), &[]).unwrap(), documented);
        let by_cores = CommunicatorOptions {
            merge_count_max: 4,
            queue_len_max: 4,
            sends_before_receive: 4,
            ..documented
        };
        assert_eq!(options(AsyncConfig::default(), &[("CPU_NUM", "4")]).unwrap(), by_cores);
        let deadline = names::find(names::FLAGS_RPC_DEADLINE).unwrap().default;
        let in_force = fleet_ps::RemoteOptions::default().deadline.as_millis();
        assert_eq!(deadline, in_force.to_string());
    }

    /// The guide's table has every setting with the default of the list of variables.
    #[test]
    fn the_guide_lists_the_defaults() {
        let guide = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/parameter-server.md");
        let guide = std::fs::read_to_string(guide).unwrap();
        for setting in COMMUNICATOR {
            let field = setting.field.map(|field| format!("`{field}`")).unwrap_or_default();
            let mut variables = format!("`{}`", setting.variable);
            if let Some(other) = setting.alternative {
                variables += &format!(", `{other}`");
            }
            let row = format!("| {field} | {variables} | {} |", setting.default());
            let row = row.replace("|  |", "| |");
            assert!(guide.contains(&row), "docs/parameter-server.md has no row '{row}'");
        }
    }
}
