//! Wide & deep on generated clicks, with two workers and two servers in every mode. The trained
//! model predicts nearly as well as the probabilities from which the clicks were drawn.
//!
//! In asynchronous modes, the distance between workers and the staleness of gradients depend on the
//! machine, and both affect the result. Therefore queues are short here, and workers synchronise at
//! intervals.

use fleet::nn::models::{WideDeepConfig, wide_deep};
use fleet::nn::optimizer::OptimizerDesc;
use fleet::prelude::*;
use fleet::ps::{CommunicatorOptions, LocalServers, ServerTables};
use fleet::servers::{Place, ServerJob, Worker};
use fleet::strategy::AmpConfig;
use fleet_synth::{Ctr, CtrConfig, auc_exact};
use std::sync::Arc;

const WORKERS: usize = 2;
/// Samples per step of one worker.
const BATCH: usize = 256;
/// Samples of all workers.
const SAMPLES: usize = 600_000;
/// Interval in steps at which workers meet, with all their pushes applied.
const SYNC_INTERVAL: u64 = 10;
const TESTED: usize = 100_000;
const TEST_BATCH: usize = 10_000;
const FIRST_TESTED: u64 = 10_000_000;

/// A mode and its update rules.
struct Mode {
    name: &'static str,
    /// Steps of each worker.
    steps: u64,
    strategy: DistributedStrategy,
    half_async: bool,
    layers: OptimizerDesc,
    /// Rule for the table's rows; GEO has one rule for both.
    rows: Option<OptimizerDesc>,
}

/// Returns a schedule that falls to zero over `steps`.
fn linear_decay(learning_rate: f64, steps: u64) -> LrSchedule {
    LrSchedule::Polynomial {
        learning_rate,
        decay_steps: steps as f64,
        end: 0.0,
        power: 1.0,
        cycle: false,
    }
}

/// Returns a mode in which servers apply the gradients: Adam for layers, sgd for rows.
fn pushes(
    name: &'static str,
    (a_sync, half_async): (bool, bool),
    rates: [f64; 2],
    steps: u64,
) -> Mode {
    // Synchronous workers make one step together, others one step each.
    let all = if a_sync || half_async { steps * WORKERS as u64 } else { steps };
    Mode {
        name,
        steps,
        strategy: DistributedStrategy::new().with_a_sync(a_sync),
        half_async,
        layers: Adam::new(linear_decay(rates[0], all)).into(),
        rows: Some(Sgd::new(linear_decay(rates[1], all)).into()),
    }
}

/// Returns all modes, for a number of samples.
fn modes(samples: usize) -> [Mode; 4] {
    let steps = samples as u64 / (WORKERS * BATCH) as u64;
    let geo = Mode {
        name: "geo",
        steps,
        strategy: DistributedStrategy::new().use_geo(5),
        half_async: false,
        layers: Sgd::new(linear_decay(8.0, steps)).into(),
        rows: None,
    };
    [
        pushes("sync", (false, false), [2e-3, 8.0], steps),
        pushes("half-async", (false, true), [1e-3, 4.0], steps),
        pushes("async", (true, false), [1e-3, 4.0], steps),
        geo,
    ]
}

/// Returns the area under the curve of worker 0's predictions, and that of the true probabilities.
fn train(clicks: &Ctr, mode: &Mode) -> Result<[f64; 2]> {
    let make = |worker| -> Result<_> {
        let net = Net::new();
        net.set_seed(1);
        let config = WideDeepConfig {
            vocabulary: clicks.row_count() as i64,
            hidden: vec![64, 64],
            auc: false,
            ..WideDeepConfig::criteo()
        };
        let model = wide_deep(&net, &config);
        let (loss, prediction) = (model.loss, model.prediction.name());
        let place =
            Place { worker, worker_count: WORKERS, server_count: 2, half_async: mode.half_async };
        let rows = mode.rows.as_ref();
        if rows.is_none() {
            slow_down_layers(&net)?;
        }
        let job = ServerJob::minimize(&net, loss, &mode.layers, rows, &mode.strategy, place)?;
        Ok((net.build()?, job, prediction))
    };
    let servers = &ServerTables::all(&make(0)?.1.tables)?;
    let run = |own: usize| -> Result<Option<[f64; 2]>> {
        let (programs, job, prediction) = make(own)?;
        let client = Arc::new(LocalServers::new(servers, own)?);
        // Limits how far steps may be ahead of their pushes.
        let options = CommunicatorOptions { queue_len_max: 1, ..CommunicatorOptions::default() };
        let mut worker = Worker::start(client, programs, &job, ExecOptions::threads(1), options)?;
        let mut batch = inputs(BATCH)?;
        for step in 0..mode.steps {
            fill(clicks, &mut batch, (step * WORKERS as u64 + own as u64) * BATCH as u64)?;
            let [dense, ids, label] = &batch;
            let feed = [("dense_input", dense), ("sparse_input", ids), ("label", label)];
            worker.run(&feed, &[])?;
            if step % SYNC_INTERVAL == SYNC_INTERVAL - 1 {
                worker.flush()?;
                worker.barrier()?;
            }
        }
        worker.flush()?;
        worker.barrier()?;
        worker.flush()?;
        let area = (own == 0).then(|| test(clicks, &mut worker, &prediction)).transpose()?;
        worker.barrier()?;
        worker.stop()?;
        Ok(area)
    };
    let areas = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..WORKERS).map(|own| scope.spawn(move || run(own))).collect();
        let areas = threads.into_iter().map(|thread| thread.join().unwrap());
        areas.collect::<Result<Vec<_>>>()
    })?;
    Ok(areas[0].unwrap())
}

