//! Training on parameter servers: embeddings are sparse tables, all other parameters are dense.
//!
//! Synchronous workers divide each batch. In other modes each worker trains batches of its own.

use super::{OutputNames, TrainPlan, share_of_batch};
use crate::closing::ClosingReport;
use crate::lines::Lines;
use crate::model::{TablePlace, build};
use crate::optimizer::{optimizer, single_optimizer};
use crate::rows::Share;
use crate::split::Part;
use fleet::nn::Net;
use fleet::ps::{Durability, SaveFormat, SaveMode};
use fleet::servers::{Exchange, Worker, written_exchange};
use fleet::strategy::Written;
use fleet::trainer::Trained;
use fleet::{CheckpointPolicy, Error, Fleet};
use fleet_base::file::make_folder;
use fleet_base::output::ExitReason;
use fleet_base::text;
use std::time::Instant;

pub fn run(
    plan: &TrainPlan,
    fleet: &Fleet,
    out: &mut Lines<'_>,
    begin: Instant,
) -> Result<(), ExitReason> {
    check_supported(plan)?;
    let part = WorkerPart::new(plan, fleet)?;
    let net = Net::new();
    let outputs = build(&net, &plan.features, &plan.job, TablePlace::Servers);
    let names = OutputNames::of(&outputs);
    let rule = match part.exchange.is_geo() {
        true => single_optimizer(&net, &plan.job, part.steps_scheduled())?,
        false => optimizer(&plan.job, part.steps_scheduled()),
    };
    let distributed = fleet.distributed_optimizer(rule, &plan.strategy);
    let sources = plan.strategy_source.iter().cloned();
    let distributed = sources.fold(distributed, |it, source| it.read_from(source));
    let found = distributed.minimize_on_servers(&net, outputs.loss)?;
    if fleet.is_server() {
        let server = match &plan.flags.durable {
            Some(folder) => fleet.init_durable_server(&found, Durability::in_folder(folder))?,
            None => fleet.init_server(&found)?,
        };
        let count = text::counted(found.tables.tables.len(), "table");
        out.line(format!("serving {count} at {}, {}", server.address(), part.exchange.name()))?;
        out.flush()?;
        return Ok(server.run()?);
    }
    let mut worker = fleet.init_worker(net.build()?, &found, plan.options.clone())?;
    let dense: usize = found.plan.tables.dense.iter().map(|table| table.len).sum();
    let tables = plan.features.tables();
    let rows: f64 = tables.iter().map(|table| (table.rows * table.dim) as f64).sum();
    let batches = format!(
        "{} on {}, batches of {} on each of {}",
        part.exchange.name(),
        text::counted(fleet.server_num().max(1), "server"),
        part.batch,
        text::counted(fleet.worker_num(), "worker"),
    );
    plan.describe(dense as f64 + rows, &batches, out)?;
    let is_first = fleet.is_first_worker();
    if is_first {
        make_folder(&plan.folder)?;
    }
    let (trained, closing) = train(plan, &part, &names, fleet, (&mut worker, begin))?;
    if is_first {
        load_best(plan, &trained, &mut worker)?;
        let saved = plan.replace_model(|folder| {
            let (mode, format) = (SaveMode::All, SaveFormat::Binary);
            worker.save_inference_model(folder, &names.targets(), mode, format).map(drop)
        });
        saved.map_err(|error| {
            error.or_help("all machines of the job must see the model folder (--output FOLDER)")
        })?;
        for (what, text) in closing.facts() {
            plan.fact(what, &text, out)?;
        }
        plan.fact("pushes", &closing.pushes(), out)?;
        plan.fact("whole", &format!("{:.1} s", begin.elapsed().as_secs_f64()), out)?;
        plan.report(&trained, out)?;
    }
    // Servers must stay until the first worker has saved and reported.
    trained.wait(&worker, 2)?;
    worker.stop()?;
    if is_first {
        plan.drop_checkpoints()?;
    }
    Ok(())
}

/// This worker's part of the training.
struct WorkerPart {
    exchange: Exchange,
    share: Share,
    /// Rows of a step of this worker.
    batch: usize,
    /// Steps of this worker.
    steps: u64,
}

