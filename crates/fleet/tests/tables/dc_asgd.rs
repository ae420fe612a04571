//! DC-ASGD: a worker's gradient is corrected by the changes that other workers made to the
//! parameters since it read them.

use fleet::ErrorKind;
use fleet::prelude::*;
use fleet::ps::{CommunicatorOptions, LocalServers, ServerTables};
use fleet::servers::{Exchange, Place, PushMode, ServerJob, Worker};
use fleet::strategy::AsyncConfig;
use std::sync::Arc;

const RATE: f64 = 0.05;

fn strategy() -> DistributedStrategy {
    let config = AsyncConfig::default().with_k_steps(0).with_enable_dc_asgd(true);
    DistributedStrategy::new().with_a_sync(true).with_a_sync_configs(config)
}

fn minimized(strategy: &DistributedStrategy) -> fleet::Result<(Net, ServerJob)> {
    let net = Net::new();
    let (x, y) = (net.data("x", [-1, 1], DType::F32), net.data("y", [-1, 1], DType::F32));
    let loss = x.fc(Fc::new(1).weight(Init::Constant(0.5))).mse_loss(y, Reduction::Mean);
    let place = Place { worker: 0, worker_count: 2, server_count: 2, half_async: false };
    let optimizer = Sgd::new(RATE).into();
    let job = ServerJob::minimize(&net, loss, &optimizer, None, strategy, place)?;
    Ok((net, job))
}

/// Two workers take turns, the second twice as often. Each reads after its own step, and computes
/// with parameters that lack the other's later changes.
#[test]
fn late_gradients_are_corrected() {
    let (net, job) = minimized(&strategy()).unwrap();
    assert_eq!(
        (job.plan.exchange, job.plan.corrects_delay),
        (Exchange::Pushes(PushMode::HalfAsync), true)
    );
    let servers = &ServerTables::all(&job.tables).unwrap();
    let programs = net.build().unwrap();
    let mut workers: Vec<Worker> = std::thread::scope(|scope| {
        let start = |own: usize| {
            let (programs, mut job) = (programs.clone(), job.clone());
            job.place.worker = own;
            scope.spawn(move || {
                let client = Arc::new(LocalServers::new(servers, own).unwrap());
                let options = CommunicatorOptions::default();
                Worker::start(client, programs, &job, ExecOptions::threads(1), options).unwrap()
            })
        };
        let threads = [start(0), start(1)];
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });

    // Weight and bias, on the servers and as last read by each worker.
    let mut now = [0.5f64, 0.0];
    let mut read = [now; 2];
    let mut corrected = 0.0f64;
    for step in 0..30 {
        let own = usize::from(step % 3 != 0);
        let (x, y) = (0.5 + f64::from(step % 5) * 0.125, f64::from(step % 4) * 0.5 - 0.5);
        let [weight, bias] = read[own];
        let slope = 2.0 * (weight * x + bias - y);
        for (at, grad) in [slope * x, slope].into_iter().enumerate() {
            let late = grad * grad * (now[at] - read[own][at]);
            corrected += late.abs();
            now[at] -= RATE * (grad + late);
        }
        read[own] = now;
        let tensor = |value: f64| Tensor::from_slice(&[value as f32], [1, 1]).unwrap();
        let (x, y) = (tensor(x), tensor(y));
        workers[own].run(&[("x", &x), ("y", &y)], &[]).unwrap();
        for (name, want) in [("fc_0.w_0", now[0]), ("fc_0.b_0", now[1])] {
            let got = workers[own].session.scope.tensor(name).unwrap().item::<f32>().unwrap();
            assert!((f64::from(got) - want).abs() < 1e-5, "step {step}, {name}: {got} and {want}");
        }
    }
    assert!(corrected > 0.1, "there was something to correct: {corrected}");
    workers.iter_mut().for_each(|worker| worker.stop().unwrap());
}

#[test]
fn there_must_be_something_late() {
    let check = |strategy: DistributedStrategy| {
        let Err(error) = minimized(&strategy) else { panic!("it is refused") };
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("enable_dc_asgd"), "{error}");
    };
    check(strategy().with_a_sync(false));
    let mut geo = strategy();
    geo.a_sync_configs_mut().set_k_steps(3);
    check(geo);
}
