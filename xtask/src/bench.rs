//! `cargo xtask bench`: runs ours and the peers' in turn and prints one line a result.
//!
//! Each benchmark is a process of its own, ours (`fleet-bench NAME`) and the peer's script, which print
//! one JSON line. Rounds alternate, so that both see the same weather on the machine. The ratio is of
//! the medians over rounds; above 1 means that ours is faster.

use crate::cable::Cable;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Map, Value, json};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

/// How long a peer may take for one result: some compile what they run.
const PEER_SPAN: Duration = Duration::from_secs(15 * 60);
/// An all-reduce of 100 MB between four ranks takes some 10 s on two cores, half of it for loading torch.
const COMM_SPAN: Duration = Duration::from_secs(2 * 60);
/// How long a peer that is asked to end may take for it.
const END_SPAN: Duration = Duration::from_secs(5);

/// A benchmark and the scripts of its peers.
struct Bench {
    name: &'static str,
    unit: &'static str,
    peers: &'static [PeerScript],
    /// A rate to hold, where the rival is a number; the ratio is against it.
    target: Option<f64>,
}

struct PeerScript {
    framework: &'static str,
    path: &'static str,
    args: &'static [&'static str],
}

const fn peer(framework: &'static str, path: &'static str) -> PeerScript {
    PeerScript { framework, path, args: &[] }
}

const ADAGRAD: &[&str] = &["--optimizer", "adagrad"];

/// All-reduces: the scripts learn size and ranks from the name.
const fn comm(name: &'static str) -> Bench {
    const PEERS: &[PeerScript] = &[peer("gloo", "comm/gloo.py"), peer("mpi", "comm/mpi.py")];
    Bench { name, unit: "GB/s", peers: PEERS, target: None }
}

/// On the loopback, or (`netns`) over a cable between two network namespaces, which takes root. MPI would go
/// through shared memory.
const fn over_tcp(name: &'static str) -> Bench {
    const PEERS: &[PeerScript] = &[peer("gloo", "comm/gloo.py")];
    Bench { name, unit: "GB/s", peers: PEERS, target: None }
}

/// Data parallel, two ranks of one thread.
const fn ddp(name: &'static str, peers: &'static [PeerScript]) -> Bench {
    Bench { name, unit: "samples/s", peers, target: None }
}

/// The speed of a rank among others over that of one alone: the ratio is to perfect scaling.
const fn scaling(name: &'static str) -> Bench {
    Bench { name, unit: "of one rank's speed", peers: &[], target: Some(1.0) }
}

/// The same beside the peer's.
const fn scaling_vs(name: &'static str, peers: &'static [PeerScript]) -> Bench {
    Bench { name, unit: "of one rank's speed", peers, target: None }
}

/// What of a step is communication that nothing hides: less is better.
const fn not_hidden(name: &'static str) -> Bench {
    Bench { name, unit: "% of a step", peers: &[], target: None }
}

/// Paddle's in-memory dataset, and what of it is timed.
const DATASET: &str = "paddle/dataset.py";
const LOAD_PEER: &[PeerScript] =
    &[PeerScript { framework: "paddle", path: DATASET, args: &["--part", "load"] }];
const SHUFFLE_PEER: &[PeerScript] =
    &[PeerScript { framework: "paddle", path: DATASET, args: &["--part", "shuffle"] }];
const BATCHES_PEER: &[PeerScript] =
    &[PeerScript { framework: "paddle", path: DATASET, args: &["--part", "batches"] }];

const DDP: &str = "torch/ddp.py";
const MLP_PEER: &[PeerScript] =
    &[PeerScript { framework: "torch", path: DDP, args: &["--model", "mlp"] }];
const RESNET50_PEER: &[PeerScript] =
    &[PeerScript { framework: "torch", path: DDP, args: &["--model", "resnet50"] }];
const MLP_SCALING: &[PeerScript] =
    &[PeerScript { framework: "torch", path: DDP, args: &["--model", "mlp", "--weak-scaling"] }];
const RESNET50_SCALING: &[PeerScript] = &[PeerScript {
    framework: "torch",
    path: DDP,
    args: &["--model", "resnet50", "--weak-scaling"],
}];

