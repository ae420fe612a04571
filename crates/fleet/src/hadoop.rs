//! The Hadoop clients that a strategy and the environment describe.

use fleet_base::fs::CommandFs;
use fleet_strategy::DistributedStrategy;
use fleet_topology::Env;

/// Program of the client, unless the strategy names another one.
const PROGRAM: &str = "hadoop";
/// Folder for temporary folders without `TMPDIR`.
const TEMPORARY: &str = "/tmp";

/// Returns the client of `fs_client_param`. What it leaves open comes from the client's own files.
pub(crate) fn of_strategy(strategy: &DistributedStrategy) -> CommandFs {
    let client = strategy.fs_client_param();
    let program = Some(client.hadoop_bin()).filter(|program| !program.is_empty());
    let mut fs = CommandFs::new(program.unwrap_or(PROGRAM));
    if !client.uri().is_empty() {
        fs = fs.uri(client.uri());
    }
    if !client.user().is_empty() || !client.passwd().is_empty() {
        fs = fs.user(client.user(), client.passwd());
    }
    fs
}

/// Returns the client of a rendezvous. `ugi` is `user,password`.
pub(crate) fn of_rendezvous(uri: &str, ugi: &str) -> CommandFs {
    let (user, password) = ugi.split_once(',').unwrap_or((ugi, ""));
    CommandFs::new(PROGRAM).uri(uri).user(user, password)
}

/// Returns the folder for the temporary folders of copies.
pub(crate) fn temporary(env: Option<&Env>) -> &str {
    env.and_then(|env| env.text("TMPDIR")).unwrap_or(TEMPORARY)
}
