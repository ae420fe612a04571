//! Data-parallel training: ranks of one thread each on this machine, each with its own batch.
//!
//! `ddp/{mlp,resnet50}_step_vs_torch` is the samples per second of rank 0 with two ranks.
//! `.._weak_scaling` divides it by the rate of one rank alone. `.._side_by_side` is the same for
//! two independent processes: the cost of sharing the machine without any communication, which no
//! weak scaling on it can avoid by sending less. `.._in_step` is the same for two ranks that send
//! nothing and meet at the end of each step: the rank that is slower at the moment, whatever the
//! machine does to its core, limits both. `.._exposed_comm` is the share of a step in which rank 0
//! communicated, or waited for the other rank, and computed nothing. The started process is the
//! launcher; it starts itself again as the ranks.

use crate::measure::{Options, measure, measure_steps, print_rates};
use fleet::nn::models::{ResNetConfig, resnet};
use fleet::prelude::*;
use fleet::{DistributedStrategy, Fleet, Session};
use fleet_net::{Log, StoreServer, Token, Vigilance};
use std::process::{Child, Command, Stdio};

/// Number of ranks of a job.
pub const RANKS: usize = 2;

/// Number of ratios, of which the median counts.
const ROUNDS: usize = 3;

/// Variable that tells a started process which network it trains.
const RANK_OF: &str = "FLEET_BENCH_RANK_OF";

pub fn step(options: &Options, model: &str) -> Result<()> {
    match is_rank() {
        true => rank(options, model),
        false => {
            print!("{}", job(options, model, RANKS)?);
            Ok(())
        }
    }
}

/// Returns whether this process is a rank, not the launcher.
pub fn is_rank() -> bool {
    std::env::var(RANK_OF).is_ok()
}

pub fn weak_scaling(options: &Options, model: &str) -> Result<()> {
    scaling(options, model, |options, model| job(options, model, RANKS))
}

pub fn side_by_side(options: &Options, model: &str) -> Result<()> {
    scaling(options, model, |options, model| {
        let other = || job(options, model, 1);
        let (first, second) = std::thread::scope(|scope| {
            let second = scope.spawn(other);
            (other(), second.join())
        });
        second.map_err(|_| Error::internal("a job's thread panicked"))??;
        first
    })
}

pub fn in_step(options: &Options, model: &str) -> Result<()> {
    scaling(options, model, |options, model| {
        job(options, &format!("{model}{IN_STEP_SUFFIX}"), RANKS)
    })
}

pub fn exposed_comm(options: &Options, model: &str) -> Result<()> {
    step(options, &format!("{model}{TRACED_SUFFIX}"))
}

fn scaling(
    options: &Options,
    model: &str,
    together: impl Fn(&Options, &str) -> Result<String>,
) -> Result<()> {
    match is_rank() {
        true => rank(options, model),
        false => compare_with_one(options, || job(options, model, 1), || together(options, model)),
    }
}

/// Measures the speed of rank 0 of the job `together` relative to that of the job `alone`,
/// alternately.
pub fn compare_with_one(
    options: &Options,
    alone: impl Fn() -> Result<String>,
    together: impl Fn() -> Result<String>,
) -> Result<()> {
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let alone = samples_per_second(&alone()?)?;
        ratios.push(samples_per_second(&together()?)? / alone);
    }
    ratios.sort_by(f64::total_cmp);
    println!(
        "{{\"bench\": \"{}\", \"unit\": \"of one rank's speed\", \"median\": {:.4}, \
         \"min\": {:.4}, \"max\": {:.4}, \"runs\": {}, \"threads\": 1}}",
        options.name,
        ratios[ratios.len() / 2],
        ratios[0],
        ratios[2],
        ratios.len()
    );
    Ok(())
}

/// Measures the speed with updates on arrival relative to that with updates after everything else,
/// in alternate steps, so that other load on the machine affects both.
pub fn update_on_arrival(options: &Options) -> Result<()> {
    if is_rank() {
        return compare_updates(options);
    }
    print!("{}", job(options, "mlp", RANKS)?);
    Ok(())
}