const PS: &str = "paddle/ps_wide_deep.py";
/// With one worker and with two; of Paddle 2.6.2, the last release that has parameter servers.
const PS_PEER_1: &[PeerScript] =
    &[PeerScript { framework: "paddle", path: PS, args: &["--ranks", "1"] }];
const PS_PEER_2: &[PeerScript] =
    &[PeerScript { framework: "paddle", path: PS, args: &["--ranks", "2"] }];

const BENCHES: &[Bench] = &[
    Bench {
        name: "train/wide_deep_sgd",
        unit: "samples/s",
        peers: &[peer("torch", "torch/wide_deep.py"), peer("paddle", "paddle/wide_deep.py")],
        target: None,
    },
    Bench {
        name: "train/wide_deep_adagrad",
        unit: "samples/s",
        peers: &[
            PeerScript { framework: "torch", path: "torch/wide_deep.py", args: ADAGRAD },
            PeerScript { framework: "paddle", path: "paddle/wide_deep.py", args: ADAGRAD },
        ],
        target: None,
    },
    Bench {
        name: "train/bert4",
        unit: "samples/s",
        peers: &[peer("torch", "torch/bert4.py")],
        target: None,
    },
    Bench {
        name: "train/bert4_bf16",
        unit: "samples/s",
        peers: &[PeerScript { framework: "torch", path: "torch/bert4.py", args: &["--bf16"] }],
        target: None,
    },
    Bench {
        name: "train/resnet50",
        unit: "samples/s",
        peers: &[peer("torch", "torch/resnet50.py"), peer("paddle", "paddle/resnet50.py")],
        target: None,
    },
    Bench {
        name: "data/multislot_parse_vs_500MBps",
        unit: "MB/s",
        peers: &[],
        target: Some(500.0),
    },
    Bench { name: "data/wide_deep_text_vs_memory", unit: "%", peers: &[], target: Some(90.0) },
    // On servers: two workers, one server.
    Bench { name: "data/wide_deep_text_vs_memory_1s2w", unit: "%", peers: &[], target: Some(90.0) },
    Bench { name: "data/load", unit: "MB/s", peers: LOAD_PEER, target: None },
    Bench { name: "data/shuffle", unit: "records/s", peers: SHUFFLE_PEER, target: None },
    Bench { name: "data/batches", unit: "records/s", peers: BATCHES_PEER, target: None },
    Bench {
        name: "data/csv_load",
        unit: "MB/s",
        peers: &[peer("polars", "polars/tables.py")],
        target: None,
    },
    Bench { name: "data/images_vs_compute", unit: "%", peers: &[], target: Some(90.0) },
    comm("comm/allreduce_2x4KB"),
    comm("comm/allreduce_2x1MB"),
    comm("comm/allreduce_2x25MB"),
    comm("comm/allreduce_2x100MB"),
    comm("comm/allreduce_4x4KB"),
    comm("comm/allreduce_4x1MB"),
    comm("comm/allreduce_4x25MB"),
    comm("comm/allreduce_4x100MB"),
    over_tcp("comm/tcp_allreduce_2x1MB"),
    over_tcp("comm/tcp_allreduce_2x25MB"),
    over_tcp("comm/netns_allreduce_2x1MB"),
    over_tcp("comm/netns_allreduce_2x25MB"),
    ddp("ddp/mlp_step_vs_torch", MLP_PEER),
    ddp("ddp/resnet50_step_vs_torch", RESNET50_PEER),
    scaling("ddp/mlp_weak_scaling"),
    scaling("ddp/resnet50_weak_scaling"),
    scaling_vs("ddp/mlp_weak_scaling_vs_torch", MLP_SCALING),
    scaling_vs("ddp/resnet50_weak_scaling_vs_torch", RESNET50_SCALING),
    scaling("ddp/mlp_side_by_side"),
    scaling("ddp/resnet50_side_by_side"),
    scaling("ddp/mlp_in_step"),
    scaling("ddp/resnet50_in_step"),
    not_hidden("ddp/mlp_not_hidden"),
    not_hidden("ddp/resnet50_not_hidden"),
    Bench {
        name: "ddp/mlp_update_on_arrival",
        unit: "of the speed without",
        peers: &[],
        target: Some(1.0),
    },
    Bench { name: "comm/memory", unit: "GB/s", peers: &[], target: None },
    Bench {
        name: "ps/table_pull_rows_per_core_1e7",
        unit: "rows/s",
        peers: &[],
        target: Some(1e7),
    },
    Bench {
        name: "ps/table_push_rows_per_core_5e6",
        unit: "rows/s",
        peers: &[],
        target: Some(5e6),
    },
    // Paddle 2.6.2 on two cores of a Xeon (2.0 GHz), by its own counting.
    Bench {
        name: "ps/wide_deep_1s1w_vs_paddle",
        unit: "samples/s",
        peers: PS_PEER_1,
        target: Some(21_100.0),
    },
    Bench {
        name: "ps/wide_deep_1s2w_vs_paddle",
        unit: "samples/s",
        peers: PS_PEER_2,
        target: Some(28_500.0),
    },
    Bench { name: "ps/wide_deep_1s2w_sync", unit: "samples/s", peers: &[], target: Some(50_000.0) },
    Bench { name: "ps/rpc_pull_rows_per_pair_3e6", unit: "rows/s", peers: &[], target: Some(3e6) },
    Bench { name: "ps/rpc_push_rows_per_pair_3e6", unit: "rows/s", peers: &[], target: Some(3e6) },
    Bench {
        name: "ps/wide_deep_durability",
        unit: "of the speed without",
        peers: &[],
        target: Some(0.9),
    },
    Bench {
        name: "ps/durability_cost",
        unit: "of the speed without",
        peers: &[],
        target: Some(0.9),
    },
    Bench { name: "ps/table_payload_percent_of_held", unit: "%", peers: &[], target: Some(80.0) },
    // 50 ms a start.
    Bench { name: "launch/startup_vs_50ms", unit: "starts/s", peers: &[], target: Some(20.0) },
];

