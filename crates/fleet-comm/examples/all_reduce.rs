//! Fleet's side of the benchmarks `comm/...`: all-reduce of f32 between processes of this machine.
//!
//! ```text
//! cargo run --release -p fleet-comm --example all_reduce -- comm/allreduce_2x1MB
//!     [--steps N] [--warmup N] [--slot-kb N] [--small-kb N] [--spin-us N] [--algorithm NAME]
//!     [--streams N] [--turn-kb N]
//! ```
//!
//! The name selects the transport:
//!
//! * `comm/allreduce_RANKSxSIZE`: shared memory.
//! * `comm/tcp_allreduce_RANKSxSIZE`: TCP on the loopback.
//! * `comm/netns_allreduce_2xSIZE`: the virtual link between the two network namespaces named in
//!   FLEET_BENCH_NAMESPACES, which `cargo xtask bench` creates.
//! * `comm/memory`: no communication; measures the memory bandwidth of two processes together.
//!
//! Prints one JSON line. Calls run back to back; a run consists of many calls if one call is short.
//! A token `tls:...` in FLEET_BENCH_TOKEN runs TCP under TLS.

use fleet_base::{Error, Result};
use fleet_comm::{Algorithm, Bytes, GroupOptions, ReduceOp, World};
use fleet_net::{
    Abort, Limits, Log, StoreClient, StoreServer, TcpFabric, TcpOptions, Token, Vigilance,
};
use fleet_tensor::{Buffer, DType};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let setup = Setup::parse(&args)?;
    match flag(&args, "--worker") {
        Some(rank) => work(&setup, number(&rank)?, &args),
        None => lead(&setup, &args),
    }
}

/// The settings in the name of the benchmark.
struct Setup {
    name: String,
    ranks: usize,
    bytes: usize,
    tcp: bool,
    /// Network namespace of each rank; empty if all ranks share one.
    namespaces: Vec<String>,
    memory: bool,
}

/// Address of the store in the namespace of rank 0, where every port is free.
const STORE: &str = "192.0.2.1:6170";

impl Setup {
    fn parse(args: &[String]) -> Result<Setup> {
        let name = args.first().cloned().unwrap_or_default();
        let wrong = || {
            Error::invalid(format!("unknown benchmark '{name}'"))
                .expected("comm/allreduce_2x1MB, comm/tcp_allreduce_2x1MB or comm/memory")
        };
        if name == "comm/memory" {
            let bytes = 100 << 20;
            let namespaces = Vec::new();
            return Ok(Setup { name, ranks: 2, bytes, tcp: false, namespaces, memory: true });
        }
        let (_, what) = name.split_once("allreduce_").ok_or_else(wrong)?;
        let (ranks, size) = what.split_once('x').ok_or_else(wrong)?;
        let (count, unit) = size.split_at(size.len().saturating_sub(2));
        let unit = match unit {
            "KB" => 1 << 10,
            "MB" => 1 << 20,
            _ => return Err(wrong()),
        };
        let (ranks, bytes) = (number(ranks)?, number(count)? * unit);
        let listed = match name.contains("/netns_") {
            true => std::env::var("FLEET_BENCH_NAMESPACES").unwrap_or_default(),
            false => String::new(),
        };
        let namespaces: Vec<String> = listed.split_whitespace().map(str::to_string).collect();
        if name.contains("/netns_") && namespaces.len() != ranks {
            return Err(Error::invalid(format!("{name} needs a network namespace for each rank"))
                .expected(format!("{ranks} names in FLEET_BENCH_NAMESPACES"))
                .got(format!("'{listed}'"))
                .help("run it with cargo xtask bench, which creates them"));
        }
        let tcp = name.contains("/tcp_") || !namespaces.is_empty();
        Ok(Setup { tcp, name, ranks, bytes, namespaces, memory: false })
    }

    /// Number of calls in one run, enough for the clock's resolution.
    fn calls(&self) -> usize {
        ((4 << 20) / self.bytes).max(1)
    }

    fn default_steps(&self) -> usize {
        ((512 << 20) / (self.bytes * self.calls())).clamp(8, 100)
    }
}

/// Starts the ranks, hosts their store, and waits for them.
fn lead(setup: &Setup, args: &[String]) -> Result<()> {
    let token = match std::env::var("FLEET_BENCH_TOKEN") {
        Ok(text) => Token::from_text(&text)?,
        Err(_) => Token::generate()?,
    };
    let server = StoreServer::bind("127.0.0.1:0", &token, Vigilance::default(), Log::stderr())?;
    let program = std::env::current_exe().map_err(|error| {
        Error::internal(format!("cannot find the path of this program: {error}"))
    })?;
    let store = match setup.namespaces.is_empty() {
        true => server.address().to_string(),
        false => STORE.to_string(),
    };
    let start = |rank: usize| -> Result<Child> {
        let mut command = match setup.namespaces.get(rank) {
            None => Command::new(&program),
            Some(name) => {
                let mut ip = Command::new("ip");
                ip.args(["netns", "exec", name]).arg(&program);
                ip
            }
        };
        command
            .args(args)
            .args(["--worker", &rank.to_string(), "--store", &store])
            .env("FLEET_BENCH_TOKEN", token.to_text())
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| Error::exhausted(format!("cannot start rank {rank}: {error}")))
    };
    let ranks: Vec<Child> = (0..setup.ranks).map(start).collect::<Result<_>>()?;
    for (rank, mut child) in ranks.into_iter().enumerate() {
        let status = child.wait().map_err(|error| Error::internal(error.to_string()))?;
        if !status.success() {
            return Err(Error::internal(format!("rank {rank} failed: {status}")));
        }
    }
    Ok(())
}