impl WorkerPart {
    fn new(plan: &TrainPlan, fleet: &Fleet) -> Result<WorkerPart, Error> {
        let written = Written { strategy: &plan.strategy, source: plan.strategy_source.as_ref() };
        fleet::strategy::validate(written)?;
        let exchange = written_exchange(&written, false)?;
        let workers = fleet.worker_num();
        let own = if fleet.is_worker() { fleet.worker_index() } else { 0 };
        let batch = match exchange.is_sync() {
            true => share_of_batch(plan.job.train.batch, workers)?,
            false => plan.job.train.batch,
        };
        let steps = plan.job.train.epochs * plan.steps_per_epoch(workers as u64, batch);
        let share = Share { own: own as u64, of: workers as u64 };
        Ok(WorkerPart { exchange, share, batch, steps })
    }

    /// Returns the steps of a schedule of the learning rate: those of all workers, or a worker's
    /// own steps in GEO.
    fn steps_scheduled(&self) -> u64 {
        match self.exchange.is_sync() || self.exchange.is_geo() {
            true => self.steps,
            false => self.steps * self.share.of,
        }
    }
}

fn train(
    plan: &TrainPlan,
    part: &WorkerPart,
    names: &OutputNames,
    fleet: &Fleet,
    (worker, begin): (&mut Worker, Instant),
) -> Result<(Trained, ClosingReport), Error> {
    let (job, steps) = (&plan.job, part.steps);
    let negatives = plan.negatives(part.share.own)?;
    let negatives = negatives.as_ref();
    let mut train = plan.rows(Part::Train, part.share, part.batch)?;
    let mut valid = None;
    let mut trainer = plan.trainer(fleet, names).steps(steps).look_ahead(false);
    if let Some(folder) = &plan.checkpoints {
        let every_steps = Some(job.train.checkpoint_every.unwrap_or(steps.div_ceil(CHECKPOINTS)));
        let keep_last = super::CHECKPOINTS_KEPT;
        let policy = CheckpointPolicy { every_steps, every: None, keep_last };
        trainer = trainer.checkpoints(folder, policy);
    }
    if job.data.validation.is_some() {
        let (evaluation, every) = plan.validation(names);
        // Workers that do not wait for each other validate alone.
        let share = if part.exchange.is_sync() { part.share } else { Share::ALL };
        let rows = plan.rows(Part::Validation, share, part.batch)?;
        let validation = valid.insert(rows).source(Part::Validation, negatives);
        trainer = trainer.validate(evaluation, validation, every).goal(plan.goal());
        trainer = job.train.early_stop.into_iter().fold(trainer, |it, stop| it.early_stop(stop));
    }
    let seen = worker.workers()?;
    // Other workers may be a step ahead of a worker that has made none.
    let is_first_process = seen.get(fleet.worker_index()).is_none_or(|own| own.steps == 0);
    let steps_at_begin =
        if is_first_process { 0 } else { seen.iter().map(|seen| seen.steps).sum() };
    let seconds_before = begin.elapsed().as_secs_f64();
    let trained = trainer.run(&mut *worker, train.source(Part::Train, negatives))?;
    trained.wait(worker, 1)?;
    let seconds = begin.elapsed().as_secs_f64() - seconds_before;
    // Pull again, to include gradients that the other workers have sent since.
    worker.flush()?;
    let workers = part.share.of;
    let all = (plan.counts.train * job.train.epochs) as f64;
    let rows = all / (steps * workers) as f64;
    let before = trained.steps_before as f64 * rows;
    let planned = (all - before).max(0.0);
    let (seen, stats) = (worker.workers()?, worker.stats());
    let closing = ClosingReport { rows, planned, before, steps_at_begin, seconds, seen, stats };
    Ok((trained, closing))
}

/// Loads the best model of the validations into the servers.
fn load_best(plan: &TrainPlan, trained: &Trained, worker: &mut Worker) -> Result<(), Error> {
    let Some(best) = &trained.best else { return Ok(()) };
    let Some(checkpoints) = &plan.checkpoints else { return Ok(()) };
    let folder = checkpoints.join("best").join(format!("step-{:012}", best.step));
    if folder.is_dir() {
        worker.load_persistables(&folder)?;
        worker.adopt_loaded(&folder)?;
    }
    Ok(())
}

/// Checkpoints of a training, without train.checkpoint_every.
const CHECKPOINTS: u64 = 10;

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
    if job.model.has_batch_norm {
        return Err(unsupported(
            "batch normalization, whose statistics would stay on each worker,",
            "model.norm",
        ));
    }
    if job.tables.weight_decay + job.tables.linear_decay.unwrap_or(0.0) > 0.0 {
        return Err(unsupported("regularization of embeddings", "tables.weight_decay"));
    }
    Ok(())
}