const FRAMEWORKS: [&str; 5] = ["torch", "paddle", "polars", "gloo", "mpi"];

struct Options {
    names: Vec<String>,
    json: bool,
    threads: usize,
    rounds: usize,
    /// (framework, interpreter)
    peers: Vec<(String, String)>,
}

pub fn run(root: &Path, args: &[String]) -> Result<(), String> {
    let options = parse(args)?;
    let is_one = |given: &str| BENCHES.iter().any(|bench| bench.name == given);
    let wanted = |name: &str| {
        let fits = |given: &String| match is_one(given) {
            true => name == given,
            false => name.starts_with(&**given),
        };
        options.names.is_empty() || options.names.iter().any(fits)
    };
    let chosen: Vec<&Bench> = BENCHES.iter().filter(|bench| wanted(bench.name)).collect();
    if chosen.is_empty() {
        let known: Vec<&str> = BENCHES.iter().map(|bench| bench.name).collect();
        return Err(format!("no benchmark of that name; there are {}", known.join(", ")));
    }
    // The rest is built by the run of it.
    if !chosen.iter().all(|bench| is_comm(bench.name)) {
        let launches = chosen.iter().any(|bench| bench.name.starts_with("launch/"));
        build(root, if launches { &["fleet-bench", "fleet-cli"] } else { &["fleet-bench"] })?;
    }
    // What fails takes no other's result with it.
    let mut failed = Vec::new();
    for bench in &chosen {
        if let Err(why) = run_bench(root, &options, bench) {
            eprintln!("{} failed: {why}", bench.name);
            failed.push(bench.name);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("{} of {}: {}", failed.len(), chosen.len(), failed.join(", "))),
    }
}

fn run_bench(root: &Path, options: &Options, bench: &Bench) -> Result<(), String> {
    let cable = match bench.name.starts_with("comm/netns_") {
        false => None,
        true => match Cable::lay("fleet-bench") {
            Ok(cable) => Some(cable),
            Err(why) => {
                eprintln!("{} is left out: no network namespaces here: {why}", bench.name);
                return Ok(());
            }
        },
    };
    let place = Place { root, namespaces: cable.as_ref().map(|cable| cable.names.join(" ")) };
    let script_of = |framework: &str| bench.peers.iter().find(|peer| peer.framework == framework);
    let mut peers: Vec<(&str, &PeerScript, Vec<Value>)> = options
        .peers
        .iter()
        .filter_map(|(framework, python)| Some((&**python, script_of(framework)?, Vec::new())))
        .collect();
    let mut ours = Vec::new();
    let mut failed = Vec::new();
    for _ in 0..options.rounds {
        ours.push(run_ours(&place, bench.name, options.threads)?);
        peers.retain_mut(|(python, script, values)| {
            match run_peer(&place, python, script, bench.name, options.threads) {
                Ok(value) => {
                    values.push(value);
                    return true;
                }
                Err(Failure::Stands(why)) => {
                    eprintln!("{}: {} is left out: {why}", bench.name, script.framework);
                }
                Err(Failure::Fails(why)) => failed.push(why),
            }
            false
        });
    }
    let mut line = summary(bench, options.threads, &ours);
    if let (Some(target), Some(median)) = (bench.target, line["median"].as_f64()) {
        line.insert("target".into(), json!(target));
        line.insert("ratio".into(), json!((median / target * 1000.0).round() / 1000.0));
    }
    if peers.is_empty() {
        show(options, &line);
    }
    for (_, script, values) in &peers {
        show(options, &against(&line, script.framework, values));
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("\n")),
    }
}

