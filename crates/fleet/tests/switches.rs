//! Trains once for each switch in each kind of job: a switch that applies changes the programs or
//! the results, one without effect gives the bits of the training without it, and a refused one is
//! an error.

use fleet::nn::optimizer::OptimizerDesc;
use fleet::ops::Services;
use fleet::prelude::*;
use fleet::ps::{CommunicatorOptions, LocalServers, ServerTables};
use fleet::servers::{Place, ServerJob, Worker};
use fleet_strategy::meta::Facts;
use fleet_strategy::{
    Field, GradientMergeConfig, Item, Kind, Outcome, Ranks, Rates, ShardingConfig, Value, Verdict,
    decide, minimize, servers,
};
use fleet_testkit::local::{self, LocalRing};
use std::sync::Arc;

const STEPS: usize = 3;
const RANKS: usize = 4;
const BATCH: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Collective,
    Sync,
    HalfAsync,
    Async,
    Geo,
}

const MODES: [Mode; 5] = [Mode::Collective, Mode::Sync, Mode::HalfAsync, Mode::Async, Mode::Geo];

/// Everything that a training does.
#[derive(PartialEq)]
struct Training {
    programs: String,
    exchange: String,
    /// Bits of the parameters.
    values: Vec<u32>,
    bytes: u64,
    outcomes: Vec<Outcome>,
}

fn network(net: &Net) -> fleet::nn::Var<'_> {
    net.set_seed(5);
    let (x, y) = (net.data("x", [-1, 6], DType::F32), net.data("y", [-1, 1], DType::F32));
    let hidden = x.fc(Fc::new(130).act(Act::Tanh)).batch_norm(BatchNorm::new());
    hidden.fc(Fc::new(130).act(Act::Tanh)).fc(1).mse_loss(y, Reduction::Mean)
}

