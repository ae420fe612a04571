//! Training with parameter servers, with workers and servers in this process. Synchronous training
//! equals that of one process on the whole batch; other modes follow their formulas.

use fleet::nn::optimizer::OptimizerDesc;
use fleet::prelude::*;
use fleet::ps::{
    Arrival, Barriers, CommunicatorOptions, LocalServers, PullMode, SaveFormat, SaveMode,
    ServerTables, TableAccess,
};
use fleet::rng::Sequence;
use fleet::servers::{
    Exchange, Place, ServerJob, Worker, communicator_options, steps_between_reports,
};
use fleet::strategy::{AsyncConfig, Value};
use fleet::topology::Env;
use fleet_strategy::{Item, Kind};
use std::sync::Arc;

const ROWS: i64 = 40;
const DIM: i64 = 4;
/// Samples in one worker's batch.
const BATCH: usize = 6;
const IDS: usize = 3;

struct Model {
    net: Net,
    loss: String,
}

/// Creates an empty network; [`build`] adds two lookups of one table, and dense inputs.
fn network() -> Net {
    Net::new()
}

fn build(net: &Net) -> fleet::nn::Var<'_> {
    let ids = net.data("ids", [-1, IDS as i64], DType::I64);
    let more = net.data("more", [-1, 1], DType::I64);
    let x = net.data("x", [-1, 2], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let table = || {
        let attr = ParamAttr::from("table").init(Init::Constant(0.25));
        Embedding::new(ROWS, DIM).sparse().weight(attr)
    };
    let rows = ids.embedding(table()).flatten(1);
    let row = more.embedding(table().padding_idx(0)).flatten(1);
    let hidden = net.concat(&[rows, row, x], 1).fc(Fc::new(5).act(Act::Tanh));
    hidden.fc(1).mse_loss(y, Reduction::Mean)
}