fn parse(args: &[String]) -> Result<Options, String> {
    let mut options =
        Options { names: Vec::new(), json: false, threads: 2, rounds: 3, peers: Vec::new() };
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        let mut value = || rest.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--json" => options.json = true,
            "--threads" => options.threads = number(arg, value()?)?,
            "--rounds" => options.rounds = number(arg, value()?)?.max(1),
            "--peer" => {
                let given = value()?;
                let (framework, python) = given
                    .split_once('=')
                    .ok_or_else(|| format!("--peer {given}: expected FRAMEWORK=PYTHON"))?;
                if !FRAMEWORKS.contains(&framework) {
                    let known = FRAMEWORKS.join(", ");
                    return Err(format!("unknown peer '{framework}': expected one of {known}"));
                }
                options.peers.push((framework.to_string(), python.to_string()));
            }
            flag if flag.starts_with('-') => return Err(format!("unknown option {flag}")),
            name => options.names.push(name.to_string()),
        }
    }
    Ok(options)
}

fn number(flag: &str, text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| format!("{flag} {text}: expected a number"))
}

fn is_comm(name: &str) -> bool {
    name.starts_with("comm/")
}

fn build(root: &Path, packages: &[&str]) -> Result<(), String> {
    let status = Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet"])
        .args(packages.iter().flat_map(|package| ["--package", package]))
        .current_dir(root)
        .status()
        .map_err(|error| format!("cannot start cargo: {error}"))?;
    if status.success() { Ok(()) } else { Err("the benchmarks do not build".to_string()) }
}

/// Where benchmarks run.
struct Place<'a> {
    root: &'a Path,
    /// Of the ranks, where each is to be in one of its own.
    namespaces: Option<String>,
}

impl Place<'_> {
    fn prepare(&self, command: &mut Command) {
        command.current_dir(self.root);
        if let Some(names) = &self.namespaces {
            command.env("FLEET_BENCH_NAMESPACES", names);
        }
    }
}

fn run_ours(place: &Place<'_>, name: &str, threads: usize) -> Result<Value, String> {
    let mut command = Command::new(env!("CARGO"));
    // Ranks are processes of one thread, and need nothing but collectives.
    let program: &[&str] = match is_comm(name) {
        true => &["fleet-comm", "--example", "all_reduce"],
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
    last_json(name, &output)
}

/// Why there is no result of a peer.
enum Failure {
    /// It had not ended when its time was over.
    Stands(String),
    Fails(String),
}

fn run_peer(
    place: &Place<'_>,
    python: &str,
    script: &PeerScript,
    name: &str,
    threads: usize,
) -> Result<Value, Failure> {
    let path = place.root.join("bench/peers").join(script.path);
    let mut command = Command::new(python);
    command.arg(path).args(script.args).args(["--threads", &threads.to_string()]);
    place.prepare(&mut command);
    let comm = is_comm(name);
    if comm {
        command.args(["--bench", name]);
    }
    let span = if comm { COMM_SPAN } else { PEER_SPAN };
    let output = output_within(&mut command, span)
        .map_err(|error| Failure::Fails(format!("cannot run {}: {error}", script.path)))?
        .ok_or_else(|| Failure::Stands(format!("no result in {} s", span.as_secs())))?;
    last_json(script.path, &output).map_err(Failure::Fails)
}

/// What a command writes; `None` when it had to be ended because `span` was over.
fn output_within(command: &mut Command, span: Duration) -> std::io::Result<Option<Output>> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = command.spawn()?;
    let id = child.id().cast_signed();
    let (send, ended) = mpsc::channel();
    std::thread::spawn(move || send.send(child.wait_with_output()));
    if let Ok(output) = ended.recv_timeout(span) {
        return output.map(Some);
    }
    let family = family(id);
    for signal in [Signal::TERM, Signal::KILL] {
        for member in family.iter().filter_map(|id| Pid::from_raw(*id)) {
            // It may have ended just now.
            let _ = kill_process(member, signal);
        }
        if ended.recv_timeout(END_SPAN).is_ok() {
            break;
        }
    }
    Ok(None)
}

