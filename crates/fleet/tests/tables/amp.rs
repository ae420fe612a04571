//! Mixed precision with parameter servers, over real connections. Every worker scales its own loss.
//! A step that overflows on a worker changes no table: no parameter, no row, no count.

use fleet::nn::Regularizer;
use fleet::nn::optimizer::OptimizerDesc;
use fleet::prelude::*;
use fleet::ps::{CommunicatorOptions, Durability, PullMode, SaveFormat, SaveMode, ServerTables};
use fleet::rng::Sequence;
use fleet::servers::{Place, ServerJob, Worker};
use fleet::strategy::AmpConfig;
use fleet_net::calls::CallOptions;
use fleet_net::{Log, Token};
use fleet_ps::{JobTables, RemoteOptions, RemoteServers, TableServer};
use fleet_strategy::Ranks;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

const SERVERS: usize = 2;
const ROWS: i64 = 30;
const IDS: usize = 3;
/// Samples in one worker's batch.
const BATCH: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Sync,
    HalfAsync,
    Async,
    Geo,
}

const MODES: [Mode; 4] = [Mode::Sync, Mode::HalfAsync, Mode::Async, Mode::Geo];

/// Returns a constant loss scale.
fn constant(scale: f32) -> AmpConfig {
    AmpConfig::default().with_init_loss_scaling(scale).with_use_dynamic_loss_scaling(false)
}

/// A job and its data.
#[derive(Clone)]
struct Trial {
    mode: Mode,
    amp: AmpConfig,
    workers: usize,
    steps: u64,
    layers: OptimizerDesc,
    rows: OptimizerDesc,
    /// Whether the model has a click table besides its plain one.
    has_clicks: bool,
    /// Whether a worker's labels have an infinity in a step.
    is_bad: fn(usize, u64) -> bool,
}

impl Trial {
    fn new(mode: Mode, amp: AmpConfig) -> Trial {
        let decayed: OptimizerDesc = Sgd::new(0.1).weight_decay(Regularizer::L2(0.1)).into();
        let is_geo = mode == Mode::Geo;
        Trial {
            mode,
            amp,
            workers: 2,
            steps: 4,
            rows: if is_geo { decayed.clone() } else { Sgd::new(0.1).into() },
            layers: decayed,
            has_clicks: !is_geo,
            is_bad: |_, _| false,
        }
    }

    fn strategy(&self) -> DistributedStrategy {
        let clicks = match self.has_clicks {
            true => "downpour_table_param { table_name: \"clicks\" accessor { } }",
            false => "",
        };
        let strategy = DistributedStrategy::parse(clicks).unwrap().use_amp(self.amp.clone());
        match self.mode {
            Mode::Geo => strategy.use_geo(1),
            Mode::Async => strategy.with_a_sync(true),
            Mode::Sync | Mode::HalfAsync => strategy.with_a_sync(false),
        }
    }

