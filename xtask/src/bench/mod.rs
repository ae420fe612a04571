//! `cargo xtask bench`: runs benchmarks, compared with their peers or with another build of Fleet.
//!
//! Each benchmark is a process of its own, of Fleet (`fleet-bench NAME`) or the peer's script,
//! which prints one JSON line. Rounds alternate, so that all see the same state of the machine. A
//! ratio is that of the medians over all rounds; above 1 means that this build of Fleet is faster.

mod before;
mod benches;
mod processes;
mod report;

use before::Before;
use benches::{BENCHES, Bench, PeerScript};
use fleet_testhost::virtual_link::VirtualLink;
use processes::{Failure, Place};
use serde_json::{Value, json};
use std::path::Path;

#[derive(clap::Args)]
pub struct Options {
    /// Names or prefixes of benchmarks (`train`, `train/bert4`); all if none are given
    names: Vec<String>,
    /// Print one JSON line per result
    #[arg(long)]
    json: bool,
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: usize,
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Python with the peer's framework (torch, paddle, polars, widedeep, gloo or mpi)
    #[arg(long = "peer", value_name = "FRAMEWORK=PYTHON", value_parser = peer)]
    peers: Vec<(String, String)>,
    /// Compare with another build: the folder of a checkout, or a git revision
    #[arg(long, value_name = "BUILD", conflicts_with = "peers")]
    before: Option<String>,
}

fn peer(given: &str) -> Result<(String, String), String> {
    let (framework, python) = given.split_once('=').ok_or("expected FRAMEWORK=PYTHON")?;
    if !benches::FRAMEWORKS.contains(&framework) {
        let known = benches::FRAMEWORKS.join(", ");
        return Err(format!("unknown peer '{framework}': expected one of {known}"));
    }
    Ok((framework.to_string(), python.to_string()))
}

pub fn run(root: &Path, options: &Options) -> Result<(), String> {
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
        return Err(format!("unknown benchmark: expected one of {}", known.join(", ")));
    }
    let before = options.before.as_ref().map(|given| Before::find(root, given)).transpose()?;
    for checkout in [Some(root), before.as_ref().map(|before| &*before.root)].into_iter().flatten()
    {
        processes::build(checkout, root, &chosen)?;
    }
    // A benchmark that fails does not discard the results of the others.
    let mut failed = Vec::new();
    for bench in &chosen {
        if let Err(why) = run_bench(root, options, before.as_ref(), bench) {
            eprintln!("{} failed: {why}", bench.name);
            failed.push(bench.name);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("{} of {}: {}", failed.len(), chosen.len(), failed.join(", "))),
    }
}

fn run_bench(
    root: &Path,
    options: &Options,
    before: Option<&Before>,
    bench: &Bench,
) -> Result<(), String> {
    let link = match bench.name.starts_with("comm/netns_") {
        false => None,
        true => match VirtualLink::create("fleet-bench") {
            Ok(link) => Some(link),
            Err(why) => {
                eprintln!("skipped {}: no network namespaces: {why}", bench.name);
                return Ok(());
            }
        },
    };
    let namespaces = link.as_ref().map(|link| link.names.join(" "));
    let place = Place { checkout: root, root, namespaces: namespaces.clone() };
    match before {
        None => beside_peers(&place, options, bench),
        Some(before) => {
            let old = Place { checkout: &before.root, root, namespaces };
            before::compare(&place, &old, options, bench)
        }
    }
}

fn beside_peers(place: &Place<'_>, options: &Options, bench: &Bench) -> Result<(), String> {
    let script_of = |framework: &str| bench.peers.iter().find(|peer| peer.framework == framework);
    let mut peers: Vec<(&str, &PeerScript, Vec<Value>)> = options
        .peers
        .iter()
        .filter_map(|(framework, python)| Some((&**python, script_of(framework)?, Vec::new())))
        .collect();
    let mut ours = Vec::new();
    let mut failed = Vec::new();
    for _ in 0..options.rounds {
        ours.push(processes::run_ours(place, bench.name, options.threads)?);
        peers.retain_mut(|(python, script, values)| {
            match processes::run_peer(place, python, script, bench.name, options.threads) {
                Ok(value) => {
                    values.push(value);
                    return true;
                }
                Err(Failure::TimedOut(why)) => {
                    eprintln!("{}: skipped {}: {why}", bench.name, script.framework);
                }
                Err(Failure::Failed(why)) => failed.push(why),
            }
            false
        });
    }
    let mut line = report::summary(bench, options.threads, &ours);
    if let (Some(target), Some(median)) = (bench.target, line["median"].as_f64()) {
        line.insert("target".into(), json!(target));
        line.insert("ratio".into(), json!(report::ratio(median, target)));
    }
    if peers.is_empty() {
        report::show(options.json, &line);
    }
    for (_, script, values) in &peers {
        report::show(options.json, &report::against(&line, script.framework, values));
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(failed.join("\n")),
    }
}

fn is_comm(name: &str) -> bool {
    name.starts_with("comm/")
}
