//! Whether a worker waits for servers that do not listen yet (`launch_barrier`).

use super::ServerJob;
use fleet_base::{Error, Result};
use fleet_topology::{Env, names};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Returns the value in `a_sync_configs`, else `FLAGS_LAUNCH_BARRIER`, else the default, true.
pub(super) fn waits_for_servers(job: &ServerJob, env: &Env) -> Result<bool> {
    let config = job.strategy.a_sync_configs();
    Ok(match config.launch_barrier {
        Some(given) => given,
        None => env.switch(names::FLAGS_LAUNCH_BARRIER)?.unwrap_or(config.launch_barrier()),
    })
}

/// Timeout for connecting to one server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Returns an error that names the servers that do not listen.
pub(super) fn expect_listening(addresses: &[SocketAddr]) -> Result<()> {
    let is_silent =
        |address: &&SocketAddr| TcpStream::connect_timeout(address, CONNECT_TIMEOUT).is_err();
    let silent: Vec<&SocketAddr> = addresses.iter().filter(is_silent).collect();
    if silent.is_empty() {
        return Ok(());
    }
    Err(Error::unavailable("servers are not listening, and launch_barrier is off")
        .expected(format!("{} servers that are listening before workers start", addresses.len()))
        .got(format!("no listener at {silent:?}"))
        .help("turn on launch_barrier, so that workers wait for servers"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DistributedStrategy;
    use crate::prelude::*;
    use crate::servers::{DistributeTranspiler, DistributeTranspilerConfig, Place, Transpile};
    use crate::strategy::AsyncConfig;
    use std::net::TcpListener;

    fn job(config: AsyncConfig) -> ServerJob {
        let net = Net::new();
        let loss = net.data("x", [-1, 2], DType::F32).fc(1).mean();
        let strategy = DistributedStrategy::new().with_a_sync_configs(config);
        let place = Place { worker: 0, worker_count: 1, server_count: 1, half_async: false };
        ServerJob::minimize(&net, loss, &Sgd::new(0.1).into(), None, &strategy, place).unwrap()
    }

    #[test]
    fn the_strategy_comes_before_the_environment() {
        let flag = |value: &str| Env::from([("FLAGS_LAUNCH_BARRIER", value)]);
        let open = job(AsyncConfig::default());
        assert!(waits_for_servers(&open, &flag("1")).unwrap());
        assert!(!waits_for_servers(&open, &flag("0")).unwrap());
        let given = job(AsyncConfig::default().with_launch_barrier(false));
        assert!(!waits_for_servers(&given, &flag("1")).unwrap());
        for wait_port in [true, false] {
            let config = DistributeTranspilerConfig { wait_port, ..Default::default() };
            let net = Net::new();
            let loss = net.data("x", [-1, 2], DType::F32).fc(1).mean();
            let transpiler = DistributeTranspiler::new(config);
            let call = Transpile::default();
            let made = transpiler.transpile(&net, loss, Sgd::new(0.1), &call).unwrap();
            let job = made.server_job().unwrap();
            assert_eq!(waits_for_servers(job, &flag("1")).unwrap(), wait_port);
        }
    }

    #[test]
    fn servers_that_do_not_listen_are_named() {
        let (one, other) = (TcpListener::bind("127.0.0.1:0"), TcpListener::bind("127.0.0.1:0"));
        let (one, other) = (one.unwrap(), other.unwrap());
        let addresses = [one.local_addr().unwrap(), other.local_addr().unwrap()];
        expect_listening(&addresses).unwrap();
        drop(other);
        let error = expect_listening(&addresses).unwrap_err().to_string();
        assert!(error.contains(&addresses[1].to_string()), "{error}");
        assert!(!error.contains(&addresses[0].to_string()), "{error}");
    }
}
