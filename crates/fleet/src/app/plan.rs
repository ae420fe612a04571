//! `fleet plan`: compares the layouts of a training on some ranks, and prints the best ones.
//!
//! Each layout is compiled for ranks that represent it, so the command takes as long as that many
//! rewrites. Speeds that are not given are measured: those of this machine, and those of the
//! network's own ops, in some steps with made-up data.

use super::models::Models;
use super::rewrite::{network, parse_optimizer};
use super::strategy_file::load_with_source;
use crate::planner::{
    Batch, Candidate, Found, Goal, LayoutSearch, Left, Machines, Network, Saved, Speeds,
    fixed_batch, op_factors, search,
};
use crate::probe;
use clap::Args;
use fleet_base::output::{ExitReason, Output};
use fleet_base::units;
use fleet_base::{Error, Result, text};
use fleet_format::write_file;
use fleet_strategy::auto::duration;
use fleet_strategy::{BATCH_ASSUMED, DistributedStrategy, Origin, Ranks, Rates, StrategyForm};
use std::collections::BTreeMap;
use std::path::PathBuf;

#[derive(Args)]
pub struct PlanArgs {
    /// Forward program: a file, or model:NAME
    program: String,
    /// Number of ranks
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=1 << 16))]
    ranks: u32,
    /// Ranks per machine [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 16))]
    ranks_per_node: Option<u32>,
    /// Memory of a rank, such as 2GiB [default: unlimited]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    memory: Option<f64>,
    /// Bytes that a rank sends, such as 10GB/s; see fleet doctor [default: measured on one machine,
    /// 1.1GB/s between machines]
    #[arg(long, value_name = "RATE", value_parser = units::bandwidth)]
    bandwidth: Option<f64>,
    /// Compute rate of a rank, such as 100Gflop/s [default: measured]
    #[arg(long, value_name = "RATE", value_parser = units::compute_rate)]
    flops: Option<f64>,
    /// Memory bandwidth of a rank, read and written, such as 10GB/s [default: measured]
    #[arg(long, value_name = "RATE", value_parser = units::bandwidth)]
    memory_bandwidth: Option<f64>,
    /// Samples of a step, of all ranks together [default: the program's batch size in each copy of
    /// the model, else 32 for each rank]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    batch: Option<u32>,
    /// Threads of a rank
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Strategy file with settings to keep, such as amp or recompute
    #[arg(long, value_name = "FILE")]
    strategy: Option<PathBuf>,
    /// Variable to minimise [default: the model's loss, or the only scalar that no op reads]
    #[arg(long, value_name = "NAME")]
    loss: Option<String>,
    /// Optimizer with its parameters
    #[arg(long, value_name = "RULE,KEY=NUMBER,..", default_value = "momentum,lr=0.1,mu=0.9")]
    optimizer: String,
    /// Startup program of PROGRAM [default: parameters are assumed to be loaded]
    #[arg(long, value_name = "FILE")]
    startup: Option<PathBuf>,
    /// Number of layouts to print
    #[arg(long, value_name = "N", default_value_t = 8)]
    top: usize,
    /// Print all layouts, and every one that is left out
    #[arg(long)]
    all: bool,
    /// Write the strategy of the best layout to a file; the extension gives the format
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(args: &PlanArgs, models: &Models, out: &mut Output) -> Result<(), ExitReason> {
    let base = match &args.strategy {
        Some(path) => load_with_source(path)?.0,
        None => DistributedStrategy::new(),
    };
    check_base(&base)?;
    let count = args.ranks as usize;
    let per_node = args.ranks_per_node.map_or(count, |ranks| ranks as usize);
    let ranks = Ranks::new(0, count).per_node(per_node);
    ranks.check()?;
    let (loss, startup) = (args.loss.as_deref(), args.startup.as_deref());
    let (programs, loss) = network(models, &args.program, loss, startup)?;
    let optimizer = parse_optimizer(&args.optimizer)?;
    let network = Network { programs: &programs, loss, optimizer: &optimizer };
    let samples = args.batch.map_or(BATCH_ASSUMED * count, |batch| batch as usize);
    let mut machines = machines(args, ranks)?;
    if args.flops.is_none() {
        let batch = samples.div_ceil(count);
        machines.speeds.factors = op_factors(network, &base, machines.threads, batch, None)?;
    }
    let search_for = LayoutSearch {
        network,
        machines: &machines,
        base: &base,
        memory: args.memory.map(|memory| memory as u64),
        batch: Batch::Whole(samples),
        goal: Goal::Any,
        threads: std::thread::available_parallelism().map_or(1, usize::from),
        deadline: None,
    };
    print_job(args, &search_for, samples, out)?;
    let found = search(&search_for);
    let Some(best) = found.candidates.first() else {
        print_left(&found.left, args.all, out)?;
        return Err(nothing_fits(&search_for).into());
    };
    print_table(&found, args, out)?;
    print_left(&found.left, args.all, out)?;
    print_strategy(best, &base, args, out)
}

