//! `fleet rewrite` and `fleet strategy explain`: show how a strategy rewrites a program, for any
//! number of ranks, without hardware.
//!
//! The program is a forward pass: a file, or a model (`model:resnet50`). The optimizer
//! is given by name with its numbers, `momentum,lr=0.1,mu=0.9`.

use super::diff::Changes;
use super::inspect::{counted, plan_of_rank};
use super::models::Models;
use super::strategy_file::{load_with_source, print_warnings};
use crate::exec_options;
use crate::planner::{Machines, Network, Speeds, choose_layout, fixed_batch};
use clap::Args;
use fleet_base::output::{ExitReason, Output};
use fleet_base::units;
use fleet_base::{Error, Result, text};
use fleet_exec::ExecOptions;
use fleet_ir::{Program, VarId};
use fleet_nn::Programs;
use fleet_nn::optimizer::OptimizerDesc;
use fleet_nn::prelude::{Adagrad, Adam, AdamW, Lamb, LarsMomentum, Momentum, Sgd};
use fleet_ops::Registry;
use fleet_passes::{Arrival, PassManager, optimize_observed};
use fleet_strategy::meta::Facts;
use fleet_strategy::servers::{Place, ServerPlan};
use fleet_strategy::{
    BATCH_ASSUMED, Cluster, DistributedStrategy, Origin, Ranks, Rates, Report, RingSpec, Verdict,
    Written, cost, decide, minimize, minimize_with, servers,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

// Not a doc comment, which clap would take as the help text of the command.
// The program to rewrite, and its job.
#[derive(Args)]
#[group(requires = "program")]
pub struct ProgramArgs {
    /// Number of ranks
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20),
    )]
    ranks: u32,
    /// Number of parameter servers; the ranks are then their workers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    servers: Option<u32>,
    /// Ranks per machine [default: all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    ranks_per_node: Option<u32>,
    /// Variable to minimise [default: the model's loss, or the only scalar that no op reads]
    #[arg(long, value_name = "NAME")]
    loss: Option<String>,
    /// Optimizer with its parameters
    #[arg(long, value_name = "RULE,KEY=NUMBER,..", default_value = "momentum,lr=0.1,mu=0.9")]
    optimizer: String,
    /// Samples per rank and step, for the cost model of auto and for memory [default: the program's
    /// batch size, else 32]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    batch: Option<u32>,
    /// Compute rate of a rank in Gflop/s, for auto [default: 100]
    #[arg(long, value_name = "G", value_parser = positive)]
    gflops: Option<f64>,
    /// Memory bandwidth of a rank in GB/s read and written, for auto [default: 10]
    #[arg(long, value_name = "GB/s", value_parser = positive)]
    memory: Option<f64>,
    /// Network bandwidth of a rank in GB/s sent, for auto (see fleet doctor) [default: 5 on one
    /// machine, 1.1 between machines]
    #[arg(long, value_name = "GB/s", value_parser = positive)]
    bandwidth: Option<f64>,
    /// Memory of a rank, such as 2GiB, for auto [default: unlimited]
    #[arg(long, value_name = "SIZE", value_parser = units::size)]
    rank_memory: Option<f64>,
    /// Startup program of PROGRAM [default: parameters are assumed to be loaded]
    #[arg(long, value_name = "FILE")]
    startup: Option<PathBuf>,
}

#[derive(Args)]
pub struct RewriteArgs {
    /// Forward program: a file, or model:NAME
    program: String,
    /// Strategy file [default: the default strategy]
    #[arg(long, value_name = "FILE")]
    strategy: Option<PathBuf>,
    #[command(flatten)]
    program_args: ProgramArgs,
    /// Rank whose programs are printed
    #[arg(long, value_name = "R", default_value_t = 0, allow_negative_numbers = true)]
    rank: u32,
    /// Print the changes of every pass instead of the programs: first those of the strategies, then
    /// those of the executor in a run that fetches the loss
    #[arg(long)]
    diff: bool,
    /// Threads per rank, for --diff: with one thread, parameters are updated on arrival of their
    /// gradients' sum
    #[arg(long, value_name = "N", default_value_t = 2,
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    threads: u32,
    /// Print this rank's communication cost and its memory instead of the programs. Fed tensors
    /// have --batch in their unknown dimensions
    #[arg(long, conflicts_with = "servers")]
    cost: bool,
    /// Explain which strategies apply and which are rejected, instead of printing the programs
    #[arg(long)]
    explain: bool,
}