    fn network<'n>(&self, net: &'n Net) -> Var<'n> {
        net.set_seed(3);
        let ids = net.data("ids", [-1, IDS as i64], DType::I64);
        let x = net.data("x", [-1, 2], DType::F32);
        let y = net.data("y", [-1, 1], DType::F32);
        let named = |name: &str| ParamAttr::from(name).init(Init::Constant(0.25));
        let plain = ids.embedding(Embedding::new(ROWS, 4).sparse().weight(named("plain")));
        let mut inputs = vec![plain.flatten(1), x];
        if self.has_clicks {
            let clicks = SparseEmbedding::new(ROWS as u64, 4).weight(named("clicks"));
            inputs.push(ids.sparse_embedding(clicks).flatten(1));
        }
        let hidden = net.concat(&inputs, 1).fc(Fc::new(5).act(Act::Tanh));
        hidden.fc(1).mse_loss(y, Reduction::Mean)
    }

    fn minimized(&self, worker: usize) -> (Net, ServerJob) {
        let (worker_count, half_async) = (self.workers, self.mode == Mode::HalfAsync);
        let place = Place { worker, worker_count, server_count: SERVERS, half_async };
        let net = Net::new();
        let (loss, strategy) = (self.network(&net), self.strategy());
        let (layers, rows) = (&self.layers, Some(&self.rows));
        let job = ServerJob::minimize(&net, loss, layers, rows, &strategy, place).unwrap();
        (net, job)
    }

    /// Returns a worker's part of a step's batch.
    fn batch(&self, worker: usize, step: u64) -> [(&'static str, Tensor); 3] {
        let parts = worker..worker + 1;
        self.batches(parts, step, (self.is_bad)(worker, step))
    }

    /// Returns the parts of several workers, as one batch.
    fn batches(
        &self,
        parts: std::ops::Range<usize>,
        step: u64,
        is_bad: bool,
    ) -> [(&'static str, Tensor); 3] {
        let (mut ids, mut x, mut y) = (Vec::new(), Vec::new(), Vec::new());
        for part in parts {
            let mut rng = Sequence::new(part as u64, step);
            let mut number = |below: u64| rng.below(below);
            ids.extend((0..BATCH * IDS).map(|_| number(ROWS as u64) as i64));
            x.extend((0..BATCH * 2).map(|_| number(2001) as f32 / 1000.0 - 1.0));
            y.extend((0..BATCH).map(|_| number(2001) as f32 / 1000.0 - 1.0));
        }
        if is_bad {
            y[0] = f32::INFINITY;
        }
        let count = y.len() as i64;
        [
            ("ids", Tensor::from_slice(&ids, [count, IDS as i64]).unwrap()),
            ("x", Tensor::from_slice(&x, [count, 2]).unwrap()),
            ("y", Tensor::from_slice(&y, [count, 1]).unwrap()),
        ]
    }

    fn train(&self) -> Vec<Trained> {
        self.train_on(None)
    }

    /// Trains on servers that listen. Durable servers are replaced by new ones before each step.
    fn train_on(&self, folder: Option<&Path>) -> Vec<Trained> {
        let (_, job) = self.minimized(0);
        let hosts = &Hosts::start(&job.tables, folder);
        let meeting = &Barrier::new(self.workers);
        std::thread::scope(|scope| {
            let start = |own: usize| {
                scope.spawn(move || {
                    let mut worker = self.worker(own, hosts);
                    for step in 0..self.steps {
                        if folder.is_some() {
                            meeting.wait();
                            if own == 0 {
                                hosts.restart(false);
                            }
                            meeting.wait();
                        }
                        run(&mut worker, &self.batch(own, step));
                    }
                    self.finish(worker)
                })
            };
            let threads: Vec<_> = (0..self.workers).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn worker(&self, own: usize, hosts: &Hosts) -> Worker {
        let (net, job) = self.minimized(own);
        let addresses = hosts.addresses.clone();
        let resolve = move |server: usize| Ok(addresses.lock().unwrap()[server]);
        let options = RemoteOptions {
            log: Log::silent(),
            deadline: Duration::from_secs(120),
            silent_after: Duration::ZERO,
            ..RemoteOptions::default()
        };
        let client =
            RemoteServers::connect_with(&job.tables, own, resolve, &hosts.token, options).unwrap();
        let (programs, exec) = (net.build().unwrap(), ExecOptions::threads(1));
        let options = CommunicatorOptions::default();
        Worker::start(Arc::new(client), programs, &job, exec, options).unwrap()
    }

    /// Ends a worker; returns what it and the tables have learned.
    fn finish(&self, mut worker: Worker) -> Trained {
        worker.flush().unwrap();
        worker.barrier().unwrap();
        worker.flush().unwrap();
        let mut tables: Vec<Vec<f32>> = PARAMS.map(|name| held(&worker.session, name)).into();
        match self.mode {
            Mode::Geo => tables.push(held(&worker.session, "plain")),
            _ => tables.extend((0..1 + u32::from(self.has_clicks)).map(|id| rows(&worker, id))),
        }
        let scale = worker.loss_scaling().unwrap();
        let skipped = worker.skipped_steps().unwrap();
        assert_eq!(worker.workers().unwrap()[worker.job().place.worker].steps, self.steps);
        worker.barrier().unwrap();
        worker.stop().unwrap();
        Trained { tables, scale, skipped }
    }
}

const PARAMS: [&str; 4] = ["fc_0.w_0", "fc_0.b_0", "fc_1.w_0", "fc_1.b_0"];

fn held(session: &Session, name: &str) -> Vec<f32> {
    session.scope.tensor(name).unwrap().to_vec::<f32>().unwrap()
}

/// Returns all rows of a table, those without a push as they begin.
fn rows(worker: &Worker, table: u32) -> Vec<f32> {
    let ids: Vec<u64> = (0..ROWS as u64).collect();
    let mut rows = vec![0.0; ids.len() * 4];
    let servers = worker.servers();
    servers.tables.pull_sparse(table, (&ids).into(), &mut rows, PullMode::InferInitial).unwrap();
    rows
}

fn run(worker: &mut Worker, batch: &[(&'static str, Tensor)]) {
    let fed: Vec<_> = batch.iter().map(|(name, tensor)| (*name, tensor)).collect();
    worker.run(&fed, &[]).unwrap();
}

/// The parameters of a worker and of the tables.
#[derive(Clone, Debug, PartialEq)]
struct Trained {
    /// The parameters of layers, then the tables of rows.
    tables: Vec<Vec<f32>>,
    scale: Option<f32>,
    skipped: Option<u64>,
}

/// Servers that listen, and their addresses.
struct Hosts {
    job: JobTables,
    token: Token,
    folder: Option<PathBuf>,
    servers: Mutex<Vec<TableServer>>,
    addresses: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Hosts {
    fn start(job: &JobTables, folder: Option<&Path>) -> Hosts {
        let hosts = Hosts {
            job: job.clone(),
            token: Token::generate().unwrap(),
            folder: folder.map(Path::to_path_buf),
            servers: Mutex::default(),
            addresses: Arc::default(),
        };
        hosts.restart(false);
        hosts
    }

    /// Ends the servers, and starts others at other addresses, which resume from the folder. In a
    /// new run, all workers are new as well.
    fn restart(&self, is_new_run: bool) {
        let mut servers = self.servers.lock().unwrap();
        servers.clear();
        for server in 0..self.job.server_count {
            let tables = match &self.folder {
                None => Arc::new(ServerTables::new(&self.job, server).unwrap()),
                Some(folder) => durable(&self.job, server, folder),
            };
            if is_new_run {
                tables.begin_run().unwrap();
            }
            let (options, log) = (CallOptions::default(), Log::silent());
            let bound = TableServer::bind("127.0.0.1:0", tables, &self.token, options, log);
            servers.push(bound.unwrap());
        }
        *self.addresses.lock().unwrap() = servers.iter().map(TableServer::address).collect();
    }
}

/// Starts a durable server when the one before it has left the folder.
fn durable(job: &JobTables, server: usize, folder: &Path) -> Arc<ServerTables> {
    let start = || ServerTables::durable(job, server, Durability::in_folder(folder));
    for _ in 0..2000 {
        if let Ok(server) = start() {
            return server;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    start().unwrap()
}

fn folder_of(test: &str) -> PathBuf {
    std::env::temp_dir().join(format!("fleet-amp-{test}-{}", std::process::id()))
}

/// Trains one process in mixed precision on the batches of all workers.
fn alone(trial: &Trial) -> Vec<Vec<f32>> {
    let net = Net::new();
    let loss = trial.network(&net).id();
    let strategy = DistributedStrategy::new().use_amp(trial.amp.clone());
    net.rewrite_with(|programs, registry| {
        let ranks = Ranks::new(0, 1);
        fleet_strategy::minimize(programs, registry, loss, &trial.layers, &strategy, ranks)
    })
    .unwrap();
    let mut session = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    session.amp_init().unwrap();
    for step in 0..trial.steps {
        let batch = trial.batches(0..trial.workers, step, false);
        let fed: Vec<_> = batch.iter().map(|(name, tensor)| (*name, tensor)).collect();
        session.run(&fed, &[]).unwrap();
    }
    PARAMS.iter().chain(&["plain"]).map(|name| held(&session, name)).collect()
}

fn difference(a: &[Vec<f32>], b: &[Vec<f32>]) -> f32 {
    let pairs = a.iter().flatten().zip(b.iter().flatten());
    pairs.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Halves of a batch on two workers are the whole batch on one, up to the rounding to 16 bits.
#[test]
fn synchronous_workers_train_as_one_process_in_mixed_precision() {
    let momentum: OptimizerDesc = Momentum::new(0.05, 0.9).into();
    let trial = Trial {
        layers: momentum.clone(),
        rows: momentum,
        has_clicks: false,
        steps: 8,
        ..Trial::new(Mode::Sync, AmpConfig::default())
    };
    let want = alone(&trial);
    let start = Trial { steps: 0, ..trial.clone() }.train();
    for trained in trial.train() {
        let off = difference(&trained.tables, &want);
        let moved = difference(&trained.tables, &start[0].tables);
        assert!(off < 2e-3 && moved > 20.0 * off, "off by {off}, moved by {moved}");
        assert_eq!((trained.scale, trained.skipped), (Some(32768.0), Some(0)));
    }
}

/// Layers have a weight decay, which must not be sent, or applied to a worker's copy, alone.
#[test]
fn a_scale_that_overflows_changes_no_table_in_any_mode() {
    for mode in MODES {
        let trial = Trial::new(mode, constant(1e9));
        let start = Trial { steps: 0, ..trial.clone() }.train();
        for steps in [1, 4] {
            for trained in (Trial { steps, ..trial.clone() }).train() {
                assert_eq!(trained.tables, start[0].tables, "{mode:?}");
                assert_eq!(trained.skipped, Some(steps), "{mode:?}");
            }
        }
    }
}

/// The scale of each worker falls until its gradients fit. Then the worker trains.
#[test]
fn a_scale_shrinks_until_the_gradients_fit_in_every_mode() {
    let amp = AmpConfig::default().with_init_loss_scaling(1e9);
    let amp = amp.with_decr_every_n_nan_or_inf(1).with_decr_ratio(0.01);
    for mode in MODES {
        let trial = Trial { steps: 8, ..Trial::new(mode, amp.clone()) };
        let start = Trial { steps: 0, ..trial.clone() }.train();
        for trained in trial.train() {
            let (scale, skipped) = (trained.scale.unwrap(), trained.skipped.unwrap());
            assert!((1..6).contains(&skipped), "{mode:?}: {skipped} steps");
            let want = (0..skipped).fold(1e9f32, |scale, _| scale * 0.01);
            assert_eq!(scale, want, "{mode:?}");
            for (now, before) in trained.tables.iter().zip(&start[0].tables) {
                assert_ne!(now, before, "{mode:?}");
                assert!(now.iter().all(|number| number.is_finite()), "{mode:?}");
            }
        }
    }
}

/// One of two workers overflows in every step: the job trains as if the other one were alone.
#[test]
fn a_synchronous_step_is_that_of_the_workers_without_an_overflow() {
    for layers in [Trial::new(Mode::Sync, constant(64.0)).layers, Adam::new(0.01).into()] {
        let trial = Trial { layers, ..Trial::new(Mode::Sync, constant(64.0)) };
        let one = Trial { workers: 1, ..trial.clone() }.train();
        let both = Trial { is_bad: |worker, _| worker == 1, ..trial.clone() }.train();
        assert_eq!(both[0], one[0]);
        assert_eq!(both[1].tables, one[0].tables);
        assert_eq!(both[1].skipped, Some(trial.steps));
        assert_ne!(trial.train()[0].tables, one[0].tables);
    }
}

/// Durable servers are replaced between all steps, of which one worker or both skip some.
#[test]
fn skipped_steps_survive_a_restart_of_the_servers() {
    let is_bad = |worker: usize, step: u64| [1, 3].contains(&step) && worker == 1 || step == 2;
    for layers in [Sgd::new(0.1).into(), OptimizerDesc::from(Adam::new(0.01))] {
        let trial = Trial { is_bad, steps: 6, layers, ..Trial::new(Mode::Sync, constant(64.0)) };
        let folder = folder_of("restart");
        let (want, got) = (trial.train(), trial.train_on(Some(&folder)));
        assert_eq!(got, want);
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!([got[0].skipped, got[1].skipped], [Some(1), Some(3)]);
    }
}

/// A save has the worker's loss scale and its counts.
#[test]
fn a_save_has_the_loss_scale() {
    let folder = folder_of("save");
    let amp = AmpConfig::default().with_init_loss_scaling(64.0).with_incr_every_n_steps(1);
    let trial = Trial { workers: 1, ..Trial::new(Mode::Sync, amp) };
    let fresh = || Hosts::start(&trial.minimized(0).1.tables, None);
    let hosts = fresh();
    let mut worker = trial.worker(0, &hosts);
    (0..2).for_each(|step| run(&mut worker, &trial.batch(0, step)));
    let saved = (worker.loss_scaling().unwrap(), worker.skipped_steps().unwrap());
    assert_eq!(saved.0, Some(4.0 * 64.0));
    worker.save_persistables(&folder, SaveMode::All, SaveFormat::Binary).unwrap();
    worker.stop().unwrap();
    let hosts = fresh();
    let mut worker = trial.worker(0, &hosts);
    assert_eq!(worker.loss_scaling().unwrap(), Some(64.0));
    worker.load_persistables(&folder).unwrap();
    assert_eq!((worker.loss_scaling().unwrap(), worker.skipped_steps().unwrap()), saved);
    worker.stop().unwrap();
    std::fs::remove_dir_all(&folder).unwrap();
}

/// A worker that dies resumes with its loss scale and the count of good steps, in synchronous jobs
/// when the servers are restarted as well.
#[test]
fn a_restarted_worker_keeps_its_loss_scale() {
    let amp = AmpConfig::default().with_init_loss_scaling(64.0).with_incr_every_n_steps(3);
    let amp = amp.with_incr_ratio(4.0).with_decr_every_n_nan_or_inf(1).with_decr_ratio(0.5);
    let state = |worker: &Worker| (worker.loss_scaling().unwrap(), worker.skipped_steps().unwrap());
    for (mode, restarts_servers) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)])
    {
        if mode == Mode::Sync && !restarts_servers {
            continue;
        }
        let is_bad = |_: usize, step: u64| step == 0;
        let trial = Trial { workers: 1, is_bad, ..Trial::new(mode, amp.clone()) };
        let folder = folder_of("scale");
        let hosts = Hosts::start(&trial.minimized(0).1.tables, Some(&folder));
        let mut worker = trial.worker(0, &hosts);
        // One step that overflows, three good ones, and one more.
        (0..5).for_each(|step| run(&mut worker, &trial.batch(0, step)));
        worker.flush().unwrap();
        let before = state(&worker);
        assert_eq!(before, (Some(64.0 * 0.5 * 4.0), Some(1)), "{mode:?}");
        drop(worker);
        if restarts_servers {
            hosts.restart(true);
        }
        let mut worker = trial.worker(0, &hosts);
        assert_eq!(state(&worker), before, "{mode:?}, servers restarted: {restarts_servers}");
        let done = worker.resume().unwrap().unwrap().complete;
        if mode == Mode::Geo {
            // The servers count the steps of an exchange at the next one, and steps are repeated.
            assert!((1..=5).contains(&done), "{done}");
        } else {
            assert!((4..=5).contains(&done), "{mode:?}: {done}");
        }
        (done.max(4)..7).for_each(|step| run(&mut worker, &trial.batch(0, step)));
        assert_eq!(state(&worker), (Some(64.0 * 0.5 * 16.0), Some(1)), "{mode:?}");
        worker.stop().unwrap();
        drop((worker, hosts));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
