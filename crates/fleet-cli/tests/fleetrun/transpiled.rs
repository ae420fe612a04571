//! Jobs of `DistributeTranspiler` as real processes: blocks on two servers, their save on three
//! servers, and late gradients.

use crate::Place;
use crate::combinations::{difference, ended_with, fed, layers, print};
use fleet::prelude::*;
use fleet::ps::{SaveFormat, SaveMode};
use fleet::rng::Sequence;
use fleet::servers::{DistributeTranspiler, DistributeTranspilerConfig, Transpile};
use fleet_testhost::process;

/// The test that runs the processes of all jobs.
const TEST: &str = "transpiled::blocks_train_as_one_process_and_load_on_other_servers";
const STEPS: u64 = 6;
const BATCH: usize = 4;
const RATE: f64 = 0.05;

/// Builds a layer of which each server has one half, and one that is too small to split. If
/// `is_late`, builds a model of two parameters.
fn build(net: &Net, is_late: bool) -> Var<'_> {
    net.set_seed(5);
    let width = if is_late { 1 } else { 128 };
    let x = net.data("x", [-1, width], DType::F32);
    let y = net.data("y", [-1, 1], DType::F32);
    let out = match is_late {
        true => x.fc(Fc::new(1).weight(Init::Constant(0.5))),
        false => x.fc(Fc::new(150).act(Act::Tanh)).fc(1),
    };
    out.mse_loss(y, Reduction::Mean)
}

/// Returns the feeds of a step: `BATCH` samples for each of `workers` workers, starting at worker
/// `from`.
fn batch(step: u64, from: usize, workers: usize) -> [(&'static str, Tensor); 2] {
    let (mut x, mut y) = (Vec::new(), Vec::new());
    for sample in from * BATCH..(from + workers) * BATCH {
        let mut rng = Sequence::new(step + 1, sample as u64);
        let mut number = || rng.below(2001) as f32 / 1000.0 - 1.0;
        x.extend((0..128).map(|_| number()));
        y.push(number());
    }
    let count = (workers * BATCH) as i64;
    [
        ("x", Tensor::from_slice(&x, [count, 128]).unwrap()),
        ("y", Tensor::from_slice(&y, [count, 1]).unwrap()),
    ]
}

/// Works as a process of a job.
fn take_part(job: &str) -> Result<()> {
    let (fleet, net) = (Fleet::from_env()?, Net::new());
    let is_late = job == "late";
    let loss = build(&net, is_late);
    let servers: Vec<String> =
        fleet.topology().server_endpoints().iter().map(ToString::to_string).collect();
    let who = Transpile {
        trainer_id: if fleet.is_worker() { fleet.worker_index() } else { 0 },
        pservers: &servers.join(","),
        trainers: fleet.worker_num(),
        ..Default::default()
    };
    let config = DistributeTranspilerConfig {
        sync_mode: !is_late,
        enable_dc_asgd: is_late,
        ..Default::default()
    };
    let transpiler = DistributeTranspiler::new(config);
    let made = match is_late {
        true => transpiler.transpile(&net, loss, Sgd::new(RATE), &who)?,
        false => transpiler.transpile(&net, loss, Momentum::new(RATE, 0.9), &who)?,
    };
    if fleet.is_server() {
        fleet.init_server(&made.job)?.run()?;
        return Ok(());
    }
    let options = ExecOptions::threads(1);
    let mut worker = fleet.init_worker(made.programs.clone(), &made.job, options)?;
    let own = fleet.worker_index();
    // The launcher starts processes in the folder of the test.
    let saved = std::env::current_dir().unwrap().join("saved");
    match job {
        "train" => {
            for step in 0..STEPS {
                worker.run(&fed(&batch(step, own, 1)), &[])?;
            }
            worker.barrier()?;
            if own == 0 {
                worker.save_persistables(saved, SaveMode::All, SaveFormat::Binary)?;
            }
        }
        "load" => _ = worker.load_persistables(saved)?,
        _ => {
            for step in 0..LATE_STEPS {
                if own == turn(step) {
                    let (x, y) = sample(step);
                    let tensor = |value: f64| Tensor::from_slice(&[value as f32], [1, 1]);
                    worker.run(&[("x", &tensor(x)?), ("y", &tensor(y)?)], &[])?;
                }
                worker.barrier()?;
            }
            worker.flush()?;
        }
    }
    print(&layers(&worker.session));
    worker.barrier()?;
    worker.stop()
}

#[test]
fn blocks_train_as_one_process_and_load_on_other_servers() {
    if let Some(job) = process::role() {
        return process::end(take_part(&job));
    }
    let place = Place::new("transpiled", "");
    let run = |job: &str, servers: usize, workers: usize| {
        let line = format!("--server_num {servers} --worker_num {workers}");
        ended_with(&place, &line, workers, TEST, job).unwrap()
    };
    let net = Net::new();
    let loss = build(&net, false);
    net.minimize(loss, Momentum::new(RATE, 0.9)).unwrap();
    let mut alone = Session::new(net.build().unwrap(), ExecOptions::threads(1)).unwrap();
    let trained = run("train", 2, 2);
    for step in 0..STEPS {
        alone.run(&fed(&batch(step, 0, 2)), &[]).unwrap();
    }
    let want = layers(&alone);
    for got in &trained {
        let off = difference(got, &want);
        assert!(off < 1e-5, "{off}");
    }
    for servers in [1, 3] {
        assert!(run("load", servers, 1)[0] == trained[0], "{servers} servers");
    }
}

const LATE_STEPS: usize = 30;

/// Returns the worker of a step: worker 1 makes two steps for each step of worker 0.
fn turn(step: usize) -> usize {
    usize::from(!step.is_multiple_of(3))
}

fn sample(step: usize) -> (f64, f64) {
    (0.5 + (step % 5) as f64 * 0.125, (step % 4) as f64 * 0.5 - 0.5)
}

/// Each worker computes with the parameters that it read after its own previous step. The servers
/// apply g + g² (now - read).
#[test]
fn late_gradients_are_corrected_by_real_servers() {
    let place = Place::new("late", "");
    let line = "--server_num 2 --worker_num 2";
    let all = ended_with(&place, line, 2, TEST, "late").unwrap();
    let mut now = [0.5, 0.0];
    let mut read = [now; 2];
    let mut corrected = 0.0;
    for step in 0..LATE_STEPS {
        let ((x, y), own) = (sample(step), turn(step));
        let slope = 2.0 * (read[own][0] * x + read[own][1] - y);
        for (at, grad) in [slope * x, slope].into_iter().enumerate() {
            let late: f64 = grad * grad * (now[at] - read[own][at]);
            corrected += late.abs();
            now[at] -= RATE * (grad + late);
        }
        read[own] = now;
    }
    assert!(corrected > 0.1, "there was something to correct: {corrected}");
    for got in all {
        // In order of name: the bias, then the weight.
        let off = difference(&got, &[now[1] as f32, now[0] as f32]);
        assert!(off < 1e-5, "{got:?} and {now:?}");
    }
}