/// A process and those that it has started, as far as the system tells (Linux).
fn family(id: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"));
    let children = children.unwrap_or_default();
    let grown = children.split_whitespace().filter_map(|child| child.parse().ok()).flat_map(family);
    [id].into_iter().chain(grown).collect()
}

/// The last line of the output that is JSON.
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

fn medians(values: &[Value], key: &str) -> Vec<f64> {
    let mut list: Vec<f64> = values.iter().filter_map(|value| value[key].as_f64()).collect();
    list.sort_by(f64::total_cmp);
    list
}

fn median(sorted: &[f64]) -> f64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn summary(bench: &Bench, threads: usize, runs: &[Value]) -> Map<String, Value> {
    let list = medians(runs, "median");
    let peak = medians(runs, "peak_rss_mb");
    let line = json!({
        "bench": bench.name,
        "unit": bench.unit,
        "median": median(&list),
        "min": list.first(),
        "max": list.last(),
        "runs": list.len(),
        "threads": threads,
        "peak_rss_mb": median(&peak),
    });
    line.as_object().cloned().unwrap_or_default()
}

fn against(ours: &Map<String, Value>, framework: &str, theirs: &[Value]) -> Map<String, Value> {
    let mut line = ours.clone();
    let list = medians(theirs, "median");
    let peak = medians(theirs, "peak_rss_mb");
    let mine = ours["median"].as_f64().unwrap_or(f64::NAN);
    if is_comm(ours["bench"].as_str().unwrap_or("")) {
        let name = format!("{}_vs_{framework}", ours["bench"].as_str().unwrap_or(""));
        line.insert("bench".into(), json!(name));
    }
    line.insert("peer".into(), json!(framework));
    line.insert("peer_median".into(), json!(median(&list)));
    // The ratio is to the peer of this run, not to what one once reached.
    line.remove("target");
    line.insert("peer_min".into(), json!(list.first()));
    line.insert("peer_max".into(), json!(list.last()));
    line.insert("peer_peak_rss_mb".into(), json!(median(&peak)));
    line.insert("ratio".into(), json!((mine / median(&list) * 1000.0).round() / 1000.0));
    line
}

fn show(options: &Options, line: &Map<String, Value>) {
    if options.json {
        println!("{}", Value::Object(line.clone()));
        return;
    }
    let number = |key: &str| line.get(key).and_then(Value::as_f64);
    let text = |key: &str| line.get(key).and_then(Value::as_str).unwrap_or("");
    let memory = |key: &str| number(key).map(|mb| format!("{mb:.0} MB"));
    let mut row = format!(
        "{:<26} {:>10.2} {} ({:.2} .. {:.2}, {} runs, {} threads{})",
        text("bench"),
        number("median").unwrap_or(f64::NAN),
        text("unit"),
        number("min").unwrap_or(f64::NAN),
        number("max").unwrap_or(f64::NAN),
        number("runs").unwrap_or(0.0),
        number("threads").unwrap_or(0.0),
        memory("peak_rss_mb").map_or_else(String::new, |mb| format!(", {mb}")),
    );
    if let (Some(target), Some(ratio)) = (number("target"), number("ratio")) {
        row += &format!("   target {target:.1}   ratio {ratio:.2}");
    } else if let (Some(peer), Some(ratio)) = (number("peer_median"), number("ratio")) {
        row += &format!(
            "   {} {peer:.2}{}   ratio {ratio:.2}",
            text("peer"),
            memory("peer_peak_rss_mb").map_or_else(String::new, |mb| format!(" ({mb})")),
        );
    }
    println!("{row}");
}
