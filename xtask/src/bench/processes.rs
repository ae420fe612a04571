//! Starts one benchmark, of Fleet or of a peer, and reads its result.

use super::benches::{Bench, PeerScript};
use super::is_comm;
use crate::python;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// Timeout of one result of a peer: some compile their step first.
const PEER_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// An all-reduce of 100 MB between four ranks takes some 10 s on two cores, half of it for loading
/// torch.
const COMM_TIMEOUT: Duration = Duration::from_secs(2 * 60);
/// Grace period between the signals that end a peer.
const END_GRACE: Duration = Duration::from_secs(5);

/// The build to run, and where.
pub struct Place<'a> {
    /// Root of the build that is measured.
    pub checkout: &'a Path,
    /// Root of this repository, which has the peers' scripts.
    pub root: &'a Path,
    /// Network namespaces, one per rank, if the benchmark runs across them.
    pub namespaces: Option<String>,
}

/// Builds the programs that the benchmarks run.
pub fn build(checkout: &Path, root: &Path, chosen: &[&Bench]) -> Result<(), String> {
    let packages =
        |kind: fn(&str) -> bool, args: &[&str]| match chosen.iter().any(|it| kind(it.name)) {
            true => build_package(checkout, root, args),
            false => Ok(()),
        };
    packages(|name| name.starts_with("launch/") || is_job(name), &["--package", "fleet-cli"])?;
    packages(is_comm, &["--package", "fleet-comm", "--example", "all_reduce"])?;
    packages(is_job, &["--package", "fleet-bench", "--features", "grpc"])?;
    packages(|name| !is_comm(name) && !is_job(name), &["--package", "fleet-bench"])?;
    match chosen.iter().any(|bench| is_python(bench.name)) {
        true => python::optimized(checkout).map(drop),
        false => Ok(()),
    }
}

/// Jobs print the AUC and the time of each seed beside their result. Their models are also served
/// over gRPC.
fn is_job(name: &str) -> bool {
    name.starts_with("rec/")
}

fn is_python(name: &str) -> bool {
    name.starts_with("py/")
}

fn build_package(checkout: &Path, root: &Path, args: &[&str]) -> Result<(), String> {
    let mut command = cargo(checkout, root);
    let status = command.args(["build", "--release", "--quiet"]).args(args).status();
    match status.map_err(|error| format!("cannot start cargo: {error}"))?.success() {
        true => Ok(()),
        false => Err(format!("cannot build the benchmarks of {}", checkout.display())),
    }
}

/// Returns a cargo command. Each checkout has a target folder of its own, or every run would
/// rebuild.
fn cargo(checkout: &Path, root: &Path) -> Command {
    let mut command = Command::new(env!("CARGO"));
    command.current_dir(checkout);
    if checkout != root {
        command.env("CARGO_TARGET_DIR", checkout.join("target"));
    }
    command
}

impl Place<'_> {
    fn prepare(&self, command: &mut Command) {
        if let Some(names) = &self.namespaces {
            command.env("FLEET_BENCH_NAMESPACES", names);
        }
    }
}

pub fn run_ours(place: &Place<'_>, name: &str, threads: usize) -> Result<Value, String> {
    if is_python(name) {
        let mut command = Command::new(place.checkout.join("target/python-bench/bin/python"));
        command.arg(place.root.join("bench").join(name).with_extension("py"));
        command.args(["--threads", &threads.to_string()]).current_dir(place.root);
        // Scripts that compare with Rust run this program.
        command.env("FLEET_BENCH", place.checkout.join("target/release/fleet-bench"));
        let output = command.output().map_err(|error| format!("cannot start {name}: {error}"))?;
        return last_json(name, &output);
    }
    let mut command = cargo(place.checkout, place.root);
    // Ranks are processes of one thread, and need only collectives.
    let program: &[&str] = match is_comm(name) {
        true => &["fleet-comm", "--example", "all_reduce"],
        false if is_job(name) => &["fleet-bench", "--features", "grpc"],
        false => &["fleet-bench"],
    };
    command.args(["run", "--release", "--quiet", "--package"]).args(program).args([
        "--",
        name,
        "--threads",
        &threads.to_string(),
    ]);
    place.prepare(&mut command);
    let output = command.output().map_err(|error| format!("cannot start {name}: {error}"))?;
    show_seeds(name, &output);
    last_json(name, &output)
}

fn show_seeds(name: &str, output: &Output) {
    if is_job(name) && output.status.success() {
        eprint!("{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// The reason why a peer has no result.
pub enum Failure {
    TimedOut(String),
    Failed(String),
}

pub fn run_peer(
    place: &Place<'_>,
    python: &str,
    script: &PeerScript,
    name: &str,
    threads: usize,
) -> Result<Value, Failure> {
    let path = place.root.join("bench/peers").join(script.path);
    let mut command = Command::new(python);
    command.arg(path).args(script.args).args(["--threads", &threads.to_string()]);
    command.current_dir(place.root);
    place.prepare(&mut command);
    let comm = is_comm(name);
    if comm {
        command.args(["--bench", name]);
    }
    let timeout = if comm { COMM_TIMEOUT } else { PEER_TIMEOUT };
    let output = output_within(&mut command, timeout)
        .map_err(|error| Failure::Failed(format!("cannot run {}: {error}", script.path)))?
        .ok_or_else(|| Failure::TimedOut(format!("no result in {} s", timeout.as_secs())))?;
    show_seeds(name, &output);
    last_json(script.path, &output).map_err(Failure::Failed)
}

/// Returns the output of a command; `None` if it was ended after `timeout`.
fn output_within(command: &mut Command, timeout: Duration) -> std::io::Result<Option<Output>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn()?;
    let id = child.id().cast_signed();
    let (send, ended) = mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    if let Ok(output) = ended.recv_timeout(timeout) {
        return output.map(Some);
    }
    let processes = process_tree(id);
    for signal in [Signal::TERM, Signal::KILL] {
        for member in processes.iter().filter_map(|id| Pid::from_raw(*id)) {
            // It may have ended just now.
            let _ = kill_process(member, signal);
        }
        if ended.recv_timeout(END_GRACE).is_ok() {
            break;
        }
    }
    Ok(None)
}

/// Returns a process and its descendants (Linux; elsewhere the process alone).
fn process_tree(id: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.unwrap_or_default();
    let descendants =
        children.split_whitespace().filter_map(|child| child.parse().ok()).flat_map(process_tree);
    [id].into_iter().chain(descendants).collect()
}

/// Returns the last line of the output that is JSON.
fn last_json(what: &str, output: &Output) -> Result<Value, String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let found = text.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
    match found {
        Some(value) if output.status.success() && value["median"].is_number() => Ok(value),
        _ => Err(format!(
            "{what} printed no result ({}):\n{text}{}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}