fn positive(text: &str) -> std::result::Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok(number),
        _ => Err("expected a number > 0".into()),
    }
}

pub fn rewrite(args: &RewriteArgs, models: &Models, out: &mut Output) -> Result<(), ExitReason> {
    let (strategy, source) = match &args.strategy {
        Some(path) => load_with_source(path).map(|(strategy, source)| (strategy, Some(source)))?,
        None => (DistributedStrategy::new(), None),
    };
    let written = Written { strategy: &strategy, source: source.as_ref() };
    if args.explain {
        return explain(&written, models, &args.program, &args.program_args, out);
    }
    let (mut programs, loss) = args.program_args.programs(models, &args.program)?;
    let optimizer = parse_optimizer(&args.program_args.optimizer)?;
    let network = Network { programs: &programs, loss, optimizer: &optimizer };
    let cluster = args.program_args.cluster(args.rank, &strategy, network)?;
    let mut changes = Changes::default();
    let registry = Registry::standard();
    let manager = PassManager::observed(registry, &mut changes);
    let plan = match args.program_args.servers {
        Some(count) => {
            let place = place(&cluster.ranks, count);
            let plan = servers::minimize_with(
                manager,
                &mut programs,
                registry,
                loss,
                &optimizer,
                None,
                written,
                place,
            )?;
            print_warnings(&plan.warnings);
            Outcome { chain: plan.chain_text(), notes: plan.notes, rings: Vec::new() }
        }
        None => {
            let plan = minimize_with(
                manager,
                &mut programs,
                registry,
                loss,
                &optimizer,
                written,
                cluster,
            )?;
            print_warnings(&plan.warnings);
            Outcome { chain: plan.chain_text(), notes: plan.notes, rings: plan.rings }
        }
    };
    if args.diff {
        let options = exec_options(&strategy, ExecOptions::threads(args.threads as usize));
        let options = options.build_options();
        optimize_observed(&programs.startup, registry, &[], &options, &mut changes)?;
        optimize_observed(&programs.main, registry, &[loss], &options, &mut changes)?;
        changes.print(out)?;
    }
    if args.cost {
        print_cost(&programs, &plan, out)?;
        let batch = args.program_args.batch.map_or(BATCH, i64::from);
        print_memory(&programs.main, batch, out)?;
    }
    if !args.diff && !args.cost {
        out.text(format!("# startup\n{}\n# main\n{}", programs.startup, programs.main))?;
    }
    Ok(())
}

/// The printed parts of a plan, for either kind of job.
struct Outcome {
    chain: String,
    notes: Vec<String>,
    rings: Vec<RingSpec>,
}

/// Returns a rank's place in a job with servers.
fn place(ranks: &Ranks, server_count: u32) -> Place {
    Place {
        worker: ranks.rank,
        worker_count: ranks.count,
        server_count: server_count as usize,
        half_async: false,
    }
}

/// Prints which strategies apply to a program, and why; stops at errors.
pub fn explain(
    written: &Written<'_>,
    models: &Models,
    program: &str,
    program_args: &ProgramArgs,
    out: &mut Output,
) -> Result<(), ExitReason> {
    let (mut programs, loss) = program_args.programs(models, program)?;
    let optimizer = parse_optimizer(&program_args.optimizer)?;
    let network = Network { programs: &programs, loss, optimizer: &optimizer };
    let cluster = program_args.cluster(0, written.strategy, network)?;
    let report = program_args.report(*written, &programs.main, &optimizer, &cluster)?;
    out.text(&report)?;
    stop_at_errors(&report)?;
    let registry = Registry::standard();
    if let Some(count) = program_args.servers {
        let place = place(&cluster.ranks, count);
        let plan =
            servers::minimize(&mut programs, registry, loss, &optimizer, None, *written, place)?;
        out.line(format!("\nchain: {}", plan.chain_text()))?;
        plan.notes.iter().try_for_each(|note| out.line(note))?;
        return print_tables(&plan, out);
    }
    let plan = minimize(&mut programs, registry, loss, &optimizer, *written, cluster)?;
    out.line(format!("\nchain: {}", plan.chain_text()))?;
    plan.notes.iter().try_for_each(|note| out.line(note))?;
    print_overlap(&programs.main, out)
}