fn model(minimize: impl FnOnce(&Net, fleet::nn::Var<'_>)) -> Model {
    let net = network();
    let loss = build(&net);
    let name = loss.name();
    minimize(&net, loss);
    Model { net, loss: name }
}

/// The samples of a step: those of all workers, one after another.
struct Samples {
    ids: Vec<i64>,
    more: Vec<i64>,
    x: Vec<f32>,
    y: Vec<f32>,
}

fn samples(step: u64, count: usize) -> Samples {
    let mut rng = Sequence::new(7, step);
    let ids = (0..count * IDS).map(|_| rng.below(ROWS as u64) as i64).collect();
    let more = (0..count).map(|_| rng.below(4) as i64).collect();
    let mut number = || rng.below(2001) as f32 / 1000.0 - 1.0;
    let x = (0..count * 2).map(|_| number()).collect();
    let y = (0..count).map(|_| number()).collect();
    Samples { ids, more, x, y }
}

impl Samples {
    fn part(&self, range: std::ops::Range<usize>) -> [(&'static str, Tensor); 4] {
        let count = range.len() as i64;
        let cut = |per: usize| range.start * per..range.end * per;
        [
            ("ids", Tensor::from_slice(&self.ids[cut(IDS)], [count, IDS as i64]).unwrap()),
            ("more", Tensor::from_slice(&self.more[range.clone()], [count, 1]).unwrap()),
            ("x", Tensor::from_slice(&self.x[cut(2)], [count, 2]).unwrap()),
            ("y", Tensor::from_slice(&self.y[range.clone()], [count, 1]).unwrap()),
        ]
    }
}

fn fed<'a>(part: &'a [(&'static str, Tensor); 4]) -> Vec<(&'static str, &'a Tensor)> {
    part.iter().map(|(name, tensor)| (*name, tensor)).collect()
}

const PARAMS: [&str; 4] = ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"];

/// Result of training: the parameters and the table.
#[derive(Debug, PartialEq)]
struct Trained {
    params: Vec<Vec<f32>>,
    table: Vec<f32>,
}

fn alone(optimizer: &OptimizerDesc, steps: u64, count: usize) -> Trained {
    let model = model(|net, loss| _ = net.minimize(loss, optimizer.clone()).unwrap());
    let mut session = Session::new(model.net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    for step in 0..steps {
        let part = samples(step, count).part(0..count);
        session.run(&fed(&part), &[&model.loss]).unwrap();
    }
    let value =
        |name: &str| session.scope.tensor(name).unwrap().as_slice::<f32>().unwrap().to_vec();
    Trained { params: PARAMS.iter().map(|name| value(name)).collect(), table: value("table") }
}

#[derive(Clone)]
struct Case {
    optimizer: OptimizerDesc,
    strategy: DistributedStrategy,
    servers: usize,
    workers: usize,
    half_async: bool,
    options: CommunicatorOptions,
    looks_ahead: bool,
}

impl Case {
    fn new(optimizer: impl Into<OptimizerDesc>, strategy: DistributedStrategy) -> Case {
        Case {
            optimizer: optimizer.into(),
            strategy,
            servers: 2,
            workers: 2,
            half_async: false,
            options: CommunicatorOptions::default(),
            looks_ahead: true,
        }
    }

    /// Trains with every worker in a thread of its own; returns each worker's result.
    fn train(&self, steps: u64) -> Vec<Trained> {
        let place = |worker| Place {
            worker,
            worker_count: self.workers,
            server_count: self.servers,
            half_async: self.half_async,
        };
        let job = |worker| {
            let mut job = None;
            let made = model(|net, loss| {
                let place = place(worker);
                let optimizer = &self.optimizer;
                let made =
                    ServerJob::minimize(net, loss, optimizer, None, &self.strategy, place).unwrap();
                job = Some(made);
            });
            (made, job.unwrap())
        };
        let servers = ServerTables::all(&job(0).1.tables).unwrap();
        std::thread::scope(|scope| {
            let run = |worker| {
                let (model, job) = job(worker);
                let client = Arc::new(LocalServers::new(&servers, worker).unwrap());
                let programs = model.net.build().unwrap();
                let options = ExecOptions::threads(1);
                let mut worker =
                    Worker::start(client, programs, &job, options, self.options).unwrap();
                self.run(&mut worker, &model.loss, steps)
            };
            let threads: Vec<_> =
                (0..self.workers).map(|worker| scope.spawn(move || run(worker))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn run(&self, worker: &mut Worker, loss: &str, steps: u64) -> Trained {
        let own = worker.job().place.worker;
        let count = BATCH * self.workers;
        let part = |step| samples(step, count).part(own * BATCH..(own + 1) * BATCH);
        for step in 0..steps {
            if self.looks_ahead {
                worker.look_ahead(&fed(&part(step + 1))).unwrap();
            }
            worker.run(&fed(&part(step)), &[loss]).unwrap();
        }
        worker.flush().unwrap();
        worker.barrier().unwrap();
        worker.flush().unwrap();
        let table = match worker.job().plan.exchange {
            Exchange::Geo { .. } => scope_value(worker, "table"),
            _ => {
                let ids: Vec<u64> = (0..ROWS as u64).collect();
                let mut rows = vec![0.0; (ROWS * DIM) as usize];
                worker
                    .servers()
                    .tables
                    .pull_sparse(0, (&ids).into(), &mut rows, PullMode::Train)
                    .unwrap();
                rows
            }
        };
        let params = PARAMS.iter().map(|name| scope_value(worker, name)).collect();
        worker.stop().unwrap();
        Trained { params, table }
    }
}

fn scope_value(worker: &Worker, name: &str) -> Vec<f32> {
    worker.session.scope.tensor(name).unwrap().as_slice::<f32>().unwrap().to_vec()
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

fn check_near(got: &Trained, want: &Trained, limit: f32, what: &str) {
    let params = got.params.iter().zip(&want.params).map(|(a, b)| difference(a, b));
    let params = params.fold(0.0, f32::max);
    let table = difference(&got.table, &want.table);
    assert!(params < limit && table < limit, "{what}: parameters {params}, table {table}");
}

#[test]
fn synchronous_workers_train_as_one_process_on_the_whole_batch() {
    let optimizers: [(&str, OptimizerDesc); 3] = [
        ("sgd", Sgd::new(0.1).into()),
        ("momentum", Momentum::new(0.05, 0.9).into()),
        ("adagrad", Adagrad::new(0.1).initial_accumulator_value(0.1).into()),
    ];
    for (name, optimizer) in optimizers {
        for (servers, workers) in [(1, 1), (2, 2), (3, 3), (1, 4)] {
            let want = alone(&optimizer, 12, BATCH * workers);
            let strategy = DistributedStrategy::new().with_a_sync(false);
            let case = Case { servers, workers, ..Case::new(optimizer.clone(), strategy) };
            for got in case.train(12) {
                check_near(
                    &got,
                    &want,
                    1e-6,
                    &format!("{name}, {servers} servers, {workers} workers"),
                );
            }
        }
    }
}

#[test]
fn schedules_run_on_the_servers() {
    let rate = LrSchedule::exponential(0.2, 0.8);
    let optimizer: OptimizerDesc = Sgd::new(rate).into();
    let want = alone(&optimizer, 8, BATCH * 2);
    let case = Case::new(optimizer, DistributedStrategy::new().with_a_sync(false));
    case.train(8).iter().for_each(|got| check_near(got, &want, 1e-6, "sync with a schedule"));
}

/// A worker that is faster than worker 0 at the start pushes at the rate of the schedule, too. Here
/// worker 1 pushes while worker 0 still waits for it: nothing that worker 0 does later may matter.
#[test]
fn the_rate_is_set_before_any_worker_pushes() {
    let optimizer: OptimizerDesc = Sgd::new(LrSchedule::exponential(0.25, 0.5)).into();
    for (a_sync, half_async) in [(true, false), (false, true)] {
        let strategy = DistributedStrategy::new().with_a_sync(a_sync);
        let net = network();
        let loss = build(&net);
        let place = Place { worker: 0, worker_count: 2, server_count: 1, half_async };
        let job = ServerJob::minimize(&net, loss, &optimizer, None, &strategy, place).unwrap();
        let programs = net.build().unwrap();
        let servers = ServerTables::all(&job.tables).unwrap();
        let client = |worker| LocalServers::new(&servers, worker).unwrap();
        let (before, after) = std::thread::scope(|scope| {
            scope.spawn(|| {
                let (client, exec) = (Arc::new(client(0)), ExecOptions::threads(1));
                let options = CommunicatorOptions::default();
                let mut worker = Worker::start(client, programs, &job, exec, options).unwrap();
                worker.stop().unwrap();
            });
            let other = client(1);
            other.arrive(Arrival::Received).unwrap();
            other.arrive(Arrival::Received).unwrap();
            let dense = &job.plan.tables.dense[0];
            let read = || {
                let mut values = vec![0.0; dense.len];
                other.pull_dense(dense.table_id, &mut values).unwrap();
                values
            };
            let before = read();
            other.push_dense(dense.table_id, None, &vec![1.0; dense.len]).unwrap();
            let after = read();
            other.arrive(Arrival::Received).unwrap();
            if other.finish().unwrap() {
                other.stop().unwrap();
            }
            (before, after)
        });
        for (before, after) in before.iter().zip(after) {
            assert!((before - after - 0.25).abs() < 1e-6, "{before} became {after}");
        }
    }
}

#[test]
fn gradients_are_clipped_and_decayed_before_they_are_sent() {
    let optimizer: OptimizerDesc =
        Sgd::new(0.1).weight_decay(fleet::nn::Regularizer::L2(0.1)).into();
    let rows: OptimizerDesc = Sgd::new(0.1).into();
    let net = network();
    let loss = build(&net);
    let place = Place { worker: 0, worker_count: 1, server_count: 1, half_async: false };
    let strategy = DistributedStrategy::new().with_a_sync(false);
    let error = ServerJob::minimize(&net, loss, &optimizer, None, &strategy, place).unwrap_err();
    assert!(error.to_string().contains("weight decay is not supported for 'table'"), "{error}");

    let net = network();
    let loss = build(&net);
    let job = ServerJob::minimize(&net, loss, &optimizer, Some(&rows), &strategy, place).unwrap();
    let name = loss.name();
    let servers = ServerTables::all(&job.tables).unwrap();
    let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
    let options = CommunicatorOptions::default();
    let programs = net.build().unwrap();
    let mut worker =
        Worker::start(client, programs, &job, ExecOptions::threads(1), options).unwrap();

    let net = network();
    let loss = build(&net);
    let (table, rest) = net.backward(loss).unwrap().partition(|name| name == "table");
    net.apply_gradients(rows, table).unwrap();
    net.apply_gradients(optimizer, rest).unwrap();
    let mut session = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    for step in 0..6 {
        let part = samples(step, BATCH).part(0..BATCH);
        let a = worker.run(&fed(&part), &[&name]).unwrap()[0].item::<f32>().unwrap();
        let b = session.run(&fed(&part), &[&name]).unwrap()[0].item::<f32>().unwrap();
        assert!((a - b).abs() < 1e-6, "step {step}: {a} and {b}");
    }
    worker.stop().unwrap();
}

/// With one worker nothing else changes the tables, so half-async equals sync.
#[test]
fn half_asynchronous_alone_is_synchronous() {
    let optimizer: OptimizerDesc = Momentum::new(0.05, 0.9).into();
    let want = alone(&optimizer, 10, BATCH);
    let strategy = DistributedStrategy::new().with_a_sync(false);
    let case = Case { workers: 1, half_async: true, ..Case::new(optimizer, strategy) };
    check_near(&case.train(10)[0], &want, 1e-6, "half-async");
}

/// With constant gradients and sgd, the sums do not depend on the order of pushes. All pushes of
/// asynchronous workers must be in the result, whatever their timing.
#[test]
fn asynchronous_workers_lose_nothing() {
    for options in [
        CommunicatorOptions::default(),
        CommunicatorOptions { merge_count_max: 4, thread_count: 3, ..Default::default() },
        CommunicatorOptions { receives_apart: true, queue_len_max: 1, ..Default::default() },
        CommunicatorOptions {
            receives_apart: true,
            receive_thread_count: 3,
            look_ahead_thread_count: 3,
            ..Default::default()
        },
    ] {
        let strategy = DistributedStrategy::new().with_a_sync(true);
        let net = Net::new();
        let ids = net.data("ids", [-1, 1], DType::I64);
        let x = net.data("x", [-1, 1], DType::F32);
        let attr = ParamAttr::from("table").init(Init::Constant(0.0));
        let rows = ids.embedding(Embedding::new(10, 1).sparse().weight(attr));
        let loss = (rows.flatten(1) + x.fc(Fc::new(1))).sum();
        let optimizer: OptimizerDesc = Sgd::new(0.5).into();
        let place = Place { worker: 0, worker_count: 2, server_count: 2, half_async: false };
        let job = ServerJob::minimize(&net, loss, &optimizer, None, &strategy, place).unwrap();
        let servers = &ServerTables::all(&job.tables).unwrap();
        let programs = net.build().unwrap();
        let bias = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|worker| {
                    let (job, programs) = (&job, programs.clone());
                    scope.spawn(move || {
                        let client = Arc::new(LocalServers::new(servers, worker).unwrap());
                        let exec = ExecOptions::threads(1);
                        let mut worker =
                            Worker::start(client, programs, job, exec, options).unwrap();
                        let ids = Tensor::from_slice(&[3i64, 3, 8], [3, 1]).unwrap();
                        let x = Tensor::from_slice(&[0.0f32; 3], [3, 1]).unwrap();
                        for _ in 0..20 {
                            worker.run(&[("ids", &ids), ("x", &x)], &[]).unwrap();
                        }
                        worker.flush().unwrap();
                        worker.barrier().unwrap();
                        worker.flush().unwrap();
                        let mut rows = [0.0; 2];
                        worker
                            .servers()
                            .tables
                            .pull_sparse(0, (&[3, 8]).into(), &mut rows, PullMode::Infer)
                            .unwrap();
                        let bias = scope_value(&worker, "fc_0.b_0")[0];
                        let stats = worker.stats();
                        assert_eq!((stats.step_count, stats.gradient_count), (20, 40));
                        worker.stop().unwrap();
                        (rows, bias)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        // 2 workers, 20 steps, and a gradient of 1 for each occurrence of an id.
        assert_eq!(bias, [([-40.0, -20.0], -60.0); 2], "{options:?}");
    }
}

/// GEO with one worker: its changes arrive at the servers completely.
#[test]
fn geo_alone_is_local_training() {
    let optimizer: OptimizerDesc = Sgd::new(0.1).into();
    let want = alone(&optimizer, 9, BATCH);
    for k_steps in [1, 4] {
        let strategy = DistributedStrategy::new().use_geo(k_steps);
        let case = Case { workers: 1, ..Case::new(optimizer.clone(), strategy) };
        check_near(&case.train(9)[0], &want, 1e-6, "geo");
    }
}

/// A restarted worker of GEO, whose program has the learning rates, resumes their schedule.
#[test]
fn a_restarted_geo_worker_resumes_its_schedule() {
    let strategy = DistributedStrategy::new().use_geo(1);
    let place = Place { worker: 0, worker_count: 1, server_count: 2, half_async: false };
    // The rate is 0 after five steps.
    let optimizer = Sgd::new(LrSchedule::piecewise([5], [0.1, 0.0])).into();
    let job = || {
        let net = network();
        let loss = build(&net);
        let job = ServerJob::minimize(&net, loss, &optimizer, None, &strategy, place).unwrap();
        (net.build().unwrap(), job)
    };
    let servers = ServerTables::all(&job().1.tables).unwrap();
    let start = || {
        let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
        let ((programs, job), options) = (job(), CommunicatorOptions::default());
        Worker::start(client, programs, &job, ExecOptions::threads(1), options).unwrap()
    };
    let weights =
        |worker: &Worker| worker.session.scope.tensor("fc_0.w_0").unwrap().to_vec::<f32>().unwrap();
    let mut worker = start();
    let first = weights(&worker);
    for step in 0..5 {
        worker.run(&fed(&samples(step, BATCH).part(0..BATCH)), &[]).unwrap();
    }
    worker.flush().unwrap();
    worker.barrier().unwrap();
    let trained = weights(&worker);
    assert_ne!(trained, first);
    drop(worker); // the process dies
    let mut worker = start();
    assert_eq!(worker.resume().unwrap().unwrap().complete, 5);
    worker.run(&fed(&samples(5, BATCH).part(0..BATCH)), &[]).unwrap();
    let resumed = weights(&worker);
    assert!(difference(&resumed, &trained) < 1e-6, "{resumed:?} {trained:?}");
    worker.stop().unwrap();
}

/// Variables are fetched by name as in one process, except those that no worker has.
#[test]
fn variables_are_fetched_by_their_names() {
    let optimizer: OptimizerDesc = Sgd::new(0.1).into();
    let one = model(|net, loss| _ = net.minimize(loss, optimizer.clone()).unwrap());
    let mut session = Session::new(one.net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    let net = network();
    let loss = build(&net);
    let strategy = DistributedStrategy::new().with_a_sync(false);
    let place = Place { worker: 0, worker_count: 1, server_count: 2, half_async: false };
    let job = ServerJob::minimize(&net, loss, &optimizer, None, &strategy, place).unwrap();
    let servers = ServerTables::all(&job.tables).unwrap();
    let servers = Arc::new(LocalServers::new(&servers, 0).unwrap());
    let (programs, options) = (net.build().unwrap(), CommunicatorOptions::default());
    let mut worker =
        Worker::start(servers, programs, &job, ExecOptions::threads(1), options).unwrap();
    let names = [&*one.loss, "fc_0.tmp_0", "fc_0.w_0@GRAD", "fc_1.b_0@GRAD", "fc_1.w_0"];
    for step in 0..3 {
        let part = samples(step, BATCH).part(0..BATCH);
        let want = session.run(&fed(&part), &names).unwrap();
        let got = worker.run(&fed(&part), &names).unwrap();
        for ((name, want), got) in names.iter().zip(&want).zip(&got) {
            let values = |tensor: &Tensor| tensor.to_vec::<f32>().unwrap();
            let off = difference(&values(want), &values(got));
            assert!(off <= 1e-6, "'{name}' of step {step} is off by {off}");
        }
    }
    let part = samples(3, BATCH).part(0..BATCH);
    let error = worker.run(&fed(&part), &["table@GRAD"]).unwrap_err().to_string();
    assert!(error.contains("'table@GRAD'"), "{error}");
    worker.stop().unwrap();
}

/// Workers of GEO hold whole tables: the error names a table that is too large.
#[test]
fn geo_says_which_table_is_too_large() {
    let net = network();
    let ids = net.data("ids", [-1, 2], DType::I64);
    let rows = ids.sparse_embedding(SparseEmbedding::new(1i64 << 52, 4).weight("huge"));
    let strategy = DistributedStrategy::new().use_geo(4);
    let place = Place { worker: 0, worker_count: 1, server_count: 1, half_async: false };
    let sgd = Sgd::new(0.1).into();
    let job = ServerJob::minimize(&net, rows.mean(), &sgd, None, &strategy, place).unwrap();
    let servers = ServerTables::all(&job.tables).unwrap();
    let servers = Arc::new(LocalServers::new(&servers, 0).unwrap());
    let (programs, options) = (net.build().unwrap(), CommunicatorOptions::default());
    let started = Worker::start(servers, programs, &job, ExecOptions::threads(1), options);
    let error = started.err().expect("out of memory").to_string();
    let told = "tables of GEO, which workers hold whole: 'huge' of 4503599627370496 rows of 4";
    assert!(error.contains(told) && error.contains("help: "), "{error}");
}

/// Every option of `a_sync_configs` changes a worker's behaviour, or is marked as having no effect.
#[test]
fn switches_of_the_exchange_are_as_they_are_marked() {
    /// Options whose effect only a running job shows.
    const ELSEWHERE: [&str; 2] = ["launch_barrier", "runtime_split_send_recv"];
    let outcome = |strategy: &DistributedStrategy| {
        let mut tables = String::new();
        let place = Place { worker: 0, worker_count: 2, server_count: 2, half_async: false };
        let made = model(|net, loss| {
            let optimizer = Sgd::new(LrSchedule::exponential(0.1, 0.5)).into();
            let constant = Sgd::new(0.1).into();
            let is_geo = strategy.a_sync_configs().k_steps() > 0;
            let rule = if is_geo { &constant } else { &optimizer };
            let job = ServerJob::minimize(net, loss, rule, None, strategy, place).unwrap();
            tables = format!("{:?} {:?}", job.plan.exchange, job.tables);
        });
        let main = made.net.build().unwrap().main;
        let communication = communicator_options(strategy, &Env::default()).unwrap();
        format!("{main} {tables} {communication:?} {}", steps_between_reports(strategy))
    };
    let before = outcome(&DistributedStrategy::new());
    for field in AsyncConfig::describe().fields {
        let other = match field.default_item() {
            // Unassigned it is on, as documented for a running communicator.
            Some(Item::Bool(_)) if field.name == "independent_recv_thread" => Value::Bool(false),
            Some(Item::Bool(value)) => Value::Bool(!value),
            Some(Item::Int32(value)) if field.name == "use_ps_gpu" => Value::from(1 - value),
            Some(Item::Int32(value)) => Value::from(value.max(0) + 2),
            Some(Item::Float(value)) => Value::from(f64::from(value) * 2.0),
            _ if field.name == "non_finite" => Value::from("count"),
            _ => Value::from("gpu"),
        };
        assert!(!matches!(field.kind, Kind::Message(_)), "{}: no case", field.name);
        let mut strategy = DistributedStrategy::new();
        let mut before = before.clone();
        if field.name == "non_finite_limit" {
            strategy.set_strictly("a_sync_configs.non_finite", "clip").unwrap();
            before = outcome(&strategy);
        }
        strategy.set_strictly(&format!("a_sync_configs.{}", field.name), other).unwrap();
        let changes = outcome(&strategy) != before;
        let excused = ELSEWHERE.contains(&field.name);
        assert!(changes != field.ignored.is_some() || excused, "{}: {changes}", field.name);
    }
}

/// A worker's step has an infinite gradient, under each setting of `non_finite`.
#[test]
fn gradients_that_are_not_finite_are_taken_as_the_strategy_says() {
    for (non_finite, limit, row, refused) in [
        (None, None, 0.0, true),
        (Some("refuse"), None, 0.0, true),
        (Some("count"), None, f32::NEG_INFINITY, false),
        (Some("clip"), None, -5.0, false),
        (Some("clip"), Some(3.0), -1.5, false),
    ] {
        let mut config = AsyncConfig::default();
        if let Some(non_finite) = non_finite {
            config = config.with_non_finite(non_finite);
        }
        if let Some(limit) = limit {
            config = config.with_non_finite_limit(limit);
        }
        let strategy = DistributedStrategy::new().with_a_sync_configs(config);
        let net = Net::new();
        let ids = net.data("ids", [-1, 1], DType::I64);
        let x = net.data("x", [-1, 1], DType::F32);
        let attr = ParamAttr::from("table").init(Init::Constant(0.0));
        let rows = ids.embedding(Embedding::new(10, 1).sparse().weight(attr)).flatten(1);
        let loss = (rows * x).sum();
        let optimizer: OptimizerDesc = Sgd::new(0.5).into();
        let place = Place { worker: 0, worker_count: 1, server_count: 1, half_async: false };
        let job = ServerJob::minimize(&net, loss, &optimizer, None, &strategy, place).unwrap();
        let servers = ServerTables::all(&job.tables).unwrap();
        let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
        let (programs, options) = (net.build().unwrap(), CommunicatorOptions::default());
        let mut worker =
            Worker::start(client, programs, &job, ExecOptions::threads(1), options).unwrap();
        let ids = Tensor::from_slice(&[3i64], [1, 1]).unwrap();
        let x = Tensor::from_slice(&[f32::INFINITY], [1, 1]).unwrap();
        worker.run(&[("ids", &ids), ("x", &x)], &[]).unwrap();
        let outcome = worker.flush();
        let error = outcome.as_ref().err().map(ToString::to_string).unwrap_or_default();
        assert_eq!(outcome.is_err(), refused, "{non_finite:?}: {error}");
        for words in ["a_sync_configs.non_finite", "for id 3, column 0", "0 is 'table'"] {
            assert!(!refused || error.contains(words), "{error}");
        }
        let mut got = [9.0];
        worker.servers().tables.pull_sparse(0, (&[3]).into(), &mut got, PullMode::Infer).unwrap();
        assert_eq!(got, [row], "{non_finite:?}");
        assert_eq!(worker.servers().admin.stats(0).unwrap().non_finite, 1);
    }
    let strategy = DistributedStrategy::new()
        .with_a_sync_configs(AsyncConfig::default().with_non_finite("ignore"));
    let error = fleet::strategy::validate(&strategy).unwrap_err().to_string();
    assert!(error.contains("refuse, count, clip"), "{error}");
}

/// Servers that start from a save keep its parameters; those of worker 0 are only for new jobs. If
/// names are given, only these tables come from the save.
#[test]
fn a_job_goes_on_with_what_its_servers_have_loaded() {
    let folder = std::env::temp_dir().join(format!("fleet-goes-on-{}", std::process::id()));
    for (name, strategy) in [
        ("sync", DistributedStrategy::new().with_a_sync(false)),
        ("async", DistributedStrategy::new().with_a_sync(true)),
        ("geo", DistributedStrategy::new().use_geo(2)),
    ] {
        let dir = folder.join(name);
        let place = Place { worker: 0, worker_count: 1, server_count: 2, half_async: false };
        let start = |seed: u64, load: Option<Option<&[u32]>>| {
            let net = network();
            net.set_seed(seed);
            let loss = build(&net);
            let optimizer = Sgd::new(0.1).into();
            let job = ServerJob::minimize(&net, loss, &optimizer, None, &strategy, place).unwrap();
            let servers = ServerTables::all(&job.tables).unwrap();
            if let Some(tables) = load {
                servers.iter().for_each(|server| _ = server.load(&dir, tables).unwrap());
            }
            let client = Arc::new(LocalServers::new(&servers, 0).unwrap());
            let (programs, options) = (net.build().unwrap(), CommunicatorOptions::default());
            Worker::start(client, programs, &job, ExecOptions::threads(1), options).unwrap()
        };
        let held = |worker: &Worker| -> Trained {
            let table = match worker.job().plan.exchange {
                Exchange::Geo { .. } => scope_value(worker, "table"),
                _ => {
                    let ids: Vec<u64> = (0..ROWS as u64).collect();
                    let mut rows = vec![0.0; (ROWS * DIM) as usize];
                    let servers = worker.servers();
                    let tables = &servers.tables;
                    tables
                        .pull_sparse(0, (&ids).into(), &mut rows, PullMode::InferInitial)
                        .unwrap();
                    rows
                }
            };
            Trained { params: PARAMS.map(|name| scope_value(worker, name)).to_vec(), table }
        };
        let mut worker = start(1, None);
        for step in 0..4 {
            worker.run(&fed(&samples(step, BATCH).part(0..BATCH)), &[]).unwrap();
        }
        worker.flush().unwrap();
        worker.save_persistables(&dir, SaveMode::All, SaveFormat::Binary).unwrap();
        let trained = held(&worker);
        worker.stop().unwrap();

        let fresh = held(&start(2, None));
        assert_ne!(fresh.params, trained.params, "{name}");
        assert_eq!(held(&start(2, Some(None))), trained, "{name}");
        let rows_alone = held(&start(2, Some(Some(&[0]))));
        assert_eq!(rows_alone.table, trained.table, "{name}");
        assert_eq!(rows_alone.params, fresh.params, "{name}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