/// Rejects a strategy that has a layout already.
fn check_base(base: &DistributedStrategy) -> Result<()> {
    let set = [
        ("auto", base.auto()),
        ("sharding", base.sharding()),
        ("pipeline", base.pipeline()),
        ("tensor_parallel", base.tensor_parallel()),
        ("hybrid_configs", base.hybrid_configs.is_some()),
        ("a_sync", base.a_sync == Some(true)),
    ];
    match set.iter().find(|(_, is_set)| *is_set) {
        Some((field, _)) => Err(Error::invalid("the strategy has a layout already")
            .got(field)
            .help(format!("remove {field}: fleet plan chooses the layout"))),
        None => Ok(()),
    }
}

fn machines(args: &PlanArgs, ranks: Ranks) -> Result<Machines> {
    let threads = args.threads as usize;
    let here = ranks.per_node.min(ranks.count);
    let assumed = Rates::default();
    let flops = args.flops.map_or_else(|| probe::shared_flops(here, threads), Ok)?;
    let memory = args.memory_bandwidth.unwrap_or_else(|| probe::shared_memory_bandwidth(here));
    let network = match args.bandwidth {
        None if ranks.nodes() == 1 => Some(probe::bandwidth_between_threads()?),
        given => given,
    };
    let rates = Rates {
        flops_per_second: flops,
        memory_bytes_per_second: memory,
        network_bytes_per_second: network,
        origin: Origin::Given,
        ..assumed
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    // Nothing is known about the cores of machines whose speeds are given.
    let has_spare_cores = args.flops.is_some() || here * threads < cores;
    Ok(Machines { ranks, speeds: Speeds { rates, has_spare_cores, ..Speeds::default() }, threads })
}

fn print_job(
    args: &PlanArgs,
    search: &LayoutSearch<'_>,
    samples: usize,
    out: &mut Output,
) -> Result<(), ExitReason> {
    let main = &search.network.programs.main;
    let elements: f64 =
        main.parameters().map(|(_, var)| var.shape.numel().unwrap_or(0) as f64).sum();
    let ranks = search.machines.ranks;
    let machines = text::counted(ranks.nodes(), "machine");
    let batch = match (fixed_batch(main), args.batch) {
        (Some(batch), _) => format!("{} in each copy of the model", text::counted(batch, "sample")),
        (None, Some(_)) => format!("{} a step", text::counted(samples, "sample")),
        (None, None) => format!("{} a step (assumed)", text::counted(samples, "sample")),
    };
    let (program, parameters) = (&args.program, text::count(elements));
    out.line(format!(
        "{program}: {parameters} parameters, {} ranks on {machines}, {batch}",
        ranks.count
    ))?;
    let rates = &search.machines.speeds.rates;
    let origin = |is_given: bool, is_measured: bool| match (is_given, is_measured) {
        (true, _) => "given",
        (_, true) => "measured",
        _ => "assumed",
    };
    out.line(format!(
        "a rank: {}flop/s ({}), {}B/s of memory ({}), {}B/s sent ({})",
        text::count(rates.flops_per_second),
        origin(args.flops.is_some(), true),
        text::count(rates.memory_bytes_per_second),
        origin(args.memory_bandwidth.is_some(), true),
        text::count(rates.network(&ranks)),
        origin(args.bandwidth.is_some(), rates.network_bytes_per_second.is_some())
    ))?;
    if args.flops.is_none() {
        out.line(match search.machines.speeds.factors.by_op.len() {
            0 => "ops: at these speeds, because one process cannot train the network".to_string(),
            kinds => format!("ops: {kinds} kinds, measured in steps with made-up data"),
        })?;
    }
    match search.memory {
        Some(memory) => out.line(format!("memory of a rank: {}", text::bytes(memory))),
        None => out.line("memory of a rank: unlimited (set --memory)"),
    }
}

fn rate(samples: f64) -> String {
    if samples < 10.0 { format!("{samples:.2}") } else { text::count(samples) }
}

fn print_table(found: &Found, args: &PlanArgs, out: &mut Output) -> Result<(), ExitReason> {
    let shown = if args.all { found.candidates.len() } else { args.top.max(1) };
    let row = |cells: [String; 7]| {
        let [layout, rest @ ..] = cells;
        let rest: String = rest.iter().map(|cell| format!(" {cell:>10}")).collect();
        format!("{layout:<46}{rest}")
    };
    let heads = ["layout", "step", "samples/s", "compute", "exposed", "waits", "memory"];
    out.line(format!("\n{}", row(heads.map(String::from))))?;
    for candidate in found.candidates.iter().take(shown) {
        let it = candidate.prediction;
        out.line(row([
            candidate.layout.to_string(),
            duration(it.step_seconds),
            rate(it.samples_per_second()),
            duration(it.compute_seconds),
            duration(it.exposed_seconds()),
            duration(it.wait_seconds),
            text::bytes(it.memory_bytes),
        ]))?;
    }
    let more = found.candidates.len().saturating_sub(shown);
    if more > 0 {
        out.line(format!("and {more} slower (--all)"))?;
    }
    Ok(())
}

/// Number of reasons to print, and of layouts for each.
const REASONS_SHOWN: usize = 8;
const LAYOUTS_SHOWN: usize = 4;

fn print_left(left: &[Left], all: bool, out: &mut Output) -> Result<(), ExitReason> {
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut large: Vec<&Left> = left.iter().filter(|it| it.need.is_some()).collect();
    large.sort_by_key(|it| it.need);
    for Left { layout, need, .. } in large {
        let need = text::bytes(need.unwrap_or_default());
        by_reason.entry("does not fit").or_default().push(format!("{layout}: {need}"));
    }
    for Left { layout, reason, .. } in left.iter().filter(|it| it.need.is_none()) {
        by_reason.entry(reason).or_default().push(layout.to_string());
    }
    if by_reason.is_empty() {
        return Ok(());
    }
    out.line("\nleft out")?;
    let (reasons, layouts) = match all {
        true => (usize::MAX, usize::MAX),
        false => (REASONS_SHOWN, LAYOUTS_SHOWN),
    };
    for (reason, which) in by_reason.iter().take(reasons) {
        let shown = which.iter().take(layouts).cloned().collect::<Vec<_>>().join("; ");
        let more = which.len().saturating_sub(layouts);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        out.line(format!("  {shown}{more}\n    {reason}"))?;
    }
    let more = by_reason.len().saturating_sub(reasons);
    if more > 0 {
        out.line(format!("  and {more} more (--all)"))?;
    }
    Ok(())
}

fn print_strategy(
    best: &Candidate,
    base: &DistributedStrategy,
    args: &PlanArgs,
    out: &mut Output,
) -> Result<(), ExitReason> {
    let strategy = best.layout.strategy(base, best.batch);
    let saved = Saved { ranks: args.ranks as usize, prediction: best.prediction };
    let text = match strategy.is_empty() {
        true => "# the default strategy: data parallelism\n".to_string(),
        false => strategy.to_prototxt(),
    };
    match &args.output {
        Some(path) => {
            let form = StrategyForm::of(path);
            let text = match form {
                StrategyForm::Prototxt => text.into_bytes(),
                form => strategy.to_bytes(form),
            };
            let has_comments = matches!(form, StrategyForm::Prototxt | StrategyForm::Toml);
            let comment = if has_comments { saved.comment() } else { String::new() };
            write_file(path, &[comment.as_bytes(), &text].concat())?;
            out.line(format!("\nbest: {}, written to {}", best.layout, path.display()))?;
            match has_comments {
                true => Ok(()),
                false => out.line(
                    "a job with this file does not compare its prediction: write .prototxt or \
                     .toml, which have comments",
                ),
            }
        }
        None => out.line(format!("\nbest: {}\n\n{}", best.layout, text.trim_end())),
    }
}

/// Returns the error of a search without a result.
fn nothing_fits(search: &LayoutSearch<'_>) -> Error {
    let error = match search.memory {
        Some(memory) => Error::exhausted("no layout fits the memory of a rank")
            .expected(format!("at most {}", text::bytes(memory))),
        None => Error::unsupported("no layout is possible"),
    };
    error.help("use more ranks, smaller batches, or a strategy with recompute")
}