/// Returns the report on a strategy for a program and the job of the arguments, and, unless it
/// refuses something, the error of the job's rewrite.
pub fn report_on<'a>(
    written: Written<'a>,
    models: &Models,
    program: &str,
    program_args: &ProgramArgs,
) -> Result<(Report<'a>, Option<Error>)> {
    let (mut programs, loss) = program_args.programs(models, program)?;
    let optimizer = parse_optimizer(&program_args.optimizer)?;
    let network = Network { programs: &programs, loss, optimizer: &optimizer };
    let cluster = program_args.cluster(0, written.strategy, network)?;
    let report = program_args.report(written, &programs.main, &optimizer, &cluster)?;
    if report.refuse().is_err() {
        return Ok((report, None));
    }
    let (programs, registry) = (&mut programs, Registry::standard());
    let made = match program_args.servers {
        Some(count) => {
            let place = place(&cluster.ranks, count);
            servers::minimize(programs, registry, loss, &optimizer, None, written, place).map(drop)
        }
        None => minimize(programs, registry, loss, &optimizer, written, cluster).map(drop),
    };
    Ok((report, made.err()))
}

/// Returns an error that counts the errors of a printed report.
fn stop_at_errors(report: &Report<'_>) -> Result<()> {
    let errors = report.problems.iter().filter(|problem| problem.is_error()).count();
    if errors > 0 {
        let errors = counted(errors, "error");
        return Err(Error::invalid(format!("the strategy has {errors}")));
    }
    let refused = report.decisions.iter().filter(|it| it.verdict == Verdict::Refused);
    let refused: Vec<&str> = refused.map(|it| it.strategy.name()).collect();
    match refused.is_empty() {
        true => Ok(()),
        false => Err(Error::unsupported(format!("refused: {}", refused.join(", ")))),
    }
}

/// Prints whether updates overlap with the all-reduce of their gradients, and the reasons where
/// they do not.
fn print_overlap(main: &Program, out: &mut Output) -> Result<(), ExitReason> {
    let arrivals = fleet_passes::updates_on_arrival(main);
    if arrivals.is_empty() {
        return Ok(());
    }
    let free = arrivals.iter().filter(|it| it.held.is_none()).count();
    let count = arrivals.len();
    out.line(format!("updates on arrival, for ranks of one thread: {free} of {count} sums"))?;
    arrivals.iter().try_for_each(|Arrival { label, held }| match held {
        Some(why) => out.line(format!("  {label} is not overlapped: {why}")),
        None => Ok(()),
    })
}

/// Prints the servers' tables, one per line.
fn print_tables(plan: &ServerPlan, out: &mut Output) -> Result<(), ExitReason> {
    for table in &plan.tables.sparse {
        let (id, name, rows, width) = (table.table_id(), &table.name, table.rows, table.width());
        out.line(format!("table {id}: sparse '{name}', up to {rows} rows of {width}"))?;
    }
    for table in &plan.tables.dense {
        let (id, len) = (table.table_id, table.len);
        let parameters = counted(table.params.len(), "parameter");
        out.line(format!("table {id}: dense, {len} values of {parameters}"))?;
    }
    if let Some(id) = plan.tables.steps {
        out.line(format!("table {id}: step counter of all workers"))?;
    }
    Ok(())
}

fn print_cost(programs: &Programs, plan: &Outcome, out: &mut Output) -> Result<(), ExitReason> {
    out.line(format!("chain: {}", plan.chain))?;
    for note in &plan.notes {
        out.line(note)?;
    }
    out.line(format!("rings: {}", plan.rings.len()))?;
    for ring in &plan.rings {
        let RingSpec { id, label, rank, nranks, .. } = ring;
        out.line(format!("  ring {id} ({label}): rank {rank} of {nranks}"))?;
    }
    out.line("\nstartup")?;
    out.text(cost::cost(&programs.startup))?;
    out.line("\ntraining")?;
    out.text(cost::cost(&programs.main))
}

/// Samples of a step if neither the program nor the user states them.
const BATCH: i64 = 32;

/// Prints the memory of a step, as the planner computes it. The scratch memory of kernels is not
/// known before they are prepared, which needs the connections of a job.
fn print_memory(main: &Program, batch: i64, out: &mut Output) -> Result<(), ExitReason> {
    let plan = match plan_of_rank(main, batch) {
        Ok(plan) => plan,
        Err(error) => return out.line(format!("\nmemory: unknown: {error}")),
    };
    let bytes = |count: usize| text::bytes(count as u64);
    let total = plan.persistable_bytes + plan.arena_bytes + plan.feed_bytes;
    let sent = text::bytes(cost::gradient_bytes(main));
    out.line(format!("\nmemory of this rank, unknown dimensions of fed tensors: {batch}"))?;
    out.line(format!("  total           {}", bytes(total)))?;
    out.line(format!("    persistables  {}", bytes(plan.persistable_bytes)))?;
    out.line(format!("    arena         {} ({sent} of gradients sent)", bytes(plan.arena_bytes)))?;
    out.line(format!("    fed           {}", bytes(plan.feed_bytes)))?;
    out.line("  without the scratch memory of kernels")
}