fn work(setup: &Setup, rank: usize, args: &[String]) -> Result<()> {
    let limits = Limits::within(Duration::from_secs(60));
    let token = Token::from_text(&std::env::var("FLEET_BENCH_TOKEN").unwrap_or_default())?;
    let address = flag(args, "--store").unwrap_or_default();
    let address: SocketAddr =
        address.parse().map_err(|_| Error::invalid("invalid address of the store"))?;
    // With namespaces, rank 0 hosts the store, because the leader's is not reachable.
    let _server = match rank == 0 && !setup.namespaces.is_empty() {
        true => Some(StoreServer::bind(address, &token, Vigilance::default(), Log::stderr())?),
        false => None,
    };
    let store = StoreClient::connect(address, &token, &limits)?;
    let mut options = TcpOptions::new("bench", rank, setup.ranks).store(address);
    if let Some(us) = flag(args, "--spin-us") {
        options.spin_time = Duration::from_micros(number(&us)? as u64);
    }
    if let Some(streams) = flag(args, "--streams") {
        options.streams = number(&streams)?;
    }
    if let Some(kb) = flag(args, "--turn-kb") {
        options.turn_bytes = number(&kb)? << 10;
    }
    let fabric = TcpFabric::start(&store, &token, options, &limits)?;
    let world = World::new(Arc::new(fabric), Arc::new(store), Abort::new());
    let all: Vec<usize> = (0..setup.ranks).collect();
    let kb = |name: &str| flag(args, name).map(|kb| number(&kb).map(|kb| kb << 10)).transpose();
    let group = world.group(
        "world",
        &all,
        &GroupOptions {
            shared_memory: !setup.tcp,
            slot_bytes: kb("--slot-kb")?,
            small_bytes_max: kb("--small-kb")?,
            spin_time: match flag(args, "--spin-us") {
                None => None,
                Some(us) => Some(Duration::from_micros(number(&us)? as u64)),
            },
            algorithm: match flag(args, "--algorithm") {
                None => Algorithm::Auto,
                Some(name) => Algorithm::ALL
                    .into_iter()
                    .find(|known| format!("{known:?}") == name)
                    .ok_or_else(|| Error::invalid(format!("unknown algorithm {name}")))?,
            },
            ..GroupOptions::default()
        },
    )?;
    // Aligned to cache lines and on huge pages if available, like gradients in training.
    let mut data = Buffer::zeroed(setup.bytes)?;
    let or = |name: &str, default: usize| {
        flag(args, name)
            .map_or(Ok(default), |text| number(&text))
            .map(|n| if n == 0 { default } else { n })
    };
    let (steps, warmup) = (or("--steps", setup.default_steps())?, or("--warmup", 3)?);
    let calls = setup.calls();
    let mut rates = Vec::with_capacity(steps);
    for step in 0..warmup + steps {
        group.barrier("begin")?;
        let begin = Instant::now();
        for _ in 0..calls {
            match setup.memory {
                true => data.as_mut_slice().iter_mut().for_each(|x| *x = x.wrapping_add(1)),
                false => {
                    let data = &mut [data.as_mut_slice()][..];
                    group.all_reduce("x", Bytes(DType::F32, data), ReduceOp::Sum)?;
                }
            }
        }
        if setup.memory {
            group.barrier("end")?;
        }
        if step >= warmup {
            rates.push(begin.elapsed().as_secs_f64() / calls as f64);
        }
    }
    if rank == 0 {
        print(setup, &mut rates);
    }
    group.barrier("end")
}

fn print(setup: &Setup, seconds: &mut [f64]) {
    // Each process reads and writes every byte once.
    let factor = if setup.memory { 2 * setup.ranks } else { 1 };
    let gb = (setup.bytes * factor) as f64 / 1e9;
    seconds.sort_by(f64::total_cmp);
    let rate = |index: usize| gb / seconds[index];
    println!(
        "{{\"bench\": \"{}\", \"unit\": \"GB/s\", \"median\": {:.4}, \"min\": {:.4}, \"max\": \
         {:.4}, \
         \"us\": {:.2}, \"runs\": {}, \"ranks\": {}, \"peak_rss_mb\": {:.0}}}",
        setup.name,
        rate(seconds.len() / 2),
        rate(seconds.len() - 1),
        rate(0),
        seconds[seconds.len() / 2] * 1e6,
        seconds.len(),
        setup.ranks,
        peak_rss_mb()
    );
}

fn flag(args: &[String], name: &str) -> Option<String> {
    let at = args.iter().position(|arg| arg == name)?;
    args.get(at + 1).cloned()
}

fn number(text: &str) -> Result<usize> {
    text.parse().map_err(|_| Error::invalid("not a number").got(text))
}

/// Peak resident memory of this process in MB; NaN on systems other than Linux.
fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kb = line.and_then(|rest| rest.trim().trim_end_matches("kB").trim().parse::<f64>().ok());
    kb.map_or(f64::NAN, |kb| kb / 1024.0)
}
