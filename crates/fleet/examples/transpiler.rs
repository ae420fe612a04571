//! `DistributeTranspiler`: one program, trained by servers and trainers (mode pserver) or by
//! trainers alone (mode nccl2). The arguments give each process its place; no launcher is needed.
//!
//! On one machine, `FLEET_OPEN=loopback` stands for a secret. Start each line in a terminal, with
//! `L=127.0.0.1:6174,127.0.0.1:6175` and `E=target/release/examples/transpiler`:
//!
//! ```text
//! $E pserver 127.0.0.1:6174 $L 2        $E trainer 0 $L 2        $E nccl2 0 $L
//! $E pserver 127.0.0.1:6175 $L 2        $E trainer 1 $L 2        $E nccl2 1 $L
//! ```
//!
//! Without arguments, a server and a trainer run in one process, and then one trainer alone.

use fleet::nn::Programs;
use fleet::prelude::*;
use fleet::servers::{
    DistributeTranspiler, DistributeTranspilerConfig, Part, Transpile, TranspiledJob,
    TranspilerMode,
};
use fleet::topology::Env;
use fleet_synth::{Digits, IMAGE_PIXELS};
use std::net::TcpListener;

/// Batch size of all trainers together.
const BATCH: usize = 256;
const STEPS: u64 = 200;

/// Builds a program that trains in one process, and returns it with the name of its loss.
fn program() -> Result<(Programs, String)> {
    let net = Net::new();
    net.set_seed(1);
    let image = net.data("image", [-1, IMAGE_PIXELS as i64], DType::F32);
    let label = net.data("label", [-1, 1], DType::I64);
    let hidden = image.fc(Fc::new(128).act(Act::Relu));
    let loss = hidden.fc(10).cross_entropy(label);
    net.minimize(loss, Momentum::new(0.02, 0.9))?;
    Ok((net.build()?, loss.name()))
}

/// Makes a trainer's steps on its share of every batch; returns the last loss.
fn train_on_digits(
    steps: u64,
    (trainer, trainers): (usize, usize),
    mut run: impl FnMut(&[(&str, &Tensor)]) -> Result<Vec<Tensor>>,
) -> Result<f32> {
    let (digits, share) = (Digits::new(1), BATCH / trainers);
    let mut images = Tensor::zeros(DType::F32, [share as i64, IMAGE_PIXELS as i64])?;
    let mut labels = Tensor::zeros(DType::I64, [share as i64, 1])?;
    let mut loss = f32::NAN;
    for step in 1..=steps {
        let sample = step * BATCH as u64 + (share * trainer) as u64;
        digits.fill_batch_f32(images.as_mut_slice()?, labels.as_mut_slice()?, sample)?;
        loss = run(&[("image", &images), ("label", &labels)])?[0].item()?;
        if step % steps.div_ceil(10) == 0 && trainer == 0 {
            println!("step {step}: loss {loss:.4}");
        }
    }
    Ok(loss)
}

/// Mode pserver: returns the job as the trainer `trainer_id` sees it.
fn on_servers(trainer_id: usize, pservers: &str, trainers: usize) -> Result<TranspiledJob> {
    let config = DistributeTranspilerConfig { slice_var_up: false, ..Default::default() };
    let call = Transpile { trainer_id, pservers, trainers: trainers.into(), ..Default::default() };
    DistributeTranspiler::new(config).transpile_program(program()?.0, &call)
}

fn train_on_servers(made: &TranspiledJob, env: &Env, steps: u64) -> Result<f32> {
    let fleet = made.join(Part::Trainer, env)?;
    let mut worker = made.worker(&fleet, ExecOptions::default())?;
    let (loss, place) = (program()?.1, (fleet.worker_index(), fleet.worker_num()));
    let last = train_on_digits(steps, place, |feed| worker.run(feed, &[&loss]))?;
    worker.stop()?;
    Ok(last)
}

/// Mode nccl2: trainers sum gradients, over CPUs or over GPUs with `FLEET_NCCL=1`.
fn train_alone(trainer_id: usize, trainers: &str, env: &Env, steps: u64) -> Result<f32> {
    let config = DistributeTranspilerConfig { mode: TranspilerMode::Nccl2, ..Default::default() };
    let current_endpoint = trainers.split(',').nth(trainer_id).unwrap_or_default();
    let trainers = trainers.into();
    let call = Transpile { trainer_id, trainers, current_endpoint, ..Default::default() };
    let (programs, loss) = program()?;
    let made = DistributeTranspiler::new(config).transpile_program(programs, &call)?;
    let fleet = made.join(Part::Trainer, env)?;
    let mut session = made.session(&fleet, ExecOptions::default())?;
    let place = (fleet.worker_index(), fleet.worker_num());
    let last = train_on_digits(steps, place, |feed| session.run(feed, &[&loss]))?;
    fleet.finish()?;
    Ok(last)
}

/// Trains in both modes in this process.
pub fn train(steps: u64) -> Result<()> {
    let env = Env::from([("FLEET_OPEN", "loopback")]);
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let endpoint = free.map_err(|error| Error::unavailable(format!("no free port: {error}")))?;
    let endpoint = endpoint.to_string();
    let made = on_servers(0, &endpoint, 1)?;
    let (of_server, server_env) = (made.clone(), env.clone());
    let server = std::thread::spawn(move || of_server.serve(&endpoint, &server_env));
    let on_servers = train_on_servers(&made, &env, steps)?;
    server.join().map_err(|_| Error::internal("the server's thread panicked"))??;

    let alone = train_alone(0, "127.0.0.1:6174", &env, steps)?;
    println!("loss on servers {on_servers:.4}, without {alone:.4}");
    // Both start from the same parameters and see the same batches.
    match (on_servers - alone).abs() < 0.01 {
        true => Ok(()),
        false => {
            Err(Error::internal("servers and trainers differ").expected(alone).got(on_servers))
        }
    }
}

fn main() -> Result<()> {
    let (env, args) = (Env::process(), std::env::args().skip(1).collect::<Vec<_>>());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => train(STEPS),
        ["pserver", endpoint, pservers, trainers] => {
            on_servers(0, pservers, trainers.parse()?)?.serve(endpoint, &env)
        }
        ["trainer", id, pservers, trainers] => {
            let made = on_servers(id.parse()?, pservers, trainers.parse()?)?;
            train_on_servers(&made, &env, STEPS).map(drop)
        }
        ["nccl2", id, trainers] => train_alone(id.parse()?, trainers, &env, STEPS).map(drop),
        _ => Err(Error::invalid("unknown arguments").help("see the top of this file")),
    }
}