impl ProgramArgs {
    fn report<'a>(
        &self,
        written: Written<'a>,
        program: &Program,
        optimizer: &OptimizerDesc,
        Cluster { ranks, rates, layout }: &Cluster,
    ) -> Result<Report<'a>> {
        Ok(match self.servers {
            Some(count) => servers::report(written, place(ranks, count), optimizer, None, program),
            None => {
                let (servers, layout) = (None, layout.as_ref());
                decide(written, &Facts { optimizer, ranks, rates, layout, program, servers })
            }
        })
    }

    /// Returns the ranks and their speeds. If the strategy is `auto`, a search chooses the layout,
    /// as in a job.
    fn cluster(
        &self,
        rank: u32,
        strategy: &DistributedStrategy,
        network: Network<'_>,
    ) -> Result<Cluster> {
        let (rates, ranks) = (self.rates(), self.ranks(rank)?);
        let searches = ranks.count > 1 && self.servers.is_none();
        if !searches || !fleet_strategy::auto::chooses(strategy) {
            return Ok(Cluster { ranks, rates, layout: None });
        }
        let speeds = Speeds { rates: rates.clone(), has_spare_cores: true, ..Speeds::default() };
        let machines = Machines { ranks: Ranks { rank: 0, ..ranks }, speeds, threads: 1 };
        let memory = self.rank_memory.map(|bytes| bytes as u64);
        let mut layout = choose_layout(network, &machines, memory);
        layout.reasons.extend(self.missing(&ranks, network.programs));
        Ok(Cluster { ranks, rates, layout: Some(layout) })
    }

    /// Returns a line on the inputs of a search that are not given, if any. A job measures them.
    fn missing(&self, ranks: &Ranks, programs: &Programs) -> Option<String> {
        let Rates { flops_per_second, memory_bytes_per_second, .. } = self.rates();
        let giga = |rate: f64| rate / 1e9;
        let bandwidth = giga(self.rates().network(ranks));
        let is_fixed = fixed_batch(&programs.main).is_some();
        let inputs = [
            (self.gflops.is_some(), format!("--gflops ({})", giga(flops_per_second))),
            (self.memory.is_some(), format!("--memory ({})", giga(memory_bytes_per_second))),
            (self.bandwidth.is_some(), format!("--bandwidth ({bandwidth})")),
            (self.rank_memory.is_some(), "--rank-memory (unlimited)".to_string()),
            (self.batch.is_some() || is_fixed, format!("--batch ({BATCH_ASSUMED})")),
        ];
        let missing = inputs.into_iter().filter(|(is_given, _)| !is_given).map(|(_, flag)| flag);
        let missing: Vec<String> = missing.collect();
        (!missing.is_empty()).then(|| {
            format!("not given, so assumed; a job measures or knows them: {}", missing.join(", "))
        })
    }

    fn rates(&self) -> Rates {
        let given = [self.gflops, self.memory, self.bandwidth].iter().any(Option::is_some);
        let assumed = Rates::default();
        let giga = |value: Option<f64>, default: f64| value.map_or(default, |value| value * 1e9);
        Rates {
            flops_per_second: giga(self.gflops, assumed.flops_per_second),
            memory_bytes_per_second: giga(self.memory, assumed.memory_bytes_per_second),
            network_bytes_per_second: self.bandwidth.map(|value| value * 1e9),
            batch: self.batch.map(|batch| batch as usize),
            origin: if given { Origin::Given } else { Origin::Assumed },
        }
    }

    fn ranks(&self, rank: u32) -> Result<Ranks> {
        let count = self.ranks as usize;
        let per_node = self.ranks_per_node.map_or(count, |ranks| ranks as usize);
        let ranks = Ranks::new(rank as usize, count).per_node(per_node);
        ranks.check()?;
        Ok(ranks)
    }

    /// Returns both programs and the loss.
    fn programs(&self, models: &Models, name: &str) -> Result<(Programs, VarId)> {
        network(models, name, self.loss.as_deref(), self.startup.as_deref())
    }
}

