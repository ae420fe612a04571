//! The launcher's decisions before anything starts: flags, modes, environments, tables. Tests with
//! real processes are in `crates/fleet-cli/tests/fleetrun`.

mod environments;
mod modes;
mod ports;
mod tables;

use fleet_base::Result;
use fleet_launch::cluster::{Cluster, Process, Run};
use fleet_launch::flags::Given;
use fleet_launch::machine::Machine;
use fleet_launch::options::Options;
use fleet_launch::ports::Ports;
use fleet_net::Token;
use fleet_topology::{Endpoint, Env};
use std::time::Duration;

/// Ports that count up, without reserving any.
struct Counted {
    start: Option<u16>,
    next: u16,
}

impl Ports for Counted {
    fn next(&mut self, _: &str) -> Result<u16> {
        self.next += 1;
        Ok(self.next - 1)
    }

    fn given(&mut self, _: &str, _: u16) -> Result<()> {
        Ok(())
    }

    fn start(&self) -> Option<u16> {
        self.start
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_string).collect()
}

fn options(line: &str, env: &Env) -> Result<Options> {
    let given = Given::parse(words(line)).unwrap_or_else(|error| panic!("{line}: {error}"));
    Options::new(&given, env)
}

fn machine() -> Machine {
    Machine {
        hostname: "here".into(),
        addresses: vec!["127.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap()],
        gpu_count: 0,
        core_count: 6,
    }
}

fn run() -> Run {
    Run {
        job_id: "default".into(),
        pod: "<pod>".into(),
        mark: "<mark>".into(),
        log_dir: "<tmp>".into(),
        scratch: "<tmp>".into(),
        save_root: None,
        master: None,
        store: Some(Endpoint::new("127.0.0.1", 52224)),
        token: Some(Token::from_text("0123456789abcdef").unwrap()),
        restarts: 0,
        progress: None,
        silence_timeout: Duration::from_secs(30),
        memory: None,
    }
}

fn cluster(line: &str, env: &Env, free: u16) -> Result<Cluster> {
    cluster_on(line, env, free, &machine())
}

fn cluster_on(line: &str, env: &Env, free: u16, machine: &Machine) -> Result<Cluster> {
    let options = options(line, env)?;
    let mut ports = Counted { start: options.start_port, next: options.start_port.unwrap_or(free) };
    Cluster::described(&options, env, machine, &mut ports)
}

fn processes(line: &str, env: &Env, free: u16) -> Vec<Process> {
    let made = cluster(line, env, free).unwrap_or_else(|error| panic!("{line}: {error}"));
    made.processes(&run(), env)
}