fn batch(step: usize, rank: usize) -> Result<[(&'static str, Tensor); 2]> {
    let value = |row: usize, column: usize| {
        let number = ((step * RANKS + rank) * BATCH + row) * 31 + column * 17 + 3;
        (number * number % 97) as f32 / 48.5 - 1.0
    };
    let x: Vec<f32> = (0..BATCH).flat_map(|row| (0..6).map(move |at| value(row, at))).collect();
    let y: Vec<f32> = (0..BATCH).map(|row| value(row, 0) - value(row, 3)).collect();
    let (x, y) =
        (Tensor::from_slice(&x, [BATCH as i64, 6])?, Tensor::from_slice(&y, [BATCH as i64, 1])?);
    Ok([("x", x), ("y", y)])
}

/// Returns the bits of all weights and biases that this rank has.
fn bits(scope: &Scope) -> Result<Vec<u32>> {
    let mut bits = Vec::new();
    let names = ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0", "fc_2.w_0", "fc_2.b_0"];
    for name in names.into_iter().filter(|name| scope.contains(name)) {
        bits.extend(scope.tensor(name)?.as_slice::<f32>()?.iter().map(|value| value.to_bits()));
    }
    Ok(bits)
}

fn collective(strategy: &DistributedStrategy, optimizer: &OptimizerDesc) -> Result<Training> {
    let trained = local::run(RANKS, |rank, world| {
        let net = Net::new();
        let loss = network(&net).id();
        let ranks = Ranks::new(rank, RANKS);
        let plan = net.rewrite_with(|programs, registry| {
            minimize(programs, registry, loss, optimizer, strategy, ranks)
        })?;
        let rings: Vec<(i64, Arc<LocalRing>)> = plan
            .rings
            .iter()
            .map(|ring| (ring.id, world.ring(ring.id, &ring.members().collect::<Vec<_>>(), rank)))
            .collect();
        let services = rings
            .iter()
            .fold(Services::none(), |services, (id, ring)| services.with_ring(*id, ring.clone()));
        let programs = net.build()?;
        let mut executor = Executor::new(ExecOptions::threads(1)).services(services);
        let mut scope = Scope::new();
        executor.run(&programs.startup, &mut scope, &[], &[])?;
        for step in 0..STEPS {
            let feed = batch(step, rank)?;
            let feed: Vec<(&str, &Tensor)> = feed.iter().map(|(name, it)| (*name, it)).collect();
            executor.run(&programs.main, &mut scope, &feed, &[])?;
        }
        Ok(Training {
            programs: format!("{}\n{}\n{:?}", programs.startup, programs.main, plan.rings),
            exchange: String::new(),
            values: bits(&scope)?,
            bytes: rings.iter().map(|(_, ring)| ring.bytes_given()).sum(),
            outcomes: plan.outcomes,
        })
    });
    let mut trained: Vec<Training> = trained.into_iter().collect::<Result<_>>()?;
    Ok(trained.swap_remove(0))
}

fn place(mode: Mode) -> Place {
    let half_async = mode == Mode::HalfAsync;
    Place { worker: 0, worker_count: 1, server_count: 2, half_async }
}

/// Trains with one worker, which waits for the servers after each step, so that every mode gives
/// the same numbers in every run.
fn with_servers(
    mode: Mode,
    strategy: &DistributedStrategy,
    optimizer: &OptimizerDesc,
) -> Result<Training> {
    let net = Net::new();
    let loss = network(&net);
    let job = ServerJob::minimize(&net, loss, optimizer, None, strategy, place(mode))?;
    let tables = ServerTables::all(&job.tables)?;
    let client = Arc::new(LocalServers::new(&tables, 0)?);
    let programs = net.build()?;
    let text = format!("{}\n{}", programs.startup, programs.main);
    let (options, communication) = (ExecOptions::threads(1), CommunicatorOptions::default());
    let mut worker = Worker::start(client, programs, &job, options, communication)?;
    for step in 0..STEPS {
        let feed = batch(step, 0)?;
        let feed: Vec<(&str, &Tensor)> = feed.iter().map(|(name, it)| (*name, it)).collect();
        worker.run(&feed, &[])?;
        worker.flush()?;
    }
    let values = bits(&worker.session.scope)?;
    worker.stop()?;
    let exchange = format!("{:?}", job.plan.exchange);
    Ok(Training { programs: text, exchange, values, bytes: 0, outcomes: job.plan.outcomes })
}

fn train(
    mode: Mode,
    strategy: &DistributedStrategy,
    optimizer: &OptimizerDesc,
) -> Result<Training> {
    match mode {
        Mode::Collective => collective(strategy, optimizer),
        _ => with_servers(mode, strategy, optimizer),
    }
}

/// Returns a value other than the default, with which the field has an effect on the network.
fn value(field: &Field) -> Value {
    match (field.name, field.kind, field.default_item()) {
        ("fuse_grad_size_in_MB", ..) => (-1).into(),
        ("fuse_grad_size_in_TFLOPS", ..) => 2.0.into(),
        ("fuse_grad_size_in_num", ..) => 2.into(),
        ("last_comm_group_size_MB", ..) => 0.01.into(),
        ("hierarchical_allreduce_inter_nranks", ..) => 2.into(),
        ("fp16_allreduce_dtype", ..) => "bfloat16".into(),
        (_, Kind::Bool, Some(Item::Bool(value))) => (!value).into(),
        (_, Kind::Int32, Some(Item::Int32(value))) => (value + 2).into(),
        (_, Kind::Enum(shape), _) => shape.values[1].0.into(),
        (name, ..) => panic!("no value for {name}"),
    }
}

/// Returns the strategy that selects a mode, with what a field needs to have an effect.
fn base(mode: Mode, field: &str) -> DistributedStrategy {
    let strategy = match mode {
        Mode::Collective => DistributedStrategy::new(),
        Mode::Sync | Mode::HalfAsync => DistributedStrategy::new().with_a_sync(false),
        Mode::Async => DistributedStrategy::new().with_a_sync(true),
        Mode::Geo => DistributedStrategy::new().use_geo(2),
    };
    match field {
        "fp16_allreduce_dtype" => strategy.with_fp16_allreduce(true),
        "hierarchical_allreduce_inter_nranks" => strategy.with_use_hierarchical_allreduce(true),
        "use_hierarchical_allreduce" => strategy.with_hierarchical_allreduce_inter_nranks(2),
        // Its value other than the default is the behaviour without the field.
        "sync_nccl_allreduce" => strategy.with_sync_nccl_allreduce(true),
        // With parameters on every rank, which this test compares.
        "sharding" => strategy.with_sharding_configs(ShardingConfig::default().with_stage(1)),
        "gradient_merge" => {
            strategy.with_gradient_merge_configs(GradientMergeConfig::default().with_k_steps(2))
        }
        _ => strategy,
    }
}

fn optimizer(mode: Mode, field: &str) -> OptimizerDesc {
    match (mode, field) {
        (Mode::Geo, _) => Sgd::new(0.01).into(),
        (_, "lamb") => Adam::new(0.01).into(),
        _ => Momentum::new(0.01, 0.9).into(),
    }
}

/// Returns the error of the report on a strategy, if it refuses something.
fn refusal(mode: Mode, strategy: &DistributedStrategy, optimizer: &OptimizerDesc) -> Result<()> {
    let net = Net::new();
    network(&net);
    let program = &net.build()?.main;
    if mode != Mode::Collective {
        return servers::report(strategy, place(mode), optimizer, None, program).refuse();
    }
    let (ranks, rates) = (&Ranks::new(0, RANKS), &Rates::default());
    decide(strategy, &Facts { optimizer, ranks, rates, program, servers: None, layout: None })
        .refuse()
}

fn check(mode: Mode, field: &Field) {
    let at = format!("{} in {mode:?}", field.name);
    let optimizer = optimizer(mode, field.name);
    let base = base(mode, field.name);
    let mut strategy = base.clone();
    strategy.set_strictly(field.name, value(field)).unwrap();
    if strategy == base {
        return;
    }
    if let Err(expected) = refusal(mode, &strategy, &optimizer) {
        let Err(error) = train(mode, &strategy, &optimizer) else { panic!("{at}: not refused") };
        assert_eq!(error.message(), expected.message(), "{at}");
        return;
    }
    let with = train(mode, &strategy, &optimizer).unwrap_or_else(|error| panic!("{at}: {error}"));
    let without = train(mode, &base, &optimizer);
    let without = without.unwrap_or_else(|error| panic!("{at}, without it: {error}"));
    let outcome = with.outcomes.iter().find(|it| it.path == field.name).unwrap();
    let same = (&with.programs, &with.exchange, &with.values, with.bytes)
        == (&without.programs, &without.exchange, &without.values, without.bytes);
    match outcome.verdict {
        // Its choice may be the default.
        Verdict::Applied if field.name == "auto" => {}
        Verdict::Applied => assert!(!same, "{at} applies, but changes nothing"),
        _ => assert!(same, "{at} is {:?}, but changes something", outcome.verdict),
    }
}

#[test]
fn every_switch_in_every_kind_of_job() {
    let fields = DistributedStrategy::describe().fields.iter();
    let switches: Vec<&Field> =
        fields.filter(|field| !field.is_message() && !field.repeated).collect();
    std::thread::scope(|scope| {
        for mode in MODES {
            let switches = &switches;
            scope.spawn(move || switches.iter().for_each(|field| check(mode, field)));
        }
    });
}
