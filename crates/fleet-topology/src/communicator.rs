//! The settings of a worker's communicator. Their defaults are those of the list of variables.

use crate::{Env, names};
use fleet_base::Result;

/// A setting of the communicator, which carries a worker's gradients to parameter servers.
///
/// ```
/// use fleet_topology::{Env, Setting};
/// let merged = Setting::MAX_MERGE_VAR_NUM;
/// assert_eq!(merged.value(&Env::new())?, 1);
/// assert_eq!(merged.value(&Env::from([("CPU_NUM", "4")]))?, 4);
/// assert_eq!(merged.default(), "CPU_NUM, else 1");
/// # Ok::<(), fleet_base::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setting {
    /// Its field in `a_sync_configs`; `None` if only the environment has it.
    pub field: Option<&'static str>,
    /// Its variable in the environment.
    pub variable: &'static str,
    /// Variable that counts if the first one is absent.
    pub alternative: Option<&'static str>,
}

/// All settings of the communicator.
pub const COMMUNICATOR: [Setting; 9] = [
    Setting::MAX_MERGE_VAR_NUM,
    Setting::SEND_QUEUE_SIZE,
    Setting::SEND_WAIT_TIMES,
    Setting::THREAD_POOL_SIZE,
    Setting::INDEPENDENT_RECV_THREAD,
    Setting::MIN_SEND_GRAD_NUM_BEFORE_RECV,
    Setting::IS_SGD_OPTIMIZER,
    Setting::RPC_GET_THREAD_NUM,
    Setting::RPC_PREFETCH_THREAD_NUM,
];

impl Setting {
    /// Number of gradients of a variable that are merged before they are sent.
    pub const MAX_MERGE_VAR_NUM: Setting =
        Setting::new("max_merge_var_num", names::FLAGS_COMMUNICATOR_MAX_MERGE_VAR_NUM);
    /// Limit of gradients of a variable that wait to be sent.
    pub const SEND_QUEUE_SIZE: Setting =
        Setting::new("send_queue_size", names::FLAGS_COMMUNICATOR_SEND_QUEUE_SIZE);
    /// Number of times that a sender waits for more gradients to merge.
    pub const SEND_WAIT_TIMES: Setting =
        Setting::new("send_wait_times", names::FLAGS_COMMUNICATOR_SEND_WAIT_TIMES);
    /// Number of sender threads.
    pub const THREAD_POOL_SIZE: Setting = Setting {
        alternative: Some(names::FLAGS_RPC_SEND_THREAD_NUM),
        ..Setting::new("thread_pool_size", names::FLAGS_COMMUNICATOR_THREAD_POOL_SIZE)
    };
    /// Whether parameters are received in a separate thread.
    pub const INDEPENDENT_RECV_THREAD: Setting =
        Setting::new("independent_recv_thread", names::FLAGS_COMMUNICATOR_INDEPENDENT_RECV_THREAD);
    /// Number of gradients sent before parameters are received again.
    pub const MIN_SEND_GRAD_NUM_BEFORE_RECV: Setting = Setting::new(
        "min_send_grad_num_before_recv",
        names::FLAGS_COMMUNICATOR_MIN_SEND_GRAD_NUM_BEFORE_RECV,
    );
    /// Whether the optimizer is plain SGD, so that updates may be merged.
    pub const IS_SGD_OPTIMIZER: Setting =
        Setting::without_field(names::FLAGS_COMMUNICATOR_IS_SGD_OPTIMIZER);
    /// Number of dense tables that are received at a time.
    pub const RPC_GET_THREAD_NUM: Setting = Setting::without_field(names::FLAGS_RPC_GET_THREAD_NUM);
    /// Number of tables whose rows are looked up ahead at a time.
    pub const RPC_PREFETCH_THREAD_NUM: Setting =
        Setting::without_field(names::FLAGS_RPC_PREFETCH_THREAD_NUM);

    const fn new(field: &'static str, variable: &'static str) -> Setting {
        Setting { field: Some(field), ..Setting::without_field(variable) }
    }

    const fn without_field(variable: &'static str) -> Setting {
        Setting { field: None, variable, alternative: None }
    }

    /// The documented default: a number, or `CPU_NUM` and a number for when it is absent.
    pub fn default(&self) -> &'static str {
        names::find(self.variable).map_or("", |variable| variable.default)
    }

    /// The number that the environment gives, or the default.
    pub fn value(&self, env: &Env) -> Result<usize> {
        for name in std::iter::once(self.variable).chain(self.alternative) {
            if let Some(value) = env.number(name)? {
                return Ok(value);
            }
        }
        let cores = env.number(names::CPU_NUM)?;
        let (cores, otherwise) = match self.default().strip_prefix(BY_CPU_NUM) {
            Some(otherwise) => (cores, otherwise),
            None => (None, self.default()),
        };
        Ok(cores.unwrap_or_else(|| otherwise.parse().unwrap_or_default()))
    }

    /// As [`Setting::value`], for a switch.
    pub fn is_on(&self, env: &Env) -> Result<bool> {
        Ok(env.switch(self.variable)?.unwrap_or(self.default() == "1"))
    }
}

/// Start of the default of a setting that follows `CPU_NUM`.
const BY_CPU_NUM: &str = "CPU_NUM, else ";