fn compare_updates(options: &Options) -> Result<()> {
    let fleet = Fleet::collective()?;
    let strategy = DistributedStrategy::new();
    let mut prepared = Vec::new();
    for update_on_arrival in [true, false] {
        let net = Net::new();
        let (loss, batches) = mlp(&net, MLP_BATCH)?;
        let rule = Momentum::new(0.01, 0.9);
        let job = fleet.distributed_optimizer(rule, &strategy).minimize(&net, loss)?;
        let build = fleet::BuildOptions { update_on_arrival, ..Default::default() };
        let exec = ExecOptions { num_threads: 1, build, ..options.exec() };
        prepared.push((fleet.session(net.build()?, &job, exec)?, batches));
    }
    compare_steps(options, &fleet, prepared, "of the speed without")?;
    fleet.finish()
}

/// Runs a step of each of two sessions in turn, and prints the speed of the first relative to that
/// of the second.
pub fn compare_steps(
    options: &Options,
    fleet: &Fleet,
    mut prepared: Vec<(Session, Batches)>,
    unit: &str,
) -> Result<()> {
    let (steps, warmup) = options.counts(20, 3);
    let mut ratios = Vec::with_capacity(steps);
    for step in 0..warmup + steps {
        let mut seconds = [0.0; 2];
        for (seconds, (session, batches)) in seconds.iter_mut().zip(&mut prepared) {
            let batch = &batches[step % batches.len()];
            let feed: Vec<(&str, &Tensor)> = batch.iter().map(|(name, it)| (*name, it)).collect();
            fleet.barrier_worker()?;
            let begin = std::time::Instant::now();
            session.run(&feed, &[])?;
            *seconds = begin.elapsed().as_secs_f64();
        }
        if step >= warmup {
            ratios.push(seconds[1] / seconds[0]);
        }
    }
    for (session, _) in prepared.iter().filter(|_| options.profile) {
        show_last_step(fleet, session);
    }
    print_rates(&Options { threads: 1, ..options.clone() }, unit, ratios);
    Ok(())
}

/// Suffix of a model's name: ranks train by themselves, and meet after each step.
const IN_STEP_SUFFIX: &str = " in step";

/// Suffix of a model's name: the share of exposed communication in a step is measured.
const TRACED_SUFFIX: &str = " traced";

/// Starts the ranks and returns the output of rank 0.
pub fn job(options: &Options, model: &str, ranks: usize) -> Result<String> {
    let token = Token::generate()?;
    let server = StoreServer::bind("127.0.0.1:0", &token, Vigilance::default(), Log::stderr())?;
    let endpoints: Vec<String> = (0..ranks).map(|rank| format!("127.0.0.1:{}", rank + 1)).collect();
    let failed =
        |what: &dyn std::fmt::Display| Error::unavailable(format!("a rank failed: {what}"));
    let start = |rank: usize| -> std::io::Result<Child> {
        Command::new(std::env::current_exe()?)
            .args(std::env::args().skip(1))
            .env(RANK_OF, model)
            .env("FLEET_STORE", server.address().to_string())
            .env("FLEET_TOKEN", token.to_text())
            .env("PADDLE_TRAINER_ID", rank.to_string())
            .env("PADDLE_TRAINERS_NUM", ranks.to_string())
            .env("PADDLE_TRAINER_ENDPOINTS", endpoints.join(","))
            .env("PADDLE_CURRENT_ENDPOINT", &endpoints[rank])
            .stdout(if rank == 0 { Stdio::piped() } else { Stdio::null() })
            .stderr(if options.profile { Stdio::inherit() } else { Stdio::null() })
            .spawn()
    };
    let children: Vec<Child> =
        (0..ranks).map(start).collect::<std::io::Result<_>>().map_err(|error| failed(&error))?;
    let mut text = String::new();
    for (rank, child) in children.into_iter().enumerate() {
        let output = child.wait_with_output().map_err(|error| failed(&error))?;
        if !output.status.success() {
            return Err(failed(&output.status).help("run with --profile to see its output"));
        }
        if rank == 0 {
            text = String::from_utf8_lossy(&output.stdout).into_owned();
        }
    }
    Ok(text)
}

/// Returns the median in the line that a rank has printed.
fn samples_per_second(line: &str) -> Result<f64> {
    let value = line.split("\"median\": ").nth(1).and_then(|rest| rest.split(',').next());
    value
        .and_then(|value| value.parse().ok())
        .ok_or_else(|| Error::internal("output of a rank has no median").got(line.trim()))
}