/// Lowers the layers' rate. With one rule for both, rows need a higher rate: each occurs in few
/// samples of a batch, so its gradients are small.
fn slow_down_layers(net: &Net) -> Result<()> {
    net.rewrite_with(|programs, _| {
        let layers = programs.main.parameters().filter(|(_, var)| var.name != "table");
        let layers: Vec<_> = layers.map(|(id, _)| id).collect();
        for id in layers {
            if let Some(param) = &mut programs.main.var_mut(id).param {
                param.learning_rate = 0.1;
            }
        }
        Ok(())
    })
}

fn inputs(rows: usize) -> Result<[Tensor; 3]> {
    let rows = rows as i64;
    let dense = Tensor::zeros(DType::F32, [rows, 13])?;
    Ok([dense, Tensor::zeros(DType::I64, [rows, 26])?, Tensor::zeros(DType::F32, [rows, 1])?])
}

fn fill(clicks: &Ctr, [dense, ids, label]: &mut [Tensor; 3], first: u64) -> Result<()> {
    clicks.fill_batch(dense.as_mut_slice()?, ids.as_mut_slice()?, label.as_mut_slice()?, first)
}

fn test(clicks: &Ctr, worker: &mut Worker, prediction: &str) -> Result<[f64; 2]> {
    let (mut scores, mut labels) = (Vec::new(), Vec::new());
    let mut batch = inputs(TEST_BATCH)?;
    for at in (0..TESTED).step_by(TEST_BATCH) {
        fill(clicks, &mut batch, FIRST_TESTED + at as u64)?;
        let [dense, ids, label] = &batch;
        let feed = [("dense_input", dense), ("sparse_input", ids)];
        let predicted = worker.evaluate(&feed, &[prediction])?[0].cast(DType::F32)?;
        scores.extend(predicted.to_vec::<f32>()?);
        labels.extend(label.to_vec::<f32>()?);
    }
    let mut truth = vec![0.0; TESTED];
    clicks.fill_probabilities(&mut truth, FIRST_TESTED);
    Ok([auc_exact(&scores, &labels)?, auc_exact(&truth, &labels)?])
}

#[test]
fn every_mode_reaches_the_best_area() -> Result<()> {
    let clicks = Ctr::new(CtrConfig::tiny())?;
    let mut wrong = Vec::new();
    for mode in modes(SAMPLES) {
        let [reached, best] = train(&clicks, &mode)?;
        println!("{}: area {reached:.4}, the best is {best:.4}", mode.name);
        if !(best - 0.005..best).contains(&reached) {
            wrong.push(format!("{}: {reached} of {best}", mode.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Mixed precision reaches the area of single precision, in every mode.
#[test]
fn mixed_precision_costs_no_area() -> Result<()> {
    let clicks = Ctr::new(CtrConfig::tiny())?;
    let mut wrong = Vec::new();
    for mode in modes(SAMPLES / 4) {
        let [plain, best] = train(&clicks, &mode)?;
        let strategy = mode.strategy.clone().use_amp(AmpConfig::default());
        let [mixed, _] = train(&clicks, &Mode { strategy, ..mode })?;
        println!("area {mixed:.4}, in single precision {plain:.4}, the best is {best:.4}");
        if (mixed - plain).abs() >= 0.005 {
            wrong.push(format!("{mixed} and {plain}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}
