//! Training with parameter servers as real processes: every mode, all kinds of rules, one to three
//! servers and one to four workers, each compared with one process.
//!
//! * sync: workers divide the batches of one process.
//! * half-async, async: the loss is a sum, whose gradients do not depend on the parameters.
//!   Whatever the timing, n pushes equal n steps of one process.
//! * geo: the same sum. Every exchange sends a worker's share of its difference to the servers.

use crate::Place;
use fleet::nn::optimizer::OptimizerDesc;
use fleet::prelude::*;
use fleet::ps::PullMode;
use fleet::rng::Sequence;
use fleet_testhost::process;
use std::sync::Mutex;

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Mode {
    Sync,
    HalfAsync,
    Async,
    Geo(i32),
}

/// (mode, rule, servers, workers)
pub type Case = (Mode, &'static str, usize, usize);

const CASES: [Case; 24] = [
    (Mode::Sync, "sgd", 1, 1),
    (Mode::Sync, "sgd", 1, 4),
    (Mode::Sync, "sgd", 3, 3),
    (Mode::Sync, "momentum", 2, 3),
    (Mode::Sync, "momentum", 3, 2),
    (Mode::Sync, "adagrad", 1, 2),
    (Mode::Sync, "adagrad", 3, 4),
    (Mode::Sync, "adam", 2, 4),
    (Mode::Sync, "adam", 2, 1),
    (Mode::HalfAsync, "sgd", 1, 3),
    (Mode::HalfAsync, "momentum", 2, 2),
    (Mode::HalfAsync, "adagrad", 3, 1),
    (Mode::HalfAsync, "adam", 2, 4),
    (Mode::HalfAsync, "adam", 3, 3),
    (Mode::Async, "sgd", 1, 2),
    (Mode::Async, "sgd", 3, 4),
    (Mode::Async, "momentum", 2, 1),
    (Mode::Async, "adagrad", 2, 3),
    (Mode::Async, "adam", 1, 4),
    (Mode::Async, "adam", 3, 2),
    (Mode::Geo(1), "sgd", 1, 1),
    (Mode::Geo(2), "sgd", 1, 4),
    (Mode::Geo(4), "sgd", 2, 3),
    (Mode::Geo(2), "sgd", 3, 2),
];

/// Largest allowed difference from the training of one process: rounding.
pub const LIMIT: f32 = 1e-6;
pub const STEPS: u64 = 8;
const ROWS: i64 = 8;
const DIM: i64 = 3;
/// Samples per batch of one worker, and ids per sample.
pub const BATCH: usize = 6;
const IDS: usize = 4;
/// Role of the processes of [`OF_DEATH`]; other roles are indices into [`CASES`].
const DIES: &str = "worker 1 kills itself halfway and is restarted";
/// File that the restarted worker creates.
const AGAIN: &str = "again";
/// The job in which a worker dies.
const OF_DEATH: Case = (Mode::Geo(4), "sgd", 2, 2);
/// Maximum number of concurrent jobs.
const JOBS_AT_ONCE: usize = 2;

pub fn optimizer(rule: &str) -> OptimizerDesc {
    match rule {
        "sgd" => Sgd::new(0.1).into(),
        "momentum" => Momentum::new(0.05, 0.9).into(),
        "adagrad" => Adagrad::new(0.05).initial_accumulator_value(0.1).into(),
        _ => Adam::new(0.01).into(),
    }
}

fn strategy(mode: Mode) -> DistributedStrategy {
    match mode {
        Mode::Sync | Mode::HalfAsync => DistributedStrategy::new().with_a_sync(false),
        Mode::Async => DistributedStrategy::new().with_a_sync(true),
        Mode::Geo(k_steps) => DistributedStrategy::new().use_geo(k_steps),
    }
}

/// Builds a network of a table's rows and dense inputs with a scalar loss.
pub fn build(net: &Net, mode: Mode) -> Var<'_> {
    let ids = net.data("ids", [-1, IDS as i64], DType::I64);
    let x = net.data("x", [-1, 2], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let attr = ParamAttr::from("table").init(Init::Constant(0.25));
    let rows = ids.embedding(Embedding::new(ROWS, DIM).sparse().weight(attr)).flatten(1);
    match mode {
        Mode::Sync => {
            let hidden = net.concat(&[rows, x], 1).fc(Fc::new(5).act(Act::Tanh));
            hidden.fc(1).mse_loss(y, Reduction::Mean)
        }
        // The gradients of a sum are the numbers fed, independent of the parameters.
        _ => rows.sum() * 0.05 + (x.fc(Fc::new(2)) * y).sum() * 0.05,
    }
}

/// Returns a worker's feeds of a step: its part of the whole batch, or the same feeds for all
/// workers if the loss is a sum.
pub fn batch(mode: Mode, step: u64, from: usize, count: usize) -> [(&'static str, Tensor); 3] {
    let (step, from) = if mode == Mode::Sync { (step, from) } else { (0, 0) };
    let row = |at: usize| Sequence::new(step + 1, at as u64);
    let (mut ids, mut x, mut y) = (Vec::new(), Vec::new(), Vec::new());
    for at in from..from + count {
        let mut rng = row(at);
        let mut number = || rng.below(2001) as f32 / 1000.0 - 1.0;
        x.extend([number(), number()]);
        y.push(number());
        // Every row is used in every step: rules may treat unused rows differently.
        ids.extend((0..IDS).map(|id| ((at * IDS + id) as i64 + step as i64) % ROWS));
    }
    let count = count as i64;
    [
        ("ids", Tensor::from_slice(&ids, [count, IDS as i64]).unwrap()),
        ("x", Tensor::from_slice(&x, [count, 2]).unwrap()),
        ("y", Tensor::from_slice(&y, [count, 1]).unwrap()),
    ]
}

pub fn fed<'a>(batch: &'a [(&'static str, Tensor)]) -> Vec<(&'static str, &'a Tensor)> {
    batch.iter().map(|(name, tensor)| (*name, tensor)).collect()
}

/// Returns all parameters except the table, one after another.
pub fn layers(session: &Session) -> Vec<f32> {
    let mut names: Vec<&str> =
        session.programs.main.parameters().map(|(_, var)| &*var.name).collect();
    names.retain(|name| *name != "table");
    names.sort_unstable();
    let values = |name: &&str| session.scope.tensor(name).unwrap().to_vec::<f32>().unwrap();
    names.iter().flat_map(values).collect()
}

/// Returns the result of the job in one process.
pub fn alone(case @ (mode, _, _, workers): Case) -> Vec<f32> {
    match mode {
        Mode::Sync => train(case, STEPS, BATCH * workers),
        Mode::HalfAsync | Mode::Async => train(case, STEPS * workers as u64, BATCH),
        Mode::Geo(k_steps) => geo(case, k_steps as u64, false),
    }
}

/// Computes GEO by its formula, in multiples of one sgd step. Each exchange sends 1/workers of a
/// worker's difference to the servers.
fn geo(case @ (.., workers): Case, k_steps: u64, dies: bool) -> Vec<f32> {
    let sent = |exchanges: u64, forgets: bool| {
        let (mut own, mut all) = (0.0, 0.0);
        for _ in 0..STEPS / k_steps {
            own = if forgets { 0.0 } else { own } + k_steps as f64;
            for _ in 0..exchanges {
                all += own / workers as f64;
                own -= own / workers as f64;
            }
        }
        all
    };
    // A restarted worker has lost the differences that it had not sent.
    let arrived = |exchanges: u64| {
        let others = sent(exchanges, false) * (workers - 1) as f64;
        (others + sent(exchanges, dies)) as f32
    };
    let (start, one) = (train(case, 0, BATCH), train(case, 1, BATCH));
    let table = (ROWS * DIM) as usize;
    // Exchanges happen at the end of the steps, and at the flush after them. A flush sends only
    // rows that were touched since.
    let times = |at: usize| if at < table { arrived(1) } else { arrived(2) };
    start.iter().zip(&one).enumerate().map(|(at, (a, b))| a + times(at) * (b - a)).collect()
}

/// Returns the parameters after `steps` steps in one process.
fn train((mode, rule, ..): Case, steps: u64, count: usize) -> Vec<f32> {
    let net = Net::new();
    let loss = build(&net, mode);
    net.minimize(loss, optimizer(rule)).unwrap();
    let mut session = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    for step in 0..steps {
        session.run(&fed(&batch(mode, step, 0, count)), &[]).unwrap();
    }
    let mut all = session.scope.tensor("table").unwrap().to_vec::<f32>().unwrap();
    all.extend(layers(&session));
    all
}

/// The test that runs the processes of all jobs.
const TEST: &str = "combinations::every_combination_trains_as_one_process";

/// Works as the process `fleet` of a job.
pub fn take_part(fleet: &Fleet, (mode, rule, ..): Case, dies: bool) -> Result<()> {
    let net = Net::new();
    let loss = build(&net, mode);
    let job = fleet
        .distributed_optimizer(optimizer(rule), &strategy(mode))
        .half_async(mode == Mode::HalfAsync)
        .minimize_on_servers(&net, loss)?;
    if fleet.is_server() {
        fleet.init_server(&job)?.run()?;
        return Ok(());
    }
    let mut worker = fleet.init_worker(net.build()?, &job, ExecOptions::threads(1))?;
    let own = fleet.worker_index();
    let is_again = fleet.topology().job().restarts > 0;
    if is_again {
        std::fs::write(AGAIN, "").unwrap();
    }
    let first = if is_again { STEPS / 2 } else { 0 };
    for step in first..STEPS {
        let next = batch(mode, step + 1, own * BATCH, BATCH);
        worker.look_ahead(&fed(&next))?;
        worker.run(&fed(&batch(mode, step, own * BATCH, BATCH)), &[])?;
        if let Mode::Geo(k_steps) = mode
            && (step + 1).is_multiple_of(k_steps as u64)
        {
            worker.flush()?;
        }
        if dies && own == 1 && !is_again && step == STEPS / 2 {
            // The worker dies before it sends this step.
            crate::signal(std::process::id(), "KILL");
        }
    }
    if dies {
        // The other worker waits for the restarted one.
        crate::until("the second start", || std::path::Path::new(AGAIN).exists());
    }
    if !job.plan.exchange.is_geo() {
        worker.flush()?;
    }
    worker.barrier()?;
    let ids: Vec<u64> = (0..ROWS as u64).collect();
    let mut all = vec![0.0; (ROWS * DIM) as usize];
    worker.servers().tables.pull_sparse(0, (&ids).into(), &mut all, PullMode::Infer)?;
    for table in &job.plan.tables.dense {
        let mut values = vec![0.0; table.len];
        worker.servers().tables.pull_dense(table.table_id, &mut values)?;
        all.extend(values);
    }
    worker.barrier()?;
    worker.stop()?;
    print(&all);
    Ok(())
}

/// Returns the index of one case per mode, and one more of the first mode.
pub fn each_mode() -> Vec<usize> {
    let mode = |index: usize| std::mem::discriminant(&CASES[index].0);
    (1..CASES.len()).filter(|&index| mode(index) != mode(index - 1)).chain([3]).collect()
}

/// Runs a job in a folder with a name from `name`, with more flags; returns a description of any
/// error.
pub fn run(index: usize, name: &str, flags: &str) -> Option<String> {
    let case = CASES[index];
    check(case, &format!("{name}{index}"), &index.to_string(), flags, &alone(case))
}

/// Runs a job whose processes have a role, and compares every worker's result with `want`.
fn check(
    (mode, rule, servers, workers): Case,
    name: &str,
    role: &str,
    flags: &str,
    want: &[f32],
) -> Option<String> {
    let what = format!("{mode:?}, {rule}, {servers} servers, {workers} workers");
    let place = Place::new(name, "");
    let line = format!("--server_num {servers} --worker_num {workers} {flags}");
    let all = match ended_with(&place, &line, workers, TEST, role) {
        Ok(all) => all,
        Err(error) => return Some(format!("{what}: {error}")),
    };
    let worst = all.iter().map(|got| difference(got, want)).fold(0.0, f32::max);
    println!("{what}: {worst:e}");
    (worst > LIMIT || worst.is_nan()).then(|| format!("{what}: off by {worst}"))
}

/// Returns the largest difference between two lists of equal length.
pub fn difference(got: &[f32], want: &[f32]) -> f32 {
    assert_eq!(got.len(), want.len());
    want.iter().zip(got).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
}

/// Runs a job whose processes are those of `test` with a role; returns the parameters that each
/// worker printed.
pub fn ended_with(
    place: &Place,
    line: &str,
    workers: usize,
    test: &str,
    role: &str,
) -> std::result::Result<Vec<Vec<f32>>, String> {
    let mut command = place.command(&format!("{line} --log_overwrite"));
    let output = process::append(&mut command, test, role).output().unwrap();
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("{}\n{said}", place.read("log/workerlog.0")));
    }
    let parameters = |worker: usize| {
        let log = place.read(&format!("log/workerlog.{worker}"));
        let line = log.lines().find_map(|line| line.strip_prefix("parameters "));
        let line = line.ok_or_else(|| format!("worker {worker} printed no parameters:\n{log}"))?;
        Ok(line.split(' ').map(|bits| f32::from_bits(bits.parse().unwrap())).collect())
    };
    (0..workers).map(parameters).collect()
}

/// Prints parameters in the form that [`ended_with`] reads.
pub fn print(parameters: &[f32]) {
    let bits: Vec<String> = parameters.iter().map(|value| value.to_bits().to_string()).collect();
    println!("\nparameters {}", bits.join(" "));
}

/// Steps that the worker had sent are not sent again; the one that it had not sent is lost.
#[test]
fn a_geo_worker_that_is_started_again_adds_nothing_twice() {
    let (case @ (.., workers), k_steps) = (OF_DEATH, 4);
    assert_eq!((case.0, workers), (Mode::Geo(k_steps), 2));
    let want = geo(case, k_steps as u64, true);
    let wrong = check(case, "geo_again", DIES, "--max_restart 1", &want);
    assert_eq!(wrong, None);
}

#[test]
fn every_combination_trains_as_one_process() {
    if let Some(role) = process::role() {
        return process::end(match role.parse::<usize>() {
            Ok(index) => Fleet::from_env().and_then(|it| take_part(&it, CASES[index], false)),
            Err(_) => Fleet::from_env().and_then(|it| take_part(&it, OF_DEATH, true)),
        });
    }
    let (next, wrong) = (Mutex::new(0..CASES.len()), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..JOBS_AT_ONCE {
            scope.spawn(|| {
                loop {
                    let Some(index) = next.lock().unwrap().next() else { return };
                    wrong.lock().unwrap().extend(run(index, "combination", ""));
                }
            });
        }
    });
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
