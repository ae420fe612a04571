//! Communication settings of a worker, from the strategy and the environment.

use fleet_base::{Error, Result};
use fleet_ps::CommunicatorOptions;
use fleet_strategy::DistributedStrategy;
use fleet_topology::{Env, names};

/// Returns the value in `a_sync_configs`, else the `FLAGS_communicator_*` variable, else `CPU_NUM`
/// for the settings documented so, else the documented default.
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
    let cores = env.number::<usize>(names::CPU_NUM)?;
    let pick = |given: Option<i32>, flag: &str, by_cores: bool, default: i32| -> Result<usize> {
        if let Some(given) = given {
            return usize::try_from(given)
                .map_err(|_| Error::invalid("negative number in a_sync_configs").got(given));
        }
        let flag = env.number::<usize>(flag)?;
        let cores = cores.filter(|_| by_cores);
        Ok(flag.or(cores).unwrap_or(default.max(0) as usize))
    };
    let receives_apart = match config.independent_recv_thread {
        Some(given) => given,
        None => {
            let flag = env.switch(names::FLAGS_COMMUNICATOR_INDEPENDENT_RECV_THREAD)?;
            flag.unwrap_or(config.independent_recv_thread())
        }
    };
    Ok(CommunicatorOptions {
        merge_count_max: pick(
            config.max_merge_var_num,
            names::FLAGS_COMMUNICATOR_MAX_MERGE_VAR_NUM,
            true,
            config.max_merge_var_num(),
        )?,
        queue_len_max: pick(
            config.send_queue_size,
            names::FLAGS_COMMUNICATOR_SEND_QUEUE_SIZE,
            true,
            config.send_queue_size(),
        )?,
        wait_count_max: pick(
            config.send_wait_times,
            names::FLAGS_COMMUNICATOR_SEND_WAIT_TIMES,
            false,
            config.send_wait_times(),
        )?,
        thread_count: pick(
            config.thread_pool_size,
            match env.text(names::FLAGS_COMMUNICATOR_THREAD_POOL_SIZE) {
                Some(_) => names::FLAGS_COMMUNICATOR_THREAD_POOL_SIZE,
                None => names::FLAGS_RPC_SEND_THREAD_NUM,
            },
            false,
            config.thread_pool_size(),
        )?,
        receives_apart,
        sends_before_receive: pick(
            config.min_send_grad_num_before_recv,
            names::FLAGS_COMMUNICATOR_MIN_SEND_GRAD_NUM_BEFORE_RECV,
            true,
            config.min_send_grad_num_before_recv(),
        )?,
        averages: !env.switch(names::FLAGS_COMMUNICATOR_IS_SGD_OPTIMIZER)?.unwrap_or(true),
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

    fn options(config: AsyncConfig, variables: &[(&str, &str)]) -> Result<CommunicatorOptions> {
        let strategy = DistributedStrategy::new().with_a_sync_configs(config);
        communicator_options(&strategy, &variables.iter().copied().collect())
    }

    /// Checks that each variable sets its option, and that the strategy's value takes precedence.
    #[test]
    fn every_variable_sets_its_knob_where_the_strategy_does_not() {
        let usual = CommunicatorOptions::default();
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
                "1",
                CommunicatorOptions { receives_apart: true, ..usual },
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
        // The strategy has no field for this option.
        let flag = ("FLAGS_communicator_is_sgd_optimizer", "0");
        let averages = CommunicatorOptions { averages: true, ..kept };
        assert_eq!(options(assigned, &[flag]).unwrap(), averages);
        // The flag takes precedence over the number of cores.
        let both = [("CPU_NUM", "4"), ("FLAGS_communicator_send_queue_size", "9")];
        assert_eq!(options(AsyncConfig::default(), &both).unwrap().queue_len_max, 9);
    }
}
