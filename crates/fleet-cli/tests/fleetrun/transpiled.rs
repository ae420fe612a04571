//! Jobs of `DistributeTranspiler` as real processes: blocks on two servers, their save on three
//! servers, late gradients, and trainers without servers; started by a launcher or by hand.

use crate::combinations::{difference, ended_with, fed, layers, print};
use crate::{PLACE, Place};
use fleet::Topology;
use fleet::nn::Programs;
use fleet::prelude::*;
use fleet::ps::{SaveFormat, SaveMode};
use fleet::rng::Sequence;
use fleet::servers::{
    DistributeTranspiler, DistributeTranspilerConfig, Part, Transpile, TranspilerMode,
};
use fleet::topology::{Endpoint, Env};
use fleet_launch::ports::{Ports, SystemPorts};
use fleet_testhost::process;
use std::process::{Output, Stdio};
use std::sync::mpsc::channel;
use std::time::Duration;

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

/// Works as a process of a job that `fleetrun` starts. Its environment agrees with the call.
fn take_part(job: &str) -> Result<()> {
    let (mut env, net) = (Env::process(), Net::new());
    if job == "threads" {
        env.set("FLAGS_rpc_get_thread_num", "3");
        env.set("FLAGS_rpc_prefetch_thread_num", "2");
    }
    let topology = Topology::parameter_server(&env)?;
    let is_late = job == "late";
    let loss = build(&net, is_late);
    let servers: Vec<String> =
        topology.server_endpoints().iter().map(ToString::to_string).collect();
    let call = Transpile {
        trainer_id: if topology.is_worker() { topology.rank() } else { 0 },
        pservers: &servers.join(","),
        trainers: topology.worker_num().into(),
        ..Default::default()
    };
    let config = DistributeTranspilerConfig {
        sync_mode: !is_late,
        enable_dc_asgd: is_late,
        ..Default::default()
    };
    let transpiler = DistributeTranspiler::new(config);
    let made = match is_late {
        true => transpiler.transpile(&net, loss, Sgd::new(RATE), &call)?,
        false => transpiler.transpile(&net, loss, Momentum::new(RATE, 0.9), &call)?,
    };
    if topology.is_server() {
        return made.serve(&servers[topology.rank()], &env);
    }
    let fleet = made.join(Part::Trainer, &env)?;
    let mut worker = made.worker(&fleet, ExecOptions::threads(1))?;
    let own = fleet.worker_index();
    // The launcher starts processes in the folder of the test.
    let saved = std::env::current_dir().unwrap().join("saved");
    match job {
        "train" | "threads" => {
            for step in 0..STEPS {
                worker.run(&fed(&batch(step, own, 1)), &[])?;
            }
            worker.barrier()?;
            if own == 0 && job == "train" {
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

/// Returns the network's programs with updates.
fn program() -> Result<Programs> {
    let net = Net::new();
    let loss = build(&net, false);
    net.minimize(loss, Momentum::new(RATE, 0.9))?;
    net.build()
}

/// Returns the parameters that one process trains on the batches of two workers.
fn alone() -> Vec<f32> {
    let mut alone = Session::new(program().unwrap(), ExecOptions::threads(1)).unwrap();
    for step in 0..STEPS {
        alone.run(&fed(&batch(step, 0, 2)), &[]).unwrap();
    }
    layers(&alone)
}

#[test]
fn blocks_train_as_one_process_and_load_on_other_servers() {
    if let Some(job) = process::role() {
        return process::end(match job.split_once(' ') {
            Some((mode, place)) => train_by_hand(mode, place),
            None => take_part(&job),
        });
    }
    let place = Place::new("transpiled", "");
    let run = |job: &str, servers: usize, workers: usize| {
        let line = format!("--server_num {servers} --worker_num {workers}");
        ended_with(&place, &line, workers, TEST, job).unwrap()
    };
    let want = alone();
    let trained = run("train", 2, 2);
    // Several threads receive the parameters of a step to the same results.
    for got in trained.iter().chain(&run("threads", 2, 2)) {
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

/// Jobs take a few seconds. One that takes longer than this hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

/// Works as a process of a job that no launcher starts: `place` is the number of a trainer or the
/// endpoint of a server, and the list of the job's endpoints.
fn train_by_hand(mode: &str, place: &str) -> Result<()> {
    let (place, list) = place.split_once(' ').unwrap();
    let (id, env) = (place.parse::<usize>().ok(), Env::process());
    let trainer_id = id.unwrap_or(0);
    let (call, mode) = match mode {
        "nccl2" => {
            let current_endpoint = list.split(',').nth(trainer_id).unwrap();
            let trainers = list.into();
            let call = Transpile { trainer_id, trainers, current_endpoint, ..Default::default() };
            (call, TranspilerMode::Nccl2)
        }
        _ => {
            let trainers = 2.into();
            let call = Transpile { trainer_id, pservers: list, trainers, ..Default::default() };
            (call, TranspilerMode::Pserver)
        }
    };
    let config = DistributeTranspilerConfig { mode, ..Default::default() };
    let made = DistributeTranspiler::new(config).transpile_program(program()?, &call)?;
    let Some(own) = id else { return made.serve(place, &env) };
    let (fleet, options) = (made.join(Part::Trainer, &env)?, ExecOptions::threads(1));
    if mode == TranspilerMode::Nccl2 {
        let mut session = made.session(&fleet, options)?;
        for step in 0..STEPS {
            session.run(&fed(&batch(step, own, 1)), &[])?;
        }
        print(&layers(&session));
        return fleet.finish();
    }
    let mut worker = made.worker(&fleet, options)?;
    for step in 0..STEPS {
        worker.run(&fed(&batch(step, own, 1)), &[])?;
    }
    worker.barrier()?;
    print(&layers(&worker.session));
    worker.stop()
}

/// Starts processes without a launcher and waits for all. Returns their outputs.
fn start_by_hand(place: &Place, roles: &[String]) -> Vec<Output> {
    let (tell, told) = channel();
    for (at, role) in roles.iter().enumerate() {
        let mut command = process::command(TEST, role);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if ["PADDLE_", "FLAGS_", "FLEET_"].iter().any(|prefix| name.starts_with(prefix)) {
                command.env_remove(&*name);
            }
        }
        command.env(PLACE, place.mark()).env("FLEET_OPEN", "loopback").stdin(Stdio::null());
        let streams = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let (child, tell) = (streams.spawn().unwrap(), tell.clone());
        std::thread::spawn(move || tell.send((at, child.wait_with_output())));
    }
    let mut outputs: Vec<(usize, Output)> = (0..roles.len())
        .map(|_| {
            let (at, output) = told.recv_timeout(TIMEOUT).expect("the job hangs");
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{}:\n{said}", roles[at]);
            (at, output)
        })
        .collect();
    outputs.sort_by_key(|(at, _)| *at);
    outputs.into_iter().map(|(_, output)| output).collect()
}

/// The call alone gives each process its place: two servers and two trainers, or two trainers of
/// mode nccl2, train a program with updates as one process does.
#[test]
fn the_call_alone_starts_a_job() {
    let place = Place::new("transpiled_by_hand", "");
    let want = alone();
    for mode in ["pserver", "nccl2"] {
        let mut ports = SystemPorts::new(None);
        let endpoint = |_| Endpoint::new("127.0.0.1", ports.next("127.0.0.1").unwrap());
        let list: Vec<Endpoint> = (0..2).map(endpoint).collect();
        let text = Endpoint::join(&list);
        let mut roles: Vec<String> = (0..2).map(|id| format!("{mode} {id} {text}")).collect();
        if mode == "pserver" {
            roles.extend(list.iter().map(|server| format!("{mode} {server} {text}")));
        }
        for output in &start_by_hand(&place, &roles)[..2] {
            let text = String::from_utf8_lossy(&output.stdout);
            let line = text.lines().find_map(|line| line.strip_prefix("parameters "));
            let bits = line.unwrap_or_else(|| panic!("no parameters:\n{text}")).split(' ');
            let got: Vec<f32> = bits.map(|bits| f32::from_bits(bits.parse().unwrap())).collect();
            let off = difference(&got, &want);
            assert!(off < 1e-5, "{mode}: {off}");
        }
    }
}