/// Returns both programs of a network and its loss: a file with its startup program, or
/// `model:NAME`.
pub fn network(
    models: &Models,
    name: &str,
    loss: Option<&str>,
    startup: Option<&Path>,
) -> Result<(Programs, VarId)> {
    let (programs, own_loss) = match models.build(name)? {
        Some((programs, loss)) => (programs, Some(loss)),
        None => (read(models, Path::new(name), startup)?, None),
    };
    let loss = match (loss, own_loss) {
        (Some(name), _) => programs.main.var_named(name)?,
        (None, Some(loss)) => loss,
        (None, None) => guess_loss(&programs.main)?,
    };
    Ok((programs, loss))
}

fn read(models: &Models, path: &Path, startup: Option<&Path>) -> Result<Programs> {
    let main = models.load(path)?;
    if let Some((id, _)) = main.root_ops().find(|(_, op)| !op.role.is_forward()) {
        return Err(Error::invalid("the program is already rewritten")
            .expected("a forward pass")
            .got(main.describe_op(id)));
    }
    let startup = match startup {
        Some(path) => models.load(path)?,
        None => {
            let mut startup = Program::new();
            for (_, var) in main.parameters() {
                startup.add_var(Program::ROOT, var.clone())?;
            }
            startup
        }
    };
    Ok(Programs { main, startup, ..Programs::new() })
}

/// Returns the only scalar float that the program computes and does not read.
fn guess_loss(main: &Program) -> Result<VarId> {
    let mut read = std::collections::HashSet::new();
    main.root_ops().for_each(|(id, _)| main.reads_of(id, &mut read));
    let made = main.root_ops().flat_map(|(_, op)| op.all_outputs());
    let numbers: Vec<VarId> = made
        .filter(|var| {
            let it = main.var(*var);
            it.shape.numel() == Some(1) && it.dtype.is_float() && !read.contains(var)
        })
        .collect();
    match numbers[..] {
        [only] => Ok(only),
        _ => {
            let names: Vec<&str> = numbers.iter().map(|var| main.var_name(*var)).collect();
            Err(Error::invalid("ambiguous loss variable")
                .got(if names.is_empty() { "none".into() } else { names.join(", ") })
                .help("set it with --loss"))
        }
    }
}

/// Parses `momentum,lr=0.1,mu=0.9`.
pub fn parse_optimizer(given: &str) -> Result<OptimizerDesc> {
    const KNOWN: [&str; 7] = ["sgd", "momentum", "adam", "adamw", "adagrad", "lars", "lamb"];
    let mut parts = given.split(',').map(str::trim);
    let rule = parts.next().unwrap_or_default();
    let mut numbers = BTreeMap::new();
    for part in parts {
        let number = part.split_once('=').and_then(|(key, v)| Some((key, v.parse::<f64>().ok()?)));
        let (key, value) = number.ok_or_else(|| {
            Error::invalid("invalid --optimizer")
                .expected("RULE,KEY=NUMBER,.. such as momentum,lr=0.1,mu=0.9")
                .got(part)
        })?;
        numbers.insert(key.to_string(), value);
    }
    let rate = numbers.remove("lr").unwrap_or(0.001);
    let mut take = |key: &str, default: f64| numbers.remove(key).unwrap_or(default);
    let desc: OptimizerDesc = match rule {
        "sgd" => Sgd::new(rate).into(),
        "momentum" => Momentum::new(rate, take("mu", 0.9)).into(),
        "lars" => LarsMomentum::new(rate, take("mu", 0.9)).into(),
        "adagrad" => Adagrad::new(rate).into(),
        "adam" => Adam::new(rate).beta1(take("beta1", 0.9)).beta2(take("beta2", 0.999)).into(),
        "adamw" => AdamW::new(rate).into(),
        "lamb" => Lamb::new(rate).beta1(take("beta1", 0.9)).beta2(take("beta2", 0.999)).into(),
        other => {
            let hint = text::did_you_mean(other, KNOWN.iter().copied());
            return Err(Error::invalid(format!("unknown optimizer '{other}'{hint}"))
                .expected(format!("one of {}", KNOWN.join(", "))));
        }
    };
    match numbers.keys().next() {
        Some(key) => Err(Error::invalid(format!("optimizer {rule} has no parameter '{key}'"))),
        None => Ok(desc),
    }
}