fn rank(options: &Options, model: &str) -> Result<()> {
    let fleet = Fleet::collective()?;
    let net = Net::new();
    // The launcher's variable takes precedence over the name of the benchmark.
    let value = std::env::var(RANK_OF);
    let value = value.as_deref().unwrap_or(model);
    let (value, traced) = strip_suffix(value, TRACED_SUFFIX);
    let (model, in_step) = strip_suffix(value, IN_STEP_SUFFIX);
    let (loss, batches) = match model {
        "mlp" => mlp(&net, MLP_BATCH)?,
        _ => resnet50(&net)?,
    };
    let per_step = batches[0][1].1.shape()[0] as usize;
    let rule = Momentum::new(0.01, 0.9);
    let profile = options.profile || traced;
    let exec = ExecOptions { num_threads: 1, profile, ..options.exec() };
    let options = Options { threads: 1, profile: false, ..options.clone() };
    if in_step {
        net.minimize(loss, rule)?;
        let mut session = Session::new(net.build()?, exec)?;
        let meet = || fleet.barrier_worker();
        measure_steps(&options, &mut session, &batches, per_step, (10, 3), meet)?;
        return fleet.finish();
    }
    let strategy = DistributedStrategy::new();
    let job = fleet.distributed_optimizer(rule, &strategy).minimize(&net, loss)?;
    let mut session = fleet.session(net.build()?, &job, exec)?;
    match traced {
        true => measure_traces(&options, &mut session, &batches)?,
        false => measure(&options, &mut session, &batches, per_step, 10, 3)?,
    }
    if profile {
        show_last_step(&fleet, &session);
    }
    fleet.finish()
}

/// Prints how the last step of a rank spent its time.
pub fn show_last_step(fleet: &Fleet, session: &Session) {
    let shares = session.executor.trace().shares();
    let line = format!("rank {}: the last step took {shares}\n", fleet.worker_index());
    // In one piece, since all ranks print.
    eprint!("{line}");
}

fn strip_suffix<'a>(value: &'a str, suffix: &str) -> (&'a str, bool) {
    value.strip_suffix(suffix).map_or((value, false), |model| (model, true))
}

fn measure_traces(options: &Options, session: &mut Session, batches: &Batches) -> Result<()> {
    let (steps, warmup) = options.counts(20, 3);
    let mut shares = Vec::with_capacity(steps);
    for step in 0..warmup + steps {
        let batch = &batches[step % batches.len()];
        let feed: Vec<(&str, &Tensor)> = batch.iter().map(|(name, it)| (*name, it)).collect();
        session.run(&feed, &[])?;
        if step >= warmup {
            let of_step = session.executor.trace().shares();
            shares.push(100.0 * of_step.exposed_us / of_step.total_us);
        }
    }
    print_rates(options, "% of a step", shares);
    Ok(())
}

/// The batches of a network, which steps take in turn.
pub type Batches = Vec<Vec<(&'static str, Tensor)>>;

/// Six layers of 2048 x 2048 and a head of 10 classes: 101 MB of parameters. Ranks may share the
/// layers, in pairs of columns and rows.
pub fn mlp(net: &Net, batch: i64) -> Result<(Var<'_>, Batches)> {
    let (x, y) = (net.data("x", [-1, 2048], DType::F32), net.data("y", [-1, 1], DType::I64));
    let mut hidden = x;
    for split in [Split::Columns, Split::Rows].into_iter().cycle().take(6) {
        hidden = hidden.fc(Fc::new(2048).act(Act::Relu).split(split));
    }
    let loss = hidden.fc(10).cross_entropy(y);
    Ok((loss, batches([batch, 2048], 10)?))
}

/// Samples of a step of the MLP on a rank.
pub const MLP_BATCH: i64 = 128;

fn resnet50(net: &Net) -> Result<(Var<'_>, Batches)> {
    const BATCH: i64 = 8;
    let model = resnet(net, &ResNetConfig::new(50));
    Ok((model.loss, batches([BATCH, 3, 224, 224], 1000)?))
}

fn batches<const RANK: usize>(shape: [i64; RANK], classes: u64) -> Result<Batches> {
    let mut rng = fleet::rng::Sequence::new(1, 1);
    let mut batches = Vec::new();
    for _ in 0..2 {
        let x: Vec<f32> = (0..shape.iter().product()).map(|_| rng.normal() as f32).collect();
        let y: Vec<i64> = (0..shape[0]).map(|_| rng.below(classes) as i64).collect();
        let y = Tensor::from_slice(&y, [shape[0], 1])?;
        batches.push(vec![("x", Tensor::from_slice(&x, shape)?), ("y", y)]);
    }
    Ok(batches)
}
