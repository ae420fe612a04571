//! Training on parameter servers: embeddings are sparse tables, all other parameters are dense.
//!
//! Synchronous workers divide each batch. In other modes each worker trains batches of its own.

use super::{OutputNames, TrainPlan};
use crate::model::{TablePlace, build};
use crate::optimizer::optimizer;
use crate::rows::Share;
use crate::saved::PROGRAM_FOLDER;
use crate::split::Part;
use fleet::nn::Net;
use fleet::ps::{SaveFormat, SaveMode};
use fleet::servers::written_exchange;
use fleet::strategy::Written;
use fleet::{CheckpointPolicy, Error, Fleet};
use fleet_base::output::{ExitReason, Output};
use fleet_base::text;
use std::time::Instant;

pub fn run(
    plan: &TrainPlan,
    fleet: &Fleet,
    out: &mut Output,
    begin: Instant,
) -> Result<(), ExitReason> {
    let job = &plan.job;
    check_supported(plan)?;
    let written = Written { strategy: &plan.strategy, source: plan.strategy_source.as_ref() };
    fleet::strategy::validate(written)?;
    let exchange = written_exchange(&written, false)?;
    let workers = fleet.worker_num();
    let own = if fleet.is_worker() { fleet.worker_index() } else { 0 };
    let batch = match exchange.is_sync() {
        true if job.train.batch % workers != 0 => {
            return Err(Error::invalid("the batch does not divide among the workers")
                .expected(format!("a multiple of {workers}"))
                .got(job.train.batch)
                .at("train.batch")
                .into());
        }
        true => job.train.batch / workers,
        false => job.train.batch,
    };
    let steps = job.train.epochs * plan.steps_per_epoch(workers as u64, batch);

    let net = Net::new();
    let outputs = build(&net, &plan.features, job, TablePlace::Servers);
    let names = OutputNames::of(&outputs);
    let loss = outputs.loss;
    // A schedule follows the steps of all workers, or a worker's own steps in GEO.
    let scheduled = match exchange.is_sync() || exchange.is_geo() {
        true => steps,
        false => steps * workers as u64,
    };
    let distributed = fleet.distributed_optimizer(optimizer(job, scheduled), &plan.strategy);
    let sources = plan.strategy_source.iter().cloned();
    let distributed = sources.fold(distributed, |it, source| it.read_from(source));
    let found = distributed.minimize_on_servers(&net, loss)?;
    if fleet.is_server() {
        let server = fleet.init_server(&found)?;
        let count = text::counted(found.tables.tables.len(), "table");
        out.line(format!("serving {count} at {}, {}", server.address(), exchange.name()))?;
        out.flush()?;
        return Ok(server.run()?);
    }
    let mut worker = fleet.init_worker(net.build()?, &found, plan.options.clone())?;
    let dense: usize = found.plan.tables.dense.iter().map(|table| table.len).sum();
    let tables = plan.features.tables();
    let rows: f64 = tables.iter().map(|table| (table.rows * table.dim) as f64).sum();
    plan.describe(fleet, dense as f64 + rows, out)?;

    let share = Share { own: own as u64, of: workers as u64 };
    let mut train = plan.rows(Part::Train, share, batch)?;
    let mut valid = None;
    let mut trainer = plan.trainer(fleet, &names).steps(steps).look_ahead(false);
    let every_steps = Some(job.train.checkpoint_every.unwrap_or(steps.div_ceil(CHECKPOINTS)));
    let policy = CheckpointPolicy { every_steps, every: None, keep_last: super::CHECKPOINTS_KEPT };
    trainer = trainer.checkpoints(plan.checkpoints(), policy);
    if job.data.validation.is_some() {
        let (evaluation, every) = plan.validation(&names);
        // Workers that do not wait for each other validate alone.
        let share = if exchange.is_sync() { share } else { Share::ALL };
        let rows = plan.rows(Part::Validation, share, batch)?;
        let validation = valid.insert(rows).source(Part::Validation);
        trainer = trainer.validate(evaluation, validation, every).goal(plan.goal());
        trainer = job.train.early_stop.into_iter().fold(trainer, |it, stop| it.early_stop(stop));
    }
    let first = fleet.is_first_worker();
    if first {
        plan.save_job()?;
    }
    let trained = trainer.run(&mut worker, train.source(Part::Train))?;
    trained.wait(&worker, 1)?;
    worker.flush()?;
    if first {
        if let Some(best) = &trained.best {
            let folder = plan.checkpoints().join("best");
            let newest = newest_in(&folder, best.step);
            if let Some(newest) = newest {
                worker.load_persistables(&newest)?;
                worker.adopt_loaded(&newest)?;
            }
        }
        let program = plan.folder.join(PROGRAM_FOLDER);
        worker.save_inference_model(
            &program,
            &[&names.scores],
            SaveMode::All,
            SaveFormat::Binary,
        )?;
        plan.report(&trained, begin, out)?;
    }
    // Servers must stay until the first worker has saved and reported.
    trained.wait(&worker, 2)?;
    worker.stop()?;
    if first {
        plan.remove_checkpoints()?;
    }
    Ok(())
}

/// Checkpoints of a training, without train.checkpoint_every.
const CHECKPOINTS: u64 = 10;

/// Returns the checkpoint of a step in a folder.
fn newest_in(folder: &std::path::Path, step: u64) -> Option<std::path::PathBuf> {
    let path = folder.join(format!("step-{step:012}"));
    path.is_dir().then_some(path)
}

fn check_supported(plan: &TrainPlan) -> Result<(), Error> {
    let job = &plan.job;
    let unsupported = |what: &str, at: &str| {
        Error::unsupported(format!("{what} is not supported on parameter servers"))
            .at(at)
            .help("train data parallel: fleetrun --nproc_per_node 2 job:FILE")
    };
    if job.train.optimizer.kind == "adamw" {
        return Err(unsupported("the optimizer adamw", "train.optimizer.kind"));
    }
    if job.train.warm_start.is_some() {
        return Err(unsupported("a warm start", "train.warm_start"));
    }
    if job.model.batch_norm {
        return Err(unsupported(
            "batch normalization, whose statistics would stay on each worker,",
            "model.batch_norm",
        ));
    }
    if job.tables.weight_decay > 0.0 {
        return Err(unsupported("regularization of embeddings", "tables.weight_decay"));
    }
    Ok(())
}
